"""Spark sessions with Strandline's data sources: `spark_session` creates one, `register` prepares an existing one.

`spark_session` needs only packages from pip. A session of the user's own works without `register` if its workers use a Python
that has Strandline; `register` ensures that, or raises an error that says what is wrong. It is also needed in each thread that
starts a sink, and if the package is shipped with a job instead of installed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.pipeline.java import use_java
from strandline.pipeline.workers_python import VARIABLE, python_for_workers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
}


def spark_session(name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """Creates a session, or returns the active one, with both data sources registered.

    `master` is Spark's master URL, and `conf` overrides the settings made here. Workers use this Python unless PYSPARK_PYTHON
    names another: Spark's default, the first `python3` of the PATH, rarely has the packages. Raises UsageError if there is no
    Java, or if the workers' Python has no Strandline."""
    from pyspark.sql import SparkSession

    use_java()
    os.environ.setdefault(VARIABLE, sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**QUIET, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """Makes `format("strandline")` and `format("strandline.segments")` available in this session and on this thread. Call it if
    Spark reports DATA_SOURCE_NOT_FOUND.

    Call it once after the session is created, and once in each thread that starts a sink; repeated calls do no harm. On one
    machine (master "local...") the workers use the driver's Python from now on, unless PYSPARK_PYTHON is set. Raises UsageError
    if the workers use a Python without Strandline."""
    from strandline.pipeline.segments.source import SegmentsDataSource
    from strandline.pipeline.source import StrandlineDataSource

    register_sources(session, StrandlineDataSource, SegmentsDataSource)


def register_sources(session: SparkSession, *sources: type[DataSource]) -> None:
    """Registers these data sources in the session and on this thread, as `register` does."""
    if not _is_connect(session):
        _use_python(session)
        _activate(session)
    for source in sources:
        session.dataSource.register(source)


def _is_connect(session: SparkSession) -> bool:
    """Whether the session is one of Spark Connect: then workers and threads belong to the server."""
    return not hasattr(session, "_jsparkSession")


def _use_python(session: SparkSession) -> None:
    context = session.sparkContext
    context.pythonExec = python_for_workers(context.pythonExec, sys.executable, context.master or "")


def _activate(session: SparkSession) -> None:
    """Makes the session the active one of this thread. Spark looks there for a sink's format, and a new thread has none."""
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
