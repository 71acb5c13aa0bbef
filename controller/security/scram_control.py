"""The decision about SCRAM credentials: AlterUserScramCredentials (KIP-554; Kafka's ScramControlManager).

A client sends the salted password of RFC 5802, which it has derived from the password. It is enough to log in, so the controller
derives the stored key and the server key from it, and keeps only these (KAFKA-14881).

A user has one result, even with several mechanisms. Like in Kafka, a request may alter each user once: if it names a user twice,
nothing of this user changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.controller.decision import Decision
from strandline.controller.metadata.features import require_level
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from strandline.controller.request_limits import check_amount
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.security import (
    SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import check_name, credential_of

LEVEL = 2
"""The level of the metadata that the records need."""
MECHANISMS = {SCRAM_SHA_256: SCRAM_256, SCRAM_SHA_512: SCRAM_512}
"""Kafka's number of a mechanism -> its name in SASL."""
_SALTED_PASSWORD_BYTES = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}
"""The size of the mechanism's hash."""

_Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


def alter_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> Decision[AlterUserScramCredentialsResponse]:
    """Remove and set credentials. The error of a user's result is UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM,
    RESOURCE_NOT_FOUND if the credential to remove does not exist, or DUPLICATE_RESOURCE. Raises BrokerError UNSUPPORTED_VERSION,
    POLICY_VIOLATION."""
    require_level(LEVEL, image.feature_level, "SCRAM credentials")
    check_amount(len(request.deletions) + len(request.upsertions), "alter", "credentials")
    records: dict[str, AnyRecord] = {}
    results: dict[str, AlterUserScramCredentialsResult] = {}
    alterations: list[_Alteration] = [*request.deletions, *request.upsertions]
    for alteration in alterations:
        user = alteration.user
        result = results.setdefault(user, AlterUserScramCredentialsResult(user))
        if result.error_code:
            continue
        try:
            if user in records:
                del records[user]
                raise BrokerError(ErrorCode.DUPLICATE_RESOURCE, f"the request alters user {user!r} twice: nothing was changed")
            records[user] = _record(image, alteration)
        except BrokerError as e:
            result.error_code, result.error_message = e.code, e.message
    return Decision(AlterUserScramCredentialsResponse(list(results.values())), list(records.values()))


def _record(image: MetadataImage, alteration: _Alteration) -> AnyRecord:
    user, mechanism = alteration.user, alteration.mechanism
    if not user:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "the name of the user must not be empty")
    if mechanism not in MECHANISMS:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"SCRAM mechanism {mechanism} is unknown: there are "
            + " and ".join(f"{name} ({number})" for number, name in MECHANISMS.items()),
        )
    if isinstance(alteration, ScramCredentialUpsertion):
        return _credential(alteration)
    if (user, mechanism) not in image.scram_credentials:
        text = f"user {user!r} has no credential for {MECHANISMS[mechanism]}, so it cannot be removed"
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return RemoveUserScramCredentialRecord(user, mechanism)


def _credential(upsertion: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    fault = next(_faults(upsertion), None)
    if fault is not None:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the credential of user {upsertion.user!r}: {fault}")
    mechanism, salt, iterations = upsertion.mechanism, upsertion.salt, upsertion.iterations
    keys = credential_of(MECHANISMS[mechanism], upsertion.salted_password, salt, iterations)
    return UserScramCredentialRecord(upsertion.user, mechanism, salt, keys.stored_key, keys.server_key, iterations)


def _faults(upsertion: ScramCredentialUpsertion) -> Iterator[str]:
    try:
        check_name(upsertion.user)
    except UsageError as e:
        yield str(e)
    iterations, size = upsertion.iterations, _SALTED_PASSWORD_BYTES[upsertion.mechanism]
    if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
        amount = "few" if iterations < SCRAM_ITERATIONS_MIN else "many"
        yield f"{iterations} iterations are too {amount}; there may be {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}"
    if not upsertion.salt:
        yield "the salt is empty"
    if len(upsertion.salted_password) != size:
        length = len(upsertion.salted_password)
        yield f"a salted password for {MECHANISMS[upsertion.mechanism]} has {size} bytes, not {length}"
