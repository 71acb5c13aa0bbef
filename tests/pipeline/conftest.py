"""One Spark and one cluster for all tests of the pipeline: a JVM takes seconds to come up, and a topic of its own is enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from strandline.cli import pipeline, pipeline_materialize, pipeline_replay, pipeline_simulate

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from standalone import QUICK_START

    from strandline.pipeline.spark import spark_session

    os.environ.setdefault("SPARK_SUBMIT_OPTS", QUICK_START)  # Also of those that tests start as processes.
    conf = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    session = spark_session("strandline tests", "local[2,2]", conf)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def log() -> Iterator[ThreadedCluster]:
    """Three brokers on a thread; the tests make topics of their own."""
    from strandline.testing import Cluster

    with Cluster.running_in_thread(brokers=3, controllers=1) as cluster:
        yield cluster


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """`strandline pipeline ...` in this process, on this Spark: a JVM for each call would take longer than all the rest."""

    @contextmanager
    def this_one(job: str, master: str) -> Iterator[SparkSession]:
        yield spark

    for module in (pipeline_materialize, pipeline_replay, pipeline_simulate):
        monkeypatch.setattr(module, "spark_for", this_one)
    return lambda *words: CliRunner().invoke(pipeline.app, list(words))
