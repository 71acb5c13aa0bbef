"""Sessions that users create themselves: `register` removes the two common causes of DATA_SOURCE_NOT_FOUND."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.pipeline.java import use_java
from strandline.pipeline.spark import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster

APP = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
source = spark.read.format("strandline").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
try:
    source.load()
except Exception as e:
    print("without register:", str(e).count("DATA_SOURCE_NOT_FOUND") and "not found")
from strandline.pipeline.spark import register

register(spark)
print("with register:", source.load().count())
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_program_without_an_activated_environment_reads_after_register(log: ThreadedCluster, tmp_path: Path) -> None:
    """With `.venv/bin/python app.py`, Spark starts its workers with the first `python3` of the PATH, which lacks the packages."""
    bare = tmp_path / "bin" / "python3"
    bare.parent.mkdir()
    bare.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" -S "$@"\n')
    bare.chmod(0o755)
    topic = log.create_topic()
    log.send(topic, b"1", b"2", b"3")
    (tmp_path / "app.py").write_text(APP)
    environ = {**os.environ, "PATH": f"{bare.parent}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    environ.pop("PYSPARK_PYTHON", None)
    use_java(environ)
    command = [sys.executable, str(tmp_path / "app.py"), log.bootstrap_servers, topic]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.splitlines() == ["without register: not found", "with register: 3"], done.stderr[-3000:]


def test_sink_starts_on_another_thread_after_register(spark: SparkSession, log: ThreadedCluster) -> None:
    """Spark looks for a sink's format in the active session of the calling thread, and a new thread has none."""
    topic = log.create_topic()
    row = spark.sql("select '1' value")

    def write() -> None:
        to = row.write.format("strandline").mode("append").option("bootstrap.servers", log.bootstrap_servers)
        to.option("topic", topic).save()

    assert "DATA_SOURCE_NOT_FOUND" in str(on_a_thread(write))
    assert on_a_thread(write, lambda: register(spark)) is None
    assert [record.value for record in log.read_all(topic)] == [b"1"]


def on_a_thread(work: Callable[[], None], first: Callable[[], None] = lambda: None) -> BaseException | None:
    """Runs `work` on a new thread and returns its error. `first` runs once before, like the initializer of a pool."""
    with ThreadPoolExecutor(1, initializer=first) as pool:
        return pool.submit(work).exception()
