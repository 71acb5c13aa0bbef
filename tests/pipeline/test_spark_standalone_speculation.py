"""Speculation on a cluster of Spark: two attempts of a task write at the same time, and each row is stored once.

The replicas' segments are the judge.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from stored import stored_values

if TYPE_CHECKING:
    from standalone import StandaloneCluster

    from strandline.testing import ThreadedCluster

JOB = """
import random, sys, time
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession
from strandline.pipeline.spark import register

servers, folder, *topics = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
register(spark)
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

def wait_for(mark):
    deadline = time.monotonic() + 60
    while not Path(folder, mark).exists() and time.monotonic() < deadline:
        time.sleep(0.05)

def attempt(topic, row_order):
    def step(rows):
        context = TaskContext.get()
        this = context.partitionId(), context.attemptNumber()
        dealt = list(rows)
        if row_order == "unknown":
            random.shuffle(dealt)
        if this == (1, 1):
            wait_for(f"{topic}-begun")
        for at, row in enumerate(dealt):
            if at == 1000 and this == (1, 0):  # The slow one.
                Path(folder, f"{topic}-begun").touch()
                wait_for(f"{topic}-met")
            if at == 1500 and this == (1, 1):
                Path(folder, f"{topic}-met").touch()
            yield row
    return step

for topic, row_order in zip(topics, ("stable", "unknown")):
    numbers = spark.range(0, 6000, numPartitions=2).selectExpr("lpad(cast(id as string), 200, '0') value")
    rows = spark.createDataFrame(numbers.rdd.mapPartitions(attempt(topic, row_order)), "value string")
    writer = rows.write.format("strandline").option("bootstrap.servers", servers).option("topic", topic)
    writer.option("rowOrder", row_order).option("strandline.linger_ms", "0").mode("append").save()
"""
EAGER = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
}
"""A copy of a task starts as soon as the other task is done."""


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(sys.platform != "linux", reason="a speculative copy needs a worker on another address")
def test_two_concurrent_attempts_store_each_row_once(standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path) -> None:
    """The first attempt has written a third of its rows when its copy begins. It continues when the copy is halfway."""
    topics = [log.create_topic(partitions=2) for _ in range(2)]
    (tmp_path / "job.py").write_text(JOB)
    done = standalone.submit(tmp_path / "job.py", log.bootstrap_servers, str(tmp_path), *topics, conf=EAGER)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for topic in topics:
        assert (tmp_path / f"{topic}-met").exists(), "no copy was started"
        assert stored_values(log, topic) == Counter(b"%0200d" % n for n in range(6000))
