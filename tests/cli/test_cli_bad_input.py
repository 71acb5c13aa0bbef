"""Wrong input gives one clear sentence and an exit code, never a traceback."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import Up, one_sentence, run

from strandline.local_cluster import free_port_range


@pytest.fixture
def occupied_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def broker_settings(data: Path, port: int = 0, **more: str) -> list[str]:
    settings = {
        "node.id": "1",
        "cluster.id": "test-cluster",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        "controller.quorum.voters": "101@127.0.0.1:1",
    } | {k.replace("_", "."): v for k, v in more.items()}
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.mark.processes
def test_up_names_an_occupied_port(occupied_port: int) -> None:
    outcome = run("up", "--base-port", str(occupied_port), "--brokers", "1", "--controllers", "1")
    assert outcome.code == 1
    assert f"port {occupied_port} on 127.0.0.1 is in use" in one_sentence(outcome)


@pytest.mark.processes
def test_a_broker_names_an_occupied_port(occupied_port: int, tmp_path: Path) -> None:
    outcome = run("broker", *broker_settings(tmp_path / "data", occupied_port))
    assert outcome.code == 1
    assert f"cannot listen on 127.0.0.1:{occupied_port}" in outcome.err.splitlines()[-1]


@pytest.mark.processes
def test_a_controller_names_an_occupied_port(occupied_port: int, tmp_path: Path) -> None:
    settings = {
        "node.id": "101",
        "cluster.id": "c",
        "log.dirs": str(tmp_path / "data"),
        "controller.quorum.voters": f"101@127.0.0.1:{occupied_port}",
    }
    outcome = run("controller", *[w for k, v in settings.items() for w in ("--set", f"{k}={v}")])
    assert outcome.code == 1
    assert f"cannot listen on 127.0.0.1:{occupied_port}" in outcome.err.splitlines()[-1]


@pytest.mark.processes
def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    """A file has the name of the folder; unlike a missing permission, this also stops root."""
    (tmp_path / "file").write_text("")
    outcome = run("up", "--data", str(tmp_path / "file" / "data"), "--base-port", str(free_port_range(15)))
    assert outcome.code == 1
    assert str(tmp_path / "file") in one_sentence(outcome)


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    outcome = run("up", "--data", str(tmp_path / "data"), "--base-port", str(free_port_range(15)))
    assert outcome.code == 1
    assert str(tmp_path / "data") in one_sentence(outcome)


@pytest.mark.processes
def test_a_data_directory_that_cannot_be_created_stops_the_broker(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run("broker", *broker_settings(tmp_path / "file" / "data"))
    assert outcome.code == 1
    assert str(tmp_path / "file") in outcome.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("num.partitions=many", ["num.partitions", "'many'", "whole number"]),
        ("log.segment.bytes=-5", ["log.segment.bytes", "'-5'"]),
        ("listeners=nonsense", ["listeners", "'nonsense'", "NAME://host:port"]),
        ("broker.heartbeat.interval.ms=99999", ["broker.heartbeat.interval.ms", "broker.session.timeout.ms"]),
        ("broker.rakc=a", ["broker.rakc", "did you mean 'broker.rack'"]),
        ("nonsense", ["key=value", "nonsense"]),
    ],
)
def test_a_wrong_config_value_is_named_with_the_rule(setting: str, words: list[str], tmp_path: Path) -> None:
    outcome = run("broker", *broker_settings(tmp_path / "data"), "--set", setting)
    assert outcome.code == 2
    sentence = one_sentence(outcome)
    assert all(word in sentence for word in words), sentence


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("NODE_ID", "", ["STRANDLINE_NODE_ID is empty", "config node.id is required"]),
        ("NODE_ID", "1 2", ["STRANDLINE_NODE_ID", "'1 2'", "whole number"]),
        ("NODE_ID", "one", ["STRANDLINE_NODE_ID", "'one'", "whole number"]),
        ("LOG_DIRS", "  ", ["STRANDLINE_LOG_DIRS is empty", "config log.dirs is required"]),
        ("CLUSTER_ID", "", ["config cluster.id must not be empty"]),
        ("CLUSTER_ID", "two words", ["STRANDLINE_CLUSTER_ID", "must not contain blanks"]),
        ("CONTROLLER_QUORUM_VOTERS", "", ["STRANDLINE_CONTROLLER_QUORUM_VOTERS is empty"]),
        ("CONTROLLER_QUORUM_VOTERS", "controller-1:9093", ["controller.quorum.voters", "'controller-1:9093'", "id@host:port"]),
        ("CONTROLLER_QUORUM_VOTERS", "101@my host:9093", ["controller.quorum.voters", "'101@my host:9093'"]),
        ("ADVERTISED_LISTENERS", "", ["config advertised.listeners must name at least one"]),
        ("NODEID", "1", ["'STRANDLINE_NODEID'", "did you mean 'STRANDLINE_NODE_ID'"]),
        ("LISTENER", "PLAINTEXT://:9092", ["'STRANDLINE_LISTENER'", "did you mean 'STRANDLINE_LISTENERS'"]),
        ("QUITE_DIFFERENT_THINGS", "1", ["'STRANDLINE_QUITE_DIFFERENT_THINGS'"]),
    ],
)
def test_a_wrong_environment_value_is_named_with_its_variable(variable: str, value: str, words: list[str]) -> None:
    """Containers are configured by environment variables alone, so the message must name the variable."""
    settings = {"LOG_DIRS": "/nowhere/data", "NODE_ID": "1", "CONTROLLER_QUORUM_VOTERS": "101@127.0.0.1:1", variable: value}
    outcome = run("broker", env={f"STRANDLINE_{name}": text for name, text in settings.items()})
    assert outcome.code == 2
    sentence = one_sentence(outcome)
    assert all(word in sentence for word in words), sentence


def test_a_missing_required_key_is_named() -> None:
    for given, missing in (((), "node.id"), (("--set", "node.id=1"), "log.dirs")):
        outcome = run("broker", *given)
        assert outcome.code == 2
        assert f"config {missing} is required" in one_sentence(outcome)


def test_a_wrong_setting_of_up_is_refused_before_anything_starts() -> None:
    outcome = run("up", "--set", "min.insync.replica=2")
    assert outcome.code == 2
    assert "did you mean 'min.insync.replicas'" in one_sentence(outcome)


def test_an_unknown_environment_variable_is_named(tmp_path: Path) -> None:
    """A typing error in a container's environment would otherwise leave the default in effect unnoticed."""
    outcome = run("broker", *broker_settings(tmp_path / "data"), env={"STRANDLINE_NODE_IDD": "7"})
    assert outcome.code == 2
    assert "STRANDLINE_NODE_IDD" in one_sentence(outcome)
    assert "did you mean 'STRANDLINE_NODE_ID'" in outcome.err


