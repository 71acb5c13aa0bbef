"""Delta Lake beside Spark: the jars that a session needs, and what is wrong, in a sentence, when it has not got them.

    spark = delta_session("offload", "local[2]")              # or: your own, made with what `delta_conf()` says

Delta comes in two halves. `delta-spark` from PyPI (the extra `delta`) says which PySpark goes with it. The jars that
do the work have its number, are made for one minor version of Spark, and are fetched by Spark from Maven Central at its first
start. What a PySpark brings anyway is left out: 14 MB instead of 87. Where the jars lie in PySpark's own folder, nothing is
fetched.
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
"""What Delta names besides: these are on Spark's path already, in the version that goes first."""

NO_CLASSES = "DATA_SOURCE_NOT_FOUND"
NOT_CONFIGURED = "DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG"
OTHER_VERSIONS = ("NoSuchMethodError", "NoSuchFieldError", "NoClassDefFoundError", "AbstractMethodError", "IncompatibleClass")
"""What a JVM says when classes were made for others than those that are there."""

_BOUND = re.compile(r"(<=|>=|<|>|==)\s*(\d+(?:\.\d+)*)")


def delta_session(name: str, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> SparkSession:
    """As `spark_session`, with Delta. Where this process has a Spark already, it is that one, as it is."""
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
            f"Spark did not start with {jars}; its lines above say why. The jars come from Maven Central; where there is no way "
            "there, put them into PySpark's folder jars"
        ) from None


def delta_conf() -> dict[str, str]:
    """What a session needs for Delta, before it is started. Raises UsageError when what is installed does not go together."""
    delta, spark = versions()
    if has_jars():
        return dict(IN_SESSION)
    fetched = {"spark.jars.packages": coordinates(delta, spark), "spark.jars.excludes": ",".join(IN_EVERY_SPARK)}
    return {**IN_SESSION, **fetched}


def versions() -> tuple[str, str]:
    """Of delta-spark and of PySpark."""
    spark = metadata.version("pyspark")
    try:
        delta = metadata.version("delta-spark")
    except metadata.PackageNotFoundError:
        raise UsageError(f"Delta is not installed: {INSTALL}") from None
    wanted = next((text for text in metadata.requires("delta-spark") or () if text.startswith("pyspark")), "pyspark")
    check_versions(delta, wanted, spark)
    return delta, spark


def check_versions(delta: str, wanted: str, spark: str) -> None:
    """`wanted`: as delta-spark's package says it, "pyspark<=4.2.0,>=4.0.1". Raises UsageError when this PySpark is another."""
    if not all(_holds(spark, sign, bound) for sign, bound in _BOUND.findall(wanted)):
        raise UsageError(
            f"delta-spark {delta} goes with {wanted}, and PySpark {spark} is installed: {INSTALL} brings two that fit"
        )


def _holds(version: str, sign: str, bound: str) -> bool:
    """Versions of Spark are numbers; what stands behind them (".dev0") counts for nothing here."""
    here, there = ((*map(int, re.findall(r"\d+", text)[:3]), 0, 0)[:3] for text in (version, bound))
    return {"<=": here <= there, ">=": here >= there, "<": here < there, ">": here > there, "==": here == there}[sign]


def coordinates(delta: str, spark: str) -> str:
    """Of the jar, as Maven knows it."""
    minor = ".".join(spark.split(".")[:2])
    return f"io.delta:delta-spark_{minor}_{SCALA}:{delta}"


def has_jars() -> bool:
    """Whether they lie where Spark has its own."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    return any((home / "jars").glob("*delta-spark_*.jar"))


@contextmanager
def delta_errors() -> Iterator[None]:
    """What a session without Delta, or with the wrong one, says to whoever uses it: as UsageError."""
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
    """What is to be done about an error that means that Delta is not there as it should be. None: it means something else."""
    made = "make it with strandline.pipeline.jobs.delta.delta_session, or with what delta_conf says"
    if NO_CLASSES in error:
        return f"this Spark session has no Delta: {made}, before any other session of this process"
    if NOT_CONFIGURED in error:
        return f"this Spark session has Delta's jars and does not use its extension and catalog: {made}"
    if any(name in error for name in OTHER_VERSIONS):
        return f"the jars of Delta in this Spark session are made for another Spark: {made}, and without jars of your own"
    return None
