"""A Spark session for our own jobs and for people who only want to try: nothing but pip is needed.

A session of the user's own works without any of this as long as its workers use a Python that has Strandline. `register` sees
to that, or says what is wrong; and it is needed in each thread that starts a sink, and where the package is shipped with a job.
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
    """A session with the data source in it. `conf` goes before what we would set. Workers use this very Python where nothing
    else is said (`PYSPARK_PYTHON`): Spark's own choice, the first `python3` of the path, is rarely the one with the packages."""
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
    """`format("strandline")` and `format("strandline.segments")` in this session and on this thread: the cure for
    DATA_SOURCE_NOT_FOUND.

    Call it once after the session is made, and once in each thread that starts a sink; repeated calls do no harm. On one machine
    (master "local...") the workers use the driver's Python from now on, unless PYSPARK_PYTHON is set. Raises UsageError where
    they use a Python without Strandline."""
    from strandline.pipeline.segments.source import SegmentsDataSource
    from strandline.pipeline.source import StrandlineDataSource

    register_sources(session, StrandlineDataSource, SegmentsDataSource)


def register_sources(session: SparkSession, *sources: type[DataSource]) -> None:
    """The same for any of our data sources."""
    if not _is_connect(session):
        _use_python(session)
        _activate(session)
    for source in sources:
        session.dataSource.register(source)


def _is_connect(session: SparkSession) -> bool:
    """A session of Spark Connect: its workers and threads are the server's."""
    return not hasattr(session, "_jsparkSession")


def _use_python(session: SparkSession) -> None:
    context = session.sparkContext
    context.pythonExec = python_for_workers(context.pythonExec, sys.executable, context.master or "")


def _activate(session: SparkSession) -> None:
    """Spark looks for the format of a sink in the active session of the calling thread, and a new thread has none."""
    session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
