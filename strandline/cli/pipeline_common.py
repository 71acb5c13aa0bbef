"""What the jobs of `strandline pipeline` share: their options, their Spark, and how a failure inside Spark is told."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import interrupts
from strandline.cli.common import fail
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENT = {"spark.log.level": "OFF"}
"""Spark would log each failure three times, with the JVM's stack; we tell it once."""

TO_NOBODY = """
rootLogger.level = warn
rootLogger.appenderRef.nobody.ref = nobody
appender.nobody.type = Null
appender.nobody.name = nobody
"""
"""The same, from its first line on. With another level, or without an appender, Spark would say that it takes its own instead."""

Master = Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")]
DEFAULT_MASTER = "local[*]"
Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap",
        "-b",
        envvar="STRANDLINE_BOOTSTRAP",
        metavar="HOST:PORT,...",
        help="Brokers to ask first.",
    ),
]


@contextmanager
def spark_for(job: str, master: str) -> Iterator[SparkSession]:
    """A session for this command alone. People at a terminal see how far its tasks are."""
    with _session_for(job, master, with_delta=False) as spark:
        yield spark


@contextmanager
def delta_for(job: str, master: str) -> Iterator[SparkSession]:
    """The same, with Delta."""
    with _session_for(job, master, with_delta=True) as spark:
        yield spark


@contextmanager
def _session_for(job: str, master: str, *, with_delta: bool) -> Iterator[SparkSession]:
    with spark_errors(), without_preamble():
        bar = {"spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower()}
        spark = session_of(with_delta)(f"strandline {job}", master, {**SILENT, **bar})
        try:
            yield spark
        finally:
            spark.stop()


def session_of(with_delta: bool) -> Callable[[str, str, Mapping[str, str]], SparkSession]:
    """What makes a session. Ctrl-C exits at once, as without Spark: Spark's own handler would print tracebacks, and the JVM
    ends when this process does."""

    def make(name: str, master: str, settings: Mapping[str, str]) -> SparkSession:
        if with_delta:
            from strandline.pipeline.jobs.delta import delta_session as session
        else:
            from strandline.pipeline.spark import spark_session as session
        with interrupts.kept_from_libraries():
            return session(name, master, settings)

    return make


@contextmanager
def without_preamble() -> Iterator[None]:
    """Spark prints six lines before it reads a session's settings, unless a file in its configuration folder prevents that. If
    the environment names such a folder, it is left as it is."""
    if os.environ.keys() & {"SPARK_CONF_DIR", "SPARK_HOME"}:
        yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="strandline-spark-") as folder,
        interrupts.exiting_after(lambda: shutil.rmtree(folder, ignore_errors=True)),
    ):
        Path(folder, "log4j2.properties").write_text(TO_NOBODY)
        os.environ["SPARK_CONF_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["SPARK_CONF_DIR"]


TRACEBACK = "Traceback (most recent call last):"
"""Spark writes it behind words of its own, on the same line."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """What went wrong in Spark as one sentence: the last line of the Python error that is inside, not the JVM's story."""
    try:
        import py4j.protocol
        import pyspark.errors
    except ImportError:
        raise UsageError("Spark is not installed: in a clone of Strandline, pip install '.[spark]'") from None
    try:
        yield
    except (pyspark.errors.PySparkException, py4j.protocol.Py4JJavaError) as e:
        fail(f"the job has failed: {_cause(str(e))}")


def _cause(text: str) -> str:
    """Of a text in which tracebacks stand: what their last error says. An error of our own speaks for itself; of another one
    the kind belongs to it (`KeyError: 'orders'`). An error of the JVM is what Spark says of it, and what is below that."""
    lines = text.strip().splitlines()
    if errors := [line for line in lines if line.startswith("strandline.") and ": " in line]:
        return errors[-1].split(": ", 1)[1]
    if of_spark := re.search(r"SparkException: \[FAILED_READ_FILE[A-Z_.]*\] (.*?)\.?(?: +SQLSTATE: \w+)?$", text, re.MULTILINE):
        below = re.findall(r"^Caused by: [\w.$]+: (.+)$", text, re.MULTILINE)
        return f"{of_spark[1]}: {below[-1]}" if below else of_spark[1]
    tracebacks = [number for number, line in enumerate(lines) if line.endswith(TRACEBACK)]
    behind = lines[tracebacks[-1] + 1 :] if tracebacks else []
    return next((line for line in behind if line and not line[0].isspace()), lines[0])
