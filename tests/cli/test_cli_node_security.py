"""How a node gets its security from files, the environment and the command line, and how it refuses what would be a gap."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_world import run

from strandline.broker.config import BrokerConfig
from strandline.node import from_environment, read_config
from strandline.protocol.errors import UsageError

SECRET = "correct horse"
BROKER = ["--set", "node.id=1", "--set", "controller.quorum.voters=101@127.0.0.1:1", "--set", "http.listener="]


@pytest.mark.parametrize("name", ["ssl.key.password", "listener.name.external.ssl.key.password"])
def test_a_secret_is_not_accepted_on_the_command_line(name: str) -> None:
    """F33: every user of the machine can read the command lines of processes."""
    with pytest.raises(UsageError, match="is a secret, and others can read a command line") as refused:
        read_config("broker", None, {}, [f"{name}={SECRET}"])
    assert SECRET not in str(refused.value)
    assert "STRANDLINE_" in str(refused.value)


def test_a_secret_may_come_from_the_environment() -> None:
    assert from_environment("broker", {"STRANDLINE_SSL_KEY_PASSWORD": SECRET}) == {"ssl.key.password": SECRET}


def test_keys_of_one_listener_may_come_from_the_environment() -> None:
    """The name of the listener is what is left between the prefix and the longest key that fits."""
    given = from_environment(
        "broker",
        {
            "STRANDLINE_NODE_ID": "1",
            "STRANDLINE_LOG_DIRS": "d",
            "STRANDLINE_CONTROLLER_QUORUM_VOTERS": "101@c:1",
            "STRANDLINE_LISTENERS": "SASL_SSL://b:1,MY_SSL://b:2",
            "STRANDLINE_LISTENER_SECURITY_PROTOCOL_MAP": "SASL_SSL:SASL_SSL,MY_SSL:SSL,CONTROLLER:PLAINTEXT",
            "STRANDLINE_INTER_BROKER_LISTENER_NAME": "MY_SSL",
            "STRANDLINE_SSL_KEYSTORE_LOCATION": "node.pem",
            "STRANDLINE_SSL_TRUSTSTORE_LOCATION": "ca.pem",
            "STRANDLINE_SASL_ENABLED_MECHANISMS": "PLAIN",
            "STRANDLINE_LISTENER_NAME_MY_SSL_SSL_CLIENT_AUTH": "required",
            "STRANDLINE_LISTENER_NAME_SASL_SSL_CONNECTIONS_MAX_REAUTH_MS": "5",
        },
    )
    sasl, ssl = BrokerConfig.from_mapping(given).security.own
    assert (sasl.values["ssl.client.auth"], ssl.values["ssl.client.auth"]) == ("none", "required")
    assert (sasl.values["connections.max.reauth.ms"], ssl.values["connections.max.reauth.ms"]) == (5, 0)


def test_a_variable_of_no_key_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown environment variable 'STRANDLINE_LISTENER_NAME_A_SSL_CLIENT_OATH'"):
        from_environment("broker", {"STRANDLINE_LISTENER_NAME_A_SSL_CLIENT_OATH": "required"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["listeners=SSL://127.0.0.1:0"], "config ssl.keystore.location is missing: listener SSL"),
        (["listeners=SSL://127.0.0.1:0", "ssl.keystore.location=void.pem"], "cannot read the certificate void.pem"),
        (["authorizer.class.name=StandardAuthorizer"], "config super.users is missing"),
    ],
)
def test_a_node_with_a_gap_does_not_start(tmp_path: Path, settings: list[str], words: str) -> None:
    """One sentence, and the exit code of a mistake that a retry would repeat."""
    options = [word for setting in (f"log.dirs={tmp_path / 'data'}", *settings) for word in ("--set", setting)]
    outcome = run("broker", *BROKER, *options)
    assert outcome.code == 2
    assert words in outcome.err
    assert not (tmp_path / "data").exists()
