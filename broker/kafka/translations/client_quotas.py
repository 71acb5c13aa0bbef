"""DescribeClientQuotas and AlterClientQuotas (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.security import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterClientQuotasResult,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaFilterPart,
    QuotaOperation,
)


def _describe(call: KafkaCall) -> DescribeClientQuotasRequest:
    parts = [QuotaFilterPart(c.entity_type, c.match_type, c.match) for c in call.fields.components]
    return DescribeClientQuotasRequest(parts, call.fields.strict)


def _described(call: KafkaCall, body: DescribeClientQuotasResponse) -> dict[str, Any]:
    entries = [
        {"entity": _entity(entry.entity), "values": [{"key": v.key, "value": v.value} for v in entry.values]}
        for entry in body.entries
    ]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "entries": None if body.error_code else entries,
    }


def _entity(parts: Iterable[QuotaEntityPart]) -> list[dict[str, Any]]:
    return [{"entity_type": part.entity_type, "entity_name": part.name} for part in parts]


def _alter(call: KafkaCall) -> AlterClientQuotasRequest:
    entries = [
        QuotaAlteration(
            [QuotaEntityPart(part.entity_type, part.entity_name) for part in entry.entity],
            [QuotaOperation(op.key, None if op.remove else op.value) for op in entry.ops],
        )
        for entry in call.fields.entries
    ]
    return AlterClientQuotasRequest(entries, call.fields.validate_only)


def _altered(call: KafkaCall, body: AlterClientQuotasResponse) -> dict[str, Any]:
    rows = [{"error_code": r.error_code, "error_message": r.error_message, "entity": _entity(r.entity)} for r in body.results]
    return {"throttle_time_ms": body.throttle_time_ms, "entries": rows}


def _alter_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    results = [AlterClientQuotasResult(code, message, entry.entity) for entry in _alter(call).entries]
    return _altered(call, AlterClientQuotasResponse(results))


APIS = (
    KafkaApi(48, "DescribeClientQuotas", apis.DESCRIBE_CLIENT_QUOTAS, 0, 1, _describe, _described, refused_at_top),
    KafkaApi(49, "AlterClientQuotas", apis.ALTER_CLIENT_QUOTAS, 0, 1, _alter, _altered, _alter_refused),
)
