"""SaslHandshake and SaslAuthenticate, on listeners with SASL.

After a handshake of version 0, the tokens are sent without heads (`raw_sasl.py`)."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


def _handshake(call: KafkaCall) -> SaslHandshakeRequest:
    return SaslHandshakeRequest(call.fields.mechanism)


def _shaken(call: KafkaCall, body: SaslHandshakeResponse) -> dict[str, Any]:
    if call.version == 0 and not body.error_code:
        connection: Any = call.connection
        connection.is_raw_sasl = True
    return {"error_code": body.error_code, "mechanisms": body.mechanisms}


def _authenticate(call: KafkaCall) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(call.fields.auth_bytes)


def _authenticated(call: KafkaCall, body: SaslAuthenticateResponse) -> dict[str, Any]:
    return {
        "error_code": body.error_code,
        "error_message": body.error_message,
        "auth_bytes": body.auth_bytes,
        "session_lifetime_ms": body.session_lifetime_ms,
    }


APIS = (
    KafkaApi(17, "SaslHandshake", apis.SASL_HANDSHAKE, 0, 1, _handshake, _shaken, refused_at_top),
    KafkaApi(36, "SaslAuthenticate", apis.SASL_AUTHENTICATE, 0, 2, _authenticate, _authenticated, refused_at_top),
)
