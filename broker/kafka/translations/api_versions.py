"""ApiVersions: the APIs, versions and features that the listener serves.

A request in a version that is not served is answered with version 0 of the response: UNSUPPORTED_VERSION, and the versions of
this API alone, so that the client asks again (KIP-511).
Features whose lowest level is 0 are left out below version 4: older clients cannot read them (KIP-1011)."""

from __future__ import annotations

import re
from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.codec import Fields
from strandline.protocol.apis import API_VERSIONS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
TRANSACTION_VERSION = "transaction.version"
_TRANSACTION_LEVEL = 2
"""The transactions of a broker are those of KIP-890."""


def _to_ours(call: KafkaCall) -> ApiVersionsRequest:
    if call.version >= 3 and not (
        _SOFTWARE.fullmatch(call.fields.client_software_name) and _SOFTWARE.fullmatch(call.fields.client_software_version)
    ):
        names = "client_software_name and client_software_version"
        rule = "may contain only letters, digits, '-' and '.', and must begin and end with a letter or a digit"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{names} {rule}")
    return ApiVersionsRequest()


def _range(api: KafkaApi) -> dict[str, Any]:
    lowest = api.min_version if api.advertised_min < 0 else api.advertised_min
    return {"api_key": api.key, "min_version": lowest, "max_version": api.max_version}


def _fields(call: KafkaCall, body: ApiVersionsResponse) -> dict[str, Any]:
    server: Any = call.connection.server
    level = _TRANSACTION_LEVEL
    supported = [{"name": TRANSACTION_VERSION, "min_version": 0, "max_version": level}] if call.version >= 4 else []
    finalized = [{"name": TRANSACTION_VERSION, "max_version_level": level, "min_version_level": level}]
    return {
        "error_code": ErrorCode.NONE,
        "api_keys": [_range(api) for api in server.advertised()],
        "throttle_time_ms": body.throttle_time_ms,
        "supported_features": supported,
        "finalized_features_epoch": body.finalized_features_epoch,
        "finalized_features": finalized if body.finalized_features_epoch >= 0 else [],
    }


def _unknown_version(call: KafkaCall, body: ApiVersionsResponse) -> dict[str, Any]:
    return {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": [_range(API)]}


def _skip(call: KafkaCall, frame: bytearray, at: int) -> Fields:
    return Fields()


def _any_version(call: KafkaCall) -> ApiVersionsRequest:
    return ApiVersionsRequest()


API = KafkaApi(18, "ApiVersions", API_VERSIONS, 0, 4, _to_ours, _fields, refused_at_top)
UNKNOWN_API_VERSIONS = KafkaApi(18, "ApiVersions", API_VERSIONS, 0, 0, _any_version, _unknown_version, refused_at_top, read=_skip)
APIS = (API,)
