"""The cluster for tests without asyncio: plain calls, the same effects."""

from __future__ import annotations

import inspect
import threading

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing import Cluster, NotInTime, ThreadedCluster, caught_up, epoch, isr, leader


def test_a_plain_test_kills_a_leader(threaded_cluster: ThreadedCluster) -> None:
    cluster = threaded_cluster
    topic = cluster.create_topic("orders")
    assert [metadata.offset for metadata in cluster.send(topic, b"1", b"2")] == [0, 1]
    first = cluster.leader_of(topic)
    cluster.kill(first)
    cluster.until(leader(topic) != first)
    cluster.send(topic, b"3")
    cluster.start(first)
    cluster.until(caught_up(topic))
    assert [record.value for record in cluster.read_all(topic)] == [b"1", b"2", b"3"]
    cluster.assert_no_acked_loss()
    cluster.assert_logs_identical(topic)


def test_its_network_and_disks_fail_by_plain_calls(threaded_cluster: ThreadedCluster) -> None:
    cluster = threaded_cluster
    topic = cluster.create_topic(replicas=[[1, 2, 3]])
    with cluster.drop("Produce", times=1) as rule:
        cluster.send(topic, b"1")
        assert rule.hits == 1
    cluster.slow_disk(1, 50)
    cluster.isolate(3)
    cluster.until(isr(topic) == {1, 2})
    cluster.make_whole()
    cluster.until(caught_up(topic))


def test_a_wait_that_fails_fails_in_the_test(threaded_cluster: ThreadedCluster) -> None:
    topic = threaded_cluster.create_topic()
    with pytest.raises(NotInTime, match="last seen: epoch"):
        threaded_cluster.until(epoch(topic) == 9, within_s=0.05)


def test_threaded_cluster_has_every_method_of_the_cluster() -> None:
    """A call that is added to one must be added to the other."""
    ours = {name for name, _ in inspect.getmembers(ThreadedCluster) if not name.startswith("_")}
    theirs = {name for name, _ in inspect.getmembers(Cluster) if not name.startswith("_")}
    for_asyncio = {"producer", "consumer", "admin", "close", "running_in_thread", "nodes", "faults"}
    assert theirs - ours == for_asyncio
    assert ours - theirs == {"run", "call", "send", "history", "seed"}  # The last two are attributes of the cluster.


def test_its_users_connect_as_the_cluster_says() -> None:
    with Cluster.running_in_thread(brokers=1, secure=True) as cluster:
        assert cluster.security_of("producer").sasl_plain_username == "producer"
        topic = cluster.create_topic()
        cluster.send(topic, b"1")
        assert [record.value for record in cluster.read_all(topic)] == [b"1"]


def test_users_of_an_open_cluster_are_refused(threaded_cluster: ThreadedCluster) -> None:
    with pytest.raises(UsageError, match="has no users"):
        threaded_cluster.security_of("producer")


def test_failed_start_raises_in_the_test_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(UsageError, match="at least one broker"), Cluster.running_in_thread(brokers=0):
        pass
    assert set(threading.enumerate()) == before


def test_a_failure_inside_it_carries_the_report() -> None:
    failed = None
    try:
        with Cluster.running_in_thread(brokers=1) as cluster:
            cluster.create_topic("orders")
            _ = 1 // 0
    except ZeroDivisionError as e:
        failed = e
    assert failed is not None
    assert "orders-0: leader 1" in failed.__notes__[0]
