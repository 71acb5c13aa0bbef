"""The fetcher core against real leaders: planning, sessions, and what a response may and may not change.

The leader's side is the production replica manager, the follower's side the production partition and log; a test holds
requests and responses as long as it likes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from fetcher_link import Link
from replica_world import NOW_MS, TOPIC, Node, P, ReplicaWorld, batch, code, fetched, log_values, values, want

from strandline.broker.replication.fetcher import FIRST_BACKOFF_MS, Plan
from strandline.broker.replication.leader_range import LeaderRange
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.protocol.errors import ErrorCode, PeerError
from strandline.protocol.messages.common import EpochEndOffset
from strandline.protocol.messages.data import FetchPartitionResponse, FetchResponse
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch

OTHER: TopicIdPartition = (b"topic-id-number2", 0)
NAMED = named_producer_id(7, 1)


def asked_of(plan: Plan) -> list[TopicIdPartition]:
    return [(p.topic_id, p.partition) for p in plan.request.partitions]


def fill(node: Node, *epochs: int) -> None:
    """Write a log by its epochs, one record per batch: offset i is of `epochs[i]`."""
    log = node.p.log
    for epoch in epochs:
        offset = log.log_end_offset
        record = (None, f"{offset}@{epoch}".encode(), [], NOW_MS)
        data = encode_batch([record], base_offset=offset, leader_epoch=epoch)
        assert log.append_as_follower(memoryview(bytearray(data)), epoch) is not None


def epochs_of(node: Node) -> list[int]:
    log = node.p.log
    read = log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
    return [header.leader_epoch for buffer in read.buffers for _, header in iter_headers(buffer)]


def followers_only(brokers: int = 2) -> ReplicaWorld:
    """All brokers follow broker 9, which has no `Node`, in epoch 20. So the test can write their logs."""
    world = ReplicaWorld(brokers)
    world.topic(replicas=(*world.nodes, 9), isr=(*world.nodes, 9), leader=9, epoch=20)
    return world


# -- planning and sessions ----------------------------------------------------------------------------------------------


def test_the_first_fetch_lists_all_partitions_and_the_next_the_changed_ones() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=3)
    keys = [(TOPIC, index) for index in range(3)]
    link = Link(world, 2, 1, *keys)
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    assert asked_of(plan) == keys
    assert (plan.request.session_id, plan.request.session_epoch, plan.request.max_wait_ms) == (0, 0, 0)
    link.deliver(plan, request)
    world[1].produce("a", key=keys[1], acks=1)
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    assert asked_of(plan) == []
    assert plan.request.session_epoch == 1
    assert plan.request.session_id != 0
    link.deliver(plan, request)
    assert world[2][keys[1]].log.log_end_offset == 1
    plan, _ = link.ask() or pytest.fail("nothing to fetch")
    assert asked_of(plan) == [keys[1]], "its position moved, the others' did not"
    assert plan.request.partitions[0].fetch_offset == 1


def test_idle_partitions_cost_nothing_per_round() -> None:
    """333 idle partitions are not listed in a fetch, and their positions are not even read."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=333)
    link = Link(world, 2, 1, *[(TOPIC, index) for index in range(333)])
    link.round()
    looked_at = []
    for entry in link.core._entries.values():
        entry.partition = _Watched(entry.partition, looked_at)  # type: ignore[assignment]
    for _ in range(3):
        request = link.round()
        assert request.body.partitions == []
        assert request.answer.partitions == []
    assert looked_at == []


class _Watched:
    def __init__(self, partition: Any, looked_at: list[str]) -> None:
        self._partition, self._looked_at = partition, looked_at

    def __getattr__(self, name: str) -> Any:
        self._looked_at.append(name)
        return getattr(self._partition, name)


def test_every_fetch_carries_the_broker_epoch() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    plan = Link(world, 2, 1).core.plan(0.0)
    assert plan is not None
    assert plan.request.replica_epoch == world.image.brokers[2].broker_epoch


def test_a_removed_partition_is_forgotten_and_its_late_data_dropped() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=2)
    gone = (TOPIC, 1)
    link = Link(world, 2, 1, P, gone)
    link.round()
    world[1].produce("a", key=gone, acks=1)
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    link.core.remove(gone)
    link.deliver(plan, request)
    assert world[2][gone].log.log_end_offset == 0
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    assert [(f.topic_id, f.partition) for f in plan.request.forgotten] == [gone]
    assert asked_of(plan) == []


