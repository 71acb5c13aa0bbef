"""Describes ACLs, SCRAM credentials and client quotas, from the metadata image of the broker.

The broker forwards changes of them to the controller (`broker/admin.py`), and answers when its own image has the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.acls import Acl, canonical_acl
from strandline.controller.metadata.security.describe import (
    check_authorizer,
    describe_acls,
    describe_client_quotas,
    describe_scram_credentials,
)
from strandline.controller.metadata.security.quotas import canonical_entity
from strandline.protocol import apis
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsResponse,
)
from strandline.protocol.rpc.server import Handler, ServerRequest

Condition = Callable[[MetadataImage], bool]

FORWARDED = (apis.CREATE_ACLS, apis.DELETE_ACLS, apis.ALTER_USER_SCRAM_CREDENTIALS, apis.ALTER_CLIENT_QUOTAS)
"""The requests that the controller decides."""


def describe_handlers(image: Callable[[], MetadataImage], *, has_authorizer: bool) -> dict[int, Handler]:
    """Api key -> handler. `image`: returns the published image, or raises a `BrokerError` while the broker starts. Without an
    authorizer, DescribeAcls is refused."""

    def answer(describe: Callable[[MetadataImage, Any], Message]) -> Handler:
        def handle(request: ServerRequest) -> None:
            request.reply(describe(image(), request.body))

        return handle

    def acls(image: MetadataImage, body: Any) -> Message:
        check_authorizer(has_authorizer)
        return describe_acls(image, body)

    return {
        apis.DESCRIBE_ACLS: answer(acls),
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS: answer(describe_scram_credentials),
        apis.DESCRIBE_CLIENT_QUOTAS: answer(describe_client_quotas),
    }


# -- when is a change visible in an image? ----------------------------------------------------------------------------


def visible(body: Message, response: Message) -> Condition | None:
    """The condition that an image fulfils once it has the controller's decision; None if the request is not about security."""
    if isinstance(body, CreateAclsRequest) and isinstance(response, CreateAclsResponse):
        pairs = zip(body.creations, response.results, strict=True)
        added = [canonical_acl(binding) for binding, result in pairs if not result.error_code]
        return lambda image: all(acl in image.acl_ids for acl in added)
    if isinstance(response, DeleteAclsResponse):
        removed = [Acl.of(binding) for result in response.results for binding in result.deleted]
        return lambda image: not any(acl in image.acl_ids for acl in removed)
    if isinstance(body, AlterUserScramCredentialsRequest) and isinstance(response, AlterUserScramCredentialsResponse):
        return _credentials_visible(body, response)
    if isinstance(body, AlterClientQuotasRequest) and isinstance(response, AlterClientQuotasResponse):
        return _quotas_visible(body, response)
    return None


def _credentials_visible(body: AlterUserScramCredentialsRequest, response: AlterUserScramCredentialsResponse) -> Condition:
    failed = {result.user for result in response.results if result.error_code}
    gone = [(d.user, d.mechanism) for d in body.deletions if d.user not in failed]
    salts = {(u.user, u.mechanism): u.salt for u in body.upsertions if u.user not in failed}

    def has(image: MetadataImage) -> bool:
        known = image.scram_credentials
        present = (found is not None and found.salt == salt for key, salt in salts.items() for found in [known.get(key)])
        return not any(key in known for key in gone) and all(present)

    return has


def _quotas_visible(body: AlterClientQuotasRequest, response: AlterClientQuotasResponse) -> Condition:
    values = [
        (canonical_entity((part.entity_type, part.name) for part in entry.entity), operation.key, operation.value)
        for entry, result in zip(body.entries, response.results, strict=True)
        if not result.error_code
        for operation in entry.operations
    ]
    return lambda image: all((image.client_quotas.get(entity) or {}).get(key) == value for entity, key, value in values)
