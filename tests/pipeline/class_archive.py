"""Creates an archive of Spark's classes for the JVMs of the tests. A JVM spends half of the time before its first query on
classes.

    python tests/pipeline/class_archive.py build/spark-classes.jsa

The script runs typical queries, and Java archives the loaded classes at its end (class data sharing, `java
-XX:ArchiveClassesAtExit`). A JVM with another class path or another version of Java ignores the archive. Without the archive the
tests are slower.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / "build" / "spark-classes.jsa"
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for JVMs that run for seconds. Otherwise, six of them on two cores would mostly compile their own code."""
WRITE_TIMEOUT_S = 180


def quick_start() -> str:
    """Options for every JVM that a test starts. `-Xlog:disable` suppresses warnings about an unusable archive, which would be
    part of what a command prints."""
    return f"{QUICK} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.is_file() else QUICK


def make(archive: Path) -> None:
    """Writes the archive and renames it, so that a test that starts meanwhile finds a complete archive or none."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    new = archive.with_suffix(".new")
    new.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"{QUICK} -XX:ArchiveClassesAtExit={new} -Xlog:disable"
    with tempfile.TemporaryDirectory(prefix="strandline-classes-") as folder:
        java = use_spark(Path(folder))
    java.stdin.close()  # The JVM ends when its standard input is closed.
    java.wait(WRITE_TIMEOUT_S)
    new.replace(archive)


def use_spark(folder: Path) -> subprocess.Popen[bytes]:
    """Runs what most tests use. Returns the JVM, which is still running."""
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