def test_an_answer_from_before_a_partition_was_added_again_is_ignored() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    link.round()
    world[1].produce("a", acks=1)
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    link.core.remove(P)
    link.core.add(world[2].p)
    link.deliver(plan, request)
    assert world[2].leo == 0
    link.round()
    assert world[2].leo == 1


def test_a_late_leader_range_is_ignored_after_the_partition_was_added_again() -> None:
    """The follower's position is the same as before, but the leader's log has grown since, so nothing may be truncated."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    world[1].produce("a", acks=1)
    link.round()
    assert world[2].leo == 1
    asked = world[2].p.fetch_position()
    link.core.remove(P)
    link.core.add(world[2].p)
    link.core.on_leader_range(P, asked, LeaderRange(0, 0, []), link.now)
    assert world[2].leo == 1


def test_fork_that_ends_at_the_leaders_log_start_is_dropped_before_it_counts() -> None:
    """The follower's log end stays where the leader has seen it, its high watermark never covers the fork, and the producers are
    those of the leader."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), isr=(1,), epoch=5)
    for value in "abcd":
        world[1].produce(value, acks=1)
    world[1].p.log.increment_log_start_offset(4)
    follower = world[2].p.log
    for _ in range(4):
        follower.append_as_leader(memoryview(batch("fork")), 1, NOW_MS)
    link = Link(world, 2, 1)
    seen = []
    for _ in range(4):
        link.round()
        seen.append((follower.log_start_offset, follower.high_watermark, follower.log_end_offset))
    assert seen[-1] == (4, 4, 4)
    assert set(seen) <= {(0, 0, 4), (4, 4, 4)}
    assert world[1].p.leader_state.isr.maximal == {1, 2}


def test_a_lost_session_becomes_a_full_fetch_at_once() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=2)
    link = Link(world, 2, 1, P, (TOPIC, 1))
    link.rounds(2)
    world[1].manager.sessions.remove(link.core._session_id)
    refused = link.round()
    assert ErrorCode.FETCH_SESSION_ID_NOT_FOUND in (
        getattr(refused.answer, "code", None),
        getattr(refused.answer, "error_code", None),
    )
    plan, _ = link.ask() or pytest.fail("not at once")
    assert plan.request.session_epoch == 0
    assert len(plan.request.partitions) == 2


def test_a_lost_connection_leads_to_a_full_fetch() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    link.round()
    world[1].produce("a", acks=1)
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    link.core.on_connection_lost()
    assert link.deliver(plan, request) == []
    plan, _ = link.ask() or pytest.fail("nothing to fetch")
    assert plan.request.session_epoch == 0
    assert asked_of(plan) == [P]


def test_without_room_for_a_session_every_fetch_is_full() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    world[1].manager.sessions.slots = 0
    link = Link(world, 2, 1)
    link.round()
    for expected in (1, 2):
        world[1].produce("a", acks=1)
        plan, request = link.ask() or pytest.fail("nothing to fetch")
        assert (plan.request.session_epoch, plan.request.max_wait_ms) == (0, 500)
        link.deliver(plan, request)
        assert world[2].leo == expected


def test_without_a_session_no_busy_partition_keeps_the_others_from_being_fetched() -> None:
    """Each response has room for one batch. With a session, the leader rotates the partitions; without one, the follower must do
    so."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=3)
    world[1].manager.sessions.slots = 0
    keys = [(TOPIC, index) for index in range(3)]
    link = Link(world, 2, 1, *keys, response_bytes_max=1)
    for _ in range(4):
        for key in keys:
            world[1].produce("a", acks=1, key=key)
    link.rounds(6)
    assert [world[2][key].log.log_end_offset for key in keys] == [2, 2, 2]


def test_a_follower_below_the_leaders_start_starts_over_there_without_a_session() -> None:
    """Each response without a session restarts the fetching, which must not drop the question for the leader's log start."""
    world = followers_only()
    world[1].manager.sessions.slots = 0
    fill(world[1], *[1] * 60)
    fill(world[2], *[1] * 20)
    world.elect(1, isr=(1,))
    world[1].p.log.increment_log_start_offset(50)
    link = Link(world, 2, 1)
    link.rounds(3)
    assert (world[2].p.log.log_start_offset, world[2].leo) == (50, 60)


