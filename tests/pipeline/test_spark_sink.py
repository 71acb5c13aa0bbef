"""The sink in a real Spark: every row is stored once and in order, despite retries, failed commits and restarts.

In most tests the segments of the replicas are the judge (stored.py), not a client or the source.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import TaskContext, inheritable_thread_target
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.functions import udf
from stored import stored_rows, stored_values

from strandline.pipeline.cluster_view import ClusterView
from strandline.pipeline.options import Subscription
from strandline.pipeline.spark import register
from strandline.pipeline.write_identity import BATCH_ID, QUERY_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from strandline.testing import ThreadedCluster


def write(df: DataFrame, log: ThreadedCluster, topic: str | None = None, **options: str) -> None:
    writer = df.write.format("strandline").mode("append").option("bootstrap.servers", log.bootstrap_servers)
    for name, value in {**({} if topic is None else {"topic": topic}), **options}.items():
        writer = writer.option(name, value)
    writer.save()


def numbers(spark: SparkSession, count: int, tasks: int = 2) -> DataFrame:
    """Rows with texts of 200 characters, because small rows would wait in Spark's buffers until there are many."""
    return spark.range(0, count, numPartitions=tasks).selectExpr("lpad(cast(id as string), 200, '0') value")


def each_once(count: int) -> Counter[bytes]:
    return Counter(b"%0200d" % n for n in range(count))


def test_all_columns_are_stored_unchanged(spark: SparkSession, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=3)
    sql = (
        "select 'k' key, cast('v' as binary) value, 2 partition, "
        f"array(named_struct('key', 'h', 'value', cast('1' as binary))) headers, '{topic}' topic"
    )
    write(spark.sql(sql), log)
    (row,) = stored_rows(log, topic)
    assert (row.key, row.value, row.partition, row.headers) == (b"k", b"v", 2, (("h", b"1"),))


def test_rows_are_stored_once_in_the_partitions_of_their_keys(spark: SparkSession, log: ThreadedCluster) -> None:
    topic = log.create_topic(partitions=3)
    write(
        spark.range(0, 5000, numPartitions=3).selectExpr(
            "cast(id % 10 as string) key", "lpad(cast(id as string), 200, '0') value"
        ),
        log,
        topic,
    )
    assert stored_values(log, topic) == each_once(5000)
    other = log.create_topic(partitions=3)

    async def send() -> None:
        async with log.cluster.producer() as producer:
            for n in range(10):
                await producer.send_and_wait(other, b"", key=b"%d" % n)

    log.run(send())
    by_client = {record.key: record.partition for record in log.read_all(other)}
    assert {(row.key, row.partition) for row in stored_rows(log, topic)} == set(by_client.items())


@pytest.mark.parametrize(
    ("sql", "options", "told"),
    [
        ("select 'x' text", {}, r"a column value \(binary or string\) is needed, and there are text; select one"),
        ("select 1 value", {}, "column value must be binary or string, not int"),
        ("select 'x' value, '1' partition", {}, "column partition must be int, not string"),
        ("select 'x' value, 'y' extra", {}, "a sink has no column 'extra'; drop it"),
        ("select 'x' value", {"topic": ""}, "no topic is given"),
        ("select 'x' value, cast(null as string) topic", {"topic": ""}, "1 row has null in the column topic"),
        ("select 'x' value", {"topik": "y"}, "did you mean 'topic'"),
        ("select repeat('x', 2000000) value", {"strandline.max_request_size": "1000000"}, "RecordTooLarge"),
        ("select 'x' value, 77 partition", {}, "77"),
        (
            "select 'x' value",
            {"bootstrap.servers": "127.0.0.1:1", "strandline.connect_timeout_ms": "1000"},
            "no broker could be reached",
        ),
        ("select 'x' value", {"topic": "nowhere", "strandline.max_block_ms": "3000"}, "nowhere"),
    ],
)
def test_failed_write_is_reported_in_one_sentence(
    spark: SparkSession, log: ThreadedCluster, sql: str, options: dict[str, str], told: str
) -> None:
    topic = log.create_topic()
    with pytest.raises(PySparkException, match=told):
        write(spark.sql(sql), log, **{"topic": topic, **options})
    assert log.read_all(topic) == []


def test_overwrite_is_rejected(spark: SparkSession, log: ThreadedCluster) -> None:
    with pytest.raises(PySparkException, match="only ever appended to"):
        numbers(spark, 1).write.format("strandline").mode("overwrite").option("bootstrap.servers", log.bootstrap_servers).option(
            "topic", "t"
        ).save()


