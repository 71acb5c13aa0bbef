"""SASL without heads: after SaslHandshake version 0, each frame is one token of the mechanism, in both directions.

This lasts until the client is authenticated. A failure closes the connection, because a token has no field for an error."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.codec import Fields
from strandline.broker.kafka.heads import raw_frame
from strandline.protocol.apis import SASL_AUTHENTICATE
from strandline.protocol.errors import ErrorCode
from strandline.protocol.frames import Buffer, Records
from strandline.protocol.messages.security import SaslAuthenticateRequest


def _read(call: KafkaCall, frame: bytearray, at: int) -> Fields:
    return Fields(auth_bytes=bytes(frame[at:]))


def _to_ours(call: KafkaCall) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(call.fields.auth_bytes)


def _write(call: KafkaCall, body: Any, records: Records | None) -> list[Buffer]:
    if body.error_code:
        call.connection.close()
        return []
    return raw_frame(body.auth_bytes)


def _refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    call.connection.close()  # so that these fields are not sent
    return refused_at_top(call, code, message)


def _no_fields(call: KafkaCall, body: Any) -> dict[str, Any]:
    raise AssertionError("raw tokens have no fields")


RAW_SASL = KafkaApi(36, "SASL token", SASL_AUTHENTICATE, 0, 0, _to_ours, _no_fields, _refused, read=_read, write=_write)
