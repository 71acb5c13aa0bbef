"""A Spark session for our own jobs and for people who only want to try: nothing but pip is needed.

Whoever has a session of his own needs none of this, but for `register`, and only where the package is shipped with the job.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from strandline.pipeline.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in {**QUIET, **(conf or {})}.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def register(session: SparkSession) -> None:
    """`format("strandline")` and `format("strandline.segments")` in this session, where the package is not installed but shipped
    with the job."""
    from strandline.pipeline.segments.source import SegmentsDataSource
    from strandline.pipeline.source import StrandlineDataSource

    session.dataSource.register(StrandlineDataSource)
    session.dataSource.register(SegmentsDataSource)
