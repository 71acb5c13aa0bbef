"""Runs the measured jobs inside one Spark. `spark.py` starts it once per system, with the Python that has that Spark.

    python spark_works.py {strandline|kafka}      reads commands from stdin and writes answers to stdout, one line of JSON each

    {"work": "read", "servers": ..., "topic": ..., "rows": ..., ...}  ->  {"seconds": ..., "cpu_s": ..., "workers_mb": ...}

Both systems run the same jobs with the same Spark options; only the name of the source differs. `cpu_s` is the CPU time of this
process and its children, the JVM and the workers. `workers_mb` is the largest memory of any Python worker.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.metricsEnabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


def session(system: str) -> SparkSession:
    if system == "strandline":
        from strandline.pipeline.spark import spark_session

        spark = spark_session("bench", "local[2]", CONF)
    else:
        builder = SparkSession.builder.master("local[2]").appName("bench")
        for name, value in {**CONF, "spark.jars": os.environ["CONNECTOR_JARS"]}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


class Works:
    def __init__(self, system: str) -> None:
        self.system = system
        self.spark = session(system)
        self.folder = Path(tempfile.mkdtemp(prefix=f"spark-bench-{system}-"))
        self._made: tuple[int, bool, DataFrame] | None = None

    def _servers(self, work: dict[str, Any]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": work["servers"]}

    def _read(self, work: dict[str, Any]) -> DataFrame:
        reader = self.spark.read.format(self.system).options(**self._servers(work)).option("subscribe", work["topic"])
        return reader.option("startingOffsets", "earliest").load()

    def aggregate(self, work: dict[str, Any]) -> None:
        """Read every column, so that no column is skipped."""
        row = (
            self._read(work)
            .selectExpr(
                "count(*) n", "max(offset)", "max(timestamp)", "max(partition)", "count(topic)", "sum(timestampType)",
                "sum(length(value))", "sum(length(key))",
            )
            .collect()[0]
        )  # fmt: skip
        assert row.n == work["rows"], f"{row.n} rows instead of {work['rows']}"

    def parquet(self, work: dict[str, Any]) -> None:
        path = self.folder / "parquet"
        self._read(work).write.mode("overwrite").parquet(str(path))

    def write(self, work: dict[str, Any]) -> None:
        frame = self._frame(work["rows"], work.get("keys", False))
        options = {**self._servers(work), "topic": work["topic"], "kafka.acks": "all"}
        frame.write.format(self.system).mode("append").options(**options).save()

    def _frame(self, rows: int, keys: bool) -> DataFrame:
        """Prepare rows with values of 100 bytes in memory before the clock starts."""
        if self._made is None or self._made[:2] != (rows, keys):
            columns = ["cast(lpad(cast(id as string), 100, 'x') as binary) value"]
            if keys:
                columns.append("cast(cast(id % 100000 as string) as binary) key")
            frame = self.spark.range(0, rows, numPartitions=4).selectExpr(*columns).cache()
            frame.count()
            self._made = rows, keys, frame
        return self._made[2]

    def make(self, work: dict[str, Any]) -> None:
        self._frame(work["rows"], work.get("keys", False))

    def stream(self, work: dict[str, Any]) -> dict[str, float]:
        """Stream all rows in `batches` batches, to Spark's noop sink or to the topic `into`."""
        reader = self.spark.readStream.format(self.system).options(**self._servers(work)).option("subscribe", work["topic"])
        limit = str(work["rows"] // work["batches"])
        rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", limit).load()
        writer = self._stream_writer(rows, work).option("checkpointLocation", tempfile.mkdtemp(dir=self.folder))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
        read = sum(each["numInputRows"] for each in progress)
        assert read == work["rows"], f"{read} of {work['rows']} rows came through the stream"
        return batch_times([each["durationMs"] for each in progress])

    def _stream_writer(self, rows: DataFrame, work: dict[str, Any]) -> DataStreamWriter:
        if not work.get("into"):
            return rows.writeStream.format("noop")
        options = {**self._servers(work), "topic": work["into"], "kafka.acks": "all"}
        return rows.select("key", "value").writeStream.format(self.system).options(**options)

    def run(self, work: dict[str, Any]) -> dict[str, float]:
        step: Callable[[dict[str, Any]], dict[str, float] | None] = getattr(self, work["work"])
        cpu, started = tree_cpu_s(os.getpid()), time.monotonic()
        found = step(work) or {}
        return {
            **found,
            "seconds": time.monotonic() - started,
            "cpu_s": tree_cpu_s(os.getpid()) - cpu,
            "workers_mb": max((peak_mb(pid) for pid in tree(os.getpid()) if is_worker(pid)), default=0.0),
        }


def batch_times(durations: list[dict[str, int]]) -> dict[str, float]:
    """Return medians in milliseconds, without the first batch, which includes the start of the query."""
    after_first = durations[1:]
    whole = [each["triggerExecution"] for each in after_first]
    return {
        "batches": len(durations),
        "batch_ms": statistics.median(whole),
        "first_20_ms": statistics.median(whole[:20]),
        "last_20_ms": statistics.median(whole[-20:]),
        "add_batch_ms": statistics.median(each["addBatch"] for each in after_first),
    }


def tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [child for text in task.read_text().split() for child in tree(int(text))]
        except OSError:
            pass
    return found


def tree_cpu_s(pid: int) -> float:
    """Return the user and system time of these processes and of their ended children, in seconds."""
    total = 0
    for each in tree(pid):
        try:
            total += sum(map(int, Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            pass
    return total / CLOCK_TICKS


def is_worker(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0", 3)[2] == b"pyspark.daemon"
    except (OSError, IndexError):
        return False


def peak_mb(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Output of Spark and its workers must not mix with the answers.
    works = Works(sys.argv[1])
    answers.write(json.dumps({"ready": True}) + "\n")
    try:
        for line in sys.stdin:
            try:
                answers.write(json.dumps(works.run(json.loads(line))) + "\n")
            except Exception as e:
                answers.write(json.dumps({"error": f"{type(e).__name__}: {str(e)[:2000]}"}) + "\n")
    finally:
        works.spark.stop()
        shutil.rmtree(works.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
