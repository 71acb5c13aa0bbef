"""The decision about SCRAM credentials: AlterUserScramCredentials (KIP-554; Kafka's ScramControlManager).

A client sends the salted password of RFC 5802, which it has derived from the password. The salted password logs in by itself, so
the controller derives the stored key and the server key, from which nobody can compute it, and keeps only these (KAFKA-14881).

    client key := HMAC(salted password, "Client Key")
    stored key := H(client key)
    server key := HMAC(salted password, "Server Key")

A user has one result, even with several mechanisms. Like in Kafka, a request may alter each user once: if it names a user twice,
nothing of this user changes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator

from strandline.controller.decision import Decision
from strandline.controller.metadata.features import require_level
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord
from strandline.controller.security.acl_control import RECORDS_PER_REQUEST_MAX
from strandline.protocol.errors import BrokerError, ErrorCode
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

LEVEL = 2
"""The level of the metadata that the records need."""
HASHES = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""Kafka's number of the mechanism -> its hash function."""

_Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


def alter_scram_credentials(
    image: MetadataImage, request: AlterUserScramCredentialsRequest
) -> Decision[AlterUserScramCredentialsResponse]:
    """Remove and set credentials. A user's result is UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND for
    a credential that is to be removed, or DUPLICATE_RESOURCE. Raises BrokerError UNSUPPORTED_VERSION, POLICY_VIOLATION."""
    require_level(LEVEL, image.feature_level, "SCRAM credentials")
    count = len(request.deletions) + len(request.upsertions)
    if count > RECORDS_PER_REQUEST_MAX:
        text = f"one request may alter at most {RECORDS_PER_REQUEST_MAX} credentials, not {count}"
        raise BrokerError(ErrorCode.POLICY_VIOLATION, text)
    records: dict[str, AnyRecord] = {}
    results: dict[str, AlterUserScramCredentialsResult] = {}
    for alteration in (*request.deletions, *request.upsertions):
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
    if mechanism not in HASHES:
        raise BrokerError(
            ErrorCode.UNSUPPORTED_SASL_MECHANISM,
            f"SCRAM mechanism {mechanism} is unknown: there are "
            + " and ".join(f"{mechanism_name(each)} ({each})" for each in HASHES),
        )
    if isinstance(alteration, ScramCredentialUpsertion):
        return _credential(alteration)
    if (user, mechanism) not in image.scram_credentials:
        text = f"user {user!r} has no credential for {mechanism_name(mechanism)}, so it cannot be removed"
        raise BrokerError(ErrorCode.RESOURCE_NOT_FOUND, text)
    return RemoveUserScramCredentialRecord(user, mechanism)


def _credential(upsertion: ScramCredentialUpsertion) -> UserScramCredentialRecord:
    fault = next(_faults(upsertion), None)
    if fault is not None:
        raise BrokerError(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"the credential of user {upsertion.user!r}: {fault}")
    algorithm, secret = HASHES[upsertion.mechanism], upsertion.salted_password
    stored_key = hashlib.new(algorithm, hmac.digest(secret, b"Client Key", algorithm)).digest()
    server_key = hmac.digest(secret, b"Server Key", algorithm)
    return UserScramCredentialRecord(
        upsertion.user, upsertion.mechanism, upsertion.salt, stored_key, server_key, upsertion.iterations
    )


def _faults(upsertion: ScramCredentialUpsertion) -> Iterator[str]:
    iterations, size = upsertion.iterations, hashlib.new(HASHES[upsertion.mechanism]).digest_size
    if not SCRAM_ITERATIONS_MIN <= iterations <= SCRAM_ITERATIONS_MAX:
        amount = "few" if iterations < SCRAM_ITERATIONS_MIN else "many"
        yield f"{iterations} iterations are too {amount}; there may be {SCRAM_ITERATIONS_MIN} to {SCRAM_ITERATIONS_MAX}"
    if not upsertion.salt:
        yield "the salt is empty"
    if len(upsertion.salted_password) != size:
        length = len(upsertion.salted_password)
        yield f"a salted password for {mechanism_name(upsertion.mechanism)} has {size} bytes, not {length}"


def mechanism_name(mechanism: int) -> str:
    """The name of a mechanism in SASL."""
    return {SCRAM_SHA_256: "SCRAM-SHA-256", SCRAM_SHA_512: "SCRAM-SHA-512"}[mechanism]
