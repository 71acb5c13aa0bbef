"""One Spark and one cluster for all tests of the pipeline: a JVM takes seconds to come up, and a topic of its own is enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from strandline.pipeline.spark import spark_session

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