def dying(log: ThreadedCluster, topic: str, at: set[int], folder: Path | None = None) -> Any:
    """A step that passes rows on until it meets one of `at`, and then dies after some rows of the attempt were written. With a
    folder only the first attempt dies, without a folder every attempt."""
    servers, before = log.bootstrap_servers, len(log.read_all(topic))

    def step(value: str) -> str:
        if int(value) in at:
            mark = None if folder is None else folder / f"died-{int(value)}"
            if mark is None or not mark.exists():
                wait_for_records(servers, topic, before)
                if mark is not None:
                    mark.touch()
                raise RuntimeError("this attempt dies here")
        return value

    return udf(step, "string", useArrow=False)


def wait_for_records(servers: str, topic: str, before: int, within_s: float = 20) -> None:
    view = ClusterView({"bootstrap_servers": servers}, Subscription((topic,)))
    deadline = time.monotonic() + within_s
    while sum(end.offset for end in view.latest(view.partitions()).values()) <= before:
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.1)


def retried(spark: SparkSession, log: ThreadedCluster, topic: str, folder: Path) -> DataFrame:
    """Two tasks of 3,000 rows. Both die in the middle, after some of their rows were written."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    return numbers(spark, 6000).select(dying(log, topic, {2000, 5000}, folder)("value").alias("value"))


@pytest.mark.usefixtures("two_attempts")
def test_retried_task_continues_after_the_rows_in_the_log(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    topic = log.create_topic(partitions=3)
    write(retried(spark, log, topic, tmp_path), log, topic, rowOrder="stable", **{"strandline.linger_ms": "0"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["died-2000", "died-5000"]
    assert stored_values(log, topic) == each_once(6000)


def shuffled(log: ThreadedCluster, topic: str, mark: Path) -> Any:
    """Rows whose order differs in each attempt. After some of the first were written, all workers of the executor are killed."""
    servers = log.bootstrap_servers

    def step(rows: Iterator[tuple[str]]) -> Iterator[tuple[str]]:
        dealt = list(rows)
        random.shuffle(dealt)
        for number, row in enumerate(dealt):
            if number == 2000 and not mark.exists():
                wait_for_records(servers, topic, 0)
                if mark_it(mark):
                    kill_workers()
            yield row

    return step


def mark_it(path: Path) -> bool:
    """Creates the marker; returns whether this process created it."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def kill_workers() -> None:
    """Kills all processes that Spark's daemon has forked: the ones that write, and last this process."""
    children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
    for pid in sorted(map(int, children), key=os.getpid().__eq__):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.usefixtures("two_attempts")
def test_shuffled_rows_are_stored_once_after_workers_were_killed(
    spark: SparkSession, log: ThreadedCluster, tmp_path: Path
) -> None:
    """The order of the rows differs in the second attempts, so they compare, and write the missing rows."""
    topic = log.create_topic(partitions=3)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    rows = numbers(spark, 6000).repartition(2).rdd.mapPartitions(shuffled(log, topic, tmp_path / "killed"))
    write(spark.createDataFrame(rows, "value string"), log, topic, **{"strandline.linger_ms": "0"})
    assert (tmp_path / "killed").exists()
    assert stored_values(log, topic) == each_once(6000)


