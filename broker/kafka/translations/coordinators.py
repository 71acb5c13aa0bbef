"""FindCoordinator: the coordinators of groups and transactional ids, as this listener's clients reach them.

    key                  below version 4: one
    coordinator_keys     from version 4 on: many, each with an error of its own

Share groups (key type 2) are not served: INVALID_REQUEST."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_MANY_SINCE = 4


def _keys(call: KafkaCall) -> list[str]:
    keys: list[str] = [call.fields.key] if call.version < _MANY_SINCE else call.fields.coordinator_keys
    return keys


def _to_ours(call: KafkaCall) -> FindCoordinatorRequest:
    return FindCoordinatorRequest(_keys(call), call.fields.get("key_type", 0))


def _to_kafka(call: KafkaCall, body: FindCoordinatorResponse) -> dict[str, Any]:
    return _fields(call, body.coordinators, body.throttle_time_ms)


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    return _fields(call, [Coordinator(key, error_code=code, error_message=message) for key in _keys(call)], 0)


def _fields(call: KafkaCall, coordinators: list[Coordinator], throttle_time_ms: int) -> dict[str, Any]:
    rows = [_row(found) for found in coordinators]
    if call.version < _MANY_SINCE:
        return {"throttle_time_ms": throttle_time_ms, **rows[0]}
    keyed = [{"key": found.key, **row} for found, row in zip(coordinators, rows, strict=True)]
    return {"throttle_time_ms": throttle_time_ms, "coordinators": keyed}


def _row(found: Coordinator) -> dict[str, Any]:
    return {
        "error_code": found.error_code,
        "error_message": found.error_message,
        "node_id": found.node_id,
        "host": found.host,
        "port": found.port,
    }


APIS = (KafkaApi(10, "FindCoordinator", apis.FIND_COORDINATOR, 0, 6, _to_ours, _to_kafka, _refused),)