def test_a_partition_that_arrives_does_not_wait_for_the_long_poll_in_flight() -> None:
    """The partitions of a new topic, or of a dead leader, are fetched behind the parked fetch, in the same session."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    world.change(TopicRecord("other", OTHER[0]), PartitionRecord(*OTHER, (1, 2), (1, 2), 1, 1, 1))
    link = Link(world, 2, 1)
    link.round()
    first, parked = link.ask() or pytest.fail("nothing to fetch")
    assert not parked.is_answered
    assert link.core.plan(link.now) is None, "nothing new: one fetch at a time"
    link.core.add(world[2][OTHER])
    second, request = link.ask() or pytest.fail("it waits for the long poll")
    assert asked_of(second) == [OTHER]
    assert parked.is_answered, "the leader ends the parked fetch when the next one comes"
    link.deliver(first, parked)
    assert link.core.plan(link.now) is None
    world[1].produce("a", key=OTHER, acks=1)
    link.deliver(second, request)
    assert world[2][OTHER].log.log_end_offset == 1


def test_a_response_does_not_count_for_a_partition_in_a_later_request() -> None:
    """Two fetches in flight: the second answer was built from the position that the third request replaced."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    world.change(TopicRecord("other", OTHER[0]), PartitionRecord(*OTHER, (1, 2), (1, 2), 1, 1, 1))
    link = Link(world, 2, 1)
    link.round()
    first, _ = link.ask() or pytest.fail("nothing to fetch")
    link.core.add(world[2][OTHER])
    second = link.core.plan(link.now)
    assert second is not None
    world[1].produce("a", acks=1)
    data = b"".join(world[1].p.log.read(0, 1 << 20, 1).buffers)

    def built() -> FetchResponse:
        partition = FetchPartitionResponse(*P, high_watermark=0)
        return FetchResponse(0, 0, first.request.session_id, [partition], [memoryview(bytearray(data))])

    assert link.core.on_response(first, built(), link.now) == [P]
    third = link.core.plan(link.now)
    assert third is not None
    assert asked_of(third) == [P]
    assert link.core.on_response(second, built(), link.now) == []
    assert world[2].leo == 1
    assert link.core.next_due() is None, "and it is no error of the partition"


def test_a_failing_partition_leaves_the_session_for_longer_each_time() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), partitions=2)
    other = (TOPIC, 1)
    link = Link(world, 2, 1, P, other)
    link.round()
    world.elect(1, key=other, at=[2])
    link.core.add(world[2][other])
    delays = []
    for _ in range(3):
        refused = fetched(link.round())[other]
        assert refused.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        due = link.core.next_due()
        assert due is not None
        delays.append(round((due - link.now) * 1000))
        plan, request = link.ask() or pytest.fail("the others go on")
        assert [(f.topic_id, f.partition) for f in plan.request.forgotten] == [other]
        world[1].produce("x", acks=1)
        link.deliver(plan, request)
        world.loop.advance(due - link.now + 0.001)
    assert delays == [FIRST_BACKOFF_MS, 2 * FIRST_BACKOFF_MS, 4 * FIRST_BACKOFF_MS]
    world.catch_up(1)
    link.settle()
    world[1].produce("y", key=other, acks=1)
    link.rounds(2)
    assert world[2][other].log.log_end_offset == 1


