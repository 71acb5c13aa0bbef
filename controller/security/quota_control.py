"""The decision about client quotas: AlterClientQuotas (KIP-546; Kafka's ClientQuotaControlManager).

Each entry names an entity, and sets or removes keys of it; it has a result of its own. The keys depend on the entity:

    user, client id, or both   producer_byte_rate, consumer_byte_rate (whole bytes per second), request_percentage,
                               controller_mutation_rate
    ip                         connection_creation_rate (whole connections per second)

A value that is set already, and the removal of a key that is not set, have no effect.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.controller.decision import Decision
from strandline.controller.metadata.features import require_level
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, ClientQuotaRecord
from strandline.controller.metadata.security.quotas import QuotaEntity, canonical_address, canonical_entity, entity_text
from strandline.controller.request_limits import check_amount
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.security import (
    CLIENT_ID_ENTITY,
    IP_ENTITY,
    USER_ENTITY,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaOperation,
)

LEVEL = 2
"""The level of the metadata that the records need."""


class _Key(NamedTuple):
    highest: int | None
    is_whole: bool


_INFINITY = float("inf")
_LONG_MAX, _INT_MAX = 2**63 - 1, 2**31 - 1
_BYTE_RATE, _DOUBLE = _Key(_LONG_MAX, True), _Key(None, False)
_KEYS_OF_USERS = {
    "producer_byte_rate": _BYTE_RATE,
    "consumer_byte_rate": _BYTE_RATE,
    "request_percentage": _DOUBLE,
    "controller_mutation_rate": _DOUBLE,
}
_KEYS_OF_ADDRESSES = {"connection_creation_rate": _Key(_INT_MAX, True)}
QUOTA_KEYS = (*_KEYS_OF_USERS, *_KEYS_OF_ADDRESSES)


def alter_client_quotas(image: MetadataImage, request: AlterClientQuotasRequest) -> Decision[AlterClientQuotasResponse]:
    """Set and remove quotas. A result is INVALID_REQUEST if its entry breaks a rule, or names the entity of an earlier entry
    again. Raises BrokerError UNSUPPORTED_VERSION, POLICY_VIOLATION."""
    require_level(LEVEL, image.feature_level, "client quotas")
    check_amount(len(request.entries), "name", "entities")
    check_amount(sum(len(entry.operations) for entry in request.entries), "alter", "quotas")
    decision, seen = Decision(AlterClientQuotasResponse([])), dict[QuotaEntity, None]()
    for entry in request.entries:
        result = AlterClientQuotasResult(0, None, entry.entity)
        decision.reply.results.append(result)
        try:
            entity = checked_entity(entry.entity)
            if entity in seen:
                raise _invalid(f"the request names the entity {entity_text(entity)} twice")
            seen[entity] = None
            records = _records(image, entity, entry)
            decision.records += [] if request.validate_only else records
        except BrokerError as e:
            result.error_code, result.error_message = e.code, e.message
    return decision


def checked_entity(parts: list[QuotaEntityPart]) -> QuotaEntity:
    """The entity of a request in its canonical form. Raises BrokerError INVALID_REQUEST."""
    if not parts:
        raise _invalid("a quota needs an entity: a user, a client id, both of them, or an ip")
    named: dict[str, str | None] = {}
    for part in parts:
        kind, name = part.entity_type, part.name
        if kind not in (USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY):
            raise _invalid(f"there is no quota entity {kind!r}: there are {USER_ENTITY}, {CLIENT_ID_ENTITY} and {IP_ENTITY}")
        if kind in named:
            raise _invalid(f"the entity of a quota has more than one {kind}")
        if name == "":
            raise _invalid(f"the {kind} of a quota must not be empty; the default of all has no name")
        if kind == IP_ENTITY and name is not None and canonical_address(name) is None:
            raise _invalid(f"{name!r} is not an address, so it cannot be the {IP_ENTITY} of a quota")
        named[kind] = name
    if IP_ENTITY in named and len(named) > 1:
        raise _invalid(f"a quota of an {IP_ENTITY} cannot have a {USER_ENTITY} or a {CLIENT_ID_ENTITY}, too")
    return canonical_entity(named.items())


def _records(image: MetadataImage, entity: QuotaEntity, entry: QuotaAlteration) -> list[AnyRecord]:
    current = image.client_quotas.get(entity) or {}
    keys = _KEYS_OF_ADDRESSES if entity[0][0] == IP_ENTITY else _KEYS_OF_USERS
    operations: dict[str, QuotaOperation] = {}
    for operation in entry.operations:
        if operation.key in operations:
            raise _invalid(f"the request names {operation.key} of {entity_text(entity)} twice")
        _check(operation, keys, entity)
        operations[operation.key] = operation
    changed = (o for o in operations.values() if o.value != current.get(o.key))
    return [ClientQuotaRecord(entity, o.key, float(o.value or 0), o.value is None) for o in changed]


def _check(operation: QuotaOperation, keys: dict[str, _Key], entity: QuotaEntity) -> None:
    key, value = operation.key, operation.value
    if key not in QUOTA_KEYS:
        raise _invalid(f"there is no quota {key!r}: there are {', '.join(QUOTA_KEYS)}")
    if key not in keys:
        raise _invalid(f"{entity_text(entity)} cannot have the quota {key}: it can have {', '.join(keys)}")
    if value is None:
        return
    if not 0 < value < _INFINITY:
        raise _invalid(f"quota {key} must be greater than 0, not {value}; without a value it is removed")
    highest = keys[key].highest
    if highest is not None and value > highest:
        raise _invalid(f"quota {key} must not exceed {highest}")
    if keys[key].is_whole and value % 1:
        raise _invalid(f"quota {key} must be a whole number, not {value}")


def _invalid(text: str) -> BrokerError:
    return BrokerError(ErrorCode.INVALID_REQUEST, text)
