"""The option `isolation.level`: batches, streams and tasks that read committed records only."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import transactions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from transactions import COMMITTED, END, STABLE, UNCOMMITTED, Transactions

from strandline.client import RequestTimeout, TopicPartition
from strandline.pipeline import stream_reader
from strandline.pipeline.batch_reader import BatchReader
from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.jobs.materialize_source import planned
from strandline.pipeline.offsets import from_json
from strandline.pipeline.options import read_options, with_committed
from strandline.pipeline.planning import Range
from strandline.pipeline.stopped_ends import WAIT_S, StoppedEnds
from strandline.pipeline.stream_reader import StreamReader
from strandline.pipeline.task_reader import TaskReader
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.testing import ThreadedCluster

IS_COMMITTED = {"isolation.level": "read_committed"}


@pytest.fixture
def topic(log: ThreadedCluster) -> str:
    return log.create_topic(partitions=1)


@pytest.fixture
def written(log: ThreadedCluster, topic: str) -> Transactions:
    return transactions.written(log, topic)


def options_of(log: ThreadedCluster, topic: str, more: dict[str, str], *, is_stream: bool = False) -> Any:
    given = {"bootstrap.servers": log.bootstrap_servers, "subscribe": topic, "startingOffsets": "earliest", **more}
    return read_options(given, is_stream=is_stream)


def batch_offsets(log: ThreadedCluster, topic: str, more: dict[str, str]) -> list[int]:
    reader = BatchReader(options_of(log, topic, more))
    return [row["offset"] for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def query(log: ThreadedCluster, topic: str, more: dict[str, str]) -> StreamReader:
    return StreamReader(options_of(log, topic, more, is_stream=True))


def next_batch(reader: StreamReader, start: dict[str, Any], most: int | None = None) -> tuple[list[int], dict[str, Any]]:
    """The offsets of the rows of the next batch, and its end as the checkpoint stores it."""
    limit = ReadAllAvailable() if most is None else ReadMaxRows(most)
    end = json.loads(json.dumps(reader.latestOffset(start, limit)))
    tasks = reader.partitions(start, end) if end != start else []
    return [row["offset"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()], end


def offset_of(stored: dict[str, Any]) -> int:
    return next(iter(from_json(stored).values())).offset


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["isolation.level", "Isolation.Level", "kafka.isolation.level", "strandline.isolation_level"])
def test_isolation_level_has_the_names_of_kafka_and_of_the_client(name: str) -> None:
    given = {"bootstrap.servers": "one:9092", "subscribe": "orders"}
    assert read_options({**given, name: "read_committed"}, is_stream=False).reads_committed
    assert not read_options(given, is_stream=False).reads_committed
    assert with_committed({name: "read_uncommitted"}) == {name: "read_uncommitted"}


def test_contradicting_or_unknown_isolation_levels_are_rejected() -> None:
    given = {"bootstrap.servers": "one:9092", "subscribe": "orders", "isolation.level": "read_committed"}
    with pytest.raises(UsageError, match=r"isolation\.level must be one of read_uncommitted, read_committed, not"):
        read_options({**given, "isolation.level": "serializable"}, is_stream=False)
    with pytest.raises(UsageError, match="contradict each other"):
        read_options({**given, "kafka.isolation.level": "read_uncommitted"}, is_stream=False)


# -- batches ----------------------------------------------------------------------------------------------------------


def test_batch_of_committed_records_ends_at_the_open_transaction(log: ThreadedCluster, written: Transactions) -> None:
    assert batch_offsets(log, written.topic, IS_COMMITTED) == COMMITTED
    assert batch_offsets(log, written.topic, {}) == UNCOMMITTED
    written.end(7, is_commit=True)
    assert batch_offsets(log, written.topic, IS_COMMITTED) == [*COMMITTED, 13, 14]


@pytest.mark.parametrize("least", [1, 5, STABLE])
def test_split_ranges_have_the_same_committed_records(log: ThreadedCluster, written: Transactions, least: int) -> None:
    """A task that begins inside an aborted transaction needs the fetch response to know that its records are aborted."""
    assert batch_offsets(log, written.topic, {**IS_COMMITTED, "minPartitions": str(least)}) == COMMITTED


def test_batch_cannot_end_after_an_open_transaction(log: ThreadedCluster, written: Transactions) -> None:
    """The records are not lost, so `failOnDataLoss=false` must not skip them."""
    ending = json.dumps({written.topic: {"0": END}})
    for more in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(UsageError, match=f"a transaction that begins at offset {STABLE} is open"):
            batch_offsets(log, written.topic, {**IS_COMMITTED, "endingOffsets": ending, **more})
    assert batch_offsets(log, written.topic, {"endingOffsets": ending}) == UNCOMMITTED


def test_batch_may_start_after_an_open_transaction(log: ThreadedCluster, written: Transactions) -> None:
    starting = {"startingOffsets": json.dumps({written.topic: {"0": 14}})}
    assert batch_offsets(log, written.topic, {**IS_COMMITTED, **starting}) == []


def test_transactions_of_a_producer_are_read_as_they_end(log: ThreadedCluster) -> None:
    """The transactions are written with the coordinator here, in two partitions."""
    topic = log.create_topic(partitions=2)

    async def write() -> None:
        async with log.cluster.producer(transactional_id=f"of {topic}") as producer:
            for is_commit in (True, False, True):
                await producer.begin_transaction()
                for partition in (0, 1):
                    await producer.send(topic, b"yes" if is_commit else b"no", partition=partition)
                await (producer.commit_transaction() if is_commit else producer.abort_transaction())

    log.run(write())
    for partition in (0, 1):
        Transactions(log, topic, partition).until_all_have_ended()
    reader = BatchReader(options_of(log, topic, IS_COMMITTED))
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted((row["partition"], row["value"]) for row in rows) == [(0, b"yes")] * 2 + [(1, b"yes")] * 2


# -- streams ----------------------------------------------------------------------------------------------------------


def test_stream_of_committed_records_waits_for_the_open_transaction(log: ThreadedCluster, written: Transactions) -> None:
    reader = query(log, written.topic, IS_COMMITTED)
    rows, end = next_batch(reader, reader.initialOffset())
    assert (rows, offset_of(end)) == (COMMITTED, STABLE)
    written.plain("after 15")
    assert next_batch(reader, end) == ([], end)
    written.end(7, is_commit=False)
    rows, end = next_batch(reader, end)
    assert (rows, offset_of(end)) == ([14, 15], 17)


def test_limited_batches_have_each_committed_record_once(log: ThreadedCluster, written: Transactions) -> None:
    """A batch of aborted records and markers has no rows, and the stream goes on after it."""
    reader = query(log, written.topic, IS_COMMITTED)
    at, rows, batches = reader.initialOffset(), [], 0
    while offset_of(at) < STABLE:
        found, at = next_batch(reader, at, most=2)
        rows, batches = rows + found, batches + 1
    assert (rows, batches) == (COMMITTED, 7)


def test_query_may_change_from_uncommitted_to_committed_records(log: ThreadedCluster, written: Transactions) -> None:
    """Its checkpoint is above the last stable offset, and still no record is lost."""
    reader = query(log, written.topic, {})
    _, end = next_batch(reader, reader.initialOffset())
    assert offset_of(end) == END
    restarted = query(log, written.topic, IS_COMMITTED)
    assert next_batch(restarted, end) == ([], end)
    written.end(7, is_commit=True)
    written.plain("after 16")
    rows, end = next_batch(restarted, end)
    assert (rows, offset_of(end)) == ([16], 17)


def test_materialisation_may_change_from_uncommitted_to_committed_records(log: ThreadedCluster, written: Transactions) -> None:
    options = options_of(log, written.topic, IS_COMMITTED)
    view = ClusterView(options.client, options.subscription)
    tps = view.partitions()
    uncommitted = query(log, written.topic, {})
    since = from_json(next_batch(uncommitted, uncommitted.initialOffset())[1])
    ranges = planned(since, view.earliest(tps), view.not_below(view.latest(tps), since), True)
    assert [(r.start, r.end) for r in ranges] == [(END, END)]


def test_stopped_partition_is_named_once_in_each_wait() -> None:
    """Each look-up is a request to the leader, also for topics that are only quiet."""
    ends, place = StoppedEnds(), TopicPartition("orders", 0)
    assert ends.take({place: 5}, 0.0) == []
    assert ends.take({place: 6}, WAIT_S) == []
    assert ends.take({place: 6}, WAIT_S * 2 - 1) == []
    assert ends.take({place: 6}, WAIT_S * 2) == [place]
    assert ends.take({place: 6}, WAIT_S * 2 + 1) == []
    assert ends.take({place: 6}, WAIT_S * 3) == [place]


def test_stream_logs_that_an_open_transaction_has_stopped_it(
    log: ThreadedCluster, written: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr("strandline.pipeline.stopped_ends.WAIT_S", 1e-9)
    monkeypatch.setattr(stream_reader.logger, "warning", lambda event, **fields: lines.append({"event": event, **fields}))
    reader = query(log, written.topic, IS_COMMITTED)
    _, end = next_batch(reader, reader.initialOffset())
    assert next_batch(reader, end) == ([], end)
    place = {"topic": written.topic, "partition": 0}
    assert lines == [{"event": "pipeline.transaction_awaited", **place, "offset": STABLE, "log_end_offset": END}]


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_task_that_waits_for_an_open_transaction_names_it_in_its_error(log: ThreadedCluster, written: Transactions) -> None:
    """The checkpoint of a query that read uncommitted records may hold a batch that ends there."""
    client = {"bootstrap_servers": log.bootstrap_servers, "isolation_level": "read_committed"}
    task = TaskReader(client, False, True, 300, 10)
    with pytest.raises(RequestTimeout, match="an open transaction"):
        list(task.read(Range(written.topic, 0, 0, END)))