def test_an_older_epoch_than_the_leaders_waits_for_newer_metadata() -> None:
    """The follower's own epoch is refused with FENCED_LEADER_EPOCH, so the same fetch would be refused again."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    link.round()
    world.elect(1, at=[1])
    link.core.on_connection_lost()
    link.round()
    assert len(link.core) == 0
    world.catch_up(2)
    link.core.add(world[2].p)
    world[1].produce("a", acks=1)
    link.settle()


def test_a_fence_for_an_epoch_that_we_left_meanwhile_is_only_a_delay() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    plan = link.core.plan(link.now)
    assert plan is not None
    world.elect(1)
    link.deliver(plan, link.put(plan))
    assert len(link.core) == 1
    assert link.core.next_due() is not None


def test_a_disk_that_fails_is_reported_and_takes_the_partition_out() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    world[1].produce("a", acks=1)
    world[2].files.fail_next("write", "*.log", 28)
    link.round()
    assert [error.errno for error in link.disk_errors] == [28]
    assert len(link.core) == 0


def test_a_response_of_the_wrong_shape_is_the_peers_fault() -> None:
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    plan = link.core.plan(link.now)
    assert plan is not None
    with pytest.raises(PeerError):
        link.core.on_response(plan, FetchResponse(0, 0, 7, [FetchPartitionResponse(*P)], []), link.now)


# -- truncation and divergence (S01 - S12) --------------------------------------------------------------------------------


def test_s01_a_follower_with_a_lagging_high_watermark_keeps_common_records() -> None:
    """KIP-101 scenario 1: it does not cut to its own high watermark on becoming a follower, and then is elected."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2))
    link = Link(world, 2, 1)
    link.round()
    world[1].produce("a", acks=1)
    link.rounds(2)
    produce = world[1].produce("b")
    link.round()
    plan, held = link.ask() or pytest.fail("nothing to fetch")
    assert produce.is_answered, "the follower's fetch at 2 says that it has both"
    assert (world[2].leo, world[2].hw) == (2, 1)
    world.elect(1)
    link.core.add(world[2].p)
    assert world[2].leo == 2
    world.elect(2, isr=(2,), at=[2])
    link.core.remove(P)
    if held.is_answered:
        link.deliver(plan, held)
    consumed = world[2].fetch(want(0))
    assert values(consumed) == [b"a", b"b"]


def test_s03_a_fork_is_cut_even_when_the_leader_lacks_the_asked_epoch() -> None:
    """KIP-279: the leader answers with the largest epoch below the requested one, and the follower compares its own end of that
    epoch."""
    world = followers_only(3)
    common = [1] * 10
    fill(world[1], *common)
    fill(world[2], *common, 2, 2)
    fill(world[3], *common, 1, 1)
    world.elect(3, isr=(3,))
    world[3].produce("12@3", acks=1)
    link = Link(world, 2, 3)
    asked = link.round()
    assert asked.answer.partitions[0].diverging_epoch == EpochEndOffset(1, 12)
    assert world[2].leo == 10
    link.settle()
    assert log_values(world[2].p) == log_values(world[3].p)
    assert epochs_of(world[2]) == [1] * 12 + [world[3].p.leader_epoch]


@pytest.mark.parametrize(
    ("leader", "follower", "cuts"),
    [
        pytest.param([1] * 10, [1] * 5, [], id="A behind, same epoch"),
        pytest.param([1] * 5 + [2] * 5, [1] * 5, [], id="B behind a newer epoch"),
        pytest.param([1] * 5, [1] * 8, [5], id="C ahead, same epoch"),
        pytest.param([1] * 5, [1] * 5 + [2] * 3, [5], id="D ahead, newer epoch"),
        pytest.param([1] * 5 + [3] * 3, [1] * 5 + [2] * 3, [5], id="E forked, distinct epochs"),
        pytest.param([1] * 8 + [3] * 2, [1] * 5 + [2] * 4, [5], id="F forked, the leader extended the old epoch"),
        pytest.param([2] * 5, [1] * 5, [0], id="G no common epoch"),
        pytest.param([1] * 3 + [3] * 3 + [6], [1] * 3 + [2] * 2 + [4] * 2 + [5], [5, 3], id="several forks, one cut per epoch"),
    ],
)
def test_s04_every_shape_of_divergence_is_cut_at_the_largest_common_prefix(
    leader: list[int], follower: list[int], cuts: list[int]
) -> None:
    world = followers_only()
    fill(world[1], *leader)
    fill(world[2], *follower)
    world.elect(1, isr=(1,))
    link = Link(world, 2, 1)
    ends = [world[2].leo]
    for _ in range(12):
        link.round()
        ends.append(world[2].leo)
    seen = [after for before, after in pairwise(ends) if after < before]
    assert seen == cuts
    assert log_values(world[2].p) == log_values(world[1].p)
    assert epochs_of(world[2]) == leader
    epochs = [epoch for epoch, _ in world[2].p.log.epochs.entries]
    assert epochs == sorted(set(epochs))


