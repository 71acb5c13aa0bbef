"""`strandline doctor`: each thing that can be wrong is found, named, and followed by what to do."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from cli_world import Up, run, wait_until

from strandline.cli.doctor_checks import FREE_BYTES_MIN, NEVER, Finding, Level, judge
from strandline.cli.doctor_facts import Clock, Facts, NodePage, Port
from strandline.cli.doctor_look import clock_of
from strandline.cli.doctor_ports import try_port
from strandline.client import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    LogDirDescription,
    PartitionDescription,
    QuorumDescription,
    QuorumReplica,
    TopicDescription,
    TopicPartition,
    UncleanElection,
)
from strandline.client.cluster.port_probe import KAFKA_QUESTION
from strandline.protocol.errors import ErrorCode

GB = 2**30


def good_port(number: int, address: str = "") -> Port:
    return Port(address or f"10.0.0.{number}:9092", ("10.0.0.1",), True, role="broker", node_id=number, cluster_id="c")


def page(number: int, **more: Any) -> NodePage:
    facts: dict[str, Any] = {"clock": Clock(-0.4, 0.6), "version": "0.1.0", "free_bytes": {"/d": 50 * GB}}
    return NodePage(f"10.0.0.{number}:8092", **{**facts, "total_bytes": {"/d": 100 * GB}, **more})


def configs(**values: str) -> list[ConfigEntry]:
    return [ConfigEntry(name.replace("__", "."), value, "topic") for name, value in values.items()]


def topic(name: str, replicas: tuple[int, ...] = (1, 2, 3), **more: Any) -> TopicDescription:
    return TopicDescription(name, b"", [PartitionDescription(0, 1, 0, 0, replicas, replicas, (), ())], **more)


def voter(number: int, age_ms: int = 0) -> QuorumReplica:
    return QuorumReplica(number, "10.0.0.9", 9093, 10, age_ms, age_ms)


def whole() -> Facts:
    """A cluster of three brokers and three controllers with which nothing is wrong."""
    ids = (1, 2, 3)
    broker = configs(log__dirs="/var/lib/strandline", log__flush__scheduler__interval__ms=NEVER, default__replication__factor="3")
    return Facts(
        client_version="0.1.0",
        bootstrap=[good_port(1)],
        advertised={i: good_port(i) for i in ids},
        voters={i: Port("10.0.0.9:9093", ("10.0.0.9",), True) for i in (101, 102, 103)},
        cluster=ClusterDescription("c", 101, [BrokerDescription(i, f"10.0.0.{i}", 9092) for i in ids]),
        quorum=QuorumDescription(101, 4, 10, 0, [voter(101), voter(102), voter(103)], []),
        topics=[topic("orders")],
        topic_configs={"orders": configs(min__insync__replicas="2", flush__ms=NEVER)},
        broker_configs=dict.fromkeys(ids, broker),
        log_dirs={i: [LogDirDescription("/d", {})] for i in ids},
        pages={i: page(i) for i in ids},
    )


def wrong(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.level is not Level.ok]


def test_nothing_is_wrong_with_a_whole_cluster() -> None:
    assert wrong(whole()) == []
    assert {finding.check for finding in judge(whole())} >= {"bootstrap", "listeners", "controllers", "replication", "disks"}


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({"listeners": "PLAINTEXT://h:1", "kafka.listener.names": "KAFKA"}, []),
        ({"listeners": "A://h:1,kafka://h:2", "kafka.listener.names": "KAFKA"}, ["h:2"]),
        ({"listeners": "A://0.0.0.0:1,KAFKA://0.0.0.0:2", "advertised.listeners": "A://x:1,KAFKA://x:2"}, ["x:2"]),
        ({"listeners": "A://h:1,B://h:2,C://h:3", "kafka.listener.names": "B,C"}, ["h:2", "h:3"]),
    ],
)
def test_addresses_for_kafkas_clients_are_those_of_their_listeners(values: dict[str, str], found: list[str]) -> None:
    facts = whole()
    values = {"kafka.listener.names": "KAFKA", **values}
    facts.broker_configs = {1: [ConfigEntry(name, value, "broker") for name, value in values.items()]}
    assert facts.kafka_addresses(1) == found


Change = Callable[[Facts], object]


def set_topic(facts: Facts, replicas: tuple[int, ...] = (1, 2, 3), **values: str) -> None:
    facts.topics = [topic("orders", replicas)]
    facts.topic_configs = {"orders": configs(**{"min__insync__replicas": "2", **values})}


def fence(facts: Facts) -> None:
    assert facts.cluster is not None
    brokers = [replace(b, is_fenced=b.broker_id == 2) for b in facts.cluster.brokers]
    facts.cluster = replace(facts.cluster, brokers=brokers)


def lose(facts: Facts) -> None:
    facts.unclean_elections = [UncleanElection(TopicPartition("orders", 0), 2, 7, 1, 6, 5, 5, 9, "operator", 0)]


def follow_late(facts: Facts) -> None:
    assert facts.quorum is not None
    facts.quorum = replace(facts.quorum, voters=[voter(101), voter(102, 60_000), voter(103)])


@pytest.mark.parametrize(
    ("change", "level", "says", "advises"),
    [
        (lambda f: f.bootstrap.append(Port("h:1", error="does not resolve")), "warning", "h:1 does not resolve", "DNS"),
        (
            lambda f: f.bootstrap.append(replace(good_port(9, "h:1"), cluster_id="d")),
            "problem",
            "2 clusters: c, d",
            "one cluster",
        ),
        (
            lambda f: f.advertised.update({2: Port("b2:9092", error="is gone")}),
            "problem",
            "broker 2 advertises b2",
            "advertised.",
        ),
        (lambda f: f.advertised.update({2: good_port(3)}), "problem", "and broker 3 answers there", "one address"),
        (
            lambda f: f.advertised.update({2: good_port(2, "localhost:9092")}),
            "warning",
            "connect to themselves",
            "other machines",
        ),
        (
            lambda f: f.kafka.update({2: [Port("b2:9096", ("10.0.0.2",), error="nothing listens there")]}),
            "note",
            "broker 2 advertises b2:9096, which Kafka's clients on this machine cannot use: nothing listens",
            "advertised.listeners of broker 2",
        ),
        (
            lambda f: f.kafka.update({2: [Port("localhost:9096", ("127.0.0.1",), True)]}),
            "warning",
            "broker 2 advertises localhost:9096 to Kafka's clients: other machines would connect to themselves",
            "other machines",
        ),
        (lambda f: setattr(f, "quorum", None), "problem", "quorum of controllers has no reachable leader", "majority"),
        (follow_late, "warning", "controller 102 does not follow", "start it"),
        (lambda f: f.voters.update({102: Port("c:1", error="no")}), "note", "controller 102 cannot be reached", ""),
        (lambda f: f.pages.update({2: page(2, clock=Clock(-61.2, -60.2))}), "warning", "broker 2 is at least 60 s behind", "NTP"),
        (lambda f: f.pages.update({2: NodePage("h:2", "reset")}), "note", "HTTP at h:2 does not answer (reset)", ""),
        (lambda f: f.pages.update({2: page(2, free_bytes={"/d": FREE_BYTES_MIN - 1})}), "problem", "1.07 GB free", "add space"),
        (
            lambda f: f.pages.update({2: page(2, free_bytes={"/d": 5 * GB})}),
            "warning",
            "/d of broker 2 has 5.37 GB free",
            "add space",
        ),
        (lambda f: f.pages.update({2: page(2, failed=("recovery: 3 of 9",))}), "problem", "not ready: recovery: 3 of 9", "logs"),
        (lambda f: f.pages.update({2: page(2, warnings=("x grows",))}), "warning", "broker 2: x grows", ""),
        (lambda f: f.pages.update({2: page(2, version="0.0.9")}), "warning", "0.0.9 (2), 0.1.0 (1, 3)", "finish the upgrade"),
        (lambda f: setattr(f, "client_version", "9"), "warning", "this command is of version 9", "the cluster's version"),
        (
            lambda f: f.log_dirs.update({2: [LogDirDescription("/d", {}, ErrorCode.KAFKA_STORAGE_ERROR)]}),
            "problem",
            "/d of broker 2 is offline",
            "repair",
        ),
        (lambda f: f.log_dirs.update({2: None}), "warning", "broker 2 did not answer about its log", "node list"),
        (fence, "problem", "broker 2 (10.0.0.2:9092) is fenced", "start the broker"),
        (lose, "warning", "orders-0 had an unclean election at 1970-01-01 00:00:00; may be lost: offsets 5 to 8", "describe"),
        (lambda f: set_topic(f, (1,)), "warning", "orders has one replica", "--replication-factor"),
        (lambda f: set_topic(f, min__insync__replicas="1"), "warning", "orders has min.insync.replicas=1", "config set"),
        (lambda f: set_topic(f, min__insync__replicas="4"), "warning", "above the number of replicas", "one less"),
        (lambda f: set_topic(f, min__insync__replicas="3"), "warning", "equal to the number of replicas", "one less"),
        (lambda f: set_topic(f, flush__ms="1000"), "warning", "orders has flush.ms, which does nothing", "scheduler"),
        (
            lambda f: set_topic(f, unclean__leader__election__enable="true"),
            "warning",
            "unclean.leader.election.enable=true",
            "availability",
        ),
        (
            lambda f: f.broker_configs.update({2: configs(log__dirs="/v", min__insync__replicas="1")}),
            "warning",
            "different values of min.insync.replicas",
            "same value",
        ),
        (
            lambda f: f.broker_configs.update({2: configs(log__dirs="/v, /tmp/x", default__replication__factor="3")}),
            "warning",
            "log.dirs of broker 2 is in /tmp",
            "lasts",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_wrong_is_found_with_what_to_do(change: Change, level: str, says: str, advises: str) -> None:
    facts = whole()
    change(facts)
    found = [finding for finding in wrong(facts) if says in finding.text]
    assert [finding.level for finding in found] == [level], wrong(facts)
    assert advises in found[0].advice


@pytest.mark.parametrize(
    ("change", "says", "advises"),
    [
        (
            lambda f: setattr(f, "quorum", replace(f.quorum, voters=[voter(101), voter(102, -1), voter(103, -1)])),
            "controllers 102, 103 do not follow the leader",
            "start them",
        ),
        (
            lambda f: f.voters.update({i: Port("c:1", error="no") for i in (102, 103)}),
            "controllers 102, 103 cannot be reached from here; only brokers have to reach them",
            "",
        ),
        (
            lambda f: f.log_dirs.update({2: None, 3: None}),
            "brokers 2, 3 did not answer about their log directories",
            "look at their logs",
        ),
        (
            lambda f: f.broker_configs.update(
                dict.fromkeys((2, 3), configs(log__dirs="/tmp/x", default__replication__factor="3"))
            ),
            "log.dirs of brokers 2, 3 are in /tmp",
            "lasts",
        ),
    ],
    ids=["follow", "reach", "answer", "tmp"],
)
def test_sentences_about_several_nodes_are_in_the_plural(change: Change, says: str, advises: str) -> None:
    """The advice "start it" after two names would leave open which one is meant."""
    facts = whole()
    change(facts)
    (found,) = [finding for finding in wrong(facts) if says in finding.text]
    assert advises in found.advice


def test_even_quorum_tolerates_no_more_losses_than_one_less() -> None:
    """A majority of four voters is three, so an operator must not stop a second one."""
    facts = whole()
    follow_late(facts)
    assert facts.quorum is not None
    facts.quorum = replace(facts.quorum, voters=[*facts.quorum.voters, voter(104)])
    (found,) = [finding for finding in wrong(facts) if "does not follow" in finding.text]
    assert found.advice == "start it; of 4 controllers, 1 may be down"


def test_flush_interval_of_a_silent_broker_hides_no_trap() -> None:
    facts = whole()
    set_topic(facts, flush__ms="1000")
    facts.broker_configs[2] = None
    assert any("flush.ms, which does nothing" in finding.text for finding in wrong(facts))


def test_a_cluster_that_cannot_be_reached_has_one_problem_per_address() -> None:
    facts = Facts("0.1.0", [Port("h:1", error="is gone"), Port("h:2", error="is gone")], cluster_error="no broker")
    assert [(finding.check, finding.level) for finding in wrong(facts)] == [("bootstrap", "problem")] * 2


@pytest.mark.parametrize(
    ("clock", "skew"), [(Clock(-0.5, 0.5), 0), (Clock(3.1, 4.1), 3.1), (Clock(-9.5, -8.5), -8.5), (Clock(-1, 0), 0)]
)
def test_skew_is_the_smallest_that_explains_the_answer(clock: Clock, skew: float) -> None:
    assert clock.skew_s == skew


def test_clock_is_read_from_the_date_of_an_answer() -> None:
    clock = clock_of("Thu, 01 Jan 1970 00:01:40 GMT", 98.0, 98.5)
    assert clock == Clock(1.5, 3.0)
    assert clock_of("soon", 0, 0) is None


# -- ports --------------------------------------------------------------------------------------------------------------


@contextmanager
def server(answer: Callable[[bytes], bytes], *, greeting: bytes = b"") -> Iterator[tuple[str, int]]:
    """A server that greets, and answers the first bytes of each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(0.5)
                    try:
                        connection.sendall(greeting)
                        connection.sendall(answer(connection.recv(4096)))
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[:2]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def kafka(question: bytes) -> bytes:
    return struct.pack(">iihi", 10, 7, 0, 0) if question == KAFKA_QUESTION else b""


