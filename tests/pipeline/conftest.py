"""One Spark and one cluster for many tests of the pipeline: a JVM takes long to start and to get warm, and a topic of its own
is enough for a test."""

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
"""Spark's Python processes start in half the time with this folder in their path."""
OWN_SPARK = ("test_spark_drill", "test_spark_standalone", "test_spark_notebook", "test_spark_commands")
"""Files whose tests start Sparks of their own, those that take longest first. All other files share one of two Sparks."""
JOBS = ("audit", "compact", "delta", "examples", "materialize", "offload", "replay", "replication", "simulate", "verify")
"""What the files are about whose tests share the Spark of the jobs: `test_spark_audit.py` and so on. The tests of source and
sink share the other one."""


def pytest_configure() -> None:
    """For the Spark of this process and those of all that it starts; before `cli_world` takes a copy of the environment."""
    os.environ.setdefault("SPARK_SUBMIT_OPTS", quick_start())
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (QUICK_PYTHON, os.environ.get("PYTHONPATH"))))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
    items.sort(key=lambda item: OWN_SPARK.index(own) if (own := process_of(item.path.stem)) in OWN_SPARK else -1)


def process_of(stem: str) -> str:
    """The tests of one such name run in one process, one after the other. A JVM is warm after its first test, so many files
    share one; two JVMs keep two cores busy, since each of them mostly waits for a worker or a file."""
    for own in OWN_SPARK:
        if stem.startswith(own):
            return own
    return "jobs" if stem.removeprefix("test_spark_").split("_")[0] in JOBS else "source and sink"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """A process takes the next name of `process_of` when it has nearly done the last one."""
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
"""For queries of a few rows: to plan them anew while they run, or to compile Java for them, takes longer than they take. (The
tests that start Sparks of their own leave all that as it is.)"""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One attempt a task: a second one hides what went wrong in the first. Tests of attempts ask for `two_attempts`."""
    from strandline.pipeline.spark import spark_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # Of the JVM: there its daemons are found.
        session = spark_session("strandline tests", "local[2]", {**SMALL, "spark.sql.python.filterPushdown.enabled": "true"})
    yield session
    session.stop()


@pytest.fixture
def two_attempts(spark: SparkSession) -> Iterator[None]:
    """What `local[2,2]` says, for one test: it is read once when a Spark starts, and one of their own costs these tests more."""
    scheduler = spark.sparkContext._jsc.sc().taskScheduler()
    field = scheduler.getClass().getDeclaredField("maxTaskFailures")
    field.setAccessible(True)
    field.setInt(scheduler, 2)
    yield
    field.setInt(scheduler, 1)


def _scope_of_log(*, fixture_name: str, config: pytest.Config) -> str:
    """Tests with a Spark share one cluster. Without a Spark, the cluster ends with its file: other folders' tests run in the same
    process, and some of them check that no thread, descriptor or log route is left."""
    return "session" if config.option.markexpr == "spark" else "module"


@pytest.fixture(scope=_scope_of_log)
def log() -> Iterator[ThreadedCluster]:
    """Three brokers on a thread; the tests make topics of their own."""
    from strandline.testing import Cluster

    with Cluster.running_in_thread(brokers=3, controllers=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A cluster of Spark's own processes, for the tests that need other machines."""
    from standalone import StandaloneCluster

    with StandaloneCluster.running(tmp_path_factory.mktemp("standalone")) as cluster:
        yield cluster


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`strandline pipeline ...` in this process, on this Spark: a JVM for each call would take longer than all the rest."""

    @contextmanager
    def this_one(job: str, master: str) -> Iterator[SparkSession]:
        yield spark

    modules = (pipeline_audit, pipeline_compact, pipeline_materialize, pipeline_replay, pipeline_replication, pipeline_simulate)
    for module in modules:
        monkeypatch.setattr(module, "spark_for", this_one)
    return lambda *words: CliRunner().invoke(pipeline.app, list(words))
