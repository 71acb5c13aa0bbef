"""Both kinds of event loop that the Kafka door must run on, a check of the names of the fields that it writes, and clusters.

A cluster ends with its module. Otherwise what it holds and logs would disturb the tests of other folders in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import strict_fields
import uvloop

from strandline.testing import Cluster, ThreadedCluster

strict_fields.install()

collect_ignore = ["suites"]
"""`make test-kafka` runs the suites, each in its own way."""

NEVER_PAUSED = {"broker_session_timeout_ms": 30_000}
"""A busy machine stops this process for a second now and then. With a shorter session the broker would take this for a pause, and
answer NOT_COORDINATOR and NOT_LEADER_OR_FOLLOWER until a controller has answered."""

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


@pytest.fixture(scope="module")
def groups_cluster() -> Iterator[ThreadedCluster]:
    """A broker with the topic `orders`, of four partitions. Each test uses its own groups."""
    settings = {"offsets_topic_num_partitions": 3, "group_initial_rebalance_delay_ms": 0}
    with Cluster.running_in_thread(brokers=1, kafka=True, **NEVER_PAUSED, **settings) as cluster:
        cluster.create_topic("orders", partitions=4)
        yield cluster


@pytest.fixture(scope="module")
def data_cluster() -> Iterator[ThreadedCluster]:
    """A broker. Each test creates its own topics."""
    with Cluster.running_in_thread(brokers=1, kafka=True, **NEVER_PAUSED) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def pair_cluster() -> Iterator[ThreadedCluster]:
    """Two brokers. A topic has its replica on one of them."""
    with Cluster.running_in_thread(brokers=2, kafka=True, **NEVER_PAUSED) as cluster:
        yield cluster
