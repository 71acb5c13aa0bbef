"""`strandline transaction`, and `consume --isolation-level`: transactions as an operator sees and ends them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from cli_world import Outcome, one_sentence, run

from strandline.client import Producer
from strandline.protocol.records.builder import encode_batch
from strandline.testing import Cluster
from strandline.testing.kit.threaded import ThreadedCluster

NOBODY = "127.0.0.1:1"
HANGING_ID, HANGING_EPOCH = 4_711, 3
HANGING_SINCE_MS = 1_767_268_800_000
"""2026-01-01T12:00 UTC"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    with Cluster.running_in_thread(brokers=1, transaction_state_log_num_partitions=3) as cluster:
        cluster.create_topic("orders", partitions=2)
        cluster.run(write(cluster))
        yield cluster


async def write(cluster: ThreadedCluster) -> None:
    """ "shop" has committed a record and aborted another one."""
    async with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="shop") as producer:
        async with producer.transaction():
            await producer.send("orders", b"committed", partition=0)
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"aborted", partition=0)
        await producer.abort_transaction()


@pytest.fixture
def open_producer(cluster: ThreadedCluster) -> Iterator[Producer[Any, Any]]:
    """ "till" has a transaction with a record in orders-1."""

    async def begin() -> Producer[Any, Any]:
        producer = Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id="till")
        await producer.start()
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"open", partition=1)
        return producer

    producer = cluster.run(begin())
    yield producer
    cluster.run(producer.stop())


def transaction(cluster: ThreadedCluster, *words: str) -> Outcome:
    return run("transaction", *words, "-b", cluster.bootstrap_servers)


def listed(cluster: ThreadedCluster, *words: str) -> dict[str, str]:
    """State by transactional id."""
    document = transaction(cluster, "list", "-o", "json", *words).json()
    assert document["complete"]
    return {each["transactional_id"]: each["state"] for each in document["transactions"]}


def described(cluster: ThreadedCluster, transactional_id: str) -> dict[str, Any]:
    (found,) = transaction(cluster, "describe", transactional_id, "-o", "json").json()["transactions"]
    assert isinstance(found, dict)
    return found


# -- list and describe ------------------------------------------------------------------------------------------------


def test_ids_are_listed_with_their_states(cluster: ThreadedCluster, open_producer: object) -> None:
    assert listed(cluster) == {"shop": "CompleteAbort", "till": "Ongoing"}
    table = transaction(cluster, "list")
    assert table.code == 0
    assert re.search(r"TRANSACTIONAL-ID +COORDINATOR +PRODUCER-ID +STATE", table.out)
    plain = [line.split("\t") for line in transaction(cluster, "list", "-o", "plain").out.splitlines()]
    assert [(row[0], row[1], row[3]) for row in plain] == [("shop", "1", "CompleteAbort"), ("till", "1", "Ongoing")]


def test_lists_can_be_narrowed(cluster: ThreadedCluster, open_producer: object) -> None:
    assert listed(cluster, "--state", "Ongoing") == {"till": "Ongoing"}
    assert listed(cluster, "--pattern", "s.*") == {"shop": "CompleteAbort"}
    assert listed(cluster, "--pattern", "s") == {}
    assert listed(cluster, "--longer-than", "1h") == {}
    assert listed(cluster, "--producer-id", str(described(cluster, "shop")["producer_id"])) == {"shop": "CompleteAbort"}


def test_filter_that_matches_nothing_does_not_say_that_there_is_nothing(cluster: ThreadedCluster) -> None:
    outcome = transaction(cluster, "list", "--state", "PrepareCommit")
    assert (outcome.code, outcome.out + outcome.err) == (0, "strandline: no transactional id matches\n")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--state", "Done"), "'Done'"),
        (("--pattern", "["), "regular expression"),
        (("--longer-than", "soon"), "'soon'"),
        (("--producer-id", str(10**20)), "whole number"),
        (("--producer-id=-1",), "whole number"),
    ],
)
def test_wrong_filter_is_refused(cluster: ThreadedCluster, words: tuple[str, ...], text: str) -> None:
    outcome = transaction(cluster, "list", *words)
    assert (outcome.code, text in one_sentence(outcome)) == (2, True)


def test_transaction_is_described_with_its_partitions(cluster: ThreadedCluster, open_producer: object) -> None:
    till, shop = described(cluster, "till"), described(cluster, "shop")
    assert (till["state"], till["partitions"]) == ("Ongoing", [{"topic": "orders", "partition": 1}])
    assert (shop["partitions"], shop["started_at_ms"], shop["timeout_ms"]) == ([], None, 60_000)
    row = transaction(cluster, "describe", "till", "-o", "plain").out.rstrip("\n").split("\t")
    assert (row[0], row[4], row[5], row[8]) == ("till", "Ongoing", "60 s", "orders-1")


def test_id_that_does_not_exist_is_named_beside_the_others(cluster: ThreadedCluster) -> None:
    outcome = transaction(cluster, "describe", "shop", "nobody", "-o", "plain")
    assert outcome.code == 1
    assert outcome.out.startswith("shop\t")
    assert "there is no transactional id 'nobody'" in outcome.err


@pytest.mark.parametrize("transactional_id", ["", "x" * 32_768])
@pytest.mark.parametrize("words", [("describe",), ("fence", "--yes")])
def test_id_that_no_producer_can_have_is_refused(cluster: ThreadedCluster, words: tuple[str, ...], transactional_id: str) -> None:
    outcome = transaction(cluster, *words, transactional_id)
    assert (outcome.code, "1 to 32767 characters" in one_sentence(outcome)) == (2, True)


