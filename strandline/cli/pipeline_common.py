"""Shared by the commands of `strandline pipeline`: options, Spark sessions, messages for failures inside Spark, results."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import interrupts
from strandline.cli.common import fail
from strandline.cli.contexts import BOOTSTRAP_VARIABLE, chosen_bootstrap
from strandline.cli.output import Form, print_document
from strandline.protocol.errors import UsageError
from strandline.reach import client_config_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pyspark.sql import SparkSession

    from strandline.pipeline.jobs import audit_result, verify_result

SILENT = {"spark.log.level": "OFF"}
"""The setting that silences Spark. It would log each failure three times, with the JVM's stack; the command prints it once."""

NO_LOG = """
rootLogger.level = warn
rootLogger.appenderRef.none.ref = none
appender.none.type = Null
appender.none.name = none
"""
"""A configuration of Spark's logger that silences it before a session's settings apply. With another level, or without an
appender, Spark would print that it uses its own configuration instead."""

Master = Annotated[str, typer.Option("--master", metavar="URL", help="The Spark master.")]
DEFAULT_MASTER = "local[*]"
Servers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=chosen_bootstrap,
        show_default="the context's, or 127.0.0.1:9092",
        help="Brokers to ask first.",
    ),
]

# Options of audit and verify: the data with which they compare a log.
LakeOrTable = Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Compare with this lake or Delta table.")]
Ledgers = Annotated[
    list[str] | None,
    typer.Option("--ledger", metavar="FILE", help="Compare with a producer's ledger of acknowledged records."),
]
Copies = Annotated[
    list[str] | None, typer.Option("--copy", metavar="TOPIC=COPY", help="Compare a topic with its copy in another topic.")
]
Complete = Annotated[
    bool, typer.Option("--complete", help="The offload has ended: records that the lake lacks are lost, not pending.")
]
Html = Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report with pictures.")]


@contextmanager
def spark_for(job: str, master: str) -> Iterator[SparkSession]:
    """A session for one command; it is stopped afterwards. A terminal shows how many of its tasks are done."""
    with _session_for(job, master, with_delta=False) as spark:
        yield spark


@contextmanager
def delta_for(job: str, master: str) -> Iterator[SparkSession]:
    """A session with Delta for one command, like that of `spark_for`."""
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
    """A function that creates a Spark session from a name, a master and settings; `with_delta` adds Delta Lake to the session.

    The function keeps Spark's handler of Ctrl-C away. So Ctrl-C ends the command at once, as in commands without Spark; Spark's
    handler would print tracebacks first. The JVM ends with this process."""

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
    """Silences the six lines that Spark prints before it reads a session's settings, by a file in a configuration folder. If
    the environment already names such a folder, nothing is changed."""
    if os.environ.keys() & {"SPARK_CONF_DIR", "SPARK_HOME"}:
        yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="strandline-spark-") as folder,
        interrupts.exiting_after(lambda: shutil.rmtree(folder, ignore_errors=True)),
    ):
        Path(folder, "log4j2.properties").write_text(NO_LOG)
        os.environ["SPARK_CONF_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["SPARK_CONF_DIR"]


TRACEBACK = "Traceback (most recent call last):"
"""The end of the line with which a Python traceback begins; Spark writes words of its own before it."""


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turns an error from Spark into one sentence and exits: the message of the Python error inside, without the JVM's stack.
    Raises UsageError if Spark is not installed."""
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
    """The message of the last error in a text with tracebacks. An error of Strandline is shown without its class, another Python
    error with it (`KeyError: 'orders'`). For an error of the JVM it is Spark's message and that of the lowest cause."""
    lines = text.strip().splitlines()
    if errors := [line for line in lines if line.startswith("strandline.") and ": " in line]:
        return errors[-1].split(": ", 1)[1]
    if of_spark := re.search(r"SparkException: \[FAILED_READ_FILE[A-Z_.]*\] (.*?)\.?(?: +SQLSTATE: \w+)?$", text, re.MULTILINE):
        below = re.findall(r"^Caused by: [\w.$]+: (.+)$", text, re.MULTILINE)
        return f"{of_spark[1]}: {below[-1]}" if below else of_spark[1]
    tracebacks = [number for number, line in enumerate(lines) if line.endswith(TRACEBACK)]
    behind = lines[tracebacks[-1] + 1 :] if tracebacks else []
    return next((line for line in behind if line and not line[0].isspace()), lines[0])


# -- arguments --------------------------------------------------------------------------------------------------------


def client_options(bootstrap: str) -> dict[str, str]:
    """The options of the data source that say how to reach the cluster at this address."""
    path = client_config_of(bootstrap)
    return {} if path is None else {"clientConfig": path}


def pairs_of(copies: Iterable[str]) -> dict[str, str]:
    """Topic -> copy, from the values of --copy. Raises UsageError for a value that is not TOPIC=COPY."""
    pairs = dict[str, str]()
    for pair in copies:
        topic, equals, copy = pair.partition("=")
        if not (topic and equals and copy):
            raise UsageError(f"--copy takes TOPIC=COPY, not {pair!r}")
        pairs[topic] = copy
    return pairs


def moment_of(option: str, text: str) -> datetime:
    """The time that a user gave to an option; without a zone it is in UTC. Raises UsageError if it is not a time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        example = "2026-01-31T09:00 (UTC) or 2026-01-31T09:00:00+01:00"
        raise UsageError(f"{option} takes a time such as {example}, not {text!r}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# -- results ----------------------------------------------------------------------------------------------------------


def print_findings(findings: Iterable[audit_result.Finding | verify_result.Finding]) -> None:
    """A line for each finding, and indented lines for its action or its examples."""
    for finding in findings:
        print(("" if finding.is_bad else "note: ") + finding.sentence)
        for line in finding.below:
            print(f"    {line}")


def print_document_of(result: DataclassInstance, output: Form) -> None:
    """The fields of a result as a document."""
    print_document(asdict(result), output)