def test_s05_leaders_that_wrote_nothing_have_left_their_epochs_behind() -> None:
    """KAFKA-7415: each leader records where its epoch begins before it serves. The follower that returns late is truncated to
    10."""
    world = followers_only(3)
    for node in world.nodes.values():
        fill(node, *[1] * 10)
    fill(world[3], 1)
    everyone = (1, 2, 3)
    world.elect(2, isr=everyone, at=[1, 2])
    world.elect(1, isr=everyone, at=[1, 2])
    world.elect(2, isr=everyone, at=[1, 2])
    world[2].produce("10@4", acks=1)
    entries = world[2].p.log.epochs.entries
    assert [epoch for epoch, _ in entries] == sorted({epoch for epoch, _ in entries})
    assert [start for _, start in entries] == sorted(start for _, start in entries)
    world.catch_up(3)
    link = Link(world, 3, 2)
    link.round()
    assert world[3].leo == 10
    link.rounds(2)
    assert log_values(world[3].p) == log_values(world[2].p)


def test_s06_an_epoch_that_wrote_nothing_is_dropped_though_no_record_is_cut() -> None:
    """KAFKA-10706: a truncation to the log end must still remove such epochs, or the logs would diverge for ever."""
    world = followers_only()
    for node in world.nodes.values():
        fill(node, *[1] * 10)
    world[2].p.log.assign_epoch_start_offset(2, 10)
    world.elect(1, isr=(1,))
    world[1].produce("new", acks=1)
    link = Link(world, 2, 1)
    link.rounds(2)
    assert world[2].leo == 11, "replication goes on within two round trips"
    assert 2 not in [epoch for epoch, _ in world[2].p.log.epochs.entries]


def test_s07_a_diverging_response_does_not_raise_the_high_watermark() -> None:
    """KAFKA-14704: otherwise the former leader would serve its own uncommitted records to consumers."""
    world = followers_only()
    fill(world[1], *[1] * 13)
    world[1].p.log.update_high_watermark(10)
    fill(world[2], *[1] * 10)
    world.elect(2, isr=(2,))
    for n in range(5):
        world[2].produce(f"{n}", acks=1)
    assert world[2].hw == 15
    link = Link(world, 1, 2)
    plan, response = link.ask() or pytest.fail("nothing to fetch")
    assert response.answer.partitions[0].diverging_epoch.epoch >= 0
    link.deliver(plan, response)
    assert (world[1].leo, world[1].hw) == (10, 10)
    link.settle()
    assert world[1].hw == 15
    assert log_values(world[1].p) == log_values(world[2].p)


def test_s08_a_follower_below_the_leaders_start_begins_again_there() -> None:
    """KAFKA-12996: OFFSET_OUT_OF_RANGE takes precedence over a divergence, so the follower is never stuck."""
    world = followers_only()
    fill(world[1], *[2] * 60)
    fill(world[2], *[1] * 20)
    world.elect(1, isr=(1,))
    world[1].p.log.increment_log_start_offset(50)
    link = Link(world, 2, 1)
    assert code(link.round()) == ErrorCode.OFFSET_OUT_OF_RANGE
    link.settle()
    log = world[2].p.log
    assert (log.log_start_offset, log.log_end_offset) == (50, 60)
    assert log_values(world[2].p) == log_values(world[1].p)


def test_s09_a_fetch_carries_the_last_records_epoch_after_an_empty_response() -> None:
    """KAFKA-15510: without it the next leader could not see that the tail forked."""
    world = followers_only(3)
    fill(world[1], *[3] * 5)
    fill(world[2], *[3] * 5)
    fill(world[3], *[3] * 4)
    world.elect(1, isr=(1, 2))
    link = Link(world, 2, 1)
    link.rounds(3)
    world.elect(3, isr=(3,))
    world[3].produce("fork", acks=1)
    link = Link(world, 2, 3)
    plan, response = link.ask() or pytest.fail("nothing to fetch")
    assert plan.request.partitions[0].last_fetched_epoch == world[2].p.log.latest_epoch >= 3
    link.deliver(plan, response)
    link.settle()
    assert log_values(world[2].p) == log_values(world[3].p)


def test_s10_a_follower_ahead_of_its_leader_truncates_and_continues() -> None:
    """KAFKA-3410: the follower used to halt, so that one failure became many."""
    world = followers_only()
    fill(world[1], *[1] * 15)
    fill(world[2], *[1] * 20)
    world.elect(1, isr=(1,))
    link = Link(world, 2, 1)
    link.round()
    assert world[2].leo == 15
    world[1].produce("next", acks=1)
    link.settle()
    assert log_values(world[2].p) == log_values(world[1].p)


