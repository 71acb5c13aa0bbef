"""`strandline health`: its exit code, its output, and what it accepts as healthy."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, one_sentence, run, wait_until

from strandline.cli import health, probe
from strandline.cli.health import PARTITIONS_NAMED_MAX, judge_cluster
from strandline.client import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    PartitionDescription,
    TopicDescription,
    UnknownTopic,
)

NOBODY = "127.0.0.1:1"


def own(address: str) -> dict[str, str]:
    return {"STRANDLINE_HTTP_LISTENER": address}


def node_of(up: Up, name: str) -> dict[str, Any]:
    return next(n for n in up.ready["nodes"] if n["name"] == name)


def client_address(up: Up, name: str) -> str:
    node = node_of(up, name)
    return f"{node['host']}:{node['port']}"


# -- this node --------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("name", ["broker-1", "controller-101"])
def test_a_node_is_asked_at_its_own_http_address(up: Up, name: str) -> None:
    outcome = run("health", env=own(node_of(up, name)["http"]))
    assert (outcome.code, outcome.out) == (0, f"{name} is ready\n")


@pytest.mark.processes
def test_a_node_that_listens_everywhere_is_asked_on_loopback(up: Up) -> None:
    """A container's node listens on 0.0.0.0, which is no address to connect to."""
    port = node_of(up, "broker-2")["http"].rpartition(":")[2]
    assert run("health", env=own(f"0.0.0.0:{port}")).code == 0


@pytest.mark.processes
def test_json_output_has_the_checks(up: Up) -> None:
    outcome = run("health", "--json", env=own(node_of(up, "broker-1")["http"]))
    answer = outcome.json()
    assert (outcome.code, answer["healthy"], answer["node"], answer["problems"]) == (0, True, "broker-1", [])
    assert all(check.keys() == {"name", "ok", "detail"} for check in answer["checks"])


def test_an_unreachable_node_is_unhealthy() -> None:
    outcome = run("health", env=own(NOBODY))
    assert (outcome.code, outcome.out) == (3, f"cannot reach {NOBODY}: connection refused\n")
    answer = run("health", "--json", env=own(NOBODY))
    assert answer.code == 3
    assert answer.json() == {
        "healthy": False,
        "target": NOBODY,
        "problems": [f"cannot reach {NOBODY}: connection refused"],
    }


def test_an_unreachable_default_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who did not configure port 8092 must learn that it is the default, and how to choose another node."""
    monkeypatch.setattr(probe, "DEFAULT_ADDRESS", NOBODY)
    verdict = probe.ask_own_node(None, 1)
    assert verdict.target == NOBODY
    assert verdict.problems == [
        f"cannot reach {NOBODY}: connection refused (the default, as STRANDLINE_HTTP_LISTENER is not set; "
        "--broker HOST:PORT asks another node, --cluster all)"
    ]


def test_a_node_without_http_cannot_be_asked() -> None:
    outcome = run("health", env=own(""))
    assert outcome.code == 2
    assert "STRANDLINE_HTTP_LISTENER is empty: this node serves no HTTP" in one_sentence(outcome)


@contextmanager
def server_that_sends(answer: bytes | None) -> Iterator[str]:
    """A server that sends this response to every client, or none, and leaves the connection open."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            kept = []
            try:
                while True:
                    connection, _ = server.accept()
                    kept.append(connection)
                    connection.recv(65536)
                    if answer is not None:
                        connection.sendall(answer)
                        connection.close()
            except OSError:
                for connection in kept:
                    connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n<html>It works!</html>",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\n\r\n{"status": "ready"}',
        b"HTTP/1.1",
        b"\xff" * 100 + b"\r\n\r\n",
    ],
)
def test_another_server_is_no_healthy_node(answer: bytes) -> None:
    """Another server may respond with status 200, too."""
    with server_that_sends(answer) as address:
        outcome = run("health", env=own(address))
    assert (outcome.code, outcome.out) == (3, f"what answers at {address} is not the HTTP of a Strandline node\n")


def test_a_silent_node_is_unhealthy_after_the_timeout() -> None:
    with server_that_sends(None) as address:
        outcome = run("health", "--timeout", "0.2", env=own(address))
    assert (outcome.code, outcome.out) == (3, f"no answer from {address} within 0.2 s\n")


