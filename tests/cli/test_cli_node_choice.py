"""A `strandline node` command acts only on the cluster that the user meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_world import Up, one_sentence, run, start_up

from strandline.cli.common import short_path
from strandline.control import RunningCluster, choose
from strandline.local_cluster import ClusterError
from strandline.protocol.errors import UsageError

ONE = RunningCluster(Path("/run/1.sock"), "/tmp/one", "127.0.0.1:22000,127.0.0.1:22001")
TWO = RunningCluster(Path("/run/2.sock"), "/tmp/two", "127.0.0.1:23000")


def test_the_only_running_cluster_is_chosen() -> None:
    assert choose([ONE], None) is ONE


def test_several_clusters_without_a_choice_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        choose([ONE, TWO], None)
    for word in ("--data /tmp/one (127.0.0.1:22000", "--data /tmp/two (127.0.0.1:23000"):
        assert word in str(refused.value)


@pytest.mark.parametrize("addresses", ["127.0.0.1:22001", "localhost:22000", " localhost:9999 , 127.0.0.1:22000 "])
def test_bootstrap_addresses_choose_their_cluster(addresses: str) -> None:
    assert choose([ONE, TWO], addresses) is ONE


def test_bootstrap_addresses_of_another_cluster_are_refused() -> None:
    """The addresses may be those of containers: the user means that cluster, and `node` cannot act on it."""
    with pytest.raises(UsageError, match=r"localhost:19092.*--data /tmp/one"):
        choose([ONE], "localhost:19092")


def test_bootstrap_addresses_of_two_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="--data /tmp/two"):
        choose([ONE, TWO], "127.0.0.1:22000,127.0.0.1:23000")


def test_no_running_cluster_is_an_error() -> None:
    with pytest.raises(ClusterError, match="strandline up"):
        choose([], None)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Up]]:
    """Two clusters of one broker each, hidden from other tests."""
    runtime = tmp_path_factory.mktemp("runtime")
    before = os.environ.get("XDG_RUNTIME_DIR")
    small = ("--brokers", "1", "--controllers", "1")
    environment = {"XDG_RUNTIME_DIR": str(runtime)}
    try:
        with (
            start_up(tmp_path_factory.mktemp("one"), *small, env=environment) as one,
            start_up(tmp_path_factory.mktemp("two"), *small, env=environment) as other,
        ):
            os.environ["XDG_RUNTIME_DIR"] = str(runtime)
            yield one, other
    finally:
        os.environ.pop("XDG_RUNTIME_DIR", None)
        if before is not None:
            os.environ["XDG_RUNTIME_DIR"] = before


def here(up: Up, **more: str) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"], **more}


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["kill", "stop", "pause", "resume", "start"])
def test_node_commands_change_nothing_when_two_clusters_run(two: tuple[Up, Up], verb: str) -> None:
    """Before, the command silently acted on the newest cluster."""
    outcome = run("node", verb, "broker-1", env=here(two[0]))
    assert outcome.code == 2
    complaint = one_sentence(outcome)
    assert all(str(up.folder) in complaint for up in two)
    for up in two:
        os.kill(next(n["pid"] for n in up.ready["nodes"] if n["name"] == "broker-1"), 0)


@pytest.mark.processes
def test_node_list_refuses_to_choose_between_clusters(two: tuple[Up, Up]) -> None:
    assert run("node", "list", env=here(two[0])).code == 2


@pytest.mark.processes
def test_node_commands_follow_bootstrap_and_name_the_cluster(two: tuple[Up, Up]) -> None:
    first, second = two
    environment = here(first, STRANDLINE_BOOTSTRAP=first.bootstrap)
    listed = run("node", "list", "--json", env=environment).json()
    assert (listed["folder"], listed["bootstrap"]) == (str(first.folder), first.bootstrap)
    paused = run("node", "pause", "broker-1", env=environment)
    assert paused.code == 0
    assert short_path(str(first.folder)) in paused.err  # as seen from the folder in which the tests run
    assert run("node", "list", "--json", env=environment).json()["nodes"][0]["state"] == "paused"
    other = run("node", "list", "--json", "--data", str(second.folder), env=environment).json()
    assert other["nodes"][0]["state"] == "running"
    resumed = run("node", "resume", "broker-1", "--json", env=environment)
    assert resumed.json()["folder"] == str(first.folder)


@pytest.mark.processes
def test_a_command_without_effect_is_refused(two: tuple[Up, Up]) -> None:
    """To report "resumed" for a running node would be wrong, and a paused node cannot shut down cleanly."""
    environment = here(two[1], STRANDLINE_BOOTSTRAP=two[1].bootstrap)
    refused = run("node", "resume", "broker-1", env=environment)
    assert (refused.code, "not paused" in one_sentence(refused)) == (2, True)
    assert run("node", "pause", "broker-1", env=environment).code == 0
    try:
        for verb in ("pause", "stop"):
            refused = run("node", verb, "broker-1", env=environment)
            assert (refused.code, "is paused" in one_sentence(refused)) == (2, True)
    finally:
        assert run("node", "resume", "broker-1", env=environment).code == 0


@pytest.mark.processes
def test_a_stopped_clusters_folder_explains_how_to_start_it(tmp_path: Path) -> None:
    with start_up(tmp_path, "--brokers", "1", "--controllers", "1"):
        pass
    outcome = run("node", "kill", "broker-1", "--data", str(tmp_path / "data"))
    assert outcome.code == 1
    assert f"strandline up --data {tmp_path / 'data'}" in one_sentence(outcome)
