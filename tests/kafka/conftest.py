"""Both kinds of event loop that the Kafka door must run on, and a look at the names of the fields that it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import strict_fields
import uvloop

from strandline.testing import Cluster, ThreadedCluster

strict_fields.install()

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def on_loop(request):
    """Runs a coroutine function on each kind of event loop."""

    def run(scenario):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(asyncio.wait_for(scenario(), 20))

    return run


@pytest.fixture(autouse=True)
def fields_have_kafkas_names():
    """See `strict_fields.py`."""
    strict_fields.misspelt.clear()
    yield
    assert not strict_fields.misspelt


@pytest.fixture(scope="session")
def groups_cluster() -> Iterator[ThreadedCluster]:
    """A broker with the topic `orders`, of four partitions. Each test has groups of its own."""
    settings = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}
    with Cluster.running_in_thread(brokers=1, kafka=True, **settings) as cluster:
        cluster.create_topic("orders", partitions=4)
        yield cluster


@pytest.fixture(scope="session")
def data_cluster() -> Iterator[ThreadedCluster]:
    """A broker. Each test makes topics of its own."""
    with Cluster.running_in_thread(brokers=1, kafka=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def pair_cluster() -> Iterator[ThreadedCluster]:
    """Two brokers, of which each topic has one."""
    with Cluster.running_in_thread(brokers=2, kafka=True) as cluster:
        yield cluster