def test_a_very_slow_node_is_unhealthy_after_the_timeout() -> None:
    """The timeout covers the whole response, so a byte at a time does not extend it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = threading.Event()

        def drip() -> None:
            connection, _ = server.accept()
            with connection:
                while not done.wait(0.05):
                    try:
                        connection.sendall(b"x")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            outcome = run("health", "--timeout", "0.5", env=own(address), timeout_s=10)
        finally:
            done.set()
            thread.join(5)
    assert (outcome.code, outcome.out) == (3, f"no answer from {address} within 0.5 s\n")


@pytest.mark.parametrize("listener", ["8092", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:0", "127.0.0.1:99999", ":8092"])
def test_an_invalid_own_address_is_wrong_usage(listener: str) -> None:
    outcome = run("health", env=own(listener))
    assert outcome.code == 2
    assert "STRANDLINE_HTTP_LISTENER" in one_sentence(outcome)


@pytest.mark.parametrize(
    ("listener", "address"),
    [
        (None, "127.0.0.1:8092"),
        ("0.0.0.0:8093", "127.0.0.1:8093"),
        ("[::]:8093", "[::1]:8093"),
        ("broker-1:8092", "broker-1:8092"),
        (" 10.0.0.1:80 ", "10.0.0.1:80"),
    ],
)
def test_own_address_follows_the_listener(listener: str | None, address: str) -> None:
    assert probe.own_address(listener) == address


def test_a_health_check_imports_little() -> None:
    """A container runs the check every second or two. The test counts modules, which do not depend on the machine's load."""
    code = (
        "import sys; from strandline.cli import main; sys.argv = ['strandline', 'health', '--json', '--timeout', '1']\n"
        "before = set(sys.modules)\n"
        "try: main()\nexcept SystemExit as e: assert e.code == 3\n"
        "print([m for m in ('typer', 'click', 'rich', 'asyncio', 'uvloop', 'msgspec', 'structlog', 'http.client', 'ssl') "
        "if m in sys.modules])\n"
        "print(*[m for m in sys.modules if m.startswith('strandline')])\n"
        "print(len(set(sys.modules) - before))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT | own(NOBODY)
    ).stdout
    heavy, ours, count = out.splitlines()[-3:]
    assert heavy == "[]"
    needed = ("cli", "cli.interrupts", "cli.probe", "protocol", "protocol.errors")
    assert set(ours.split()) <= {"strandline", *(f"strandline.{name}" for name in needed)}
    assert int(count) < 40, "json and socket, and what these two need"


def test_a_health_check_is_faster_than_importing_asyncio() -> None:
    """The comparison is in CPU time, so that the machine's speed and load do not decide. The fastest of several alternating
    runs counts, so that a disturbance affects both."""

    def cpu_s(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=False, env=ENVIRONMENT | own(NOBODY))
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    turns = [(cpu_s(*COMMAND, "health"), cpu_s(sys.executable, "-c", "import asyncio")) for _ in range(7)]
    assert min(check for check, _ in turns) < min(asyncio for _, asyncio in turns)


@pytest.mark.parametrize(
    "words",
    [["--timeout", "soon"], ["--timeout", "-1"], ["--timeout", "0"], ["--timeout"], ["--what"], ["--broker"], ["something"]],
    ids=" ".join,
)
def test_unknown_options_are_wrong_usage(words: list[str]) -> None:
    outcome = run("health", *words)
    assert outcome.code == 2
    assert "Error: " in outcome.err


# -- a broker ---------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["client", "http"])
def test_a_broker_is_asked_by_either_of_its_addresses(up: Up, kind: str) -> None:
    address = client_address(up, "broker-1") if kind == "client" else node_of(up, "broker-1")["http"]
    outcome = run("health", "--broker", address)
    assert (outcome.code, outcome.out, outcome.err) == (0, "broker-1 is ready\n", "")
    assert run("health", "--broker", address, "--json").json()["node"] == "broker-1"


@pytest.mark.processes
def test_a_controller_as_broker_is_wrong_usage(up: Up) -> None:
    outcome = run("health", "--broker", client_address(up, "controller-101"))
    assert outcome.code == 2
    assert "controller-101, no broker" in one_sentence(outcome)


@pytest.mark.parametrize("address", [NOBODY, "no.such.host.invalid:9092"])
def test_a_broker_that_cannot_be_reached_is_unhealthy(address: str) -> None:
    outcome = run("health", "--broker", address, "--timeout", "5")
    assert outcome.code == 3
    assert address in outcome.out
    assert len(outcome.out.splitlines()) == 1


