"""The admin client's calls about users: their SCRAM credentials (KIP-554).

A password never leaves this process: it is salted and iterated here (RFC 5802), and the controller gets the result. That is still
secret, so give credentials only over connections that are encrypted, or on the same machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.arguments import check_encodes, checked_list, checked_whole
from strandline.protocol import apis
from strandline.protocol.doors import Doors
from strandline.protocol.errors import ErrorCode, UsageError, to_code
from strandline.protocol.messages import security as messages
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import ITERATIONS_USUAL

ITERATIONS = ITERATIONS_USUAL
"""Kafka's default is 4096, the least that RFC 7677 allows."""
MECHANISM_NUMBERS: Mapping[str, int] = {SCRAM_256: messages.SCRAM_SHA_256, SCRAM_512: messages.SCRAM_SHA_512}
_NAMES = {number: name for name, number in MECHANISM_NUMBERS.items()}


class UserCalls(AdminRequests):
    """Describes, sets and deletes the credentials of users. Each call needs a right on the cluster: DESCRIBE, or ALTER."""

    _doors: Doors

    async def describe_scram_credentials(
        self, users: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> dict[str, dict[str, int]]:
        """The mechanisms for which each user has a credential, with the number of iterations. `users`: only these. A user without
        credentials is not in the result. ClusterAuthorizationFailed; RequestTimeout."""
        asked = None if users is None else [_checked_user(user) for user in checked_list("users", users)]

        def check(response: messages.DescribeUserScramCredentialsResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "DescribeUserScramCredentials")
            for user in response.users:
                if user.error_code != ErrorCode.RESOURCE_NOT_FOUND:
                    check_code(user.error_code, user.error_message, "DescribeUserScramCredentials")

        request = messages.DescribeUserScramCredentialsRequest(asked)
        kind = messages.DescribeUserScramCredentialsResponse
        response = await self._ask(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, request, kind, check, self._deadline(timeout_ms))
        return {
            user.user: {_NAMES.get(each.mechanism, str(each.mechanism)): each.iterations for each in user.credentials}
            for user in sorted(response.users, key=lambda user: user.user)
            if not user.error_code
        }

    async def upsert_scram_credentials(
        self,
        user: str,
        password: str,
        *,
        mechanisms: Iterable[str] = (SCRAM_512,),
        iterations: int = ITERATIONS,
        timeout_ms: float = 30_000,
    ) -> None:
        """Set a user's password for these mechanisms, "SCRAM-SHA-512" and "SCRAM-SHA-256". The user is created if it does not
        exist. New connections need the new password as soon as the brokers have the metadata; open connections are not closed.

        UsageError for a password that SASLprep does not allow; ClusterAuthorizationFailed; RequestFailed with `code`
        UNACCEPTABLE_CREDENTIAL; RequestTimeout."""
        from strandline.protocol.security.scram import SALT_BYTES, salted_password

        _checked_user(user)
        if not isinstance(password, str) or not password:
            raise UsageError("a password is a non-empty str")
        checked_whole("iterations", iterations, messages.SCRAM_ITERATIONS_MIN, messages.SCRAM_ITERATIONS_MAX)
        deadline = self._deadline(timeout_ms)
        for mechanism in checked_mechanisms(mechanisms):  # A request may alter a user once.
            salt = self._doors.secure_random(SALT_BYTES)
            salted = salted_password(mechanism, password, salt, iterations)
            upsertion = messages.ScramCredentialUpsertion(user, MECHANISM_NUMBERS[mechanism], iterations, salt, salted)
            await self._alter(messages.AlterUserScramCredentialsRequest([], [upsertion]), deadline)

    async def delete_scram_credentials(
        self, user: str, *, mechanisms: Iterable[str] | None = None, timeout_ms: float = 30_000
    ) -> None:
        """Delete a user's credentials for these mechanisms, or all of them. New connections with these credentials are rejected;
        open connections stay until they must authenticate again (`connections.max.reauth.ms`).

        ClusterAuthorizationFailed; RequestFailed with `code` RESOURCE_NOT_FOUND if there is no such credential;
        RequestTimeout."""
        _checked_user(user)
        deadline = self._deadline(timeout_ms)
        if mechanisms is None:
            found = await self.describe_scram_credentials([user], timeout_ms=timeout_ms)
            mechanisms = list(found.get(user, {})) or [SCRAM_512]
        for mechanism in checked_mechanisms(mechanisms):
            deletion = messages.ScramCredentialDeletion(user, MECHANISM_NUMBERS[mechanism])
            await self._alter(messages.AlterUserScramCredentialsRequest([deletion], []), deadline)

    async def _alter(self, request: messages.AlterUserScramCredentialsRequest, deadline: float) -> None:
        def check(response: messages.AlterUserScramCredentialsResponse, is_retry: bool) -> None:
            for result in response.results:
                is_done = is_retry and bool(request.deletions) and to_code(result.error_code) == ErrorCode.RESOURCE_NOT_FOUND
                if not is_done:
                    check_code(result.error_code, result.error_message, "AlterUserScramCredentials")

        kind = messages.AlterUserScramCredentialsResponse
        await self._ask(apis.ALTER_USER_SCRAM_CREDENTIALS, request, kind, check, deadline)


def _checked_user(user: object) -> str:
    if not isinstance(user, str) or not user:
        raise UsageError(f"a user is named by a non-empty str, not {user!r}")
    check_encodes("the name of a user", user)
    return user


def checked_mechanisms(mechanisms: Iterable[str]) -> list[str]:
    """Names of SCRAM mechanisms, each once. UsageError for an unknown one."""
    found = list(dict.fromkeys(checked_list("mechanisms", mechanisms)))
    for mechanism in found:
        if mechanism not in MECHANISM_NUMBERS:
            raise UsageError(f"unknown mechanism {mechanism!r}: there are {' and '.join(sorted(MECHANISM_NUMBERS))}")
    return found
