"""An archive of Spark's classes, for the JVMs of the tests: half of what a JVM does until its first query is reading classes.

    python tests/pipeline/class_archive.py build/spark-classes.jsa

A session does a little of everything, and Java writes down at its end which classes that took (class data sharing, `java
-XX:ArchiveClassesAtExit`). Whoever starts a JVM with another class path, or another Java, gets nothing from the archive, and no
harm. Without the archive all works the same, slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / "build" / "spark-classes.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For JVMs that live for seconds: on two cores six of them would do little but compile themselves."""
WRITE_TIMEOUT_S = 180


def quick_start() -> str:
    """Options for every JVM that a test starts. Java says nothing of an archive that it cannot use (`-Xlog:disable`): it would
    be in the middle of what a command prints."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.is_file() else QUICK


def make(archive: Path) -> None:
    """Put in place as a whole: a test that begins meanwhile finds all of it or nothing."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    with tempfile.TemporaryDirectory(prefix="strandline-classes-") as folder:
        java = use_spark(Path(folder))
    java.stdin.close()  # What it takes for its end.
    java.wait(WRITE_TIMEOUT_S)
    new.replace(archive)


def use_spark(folder: Path) -> subprocess.Popen[bytes]:
    """What most tests do. Returns the JVM, which is still there."""
    from pyspark import SparkContext
    from pyspark.sql import functions as f

    from strandline.pipeline.spark import spark_session

    conf = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
    spark = spark_session("classes", "local[1]", conf)
    rows = spark.range(100).select("id", (f.col("id") % 7).alias("key"), f.col("id").cast("string").alias("value"))
    rows.repartition(2).write.parquet(str(folder / "table"))
    table = spark.read.parquet(str(folder / "table"))
    sums = table.groupBy("key").agg(f.count("*"), f.max("value"), f.collect_list("id")).orderBy("key")
    sums.join(table, "key").unionByName(sums.join(table, "key")).collect()
    spark.createDataFrame(rows.rdd.map(tuple), "id bigint, key bigint, value string").count()
    stream = spark.readStream.schema(table.schema).parquet(str(folder / "table")).writeStream.format("parquet")
    stream = stream.option("path", str(folder / "copy")).option("checkpointLocation", str(folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    java: subprocess.Popen[bytes] = gateway.proc
    return java


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else ARCHIVE)