def test_s10_a_follower_of_an_empty_leader_starts_over() -> None:
    """The leader lost its disk before an unclean election, or never had a record. In both cases it has no epoch to compare."""
    world = followers_only()
    fill(world[2], *[1] * 20)
    world.elect(1, isr=(1,))
    link = Link(world, 2, 1)
    link.settle()
    assert world[2].leo == 0
    world[1].produce("first", acks=1)
    link.settle()
    assert log_values(world[2].p) == log_values(world[1].p)


def test_s11_after_a_full_restart_a_replica_can_lead_at_once() -> None:
    """KAFKA-9491: the high watermark stayed below the log start, and the next leader could not serve."""
    world = followers_only()
    fill(world[1], *[2] * 100)
    fill(world[2], *[1] * 20)
    world[2].p.log.update_high_watermark(20)
    world.elect(1, isr=(1,))
    world[1].p.log.increment_log_start_offset(100)
    link = Link(world, 2, 1)
    link.round()
    log = world[2].p.log
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (100, 100, 100)
    world.elect(2, isr=(2,))
    consumed = world[2].fetch(want(100))
    assert code(consumed) == ErrorCode.NONE
    assert values(consumed) == []


def test_s12_only_records_up_to_the_epoch_that_was_asked_with_are_appended() -> None:
    """KAFKA-18723: the leader was deposed and elected again while it built the response."""
    world = followers_only()
    fill(world[1], *[1] * 10)
    fill(world[2], *[1] * 9)
    world.elect(1, isr=(1,))
    world.elect(1, at=[1])
    world[1].produce("10", acks=1)
    link = Link(world, 2, 1)
    plan = link.core.plan(link.now)
    assert plan is not None
    assert plan.request.partitions[0].current_leader_epoch == world[1].p.leader_epoch - 1
    data = bytearray(b"".join(world[1].p.log.read(9, 1 << 20, 11).buffers))
    response = FetchResponse(0, 0, 5, [FetchPartitionResponse(*P, high_watermark=11)], [memoryview(data)])
    link.core.on_response(plan, response, link.now)
    assert epochs_of(world[2]) == [1] * 10
    assert world[2].hw == 0, "that high watermark is of an epoch that we do not know"


@pytest.mark.parametrize("damage", ["flipped bit", "torn", "garbage", "gap"])
def test_s12_invalid_bytes_append_nothing_and_are_fetched_again(damage: str) -> None:
    world = followers_only()
    fill(world[1], *[1] * 3)
    world.elect(1, isr=(1,))
    link = Link(world, 2, 1)
    plan = link.core.plan(link.now)
    assert plan is not None
    data = bytearray(b"".join(world[1].p.log.read(0, 1 << 20, 3).buffers))
    if damage == "flipped bit":
        data[-1] ^= 1
    elif damage == "torn":
        data = data[:-3]
    elif damage == "garbage":
        data = bytearray(range(200))
    else:
        data = bytearray(b"".join(world[1].p.log.read(1, 1 << 20, 3).buffers))
    response = FetchResponse(0, 0, 5, [FetchPartitionResponse(*P, high_watermark=3)], [memoryview(data)])
    assert link.core.on_response(plan, response, link.now) == []
    assert (world[2].leo, world[2].hw) == (0, 0)
    world.loop.advance(0.1)
    link.core.on_connection_lost()
    link.settle()
    assert log_values(world[2].p) == log_values(world[1].p)


@pytest.mark.parametrize("has_a_fork", [False, True])
def test_a_follower_learns_the_producers_of_deleted_rows(has_a_fork: bool) -> None:
    """The follower may lead before the work epoch ends, and an earlier producer of the name must not write its rows again."""
    world = ReplicaWorld(2)
    world.topic(replicas=(1, 2), epoch=5)
    log, follower = world[1].p.log, world[2].p.log
    for each in (batch("a", "b", producer_id=NAMED, producer_epoch=3, sequence=0), batch("x"), batch("y")):
        log.append_as_leader(memoryview(each), 5, NOW_MS)
    log.update_high_watermark(4)
    log.increment_log_start_offset(3)
    if has_a_fork:
        follower.append_as_leader(memoryview(batch("of", "another", "history", "a", "fork")), 4, NOW_MS)
    link, rounds = Link(world, 2, 1), 0
    while follower.log_end_offset != 4 or follower.log_start_offset != 3:
        link.round()
        rounds += 1
        assert rounds <= 4
    assert list(follower.producers.describe()) == list(log.producers.describe())
