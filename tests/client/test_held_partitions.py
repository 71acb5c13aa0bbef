"""A partition that is held returns no records, whether or not the program pauses or resumes it."""

from __future__ import annotations

from strandline.client.consumer.partition_state import EARLIEST, PartitionState
from strandline.client.consumer.records import TopicPartition
from strandline.client.consumer.subscription import Subscription


def fresh() -> PartitionState:
    state = PartitionState(TopicPartition("orders", 0), bytes(16), {}, lambda error: False)
    state.seek(5)
    return state


def test_pauses_and_holds_are_independent() -> None:
    state = fresh()
    state.hold()
    assert (state.paused, state.is_paused_by_program) == (True, False)
    state.pause()
    state.resume()
    assert (state.paused, state.is_held) == (True, True)
    state.release()
    assert (state.paused, state.is_held) == (False, False)
    state.pause()
    state.hold()
    state.release()
    assert (state.paused, state.is_paused_by_program) == (True, True)
    state.resume()
    assert not state.paused


def test_held_partition_is_not_fetched() -> None:
    state = fresh()
    assert state.is_fetchable(0.0, 100)
    state.hold()
    assert not state.is_fetchable(0.0, 100)


def test_hold_ends_a_running_loop() -> None:
    """`async for` compares the version after each record."""
    state = fresh()
    version = state.version
    state.hold()
    assert state.version != version


def test_hold_does_not_outlast_a_recreated_topic() -> None:
    """Only a pause by the program outlasts it."""
    subscription = Subscription(EARLIEST)
    state = subscription.add(TopicPartition("orders", 0), bytes(16), EARLIEST)
    state.hold()
    assert not subscription.renew(state, b"x" * 16, None).paused
