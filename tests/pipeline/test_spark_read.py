"""Batch reads in a real Spark: every record is read once, complete, and within the bounds of the options."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from transactions import COMMITTED, UNCOMMITTED, written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from strandline.testing import ThreadedCluster

T0 = 1_700_000_000_000


def frame(spark: SparkSession, log: ThreadedCluster, topic: str, **options: Any) -> DataFrame:
    reader = spark.read.format("strandline").option("bootstrap.servers", log.bootstrap_servers).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def offsets(df: DataFrame) -> list[tuple[int, int]]:
    return sorted((row.partition, row.offset) for row in df.select("partition", "offset").collect())


@pytest.fixture(scope="module")
def topic(log: ThreadedCluster) -> str:
    """Two partitions with 300 and 200 records, whose timestamps are one millisecond apart."""
    name = log.create_topic(partitions=2)

    async def fill() -> None:
        async with log.cluster.producer() as producer:
            for n in range(300):
                await producer.send(name, b"a%d" % n, key=b"k", partition=0, timestamp_ms=T0 + n)
            for n in range(200):
                await producer.send(name, b"b%d" % n, partition=1, timestamp_ms=T0 + n)
            await producer.flush()

    log.run(fill())
    return name


def test_every_record_is_read_once_with_all_columns(spark: SparkSession, log: ThreadedCluster, topic: str) -> None:
    rows = sorted(frame(spark, log, topic).collect(), key=lambda row: (row.partition, row.offset))
    assert [(row.partition, row.offset) for row in rows] == [(0, n) for n in range(300)] + [(1, n) for n in range(200)]
    first, last = rows[0], rows[-1]
    assert (bytes(first.key), bytes(first.value), first.topic, first.timestampType) == (b"k", b"a0", topic, 0)
    assert first.timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(T0 / 1000, UTC)
    assert (last.key, bytes(last.value)) == (None, b"b199")


def test_headers_are_read_if_the_option_asks_for_them(spark: SparkSession, log: ThreadedCluster) -> None:
    topic = log.create_topic()

    async def fill() -> None:
        async with log.cluster.producer() as producer:
            await producer.send_and_wait(topic, b"1", headers=[("trace", b"7"), ("trace", None)])
            await producer.send_and_wait(topic, None, key=b"gone")

    log.run(fill())
    assert "headers" not in frame(spark, log, topic).columns
    with_headers, without = frame(spark, log, topic, includeHeaders="true").orderBy("offset").collect()
    assert [(h.key, h.value and bytes(h.value)) for h in with_headers.headers] == [("trace", b"7"), ("trace", None)]
    assert (without.value, without.headers) == (None, None)


def test_records_of_open_and_aborted_transactions_are_left_out_on_request(spark: SparkSession, log: ThreadedCluster) -> None:
    topic = written(log, log.create_topic(partitions=1)).topic
    committed = frame(spark, log, topic, **{"isolation.level": "read_committed", "minPartitions": 3})
    assert offsets(committed) == [(0, offset) for offset in COMMITTED]
    assert offsets(frame(spark, log, topic)) == [(0, offset) for offset in UNCOMMITTED]
    with pytest.raises(PySparkException, match="a transaction that begins at offset 13 is open"):
        frame(
            spark, log, topic, **{"kafka.isolation.level": "read_committed", "endingOffsets": f'{{"{topic}": {{"0": 15}}}}'}
        ).count()


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"startingOffsets": '{"TOPIC": {"0": 250, "1": -2}}'}, range(250, 300), range(200)),
        ({"endingOffsets": '{"TOPIC": {"0": 10, "1": 0}}'}, range(10), range(0)),
        (
            {"startingOffsets": '{"TOPIC": {"0": 5, "1": 7}}', "endingOffsets": '{"TOPIC": {"0": -1, "1": 9}}'},
            range(5, 300),
            (7, 8),
        ),
        ({"startingTimestamp": T0 + 190}, range(190, 300), range(190, 200)),
        ({"startingTimestamp": T0 + 290, "startingOffsetsByTimestampStrategy": "latest"}, range(290, 300), ()),
        ({"endingTimestamp": T0 + 20}, range(20), range(20)),
        ({"minPartitions": 7}, range(300), range(200)),
        ({"maxRecordsPerPartition": 64}, range(300), range(200)),
    ],
)
def test_read_starts_and_ends_as_the_options_say(
    spark: SparkSession, log: ThreadedCluster, topic: str, options: dict[str, Any], first: Any, second: Any
) -> None:
    written = {name: str(value).replace("TOPIC", topic) for name, value in options.items()}
    df = frame(spark, log, topic, **written)
    assert offsets(df) == [(0, n) for n in first] + [(1, n) for n in second]
    if "minPartitions" in options:
        assert df.rdd.getNumPartitions() == 7


def test_pushed_filters_reduce_ranges_and_change_no_row(spark: SparkSession, log: ThreadedCluster, topic: str) -> None:
    """The number of tasks shows which ranges are read: one task per range."""
    since = datetime.fromtimestamp((T0 + 100) / 1000, UTC)
    where = f"partition = 0 and offset >= 5 and offset < 200 and timestamp >= timestamp'{since:%Y-%m-%d %H:%M:%S.%f}'"
    filtered = frame(spark, log, topic, pushFilters="true", maxRecordsPerPartition=10).where(where)
    assert offsets(filtered) == [(0, n) for n in range(100, 200)]
    assert filtered.rdd.getNumPartitions() == 10
    assert offsets(frame(spark, log, topic).where(where)) == [(0, n) for n in range(100, 200)]


def test_empty_topic_is_an_empty_frame(spark: SparkSession, log: ThreadedCluster) -> None:
    assert frame(spark, log, log.create_topic(partitions=3)).count() == 0


def test_subscribe_pattern_and_assign_select_partitions(spark: SparkSession, log: ThreadedCluster, topic: str) -> None:
    reader = spark.read.format("strandline").option("bootstrap.servers", log.bootstrap_servers)
    assert reader.option("subscribePattern", f"{topic}|nobody-.*").load().count() == 500
    reader = spark.read.format("strandline").option("bootstrap.servers", log.bootstrap_servers)
    assert reader.option("assign", f'{{"{topic}": [1]}}').load().count() == 200


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "no-such-topic", "strandline.max_block_ms": "500"}, "no-such-topic"),
        ({"startingOffsets": '{"TOPIC": {"0": 9, "1": 999}}'},
         "offset 999 of TOPIC-1 is not in the log, which has the offsets 0 to 200"),
        ({"bootstrap.servers": "127.0.0.1:1", "strandline.max_block_ms": "500"}, "127.0.0.1:1"),
    ],
)  # fmt: skip
def test_failed_read_is_reported_in_one_sentence(
    spark: SparkSession, log: ThreadedCluster, topic: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(PySparkException) as error:
        frame(spark, log, topic, **{k: v.replace("TOPIC", topic) for k, v in options.items()}).count()
    assert told.replace("TOPIC", topic) in str(error.value)


def test_start_deleted_by_retention_is_a_loss_or_skipped(spark: SparkSession, log: ThreadedCluster, topic: str) -> None:
    written = {"startingOffsets": f'{{"{topic}": {{"0": 0, "1": 0}}}}', "endingOffsets": f'{{"{topic}": {{"0": 9000, "1": 5}}}}'}
    with pytest.raises(PySparkException, match="failOnDataLoss"):
        frame(spark, log, topic, **written).count()
    assert frame(spark, log, topic, failOnDataLoss="false", **written).count() == 305
