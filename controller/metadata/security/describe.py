"""The answers to DescribeAcls, DescribeUserScramCredentials and DescribeClientQuotas, from an image.

They are in a fixed order, and hold nothing secret: of a credential only the mechanism and the iterations. Errors of the whole
request are raised.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.acls import checked_filter, matching
from strandline.controller.metadata.security.quotas import QuotaEntity, canonical_address, entity_order
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.security import (
    ANY_MATCH,
    CLIENT_ID_ENTITY,
    DEFAULT_MATCH,
    EXACT_MATCH,
    IP_ENTITY,
    USER_ENTITY,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    QuotaEntityPart,
    QuotaEntry,
    QuotaFilterPart,
    QuotaValue,
    ScramCredentialInfo,
    UserScramCredentials,
)


def check_authorizer(has_authorizer: bool) -> None:
    """Raise BrokerError SECURITY_DISABLED if the node has no authorizer: then access rules would have no effect."""
    if not has_authorizer:
        raise BrokerError(
            ErrorCode.SECURITY_DISABLED,
            "this cluster has no authorizer, so access rules would have no effect: set authorizer.class.name on every node",
        )


def describe_acls(image: MetadataImage, request: DescribeAclsRequest) -> DescribeAclsResponse:
    """The rules that the filter selects. Raises BrokerError INVALID_REQUEST."""
    found = matching(image.acl_ids, checked_filter(request.filter))
    return DescribeAclsResponse(0, None, [acl.binding for acl in found])


# -- SCRAM credentials ------------------------------------------------------------------------------------------------


def describe_scram_credentials(
    image: MetadataImage, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """The credentials of the named users, or of all users if none is named. A user's error is RESOURCE_NOT_FOUND, or
    DUPLICATE_RESOURCE."""
    known: dict[str, list[ScramCredentialInfo]] = {}
    for user, mechanism in sorted(image.scram_credentials):
        iterations = image.scram_credentials[user, mechanism].iterations
        known.setdefault(user, []).append(ScramCredentialInfo(mechanism, iterations))
    asked = Counter(request.users or list(known))
    users = [_described(user, times, known.get(user)) for user, times in asked.items()]
    return DescribeUserScramCredentialsResponse(0, None, users)


def _described(user: str, times: int, found: list[ScramCredentialInfo] | None) -> UserScramCredentials:
    if times > 1:
        return UserScramCredentials(user, ErrorCode.DUPLICATE_RESOURCE, f"the request names user {user!r} twice")
    if found is None:
        return UserScramCredentials(user, ErrorCode.RESOURCE_NOT_FOUND, f"user {user!r} has no SCRAM credential")
    return UserScramCredentials(user, credentials=found)


# -- client quotas ----------------------------------------------------------------------------------------------------


def describe_client_quotas(image: MetadataImage, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
    """The quotas of each entity that has every part that the filter names; with `strict`, and no other part. Raises BrokerError
    INVALID_REQUEST, and UNSUPPORTED_VERSION for an unknown type of entity."""
    wanted = _checked_filters(request.filters)
    found = (entity for entity in image.client_quotas if _matches(dict(entity), wanted, strict=request.strict))
    entries = [_entry(entity, image.client_quotas[entity]) for entity in sorted(found, key=entity_order)]
    return DescribeClientQuotasResponse(0, None, entries)


def _checked_filters(filters: Iterable[QuotaFilterPart]) -> dict[str, QuotaFilterPart]:
    """The parts of the filter by entity type, with addresses in their canonical form."""
    wanted: dict[str, QuotaFilterPart] = {}
    for part in filters:
        kind = part.entity_type
        if not kind:
            raise BrokerError(ErrorCode.INVALID_REQUEST, "the type of a quota entity must not be empty")
        if kind not in (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY):
            text = f"there is no quota entity {kind!r}: there are {USER_ENTITY}, {CLIENT_ID_ENTITY} and {IP_ENTITY}"
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, text)
        if kind in wanted:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"the filter names {kind} twice")
        wanted[kind] = _checked_filter(part)
    if IP_ENTITY in wanted and len(wanted) > 1:
        text = f"no quota has an {IP_ENTITY} and a {USER_ENTITY} or {CLIENT_ID_ENTITY}, so a filter cannot name both"
        raise BrokerError(ErrorCode.INVALID_REQUEST, text)
    return wanted


def _checked_filter(part: QuotaFilterPart) -> QuotaFilterPart:
    kind, match = part.entity_type, part.match
    if part.match_type not in (EXACT_MATCH, DEFAULT_MATCH, ANY_MATCH):
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"match type {part.match_type} of {kind} is unknown")
    if (part.match_type == EXACT_MATCH) != (match is not None):
        fault = "needs a name" if match is None else f"takes no name, but has {match!r}"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"match type {part.match_type} of {kind} {fault}")
    if kind == IP_ENTITY and match is not None:
        return QuotaFilterPart(kind, part.match_type, canonical_address(match) or match)
    return part


def _matches(entity: dict[str, str | None], wanted: dict[str, QuotaFilterPart], *, strict: bool) -> bool:
    if strict and len(entity) != len(wanted):
        return False
    return all(kind in entity and _matches_part(entity[kind], part) for kind, part in wanted.items())


def _matches_part(name: str | None, part: QuotaFilterPart) -> bool:
    """The filter for a default has no name, like the default itself."""
    return part.match_type == ANY_MATCH or name == part.match


def _entry(entity: QuotaEntity, values: dict[str, float]) -> QuotaEntry:
    parts = [QuotaEntityPart(kind, name) for kind, name in entity]
    return QuotaEntry(parts, [QuotaValue(key, value) for key, value in sorted(values.items())])
