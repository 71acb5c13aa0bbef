"""The admin client's calls about client quotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.arguments import check_encodes
from strandline.client.quota_types import DEFAULT, QuotaEntity
from strandline.protocol import apis
from strandline.protocol.errors import UsageError
from strandline.protocol.messages import security as messages

_FIELDS = {messages.USER_ENTITY: "user", messages.CLIENT_ID_ENTITY: "client_id", messages.IP_ENTITY: "ip"}
"""Kafka's entity type -> the field of QuotaEntity."""


class QuotaCalls(AdminRequests):
    """Describes and changes quotas. The calls need DESCRIBE_CONFIGS and ALTER_CONFIGS on the cluster."""

    async def describe_client_quotas(
        self, wanted: QuotaEntity | None = None, *, strict: bool = False, timeout_ms: float = 30_000
    ) -> dict[QuotaEntity, dict[str, float]]:
        """The values of each entity's quotas, as the broker that answers knows them. `wanted`: only entities that have these
        parts. With `strict`, they have no other parts; otherwise they may. ClusterAuthorizationFailed; RequestTimeout."""

        def check(response: messages.DescribeClientQuotasResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "DescribeClientQuotas")

        filters = [] if wanted is None else [_filter_of(part) for part in _parts_of(wanted)]
        request = messages.DescribeClientQuotasRequest(filters, strict)
        kind = messages.DescribeClientQuotasResponse
        response = await self._ask(apis.DESCRIBE_CLIENT_QUOTAS, request, kind, check, self._deadline(timeout_ms))
        return {_entity_of(entry.entity): {value.key: value.value for value in entry.values} for entry in response.entries}

    async def alter_client_quotas(
        self,
        entity: QuotaEntity,
        changes: Mapping[str, float | None],
        *,
        validate_only: bool = False,
        timeout_ms: float = 30_000,
    ) -> None:
        """Set quotas of an entity, or remove those whose value is None. The keys are `producer_byte_rate` and
        `consumer_byte_rate` (bytes per second and broker), `request_percentage` (of the time of a broker),
        `controller_mutation_rate` (partitions per second), and `connection_creation_rate` (per second, of an `ip`). Brokers apply
        the new values from the next request on. `validate_only`: check, and change nothing.

        UsageError; ClusterAuthorizationFailed; RequestFailed with `code` INVALID_REQUEST; RequestTimeout."""
        operations = [messages.QuotaOperation(key, _checked(key, value)) for key, value in changes.items()]
        parts = _parts_of(entity)
        if not parts or not operations:
            raise UsageError("to change quotas, name a user, a client id or an ip, and at least one key")
        request = messages.AlterClientQuotasRequest([messages.QuotaAlteration(parts, operations)], validate_only)

        def check(response: messages.AlterClientQuotasResponse, is_retry: bool) -> None:
            for result in response.results:
                check_code(result.error_code, result.error_message, "AlterClientQuotas")

        kind = messages.AlterClientQuotasResponse
        await self._ask(apis.ALTER_CLIENT_QUOTAS, request, kind, check, self._deadline(timeout_ms))


def _checked(key: object, value: object) -> float | None:
    if not isinstance(key, str):
        raise UsageError(f"a quota is named by a str, not {key!r}")
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise UsageError(f"the value of {key} is a number, or None to remove the quota, not {value!r}")
    return None if value is None else float(value)


def _parts_of(entity: QuotaEntity) -> list[messages.QuotaEntityPart]:
    if not isinstance(entity, QuotaEntity):
        raise UsageError(f"quotas belong to a QuotaEntity, not {entity!r}")
    return list(_iter_parts(entity))


def _iter_parts(entity: QuotaEntity) -> Iterator[messages.QuotaEntityPart]:
    for entity_type, field in _FIELDS.items():
        name = getattr(entity, field)
        if name is not None:
            check_encodes(f"the {entity_type} of a quota", name)
            yield messages.QuotaEntityPart(entity_type, None if name == DEFAULT else name)


def _filter_of(part: messages.QuotaEntityPart) -> messages.QuotaFilterPart:
    match_type = messages.DEFAULT_MATCH if part.name is None else messages.EXACT_MATCH
    return messages.QuotaFilterPart(part.entity_type, match_type, part.name)


def _entity_of(parts: Sequence[messages.QuotaEntityPart]) -> QuotaEntity:
    known = {_FIELDS[part.entity_type]: part.name or DEFAULT for part in parts if part.entity_type in _FIELDS}
    return QuotaEntity(**known)
