"""AlterUserScramCredentials and DescribeUserScramCredentials at the controller."""

from __future__ import annotations

import json
from typing import Any

import pytest
from controller_world import ControllerWorld
from structlog.testing import capture_logs

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import FeatureLevelRecord, RemoveUserScramCredentialRecord
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, InternalError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.security import (
    SCRAM_SHA_256,
    SCRAM_SHA_512,
    AlterUserScramCredentialsRequest,
    DescribeUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from strandline.protocol.security.scram import credential_of, is_password_of, salted_password

SALT = b"SECRETsaltSECRET"
NAMES = {SCRAM_SHA_256: "SCRAM-SHA-256", SCRAM_SHA_512: "SCRAM-SHA-512"}


def upsertion(user: str = "alice", mechanism: int = SCRAM_SHA_256, **fields: Any) -> ScramCredentialUpsertion:
    iterations = fields.pop("iterations", 4096)
    name = NAMES.get(mechanism, "SCRAM-SHA-256")
    given = {"salt": SALT, "salted_password": salted_password(name, "tea", SALT, iterations), **fields}
    return ScramCredentialUpsertion(user, mechanism, iterations, **given)


def alter(world: ControllerWorld, *alterations: ScramCredentialDeletion | ScramCredentialUpsertion) -> dict[str, str]:
    deletions = [each for each in alterations if isinstance(each, ScramCredentialDeletion)]
    upsertions = [each for each in alterations if isinstance(each, ScramCredentialUpsertion)]
    answer = world.call(apis.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest(deletions, upsertions))
    assert len({result.user for result in answer.results}) == len(answer.results)
    return {result.user: ErrorCode(result.error_code).name for result in answer.results}


def described(world: ControllerWorld, users: list[str] | None = None) -> dict[str, Any]:
    answer = world.call(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, DescribeUserScramCredentialsRequest(users))
    return {
        user.user: ErrorCode(user.error_code).name
        if user.error_code
        else [(credential.mechanism, credential.iterations) for credential in user.credentials]
        for user in answer.users
    }


@pytest.mark.parametrize("mechanism", NAMES)
def test_the_password_of_a_credential_is_recognised(mechanism: int) -> None:
    world = ControllerWorld()
    assert alter(world, upsertion(mechanism=mechanism, iterations=5000)) == {"alice": "NONE"}
    credential = world.image.scram_credentials["alice", mechanism]
    assert (credential.salt, credential.iterations) == (SALT, 5000)
    assert is_password_of(NAMES[mechanism], "tea", credential)
    assert not is_password_of(NAMES[mechanism], "coffee", credential)
    assert world.replayed() == world.image


@pytest.mark.parametrize("name", ["\uff21lice", "al\xadice", "a\xa0b", "e\u0301", "a\x07", "\xad"])
def test_a_user_who_could_not_log_in_is_not_made(name: str) -> None:
    """SCRAM looks a name up in the form that SASLprep gives it. A credential that already exists under another form can still be
    removed."""
    world = ControllerWorld()
    assert alter(world, upsertion(name), upsertion("\xe9")) == {name: "UNACCEPTABLE_CREDENTIAL", "\xe9": "NONE"}
    assert alter(world, ScramCredentialDeletion(name, SCRAM_SHA_256)) == {name: "RESOURCE_NOT_FOUND"}


def test_nothing_secret_is_kept_or_shown() -> None:
    """The salted password is enough to log in (KAFKA-14881): neither the log of the metadata nor a representation has it."""
    world = ControllerWorld()
    item = upsertion()
    request = AlterUserScramCredentialsRequest([], [item])
    with capture_logs() as lines:
        world.call(apis.ALTER_USER_SCRAM_CREDENTIALS, request)
    keys = credential_of("SCRAM-SHA-256", item.salted_password, SALT, 4096)
    log = b"".join(record for _, record in world.quorum.log)
    assert keys.stored_key in log
    assert keys.server_key in log
    assert item.salted_password not in log
    shown = [repr(request), repr(world.image), repr(list(world.image.to_records())), json.dumps(lines), repr(keys)]
    secrets = [SALT, item.salted_password, keys.stored_key, keys.server_key]
    for text in shown:
        assert not any(repr(secret)[2:-1] in text or secret.hex() in text for secret in secrets)
    [line] = [line for line in lines if line["event"] == "user.credential_changed"]
    assert (line["user"], line["mechanism"], line["removed"]) == ("alice", "SCRAM-SHA-256", False)


def test_a_user_may_have_a_credential_for_each_mechanism() -> None:
    world = ControllerWorld()
    alter(world, upsertion())
    alter(world, upsertion(mechanism=SCRAM_SHA_512, iterations=8192), upsertion("bob"))
    assert described(world) == {"alice": [(SCRAM_SHA_256, 4096), (SCRAM_SHA_512, 8192)], "bob": [(SCRAM_SHA_256, 4096)]}
    assert described(world, []) == described(world)
    assert described(world, ["bob", "eve", "alice", "alice"]) == {
        "bob": [(SCRAM_SHA_256, 4096)],
        "eve": "RESOURCE_NOT_FOUND",
        "alice": "DUPLICATE_RESOURCE",
    }
    assert alter(world, ScramCredentialDeletion("alice", SCRAM_SHA_256)) == {"alice": "NONE"}
    assert described(world, ["alice"]) == {"alice": [(SCRAM_SHA_512, 8192)]}
    assert world.replayed() == world.image


@pytest.mark.parametrize(
    ("item", "code"),
    [
        (upsertion(iterations=4095), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(iterations=16385), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(salt=b""), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(salted_password=b"x" * 31), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(mechanism=SCRAM_SHA_512, salted_password=b"x" * 32), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(""), "UNACCEPTABLE_CREDENTIAL"),
        (upsertion(mechanism=3), "UNSUPPORTED_SASL_MECHANISM"),
        (ScramCredentialDeletion("alice", 0), "UNSUPPORTED_SASL_MECHANISM"),
        (ScramCredentialDeletion("", SCRAM_SHA_256), "UNACCEPTABLE_CREDENTIAL"),
        (ScramCredentialDeletion("alice", SCRAM_SHA_512), "RESOURCE_NOT_FOUND"),
        (upsertion(iterations=4096), "NONE"),
        (upsertion(iterations=16384), "NONE"),
    ],
    ids=repr,
)
def test_a_user_is_refused_alone(item: Any, code: str) -> None:
    world = ControllerWorld()
    assert alter(world, item, upsertion("bob")) == {item.user: code, "bob": "NONE"}
    assert (("alice", SCRAM_SHA_256) in world.image.scram_credentials) == (code == "NONE")


def test_a_user_who_is_altered_twice_keeps_everything() -> None:
    """This holds also for a deletion and an upsertion of different mechanisms, as in Kafka. The result of a user is the first
    error."""
    world = ControllerWorld()
    alter(world, upsertion())
    before = world.image.scram_credentials
    assert alter(
        world,
        ScramCredentialDeletion("alice", SCRAM_SHA_256),
        upsertion(mechanism=SCRAM_SHA_512),
        upsertion("bob"),
        upsertion("bob"),
        upsertion("bob"),
        upsertion("eve", iterations=1),
        upsertion("eve"),
    ) == {"alice": "DUPLICATE_RESOURCE", "bob": "DUPLICATE_RESOURCE", "eve": "UNACCEPTABLE_CREDENTIAL"}
    assert world.image.scram_credentials == before


def test_the_removal_of_an_unknown_credential_contradicts_the_image() -> None:
    image = MetadataImage.EMPTY.apply([FeatureLevelRecord(METADATA_VERSION, 2)], 0, 1).image
    with pytest.raises(InternalError, match="removes the credential of user 'eve' for mechanism 1, which does not exist"):
        image.apply([RemoveUserScramCredentialRecord("eve", 1)], 1, 1)