@pytest.mark.usefixtures("two_attempts")
def test_second_attempt_with_other_rows_writes_nothing_and_fails(spark: SparkSession, log: ThreadedCluster) -> None:
    """The second attempt computes its input again, which differs. If it wrote rows, some would be missing or doubled."""
    topic = log.create_topic(partitions=1)
    servers = log.bootstrap_servers

    def step(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        if not context.attemptNumber() and int(value) == 800:
            wait_for_records(servers, topic, 0)
            raise RuntimeError("this attempt dies here")
        return f"{context.attemptNumber()} {value}"

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows = numbers(spark, 1000, tasks=1).select(udf(step, "string", useArrow=False)("value").alias("value"))
    with pytest.raises(PySparkException, match=r"are not among the rows of task \d+ now: .*nothing was written"):
        write(rows, log, topic, **{"strandline.linger_ms": "0"})
    assert all(value.startswith(b"0 ") for value in stored_values(log, topic))
    assert set(stored_values(log, topic).values()) == {1}


@pytest.mark.usefixtures("two_attempts")
def test_at_least_once_writes_rows_again(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    topic = log.create_topic(partitions=1)
    write(retried(spark, log, topic, tmp_path), log, topic, delivery="at-least-once", **{"strandline.linger_ms": "0"})
    assert set(stored_values(log, topic)) == set(each_once(6000))
    assert sum(stored_values(log, topic).values()) > 6000


# -- streams ----------------------------------------------------------------------------------------------------------


class Copy:
    """A stream from one topic into another, which a test starts as often as it needs."""

    def __init__(self, spark: SparkSession, log: ThreadedCluster, folder: Path) -> None:
        self.spark, self.log, self.folder = spark, log, folder
        self.source, self.target = log.create_topic(partitions=2), log.create_topic(partitions=3)

    def start(self, step: Any = None, **options: str) -> StreamingQuery:
        reader = self.spark.readStream.format("strandline").option("bootstrap.servers", self.log.bootstrap_servers)
        reader = (
            reader.option("subscribe", self.source)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", "2000")
            .option("minPartitions", "2")
        )
        df = reader.load().selectExpr("cast(value as string) value")
        if step is not None:
            df = df.select(step("value").alias("value"))
        writer = df.writeStream.format("strandline").option("bootstrap.servers", self.log.bootstrap_servers)
        for name, value in {"topic": self.target, "rowOrder": "stable", "strandline.linger_ms": "0", **options}.items():
            writer = writer.option(name, value)
        return writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(availableNow=True).start()

    def run(self, step: Any = None, **options: str) -> None:
        assert self.start(step, **options).awaitTermination(120)

    def fill(self, first: int, count: int) -> None:
        async def send() -> None:
            async with self.log.cluster.producer() as producer:
                for partition in (0, 1):
                    await producer.send_many(
                        self.source, [b"%0200d" % n for n in range(first + partition, first + count, 2)], partition=partition
                    )

        self.log.run(send())


@pytest.fixture
def copy(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> Copy:
    return Copy(spark, log, tmp_path)


def test_copy_has_each_row_once_and_continues_after_a_restart(copy: Copy) -> None:
    copy.fill(0, 5000)
    copy.run()
    copy.fill(5000, 1000)
    copy.run()
    assert stored_values(copy.log, copy.target) == each_once(6000)


@pytest.mark.usefixtures("two_attempts")
def test_retried_task_of_a_stream_doubles_no_row(copy: Copy, tmp_path: Path) -> None:
    copy.fill(0, 5000)
    copy.run(dying(copy.log, copy.target, {901, 3000}, tmp_path))
    assert len(list(tmp_path.glob("died-*"))) == 2
    assert stored_values(copy.log, copy.target) == each_once(5000)


def test_written_but_uncommitted_batch_is_not_written_again(copy: Copy) -> None:
    """Spark dies between write and commit. It runs the batch again, whose rows are all in the log."""
    copy.fill(0, 3000)
    copy.run()
    for path in (copy.folder / "checkpoint" / "commits").glob("*1*"):
        path.unlink()
    copy.fill(3000, 1000)
    copy.run()
    assert stored_values(copy.log, copy.target) == each_once(4000)


@pytest.mark.usefixtures("two_attempts")
def test_restart_after_a_failed_query_doubles_no_row(copy: Copy, tmp_path: Path) -> None:
    """All attempts of a batch fail, so the query ends and is started again."""
    copy.fill(0, 4000)

    with pytest.raises(StreamingQueryException, match="this attempt dies here"):
        copy.run(dying(copy.log, copy.target, {2500}))
    copy.run()
    assert stored_values(copy.log, copy.target) == each_once(4000)


def test_tasks_have_the_properties_of_query_and_batch(copy: Copy, tmp_path: Path) -> None:
    """These properties are internals of Spark, and exactly-once depends on them."""
    copy.fill(0, 10)

    def note(value: str) -> str:
        context = TaskContext.get()
        assert context is not None
        (tmp_path / "noted").write_text(" ".join(str(context.getLocalProperty(name)) for name in (QUERY_ID, BATCH_ID)))
        return value

    query = copy.start(udf(note, "string", useArrow=False))
    assert query.awaitTermination(120)
    assert (tmp_path / "noted").read_text() == f"{query.id} 0"


def test_two_queries_with_one_name_write_all_their_rows(spark: SparkSession, log: ThreadedCluster, tmp_path: Path) -> None:
    """Spark passes `.queryName()` to the sink as an option. As an identity it would make the second query look like a retry."""
    first, second = Copy(spark, log, tmp_path / "1"), Copy(spark, log, tmp_path / "2")
    second.target = first.target
    for number, query in enumerate((first, second)):
        query.fill(number * 3000, 3000)
        query.run(queryName="nightly")
    assert stored_values(log, first.target) == each_once(6000)


class ForEachBatch:
    """A stream that passes each batch to a function of the test, which starts it as often as it needs."""

    def __init__(self, copy: Copy) -> None:
        self.copy = copy

    def run(self, *writes: tuple[str, dict[str, str]], dies_after: int = 99, job_groups: Sequence[str] = ()) -> None:
        """Runs these writes for each batch, given as a condition that chooses rows, and options; perhaps each in a job group of
        its own."""

        def each(df: DataFrame, _: int) -> None:
            for number, (condition, options) in enumerate(writes):
                if number == dies_after:
                    raise RuntimeError("the driver dies here")
                if job_groups:
                    self.copy.spark.sparkContext.setJobGroup(job_groups[number], "what Spark's pages say about the job")
                write(df.where(condition), self.copy.log, self.copy.target, **{"rowOrder": "stable", **options})

        self.run_each(each)

    def run_each(self, each: Callable[[DataFrame, int], None]) -> None:
        reader = self.copy.spark.readStream.format("strandline").option("bootstrap.servers", self.copy.log.bootstrap_servers)
        df = (
            reader.option("subscribe", self.copy.source).option("startingOffsets", "earliest").option("minPartitions", "2").load()
        )
        writer = df.selectExpr("cast(value as string) value").writeStream.foreachBatch(each)
        checkpoint = str(self.copy.folder / "each")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def forget_last_commit(self) -> None:
        """Removes the last commit, as if Spark had died after the batch was written and before the commit."""
        commits = self.copy.folder / "each" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        for path in (commits / str(last), commits / f".{last}.crc"):
            path.unlink(missing_ok=True)


@pytest.fixture
def each_batch(copy: Copy) -> ForEachBatch:
    copy.fill(0, 2000)
    return ForEachBatch(copy)


ALL, QUARTER, REST = "true", "cast(value as int) % 4 = 0", "cast(value as int) % 4 > 0"


def test_one_write_in_foreach_batch_is_not_repeated_by_a_restart(each_batch: ForEachBatch) -> None:
    each_batch.run((ALL, {}))
    each_batch.forget_last_commit()
    each_batch.run((ALL, {}))
    assert stored_values(each_batch.copy.log, each_batch.copy.target) == each_once(2000)


def test_three_named_writes_are_each_written_once(each_batch: ForEachBatch) -> None:
    """A driver dies between two of the writes, and a commit is lost. The third write has all rows of the others in an unknown
    order."""
    everything = (ALL, {"writeName": "all", "rowOrder": "unknown"})
    writes = (QUARTER, {"writeName": "quarter"}), (REST, {"writeName": "rest"}), everything
    with pytest.raises(StreamingQueryException, match="the driver dies here"):
        each_batch.run(*writes, dies_after=1)
    each_batch.run(*writes)
    each_batch.forget_last_commit()
    each_batch.run(*writes)
    twice = Counter(dict.fromkeys(each_once(2000), 2))
    assert stored_values(each_batch.copy.log, each_batch.copy.target) == twice


def test_second_write_without_a_name_is_rejected(each_batch: ForEachBatch) -> None:
    """As a retry of the first write it would skip its first rows: a quarter of them would be lost, and the query would
    succeed."""
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="give each write a name of its own with the option writeName"):
            each_batch.run((QUARTER, {}), (REST, {}))
    assert stored_values(each_batch.copy.log, each_batch.copy.target) == Counter(
        {value: 1 for value in each_once(2000) if int(value) % 4 == 0}
    )


def test_second_write_in_another_job_group_is_rejected(each_batch: ForEachBatch) -> None:
    """Spark stores the run of a query as a job group, and the function may set another one. A second write that looked like
    one of an earlier run would skip its first rows: a quarter of them would be lost."""
    with pytest.raises(StreamingQueryException, match="give each write a name of its own with the option writeName"):
        each_batch.run((QUARTER, {}), (ALL, {}), job_groups=("first", "second"))
    quarter = Counter({value: 1 for value in each_once(2000) if int(value) % 4 == 0})
    assert stored_values(each_batch.copy.log, each_batch.copy.target) == quarter


def test_write_in_a_job_group_is_not_repeated_by_a_restart(each_batch: ForEachBatch) -> None:
    for _ in range(2):
        each_batch.run((ALL, {}), job_groups=("load",))
        each_batch.forget_last_commit()
    assert stored_values(each_batch.copy.log, each_batch.copy.target) == each_once(2000)


@pytest.mark.parametrize("inherits", [False, True])
def test_writes_on_threads_are_not_repeated_by_a_restart(each_batch: ForEachBatch, inherits: bool) -> None:
    """A new thread has no properties for query and batch unless it inherits them. The three options replace them."""
    copy = each_batch.copy

    def each(df: DataFrame, batch_id: int) -> None:
        def save(condition: str, name: str) -> None:
            register(copy.spark)
            identity = {} if inherits else {"producerName": copy.target, "batchId": str(batch_id)}
            write(df.where(condition), copy.log, copy.target, writeName=name, **identity)

        target = inheritable_thread_target(copy.spark)(save) if inherits else save
        with ThreadPoolExecutor(2) as pool:
            for written in [pool.submit(target, QUARTER, "quarter"), pool.submit(target, REST, "rest")]:
                written.result()

    for _ in range(2):
        each_batch.run_each(each)
        each_batch.forget_last_commit()
    assert stored_values(copy.log, copy.target) == each_once(2000)