def test_a_silent_broker_is_unhealthy_after_the_timeout() -> None:
    with server_that_sends(None) as address:
        outcome = run("health", "--broker", address, "--timeout", "0.3")
    assert (outcome.code, outcome.out) == (3, f"no answer from {address} within 0.3 s\n")


def test_an_address_without_a_port_is_wrong_usage() -> None:
    outcome = run("health", "--broker", "localhost")
    assert outcome.code == 2
    assert "'localhost' is not of the form host:port" in one_sentence(outcome)


def test_broker_and_cluster_exclude_each_other() -> None:
    outcome = run("health", "--broker", NOBODY, "--cluster")
    assert outcome.code == 2
    one_sentence(outcome)


# -- the cluster ------------------------------------------------------------------------------------------------------


def test_the_number_of_brokers_is_one_of_the_whole_cluster() -> None:
    outcome = run("health", "--brokers", "3")
    assert outcome.code == 2
    assert "--cluster" in one_sentence(outcome)


@pytest.mark.processes
def test_a_cluster_with_fewer_brokers_than_expected_is_unhealthy(up: Up) -> None:
    """A cluster that starts looks complete as soon as one broker is registered. A caller that waits for three brokers passes the
    number."""
    at = ("health", "--cluster", "--bootstrap", up.bootstrap)
    wait_until(lambda: run(*at, "--brokers", "3").code == 0, "the cluster has three brokers")
    outcome = run(*at, "--brokers", "4")
    assert (outcome.code, outcome.out) == (3, "3 brokers are registered, and 4 are expected\n")


@pytest.mark.processes
def test_a_paused_broker_makes_the_cluster_unhealthy(up: Up) -> None:
    assert run("topic", "create", "health", "--partitions", "3", "--bootstrap", up.bootstrap).code == 0
    wait_until(lambda: run("health", "--cluster", "--bootstrap", up.bootstrap).code == 0, "the cluster is healthy")
    assert run("node", "pause", "broker-3", "--data", str(up.folder)).code == 0
    try:

        def notices() -> bool:
            outcome = run("health", "--cluster", "--bootstrap", up.bootstrap, "--json")
            answer = outcome.json()
            return outcome.code == 3 and answer.get("fenced_brokers") == [3] and answer["under_replicated_partitions"] >= 3

        wait_until(notices, "the loss is told")
        told = run("health", "--cluster", "--bootstrap", up.bootstrap)
        assert told.code == 3
        assert "broker 3 (" in told.out
        # Other tests of this run have topics in the cluster, too, and not all partitions are named.
        assert re.search(r"^partition \S+-\d+ is under-replicated \(replicas ", told.out, re.MULTILINE)
        itself = run("health", "--timeout", "0.3", env=own(node_of(up, "broker-3")["http"]))
        assert itself.code == 3
        assert "no answer" in itself.out
    finally:
        assert run("node", "resume", "broker-3", "--data", str(up.folder)).code == 0
    wait_until(lambda: run("health", "--cluster", "--bootstrap", up.bootstrap).code == 0, "the cluster is healthy again")


def test_a_cluster_that_cannot_be_reached_is_unhealthy() -> None:
    outcome = run("health", "--cluster", "--bootstrap", NOBODY)
    assert outcome.code == 3
    assert NOBODY in outcome.out


def partition(number: int, leader_id: int = 1, isr: tuple[int, ...] = (1, 2, 3)) -> PartitionDescription:
    return PartitionDescription(number, leader_id, 0, 0, (1, 2, 3), isr, (), ())


def broker(broker_id: int, **more: Any) -> BrokerDescription:
    return BrokerDescription(broker_id, "h", 9091 + broker_id, **more)


def judge(*partitions: PartitionDescription, controller_id: int = 101, brokers: Any = (), min_isr: int = 2) -> probe.Verdict:
    cluster = ClusterDescription("c", controller_id, list(brokers))
    return judge_cluster("h:1", cluster, [TopicDescription("orders", b"", list(partitions))], {"orders": min_isr})


def test_a_whole_cluster_is_healthy() -> None:
    verdict = judge(partition(0), partition(1), brokers=[broker(1), broker(2)])
    assert (verdict.healthy, verdict.problems) == (True, [])
    assert verdict.summary == "the cluster is healthy: 2 brokers, 2 partitions"