@pytest.mark.parametrize(
    ("answer", "greeting", "speaks", "but"),
    [
        (lambda question: b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", "HTTP", "not Strandline's protocol"),
        (lambda question: b"\x15\x03\x01\x00\x02\x02\x46", b"", "TLS", "this client does not"),  # A secure cluster perhaps.
        (
            lambda question: b"",
            b"SSH-2.0-OpenSSH_9.2\r\n",
            "a protocol that begins with 'SSH-2.0-OpenSSH_9.2'",
            "not Strandline's protocol",
        ),
        (kafka, b"", "Kafka's protocol", "not Strandline's protocol"),
    ],
    ids=["http", "tls", "ssh", "kafka"],
)
def test_other_protocol_of_a_port_is_recognised(answer: Callable[[bytes], bytes], greeting: bytes, speaks: str, but: str) -> None:
    with server(answer, greeting=greeting) as (host, port):
        found = asyncio.run(try_port(host, port))
    assert (found.is_open, found.speaks, found.error) == (True, speaks, f"speaks {speaks}, and {but}")


def test_controllers_behind_tls_are_not_called_unreachable() -> None:
    """The client's properties are those for brokers; a controller's listener may want other ones."""
    facts = whole()
    facts.voters = {102: Port("c:1", ("10.0.0.1",), True, "speaks TLS, and this client does not", "TLS")}
    assert [finding for finding in judge(facts) if finding.check == "controllers" and finding.level is not Level.ok] == []


def test_tls_port_asks_for_client_properties() -> None:
    facts = whole()
    facts.bootstrap = [Port("b:1", ("10.0.0.1",), True, "speaks TLS, and this client does not", "TLS")]
    finding = next(finding for finding in judge(facts) if finding.check == "bootstrap")
    assert "--client-config" in finding.advice


def test_closed_port_and_unknown_name_are_told_apart() -> None:
    assert asyncio.run(try_port("127.0.0.1", 1)).error == "nothing listens there (connection refused)"
    assert asyncio.run(try_port("no.such.host.invalid", 1)).error.startswith("no.such.host.invalid does not resolve here (")


# -- a real cluster -----------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_local_cluster_is_examined(up: Up) -> None:
    wait_until(lambda: run("health", "--cluster", "-b", up.bootstrap).code == 0, "the cluster is healthy")
    outcome = run("doctor", "-b", up.bootstrap, "-o", "json", timeout_s=60)
    found = outcome.json()
    good = {finding["check"] for finding in found["findings"] if finding["level"] == "ok"}
    assert {"bootstrap", "listeners", "kafka", "controllers", "replication", "disks", "clocks", "versions"} <= good
    assert (outcome.code, found["problems"]) == (0, 0)


@pytest.mark.processes
def test_a_wrong_port_is_explained_on_80_columns(up: Up) -> None:
    node = next(n for n in up.ready["nodes"] if n["name"] == "controller-101")
    began = time.monotonic()
    outcome = run("doctor", "-b", f"{node['http']},127.0.0.1:1,{node['host']}:{node['port']}", env={"COLUMNS": "80"})
    assert outcome.code == 3
    assert "speaks HTTP" in outcome.out
    assert "is controller-101, no broker" in outcome.out
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert time.monotonic() - began < 15
