"""Delta Lake for Spark: the jars that a session needs, and errors that say what to do if they are missing or do not fit.

    spark = delta_session("offload", "local[2]")              # or your own session, created with the settings of `delta_conf()`

Delta has two parts. `delta-spark` from PyPI (the extra `delta`) defines which PySpark it needs. The jars have the same version
number, are built for one minor version of Spark, and Spark fetches them from Maven Central at its first start. Jars that PySpark
has already are excluded: 14 MB instead of 87. If the jars lie in PySpark's own folder, nothing is fetched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INSTALL = "in a clone of Strandline, pip install '.[spark,delta]'"
SCALA = "2.13"
IN_SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
IN_EVERY_SPARK = (
    "org.apache.hadoop:*", "org.apache.parquet:*", "org.apache.logging.log4j:*", "org.slf4j:*", "com.fasterxml.jackson.core:*",
    "com.fasterxml.jackson.datatype:*", "com.google.code.findbugs:*", "commons-logging:*",
)  # fmt: skip
"""Dependencies of Delta that every Spark already has in its path."""

NO_CLASSES = "DATA_SOURCE_NOT_FOUND"
NOT_CONFIGURED = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"
OTHER_VERSIONS = ("NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError", "AbstractMethodError", "IncompatibleClass")
"""Errors of a JVM whose classes were compiled for other versions of their dependencies."""

_BOUND = re.compile(r"(<=|>=|<|>|==)\s*(\d+(?:\.\d+)*)")


def delta_session(name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session like that of `spark_session`, with Delta. If this process has a session, it is returned unchanged. Raises
    UsageError if Delta is not installed, does not fit, or Spark does not start with it."""
    from pyspark.errors import PySparkRuntimeError

    from strandline.pipeline.spark import spark_session

    wanted = delta_conf()
    try:
        return spark_session(name, master, {**wanted, **(conf or {})})
    except PySparkRuntimeError as e:
        if "JAVA_GATEWAY_EXITED" not in str(e):
            raise
        jars = wanted.get("spark.jars.packages", "the jars of Delta")
        raise UsageError(
            f"Spark did not start with {jars}; its lines above say why. The jars come from Maven Central; on a machine without "
            "access to it, put them into PySpark's folder jars"
        ) from None


def delta_conf() -> dict[str, str]:
    """The settings with which a session must be created to have Delta. Raises UsageError if delta-spark is not installed or does
    not fit PySpark."""
    delta, spark = versions()
    if has_jars():
        return dict(IN_SESSION)
    fetched = {"spark.jars.packages": coordinates(delta, spark), "spark.jars.excludes": ",".join(IN_EVERY_SPARK)}
    return {**IN_SESSION, **fetched}


def versions() -> tuple[str, str]:
    """The installed versions of delta-spark and PySpark. Raises UsageError if delta-spark is not installed."""
    spark = metadata.version("pyspark")
    try:
        delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        raise UsageError(f"Delta is not installed: {INSTALL}") from None
    wanted = next((text for text in metadata.requires("delta-spark") or () if text.startswith("pyspark")), "pyspark")
    check_versions(delta, wanted, spark)
    return delta, spark


def check_versions(delta: str, wanted: str, spark: str) -> None:
    """Raises UsageError if this PySpark does not satisfy `wanted`, the requirement of delta-spark ("pyspark<=4.2.0,>=4.0.1")."""
    if not all(_holds(spark, sign, bound) for sign, bound in _BOUND.findall(wanted)):
        raise UsageError(
            f"delta-spark {delta} needs {wanted}, but PySpark {spark} is installed: {INSTALL} installs versions that fit"
        )


def _holds(version: str, sign: str, bound: str) -> bool:
    """Whether a version satisfies a bound such as `>=4.0.1`. Suffixes such as ".dev0" are ignored."""
    here, there = ((*map(int, re.findall(r"\d+", text)[:3]), 0, 0)[:3] for text in (version, bound))
    return {"<=": here <= there, ">=": here >= there, "<": here < there, ">": here > there, "==": here == there}[sign]


def coordinates(delta: str, spark: str) -> str:
    """The Maven coordinates of Delta's jar."""
    minor = ".".join(spark.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{SCALA}:{delta}"


def has_jars() -> bool:
    """Whether Delta's jars lie in PySpark's folder of jars."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return any((home / "jars").glob("*delta-spark_*.jar"))


@contextmanager
def delta_errors() -> Iterator[None]:
    """Turns the errors of a session without Delta, or with another version, into UsageError."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as e:
        if (text := sentence(str(e))) is None:
            raise
        raise UsageError(text) from e
    except Py4JJavaError as e:
        raise UsageError(sentence(str(e)) or f"Delta has failed: {str(e.java_exception).splitlines()[0]}") from e


def sentence(error: str) -> str | None:
    """Advice for an error of Spark that means that Delta is missing or does not fit; None for any other error."""
    made = "create it with strandline.pipeline.jobs.delta.delta_session, or with the settings of delta_conf"
    if NO_CLASSES in error:
        return f"this Spark session has no Delta: {made}, before any other session of this process"
    if NOT_CONFIGURED in error:
        return f"this Spark session has Delta's jars but does not use its extension and catalog: {made}"
    if any(name in error for name in OTHER_VERSIONS):
        return f"the jars of Delta in this Spark session are made for another Spark: {made}, and without jars of your own"
    return None
