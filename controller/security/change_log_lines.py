"""Logs the controller's decisions about access rules, credentials and quotas. No line has a secret."""

from __future__ import annotations

from strandline.controller.metadata.image import MetadataDelta
from strandline.controller.metadata.security.acls import Acl
from strandline.controller.metadata.security.changes import UserMechanism
from strandline.controller.metadata.security.quotas import entity_text
from strandline.controller.security.scram_control import MECHANISMS
from strandline.protocol.loggers import get_logger
from strandline.protocol.security.acl_names import PATTERN_TYPE_NAMES, PERMISSION_NAMES, operation_name, resource_name

logger = get_logger(__name__)

LINES_MAX = 100
"""If a batch changes more than this, its changes share a line."""


def log_security_changes(delta: MetadataDelta) -> None:
    """Log one batch: a line for each rule, credential and quota entity."""
    acls, credentials, entities = delta.changed_acls, delta.changed_scram_credentials, delta.changed_client_quotas
    if len(acls) + len(credentials) + len(entities) > LINES_MAX:
        logger.info(
            "security.changed",
            acls=len(acls),
            credentials=len(credentials),
            quota_entities=len(entities),
            metadata_offset=delta.image.offset,
        )
        return
    for acl_id in acls:
        _log_acl(delta, acl_id)
    for credential in credentials:
        _log_credential(delta, credential)
    for entity in entities:
        quotas = delta.image.client_quotas.get(entity) or {}
        logger.info("client_quota.changed", entity=entity_text(entity), quotas=quotas, metadata_offset=delta.image.offset)


def _log_acl(delta: MetadataDelta, acl_id: bytes) -> None:
    added = delta.image.acls.get(acl_id)
    acl: Acl = delta.before.acls[acl_id] if added is None else added
    logger.info(
        "acl.changed",
        removed=added is None,
        permission=PERMISSION_NAMES.get(acl.permission_type, str(acl.permission_type)),
        principal=acl.principal,
        host=acl.host,
        operation=operation_name(acl.operation),
        resource=resource_name(acl.resource_type, acl.resource_name),
        pattern_type=PATTERN_TYPE_NAMES.get(acl.pattern_type, str(acl.pattern_type)),
        metadata_offset=delta.image.offset,
    )


def _log_credential(delta: MetadataDelta, key: UserMechanism) -> None:
    user, mechanism = key[0], MECHANISMS.get(key[1], str(key[1]))
    removed = key not in delta.image.scram_credentials
    logger.info("user.credential_changed", removed=removed, user=user, mechanism=mechanism, metadata_offset=delta.image.offset)
