"""DescribeUserScramCredentials and AlterUserScramCredentials (KIP-554)."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.security import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserScramCredentials,
)


def _describe(call: KafkaCall) -> DescribeUserScramCredentialsRequest:
    """An empty list of users asks for all users, as null does."""
    users = call.fields.users
    return DescribeUserScramCredentialsRequest([user.name for user in users] if users else None)


def _described(call: KafkaCall, body: DescribeUserScramCredentialsResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "results": [_user(user) for user in body.users],
    }


def _user(user: UserScramCredentials) -> dict[str, Any]:
    return {
        "user": user.user,
        "error_code": user.error_code,
        "error_message": user.error_message,
        "credential_infos": [{"mechanism": c.mechanism, "iterations": c.iterations} for c in user.credentials],
    }


def _alter(call: KafkaCall) -> AlterUserScramCredentialsRequest:
    fields = call.fields
    return AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion(d.name, d.mechanism) for d in fields.deletions],
        [ScramCredentialUpsertion(u.name, u.mechanism, u.iterations, u.salt, u.salted_password) for u in fields.upsertions],
    )


def _altered(call: KafkaCall, body: AlterUserScramCredentialsResponse) -> dict[str, Any]:
    rows = [{"user": r.user, "error_code": r.error_code, "error_message": r.error_message} for r in body.results]
    return {"throttle_time_ms": body.throttle_time_ms, "results": rows}


def _alter_refused(call: KafkaCall, code: ErrorCode, message: str | None) -> dict[str, Any]:
    fields = call.fields
    users = dict.fromkeys(change.name for change in [*fields.deletions, *fields.upsertions])
    rows = [AlterUserScramCredentialsResult(user, code, message) for user in users]
    return _altered(call, AlterUserScramCredentialsResponse(rows))


APIS = (
    KafkaApi(
        50,
        "DescribeUserScramCredentials",
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        0,
        0,
        _describe,
        _described,
        refused_at_top,
    ),
    KafkaApi(51, "AlterUserScramCredentials", apis.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, _alter, _altered, _alter_refused),
)
