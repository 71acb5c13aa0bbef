"""The decisions about access rules: CreateAcls and DeleteAcls (Kafka's AclControlManager).

Each rule and each filter of a request has a result of its own; the changes of one request are one batch. The creation of a rule
that exists already has no effect. A deletion that would remove too many rules is refused as a whole: a client would easily
overlook that only a part was removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from strandline.controller.decision import Decision
from strandline.controller.metadata.features import require_level
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import RemoveAccessControlEntryRecord
from strandline.controller.metadata.security.acls import (
    Acl,
    canonical_acl,
    canonical_host,
    checked_filter,
    is_exact,
    matching,
)
from strandline.controller.request_limits import CHANGES_MAX, check_amount
from strandline.protocol.doors import new_uuid
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages import security as s
from strandline.protocol.messages.security import (
    AclBinding,
    AclResult,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteAclsResult,
)
from strandline.protocol.security.acl_names import OPERATION_NAMES, PATTERN_TYPE_NAMES, PERMISSION_NAMES, RESOURCE_TYPE_NAMES
from strandline.protocol.security.principal import Principal

COMPARISONS_MAX = 400_000
"""The most comparisons of rules with several filters of one request: about 0.2 s, in which the controller does nothing else."""
LEVEL = 2
"""The level of the metadata that the records need."""

OPERATIONS = {
    s.TOPIC_RESOURCE: (s.READ, s.WRITE, s.CREATE, s.DELETE, s.ALTER, s.DESCRIBE, s.DESCRIBE_CONFIGS, s.ALTER_CONFIGS),
    s.GROUP_RESOURCE: (s.READ, s.DELETE, s.DESCRIBE, s.DESCRIBE_CONFIGS, s.ALTER_CONFIGS),
    s.CLUSTER_RESOURCE: (
        s.CREATE,
        s.ALTER,
        s.DESCRIBE,
        s.CLUSTER_ACTION,
        s.DESCRIBE_CONFIGS,
        s.ALTER_CONFIGS,
        s.IDEMPOTENT_WRITE,
    ),
    s.TRANSACTIONAL_ID_RESOURCE: (s.WRITE, s.DESCRIBE),
    s.USER_RESOURCE: (),
}
"""Resource type -> the operations that it has besides ALL (Kafka's AclEntry.supportedOperations)."""


class AclControl:
    """Decides about rules; `random` gives the ids of new ones."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def create_acls(self, image: MetadataImage, request: CreateAclsRequest) -> Decision[CreateAclsResponse]:
        """Add rules. A result is INVALID_REQUEST if its rule is malformed. Raises BrokerError UNSUPPORTED_VERSION, and
        POLICY_VIOLATION for too many rules."""
        require_level(LEVEL, image.feature_level, "access rules")
        check_amount(len(request.creations), "create", "access rules")
        decision, added = Decision(CreateAclsResponse([])), dict[Acl, None]()
        for binding in request.creations:
            try:
                acl = checked(binding)
            except BrokerError as e:
                decision.reply.results.append(AclResult(e.code, e.message))
                continue
            decision.reply.results.append(AclResult())
            if acl not in image.acl_ids and acl not in added:
                added[acl] = None
                decision.records.append(acl.record(self._new_id(image)))
        return decision

    def _new_id(self, image: MetadataImage) -> bytes:
        while (acl_id := new_uuid(self._random)) in image.acls:
            pass
        return acl_id


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Decision[DeleteAclsResponse]:
    """Remove the rules that the filters select. A rule that several filters select is in the result of each. A result is
    INVALID_REQUEST if its filter is malformed. Raises BrokerError UNSUPPORTED_VERSION, INVALID_REQUEST for too many rules, and
    POLICY_VIOLATION for too many filters."""
    require_level(LEVEL, image.feature_level, "access rules")
    check_amount(len(request.filters), "name", "filters")
    _check_effort(image, request)
    decision, removed = Decision(DeleteAclsResponse([])), dict[bytes, None]()
    for wanted in request.filters:
        try:
            found = matching(image.acl_ids, checked_filter(wanted))
        except BrokerError as e:
            decision.reply.results.append(DeleteAclsResult(e.code, e.message))
            continue
        decision.reply.results.append(DeleteAclsResult(deleted=[acl.binding for acl in found]))
        removed.update((image.acl_ids[acl], None) for acl in found)
        if len(removed) > CHANGES_MAX:
            raise BrokerError(
                ErrorCode.INVALID_REQUEST,
                f"one request may delete at most {CHANGES_MAX} access rules, and these filters select more: nothing was deleted",
            )
    decision.records += [RemoveAccessControlEntryRecord(acl_id) for acl_id in removed]
    return decision


def _check_effort(image: MetadataImage, request: DeleteAclsRequest) -> None:
    inexact = sum(not is_exact(wanted) for wanted in request.filters)
    if inexact > 1 and inexact * len(image.acls) > COMPARISONS_MAX:
        raise BrokerError(
            ErrorCode.POLICY_VIOLATION,
            f"{inexact} filters that may select several of {len(image.acls)} access rules are too many for one request: send "
            "fewer at a time",
        )


def checked(binding: AclBinding) -> Acl:
    """The rule in its canonical form. Raises BrokerError INVALID_REQUEST with the reason if it is malformed."""
    reason = _fault_of_pattern(binding) or _fault_of_entry(binding)
    if reason is not None:
        raise BrokerError(ErrorCode.INVALID_REQUEST, reason)
    if canonical_host(binding.host) is None:
        raise BrokerError(
            ErrorCode.INVALID_REQUEST,
            f"{binding.host!r} is not a host of an access rule: it is *, an address, or a network such as 10.0.0.0/8",
        )
    return canonical_acl(binding)


def _fault_of_pattern(binding: AclBinding) -> str | None:
    kind = binding.resource_type
    if kind not in RESOURCE_TYPE_NAMES:
        return f"resource type {kind} is not one that a rule can be for: {_listed(RESOURCE_TYPE_NAMES)}"
    if binding.pattern_type not in PATTERN_TYPE_NAMES:
        return f"pattern type {binding.pattern_type} is not one that a rule can have: {_listed(PATTERN_TYPE_NAMES)}"
    if not binding.resource_name:
        return "the name of the resource must not be empty; * is every resource of the type"
    if kind == s.CLUSTER_RESOURCE and binding.resource_name != s.CLUSTER_NAME:
        return f"the only resource of type CLUSTER is {s.CLUSTER_NAME}, not {binding.resource_name!r}"
    return None


def _fault_of_entry(binding: AclBinding) -> str | None:
    kind, operation = binding.resource_type, binding.operation
    if operation not in OPERATION_NAMES:
        return f"operation {operation} is not one that a rule can be for: {_listed(OPERATION_NAMES)}"
    if operation not in (s.ALL, *OPERATIONS[kind]):
        fitting = ", ".join(OPERATION_NAMES[each] for each in (s.ALL, *OPERATIONS[kind]))
        return f"a {RESOURCE_TYPE_NAMES[kind]} does not have the operation {OPERATION_NAMES[operation]}: it has {fitting}"
    if binding.permission_type not in PERMISSION_NAMES:
        return f"permission type {binding.permission_type} is not one that a rule can have: {_listed(PERMISSION_NAMES)}"
    try:
        Principal.parse(binding.principal)
    except UsageError as e:
        return str(e)
    return None


def _listed(names: Mapping[int, str]) -> str:
    return ", ".join(f"{name} ({number})" for number, name in names.items())