@pytest.mark.parametrize(
    ("content", "words"),
    [("node.id = ", "not valid TOML"), ("node.id = 1\nnode.id = 2", "not valid TOML"), ("[node]\nidd = 1", "node.idd")],
)
def test_a_wrong_config_file_is_named(content: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(content)
    outcome = run("broker", "--config", str(file))
    assert outcome.code == 2
    assert words in one_sentence(outcome)


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    outcome = run("broker", "--config", str(tmp_path / "nothing.toml"))
    assert outcome.code == 2
    assert f"cannot read {tmp_path / 'nothing.toml'}" in one_sentence(outcome)


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["topic", "describe", "orders"],
        ["cluster", "describe"],
        ["quorum", "describe"],
        ["produce", "orders"],
        ["consume", "orders", "--exit-at-end"],
    ],
)
def test_a_cluster_that_is_down_gives_one_sentence(arguments: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    outcome = run(*arguments, "--bootstrap", f"127.0.0.1:{port}", stdin="a\n", timeout_s=40)
    assert outcome.code == 1
    assert f"127.0.0.1:{port}" in one_sentence(outcome)


@pytest.mark.parametrize("bootstrap", ["nonsense", "127.0.0.1:notaport", "127.0.0.1:99999", ""])
def test_an_invalid_bootstrap_address_gives_one_sentence(bootstrap: str) -> None:
    outcome = run("topic", "list", "--bootstrap", bootstrap)
    assert outcome.code in (1, 2)
    one_sentence(outcome)


@pytest.mark.processes
@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "describe", "no-such-topic"],
        ["topic", "delete", "no-such-topic", "--yes"],
        ["topic", "alter", "no-such-topic", "--partitions", "3"],
        ["produce", "no-such-topic"],
        ["consume", "no-such-topic", "--exit-at-end"],
        ["elect", "no-such-topic", "0", "--preferred"],
    ],
)
def test_an_unknown_topic_gives_one_sentence(up: Up, arguments: list[str]) -> None:
    outcome = run(*arguments, "--bootstrap", up.bootstrap, stdin="a\n", timeout_s=40)
    assert outcome.code == 1
    assert "no-such-topic" in one_sentence(outcome)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["create", "../../etc/passwd"], "name"),
        (["create", ".."], "name"),
        (["create", "a" * 250], "name"),
        (["create", "wide", "--replication-factor", "9"], "replication"),
        (["create", "none", "--partitions", "0"], "partitions"),
        (["create", "odd", "--set", "retention.mss=5"], "retention.ms"),
        (["create", "odd", "--set", "retention.ms=soon"], "retention.ms"),
    ],
)
def test_an_invalid_topic_gives_one_sentence(up: Up, arguments: list[str], word: str) -> None:
    outcome = run("topic", *arguments, "--bootstrap", up.bootstrap)
    assert outcome.code == 1
    assert word in one_sentence(outcome)


@pytest.mark.processes
def test_a_second_broker_on_the_same_folder_is_refused(up: Up) -> None:
    """Two processes that write the same log would corrupt it."""
    broker = next(n for n in up.ready["nodes"] if n["role"] == "broker")
    toml = up.folder / broker["name"] / "broker.toml"
    outcome = run("broker", "--config", str(toml), "--set", "listeners=PLAINTEXT://127.0.0.1:0")
    assert outcome.code == 1
    assert broker["data"] in outcome.err.splitlines()[-1]


def test_a_node_command_without_a_cluster_says_so(tmp_path: Path) -> None:
    outcome = run("node", "kill", "broker-1", "--data", str(tmp_path))
    assert outcome.code == 1
    assert str(tmp_path) in one_sentence(outcome)


@pytest.mark.processes
def test_an_unknown_node_lists_the_known_ones(up: Up) -> None:
    outcome = run("node", "kill", "broker-9", "--data", str(up.folder))
    assert outcome.code == 2
    assert "broker-1" in one_sentence(outcome)


def test_an_unknown_command_suggests_the_nearest() -> None:
    outcome = run("topics")
    assert outcome.code == 2
    assert "Did you mean 'topic'" in outcome.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("create", "x", "-c", "retention.ms=1", "--set", "retention.ms=2"), "gives retention.ms two values: 1 and 2"),
        (
            ("alter", "x", "-c", "retention.ms=1", "--unset", "retention.ms"),
            "--config sets retention.ms, and --unset removes it",
        ),
    ],
)
def test_contradicting_configuration_is_refused(words: tuple[str, ...], says: str) -> None:
    """Before, the last value or --unset won silently, and the command reported success."""
    outcome = run("topic", *words, "--bootstrap", "127.0.0.1:1")
    assert outcome.code == 2
    assert says in one_sentence(outcome)
