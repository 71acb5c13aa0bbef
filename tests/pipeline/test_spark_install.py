"""As a user installs it: from a wheel, in a session of his own, without a call to register anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from standalone import StandaloneCluster

    from strandline.testing import ThreadedCluster

JOB = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.read.format("strandline").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
import strandline.pipeline
print("rows", df.count(), "from", strandline.pipeline.__file__)
spark.stop()
"""


@pytest.mark.spark
def test_an_installed_package_is_found_without_registration(
    standalone: StandaloneCluster, log: ThreadedCluster, tmp_path: Path
) -> None:
    from strandline.pipeline.java import use_java

    packages = tmp_path / "packages"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(packages), str(standalone.wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    topic = log.create_topic()
    log.send(topic, b"1", b"2", b"3")
    (tmp_path / "job.py").write_text(JOB)
    environ = {**os.environ, "PYTHONPATH": str(packages), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    use_java(environ)
    command = [sys.executable, str(tmp_path / "job.py"), log.bootstrap_servers, topic]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert f"rows 3 from {packages}" in done.stdout, done.stderr[-3000:]
