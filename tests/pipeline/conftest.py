"""The Spark session and the cluster that tests of the pipeline share. A JVM takes long to start, and a topic of its own
isolates a test well enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from class_archive import quick_start
from typer.testing import CliRunner

from strandline.cli import (
    pipeline,
    pipeline_audit,
    pipeline_compact,
    pipeline_materialize,
    pipeline_replay,
    pipeline_replication,
    pipeline_simulate,
)

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession
    from standalone import StandaloneCluster

    from strandline.testing import ThreadedCluster


QUICK_PYTHON = str(Path(__file__).parent / "quick_python")
"""With this folder in their path, Spark's Python processes start in half the time."""
OWN_SPARK = ("test_spark_drill", "test_spark_standalone", "test_spark_notebook", "test_spark_commands")
"""Files whose tests start Spark themselves, the slowest first. All other files share one of three Spark sessions."""
JOBS = ("audit", "compact", "delta", "examples", "materialize", "offload", "replay", "replication", "simulate", "verify")
"""The files `test_spark_<job>*.py` share one Spark session, the tests of the sink another one, and all others the third."""


def pytest_configure() -> None:
    """Sets options for Spark in this process and its children. It must run before `cli_world` copies the environment."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_start())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (QUICK_PYTHON, os.environ.get("PYTHONPATH"))))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    items.sort(key=lambda item: OWN_SPARK.index(own) if (own := process_of(item.path.stem)) in OWN_SPARK else -1)


def process_of(stem: str) -> str:
    """The name of the process in which the tests of a file run, one after the other. A JVM is fast after its first test, so
    many files share one. Two JVMs keep two cores busy."""
    for own in OWN_SPARK:
        if stem.startswith(own):
            return own
    first_word = stem.removeprefix("test_spark_").split("_")[0]
    return "jobs" if first_word in JOBS else "sink" if first_word == "sink" else "source"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Distributes tests to processes by `process_of`. A process takes the next name when it has nearly finished the last one."""
    from xdist.scheduler import LoadScopeScheduling

    class BySpark(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return process_of(Path(nodeid.split("::")[0]).stem)

    return BySpark(config, log)


SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "spark_daemon",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Settings for queries of a few rows, for which adaptive planning and compiled code take longer than the query itself. Tests that
start Spark themselves use Spark's defaults."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session in which a task has one attempt, because a second one would hide the failure of the first. Tests of attempts
    use `two_attempts`."""
    from strandline.pipeline.spark import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # The JVM finds its daemons there.
        session = spark_session("strandline tests", "local[2]", {**SMALL, "spark.sql.python.filterPushdown.enabled": "true"})
    yield session
    session.stop()


@pytest.fixture
def two_attempts(spark: SparkSession) -> Iterator[None]:
    """Gives each task two attempts during one test, like the master `local[2,2]`. Spark reads the master only at its start,
    and another Spark would make these tests slow."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    field = scheduler.getClass().getDeclaredField("maxTaskFailures")
    field.setAccessible(True)
    field.setInt(scheduler, 2)
    yield
    field.setInt(scheduler, 1)


def _scope_of_log(*, fixture_name: str, config: pytest.Config) -> str:
    """Shares one cluster between the tests with Spark. Without Spark, a cluster ends with its file: tests of other folders run in
    the same process, and some of them check that no thread, descriptor or log route is left."""
    return "session" if config.option.markexpr == "spark" else "module"


@pytest.fixture(scope=_scope_of_log)
def log() -> Iterator[ThreadedCluster]:
    """A cluster of three brokers on a thread. Tests create their own topics."""
    from strandline.testing import Cluster

    with Cluster.running_in_thread(brokers=3, controllers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A standalone cluster of Spark, for tests that need workers on other machines."""
    from standalone import StandaloneCluster

    with StandaloneCluster.running(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `strandline pipeline ...` in this process with the shared session, because a JVM per call would take too long."""

    @contextmanager
    def this_one(job: str, master: str) -> Iterator[SparkSession]:
        yield spark

    modules = (pipeline_audit, pipeline_compact, pipeline_materialize, pipeline_replay, pipeline_replication, pipeline_simulate)
    for module in modules:
        monkeypatch.setattr(module, "spark_for", this_one)
    return lambda *words: CliRunner().invoke(pipeline.app, list(words))