@pytest.mark.parametrize(
    "words",
    [("list",), ("describe", "x"), ("find-hanging",), ("fence", "x", "--yes"), ("abort", "x", "0", "--start-offset", "0", "-y")],
)
def test_cluster_that_cannot_be_reached_is_one_sentence(words: tuple[str, ...]) -> None:
    outcome = run("transaction", *words, "-b", NOBODY)
    assert (outcome.code, NOBODY in one_sentence(outcome)) == (1, True)


# -- committed records ------------------------------------------------------------------------------------------------


def test_committed_records_are_printed_alone_on_demand(cluster: ThreadedCluster, open_producer: object) -> None:
    """The end of the topic, for --exit-at-end, is then the end of what is committed: an open transaction is not waited for."""
    words = ("consume", "orders", "-e", "-b", cluster.bootstrap_servers)
    assert run(*words, "--isolation-level", "read_committed").out == "committed\n"
    everything = run(*words).out.splitlines()
    assert {"committed", "aborted", "open"} <= set(everything)


# -- fence ------------------------------------------------------------------------------------------------------------


def test_fenced_producer_loses_its_transaction(cluster: ThreadedCluster, open_producer: Producer[Any, Any]) -> None:
    outcome = transaction(cluster, "fence", "till", "--yes")
    assert (outcome.code, outcome.out) == (0, "till fenced\n")
    assert listed(cluster)["till"] in ("PrepareAbort", "CompleteAbort", "Empty")

    async def commit() -> None:
        await open_producer.commit_transaction()

    with pytest.raises(Exception, match="has lost the transactional id 'till'"):
        cluster.run(commit())


def test_fence_creates_no_id(cluster: ThreadedCluster) -> None:
    outcome = transaction(cluster, "fence", "nobody", "--yes", "-o", "json")
    (found,) = json.loads(outcome.out)["transactions"]
    assert (outcome.code, "there is no transactional id" in found["error"]) == (1, True)
    assert "nobody" not in listed(cluster)


@pytest.mark.parametrize("words", [("fence", "shop"), ("abort", "orders", "0", "--start-offset", "0")])
def test_nothing_is_ended_without_a_yes(cluster: ThreadedCluster, words: tuple[str, ...]) -> None:
    outcome = transaction(cluster, *words)
    assert (outcome.code, "--yes" in one_sentence(outcome)) == (2, True)


# -- transactions that hang -------------------------------------------------------------------------------------------


def hang(cluster: ThreadedCluster, topic: str) -> None:
    """Append a record of a transaction that no coordinator knows. No request can do that: the leader asks the coordinator."""
    batch = encode_batch(
        [(None, b"hangs", [], HANGING_SINCE_MS)],
        producer_id=HANGING_ID,
        producer_epoch=HANGING_EPOCH,
        base_sequence=0,
        is_transactional=True,
    )
    nodes: Any = cluster.cluster._nodes

    async def append() -> None:
        (leader_state,) = [
            partition.leader_state for partition in nodes.server(1).replicas.partitions.values() if partition.topic == topic
        ]
        leader_state.append(batch, HANGING_SINCE_MS, is_transactional=True)

    cluster.run(nodes.call(1, append))


def test_transaction_that_hangs_is_found_and_ended(cluster: ThreadedCluster, open_producer: object) -> None:
    """Until then, readers of committed records do not get past it."""
    topic = cluster.create_topic(partitions=1)
    hang(cluster, topic)
    cluster.send(topic, b"behind")
    read = ("consume", topic, "-e", "--isolation-level", "read_committed", "-b", cluster.bootstrap_servers)
    assert run(*read).out == ""

    found = transaction(cluster, "find-hanging", "-o", "json")
    (hanging,) = found.json()["hanging"]
    assert (found.code, hanging["topic"], hanging["partition"], hanging["start_offset"]) == (3, topic, 0, 0)
    assert (hanging["producer_id"], hanging["producer_epoch"]) == (HANGING_ID, HANGING_EPOCH)
    assert (hanging["transactional_id"], hanging["reason"]) == (None, "no coordinator knows the producer")
    table = transaction(cluster, "find-hanging", "--topic", topic)
    assert table.code == 3
    advice = f"strandline transaction abort {topic} 0 --start-offset 0"
    assert advice in table.out + table.err

    wrong = transaction(cluster, "abort", topic, "0", "--start-offset", "1", "--yes")
    assert (wrong.code, "open ones begin at 0" in one_sentence(wrong)) == (2, True)
    done = transaction(cluster, *advice.split()[2:], "--yes")
    assert (done.code, done.out) == (0, f"the transaction at offset 0 of {topic}-0 is aborted\n")
    assert run(*read).out == "behind\n"
    assert transaction(cluster, "find-hanging").code == 0


def test_live_transaction_does_not_hang(cluster: ThreadedCluster, open_producer: object) -> None:
    outcome = transaction(cluster, "find-hanging", "--older-than", "0s", "-t", "orders")
    assert (outcome.code, outcome.out) == (0, "no transaction hangs in 2 partitions\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("find-hanging", "-t", "nowhere"), 1, "does not exist"),
        (("find-hanging", "--older-than", "long"), 2, "'long'"),
        (("abort", "nowhere", "0", "--start-offset", "0", "-y"), 1, "does not exist"),
        (("abort", "orders", "9", "--start-offset", "0", "-y"), 1, "2 partitions"),
        (("abort", "orders", "0", "--start-offset", "0", "-y"), 2, "there is none"),
    ],
)
def test_wrong_place_is_one_sentence(cluster: ThreadedCluster, words: tuple[str, ...], code: int, text: str) -> None:
    outcome = transaction(cluster, *words)
    assert (outcome.code, text in one_sentence(outcome)) == (code, True)