def test_each_problem_of_the_cluster_is_a_sentence() -> None:
    brokers = [broker(1), broker(2, is_fenced=True), broker(3, in_controlled_shutdown=True)]
    verdict = judge(controller_id=-1, brokers=brokers)
    assert verdict.problems == [
        "no controller is active",
        "broker 2 (h:9093) is fenced",
        "broker 3 (h:9094) is shutting down",
    ]


def test_a_partition_is_named_once_with_its_worst_problem() -> None:
    """It is still counted under each of its problems."""
    verdict = judge(partition(0, -1, (1,)), partition(1, 1, (1,)), partition(2, 1, (1, 2)), partition(3))
    assert verdict.problems == [
        "partition orders-0 is offline: it has no leader (replicas 1,2,3, in sync 1); it waits for broker 1",
        "partition orders-1 is under its min.insync.replicas (replicas 1,2,3, in sync 1)",
        "partition orders-2 is under-replicated (replicas 1,2,3, in sync 1,2)",
    ]
    counted = [verdict.facts[f"{kind}_partitions"] for kind in ("offline", "under_min_isr", "under_replicated")]
    assert counted == [1, 2, 3]


@pytest.mark.parametrize(
    ("elr", "last", "text"),
    [
        ((), (), "no replica is known to have every committed record"),
        ((), (2,), "no replica is known to have every committed record (its last leader was broker 2)"),
        ((3,), (2,), "it waits for broker 3"),
        ((3, 1), (1,), "it waits for broker 1 or 3"),
    ],
)
def test_an_offline_partition_names_the_replicas_it_waits_for(elr: tuple[int, ...], last: tuple[int, ...], text: str) -> None:
    found = replace(partition(0, -1, ()), eligible_leader_replicas=elr, last_known_elr=last)
    assert judge(found).problems[0].endswith(f"in sync none); {text}")


class DeletingAdmin:
    """Two topics have a partition that is out of sync, and `deleted` is deleted after the topics are described."""

    deleted = "orders"

    def __init__(self, **_: object) -> None:
        pass

    async def __aenter__(self) -> DeletingAdmin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def describe_cluster(self, **_: object) -> ClusterDescription:
        return ClusterDescription("c", 101, [broker(1)])

    async def describe_topics(self, **_: object) -> list[TopicDescription]:
        return [TopicDescription(name, b"", [partition(0, 1, (1, 2))]) for name in ("orders", "returns")]

    async def describe_configs(self, kind: str, name: str, keys: object, **_: object) -> list[ConfigEntry]:
        if name == self.deleted:
            raise UnknownTopic("the topic does not exist", topic=name)
        return [ConfigEntry("min.insync.replicas", "2", "topic")]


async def test_a_topic_that_is_deleted_during_the_check_is_no_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that delete topics, such as tests, would otherwise make a monitor report an unhealthy cluster. The other topics
    are still judged."""
    monkeypatch.setattr("strandline.client.Admin", DeletingAdmin)
    verdict = await health._ask_cluster("h:1", 5, 0)
    assert verdict.problems == ["partition returns-0 is under-replicated (replicas 1,2,3, in sync 1,2)"]
    assert verdict.facts["partitions"] == 1


def test_a_topic_with_fewer_replicas_than_its_minimum_is_not_blamed_for_it() -> None:
    """As in Kafka, a partition with all replicas in sync needs no repair."""
    assert judge(partition(0), min_isr=4).healthy


def test_replicas_that_a_reassignment_adds_are_no_problem() -> None:
    """They are out of sync because they are new. An earlier replica that is out of sync is still a problem."""
    moving = replace(partition(0), replicas=(4, 5, 1, 2, 3), adding_replicas=(4, 5))
    assert judge(moving).healthy
    assert judge(replace(moving, isr=(1, 2))).problems == [
        "partition orders-0 is under-replicated (replicas 4,5,1,2,3, in sync 1,2)"
    ]


def test_many_problem_partitions_are_counted() -> None:
    verdict = judge(*(partition(i, 1, (1, 2)) for i in range(PARTITIONS_NAMED_MAX + 5)))
    assert len(verdict.problems) == PARTITIONS_NAMED_MAX + 1
    assert verdict.problems[-1] == "5 more partitions are under-replicated"


def test_a_single_problem_is_in_the_singular() -> None:
    assert judge(partition(0), brokers=[broker(1)]).summary == "the cluster is healthy: 1 broker, 1 partition"
    troubled = judge(*(partition(i, 1, (1, 2)) for i in range(PARTITIONS_NAMED_MAX + 1)))
    assert troubled.problems[-1] == "1 more partition is under-replicated"
