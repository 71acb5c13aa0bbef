"""A test fails if the fault, wait or comparison that it relies on did not happen."""

from __future__ import annotations

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing import Cluster, caught_up, controller, epoch, fenced, hw, isr, leader, log_end

# -- comparisons that always have the same result -------------------------------------------------------------------------


def test_a_set_is_not_compared_with_a_list() -> None:
    """`isr(...) != [1, 2]` would hold at once for every ISR."""
    with pytest.raises(TypeError, match=r"isr\('t', 0\) != needs a set of numbers, such as \{1, 2\}, not \[1, 2\]"):
        isr("t") != [1, 2]  # noqa: B015
    with pytest.raises(TypeError, match="needs a set of numbers"):
        isr("t") >= {"1"}  # noqa: B015


def test_a_node_is_not_compared_with_a_text() -> None:
    for wrong in ("1", None, 1.0, True, {1}):
        with pytest.raises(TypeError, match=r"leader\('t', 0\) != needs a number"):
            leader("t") != wrong  # noqa: B015
    with pytest.raises(TypeError, match="contains needs a number"):
        isr("t").contains("1")
    with pytest.raises(TypeError, match="in needs a set of numbers"):
        leader("t").is_in(["1"])
    for value in (epoch("t"), hw("t"), log_end("t", 0, 1), controller()):
        with pytest.raises(TypeError, match="needs a number"):
            value == "1"  # noqa: B015


async def test_condition_on_an_unknown_node_is_rejected(cluster: Cluster) -> None:
    """Broker 4 is never fenced, never leads and is in no ISR: each of these would hold at once."""
    topic = await cluster.create_topic()
    for condition in (
        ~fenced(4),
        leader(topic) != 4,
        ~isr(topic).contains(4),
        isr(topic) != {1, 2, 4},
        ~(log_end(topic, 0, 4) >= 1),
        caught_up(topic) & ~leader(topic).is_in({4, 5}),
    ):
        with pytest.raises(UsageError, match=r"there is no broker 4(, 5)?; there are 1, 2, 3"):
            await cluster.until(condition, within_s=0.1)
    with pytest.raises(UsageError, match="there is no controller 1; there are 101"):
        await cluster.until(controller() != 1, within_s=0.1)
    await cluster.until((leader(topic) >= 0) & (isr(topic) >= {1}) & ~fenced(1))


# -- faults without an effect -----------------------------------------------------------------------------------------


async def test_a_fault_on_no_node_is_refused(cluster: Cluster) -> None:
    for do in (cluster.kill, cluster.pause, cluster.resume, cluster.restart):
        with pytest.raises(UsageError, match=r"\w+ needs at least one node"):
            await do()


async def test_a_partition_that_cuts_nothing_off_is_refused(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="each group must have at least one node"):
        cluster.partition([1], [])
    with pytest.raises(UsageError, match="node 2 is in two groups"):
        cluster.partition([1, 2], [2, 3])
    assert cluster.faults == []


async def test_rule_that_can_meet_no_message_is_rejected(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="there is no node 4"):
        cluster.drop("Produce", at=4)
    with pytest.raises(UsageError, match="p is a probability"):
        cluster.drop("Produce", p=0)
    with pytest.raises(UsageError, match="times is at least 1"):
        cluster.drop("Produce", times=0)
    with pytest.raises(UsageError, match="a delay must be longer than 0 ms"):
        cluster.delay("Fetch", ms=0)
    with pytest.raises(UsageError, match="slower by 0 ms or more, not by -5 ms"):
        cluster.slow_disk(1, ms=-5)
    assert cluster.faults == []


async def test_with_block_whose_fault_met_no_message_fails(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    with pytest.raises(AssertionError, match="this fault met no message: drop Produce response"), cluster.drop("Produce"):
        pass
    with cluster.drop("Produce", may_miss=True):
        pass
    with cluster.drop("Produce", p=0.5):
        pass
    with cluster.drop("Produce", times=1):
        async with cluster.producer() as producer:
            await producer.send_and_wait(topic, b"1")


async def test_failing_with_block_raises_its_own_error(cluster: Cluster) -> None:
    with pytest.raises(ZeroDivisionError), cluster.delay("Produce", ms=5):
        raise ZeroDivisionError


# -- comparisons of nothing -------------------------------------------------------------------------------------------


async def test_logs_without_a_record_are_not_identical(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    with pytest.raises(AssertionError, match=f"no log was compared: no replica of {topic} has a record"):
        await cluster.assert_logs_identical(topic)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    await cluster.assert_logs_identical(topic)


async def test_one_replica_is_not_identical_to_nothing(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1]], min_insync_replicas=1)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    with pytest.raises(AssertionError, match=f"{topic}-0 has only one replica, so no logs were compared"):
        await cluster.assert_logs_identical(topic)
