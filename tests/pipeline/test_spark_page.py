"""The first steps of docs/spark.md, run as a reader types them: commands and Python are taken from the page."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from strandline.local_cluster import free_port_range

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def blocks(heading: str, kind: str) -> list[str]:
    """The code blocks of one section."""
    section = re.split(r"\n##+ ", PAGE.split(heading + "\n", 1)[1], maxsplit=1)[0]
    found = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    return [code for its_kind, code in found if its_kind == kind]


@pytest.fixture
def five_minutes(tmp_path: Path) -> Iterator[int]:
    """Runs the section's commands in one shell, except the installation, on a cluster with another port than 9092."""
    port = free_port_range(15)
    start, commands = blocks("## The first stream in five minutes", "")[:2]
    install, up = (line.split("#")[0].strip() for line in start.splitlines())
    assert (install.split()[-1], up) == ("'.[spark]'", "strandline up")
    environ = {**os.environ, "STRANDLINE_BOOTSTRAP": f"127.0.0.1:{port}", "TMPDIR": str(tmp_path)}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    words = [str(Path(sys.executable).parent / "strandline"), "up", "--base-port", str(port)]
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            assert any(line.startswith("ready: ") for line in cluster.stdout), "it has not come up"
            subprocess.run(["bash", "-ec", commands], env=environ, check=True, timeout=120)
            yield port
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.communicate(timeout=60)


def typed(code: str, port: int, folder: Path, names: dict[str, Any]) -> None:
    """Runs the Python of the page. Its paths are made absolute, because the JVM has another working directory than the test."""
    own = code.replace("127.0.0.1:9092", f"127.0.0.1:{port}").replace('"lake/', f'"{folder}/lake/')
    exec(compile(own, "docs/spark.md", "exec"), names)


def strandline(port: int, *words: str) -> str:
    environ = {**os.environ, "STRANDLINE_BOOTSTRAP": f"127.0.0.1:{port}"}
    command = [str(Path(sys.executable).parent / "strandline"), *words]
    return subprocess.run(command, env=environ, check=True, timeout=60, capture_output=True, text=True).stdout


def test_first_steps_and_foreach_batch_of_the_docs_run(spark: SparkSession, five_minutes: int, tmp_path: Path) -> None:
    """`spark_session` returns the session that the tests share, as in a notebook that runs a cell again."""
    names: dict[str, Any] = {}
    all_once = Counter(str(n) for n in range(1, 1001))
    typed(blocks("## The first stream in five minutes", "python")[0], five_minutes, tmp_path, names)
    rows = spark.read.parquet(str(tmp_path / "lake" / "orders"))
    assert Counter(row.value for row in rows.collect()) == all_once
    create, code = blocks("### foreachBatch", "")[0].strip(), blocks("### foreachBatch", "python")[0]
    strandline(five_minutes, *create.split()[1:])
    typed(code, five_minutes, tmp_path, names)
    values = strandline(five_minutes, "consume", "checked", "--from", "beginning", "--exit-at-end", "--format", "%v\\n")
    assert Counter(values.split()) == all_once
