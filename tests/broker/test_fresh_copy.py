"""No deleted key comes back: a follower that has missed a removed tombstone copies the log again, and no other follower does.

The logs are cleaned by the cleaner's own core; the fetcher, the logs and the leader's handlers are the production code.
"""

from __future__ import annotations

import pytest
from cleaner_kit import DAY_MS, clean, keyed, rows
from fetcher_link import Link
from replica_world import NOW_MS, Node, P, ReplicaWorld, code, want
from structlog.testing import capture_logs

from strandline.broker.partition.partition import FetchPosition, Partition
from strandline.broker.replication.leader_range import LeaderRange, RangeQuestion
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    FIRST_DIRTY_TIMESTAMP,
    LATEST_TIMESTAMP,
    DescribeProducersPartitionResponse,
    DescribeProducersResponse,
    FetchPartitionResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
)

OTHER = (b"topic-id-number2", 0)
KEY = b"deleted"
REMOVED = "/data/removed-tombstones-checkpoint"


def led_by_1(brokers: int = 2, isr: tuple[int, ...] = (1,)) -> ReplicaWorld:
    world = ReplicaWorld(brokers)
    world.topic(replicas=tuple(world.nodes), isr=isr)
    return world


def put(node: Node, *records: tuple[bytes, bytes | None]) -> None:
    """Append each record as a batch of its own, then close the segment. The records are committed, even if a follower is away."""
    for record in records:
        assert code(node.produce(keyed([record]), acks=1)) == ErrorCode.NONE
    node.p.log.update_high_watermark(node.leo)
    node.p.log.roll(NOW_MS)


def clean_at(node: Node, days: int) -> None:
    """Clean the whole log `days` after its records were written. A tombstone is removed a day after its first cleaning."""
    log = node.p.log
    log.first_dirty_offset = clean(log, now_ms=NOW_MS + days * DAY_MS).next_dirty


def remove_tombstones(node: Node) -> None:
    clean_at(node, 0)
    clean_at(node, 2)


def keys(node: Node) -> dict[bytes | None, bytes | None]:
    """The last value of each key, as an application reads it from this replica."""
    return {key: value for _, key, value in rows(node.p.log)}


def away_while_deleted() -> tuple[ReplicaWorld, Link]:
    """The follower has copied a value, and is away while its key is deleted."""
    world = led_by_1()
    put(world[1], (KEY, b"value"))
    Link(world, 2, 1).settle()
    assert keys(world[2]) == {KEY: b"value"}
    put(world[1], (KEY, None), (b"other", b"1"))
    return world, Link(world, 2, 1)


def restarts(node: Node) -> int:
    return node.manager.metrics.restarted_for_tombstones


# -- the rule ---------------------------------------------------------------------------------------------------------


def test_follower_that_missed_a_removed_tombstone_starts_over() -> None:
    world, link = away_while_deleted()
    remove_tombstones(world[1])
    assert world[1].p.log.tombstones_removed_below == 2
    with capture_logs() as lines:
        link.settle()
    assert rows(world[2].p.log) == rows(world[1].p.log)
    assert KEY not in keys(world[2])
    assert (restarts(world[2]), world[2].manager.metrics.restarted_out_of_range) == (1, 0)
    needed, restarted = (next(x for x in lines if x["event"] == e) for e in ("fetcher.fresh_copy_needed", "partition.restarted"))
    assert (needed["log_end_offset"], needed["tombstones_removed_below"]) == (1, 2)
    assert restarted["reason"] == "the leader has removed tombstones that this replica lacks"


def test_without_the_guard_the_deleted_key_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hazard: like Kafka's follower, this one continues at its log end, and keeps the value for ever."""
    monkeypatch.setattr(Partition, "needs_fresh_copy", lambda self, position, removed_below: False)
    world, link = away_while_deleted()
    remove_tombstones(world[1])
    link.settle()
    assert keys(world[2])[KEY] == b"value"
    clean_at(world[2], 9)
    world.elect(2, isr=(2,))
    put(world[2], (b"other", b"2"))
    clean_at(world[2], 19)
    assert keys(world[2]) == {KEY: b"value", b"other": b"2"}


def test_follower_that_returns_in_time_keeps_its_log() -> None:
    """The tombstone has been cleaned once and is still in the log, so the follower copies it like any other record."""
    world, link = away_while_deleted()
    clean_at(world[1], 0)
    kept = rows(world[2].p.log)
    link.settle()
    assert rows(world[2].p.log)[: len(kept)] == kept
    assert keys(world[2]) == {KEY: None, b"other": b"1"}
    assert restarts(world[2]) == 0


def test_follower_that_has_the_tombstone_keeps_its_log() -> None:
    world, _ = away_while_deleted()
    Link(world, 2, 1).settle()
    put(world[1], (b"more", b"1"))
    remove_tombstones(world[1])
    kept = rows(world[2].p.log)
    Link(world, 2, 1).settle()
    assert rows(world[2].p.log) == [*kept, (3, b"more", b"1")]
    assert (restarts(world[2]), world[2].p.log.tombstones_removed_below) == (0, 0)


@pytest.mark.parametrize("has_log", [True, False], ids=["away too long", "first copy"])
def test_copy_is_made_once_though_the_leader_goes_on_cleaning(has_log: bool) -> None:
    """At each step of the copy, the leader removes another tombstone above the copy's end. Its value was gone before the copy
    began, so the copy continues."""
    world, count = led_by_1(), 8
    leader, follower = world[1], world[2]
    if has_log:
        put(leader, (KEY, b"value"))
        Link(world, 2, 1).settle()
        put(leader, (KEY, None))
    put(leader, *((b"live%d" % n, b"1") for n in range(count)))
    for day in range(count):
        put(leader, (b"k%d" % day, b"value"), (b"k%d" % day, None))
        clean_at(leader, day)
    bounds = [leader.p.log.tombstones_removed_below]
    link = Link(world, 2, 1, partition_bytes_max=1)
    for day in range(count, 2 * count):
        link.round()
        clean_at(leader, day)
        bounds.append(leader.p.log.tombstones_removed_below)
    assert 0 < bounds[0] < bounds[-1]
    assert 0 < follower.leo < bounds[-1], "the copy was still being made"
    link.settle()
    assert rows(follower.p.log) == rows(leader.p.log)
    assert set(keys(follower)) == {b"live%d" % n for n in range(count)}
    assert restarts(follower) == has_log


def test_tombstones_that_expire_during_a_copy_do_no_harm() -> None:
    """The copy ends below a tombstone that the leader removes, but the tombstone's value was gone before the copy began."""
    world = led_by_1()
    leader, follower = world[1], world[2]
    put(leader, (b"a", b"old"), (b"a", None), (b"live", b"1"))
    remove_tombstones(leader)
    put(leader, (b"b", b"old"), (b"b", None), (b"end", b"1"))
    clean_at(leader, 2)
    assert (leader.p.log.tombstones_removed_below, leader.p.log.first_dirty_offset) == (2, 6)
    link = Link(world, 2, 1, partition_bytes_max=1)
    while follower.leo < 3:
        link.round()
    clean_at(leader, 4)
    assert leader.p.log.tombstones_removed_below == 5 > follower.leo
    link.settle()
    assert rows(follower.p.log) == rows(leader.p.log) == [(2, b"live", b"1"), (5, b"end", b"1")]
    assert (restarts(follower), follower.p.log.log_start_offset) == (0, 0)
    assert follower.p.log.tombstones_removed_below == 5


def test_tombstone_that_was_dirty_when_the_copy_began_makes_it_begin_again() -> None:
    """The copy has the tombstone's value, so it is useless once the tombstone is removed."""
    world = led_by_1()
    leader, follower = world[1], world[2]
    put(leader, (b"a", b"old"), (b"a", None), (b"live", b"1"))
    remove_tombstones(leader)
    put(leader, (b"b", b"old"), (b"b", None), (b"end", b"1"))
    link = Link(world, 2, 1, partition_bytes_max=1)
    while follower.leo < 4:
        link.round()
    assert keys(follower)[b"b"] == b"old"
    remove_tombstones(leader)
    link.settle()
    assert rows(follower.p.log) == rows(leader.p.log)
    assert b"b" not in keys(follower)
    assert restarts(follower) == 1


# -- when the leader cannot serve a copy yet --------------------------------------------------------------------------


def test_follower_keeps_its_log_until_the_leader_is_compacted_far_enough() -> None:
    """A leader that has taken over the bound from another one may still have values whose tombstones lie below it. A copy that
    begins now could miss the tombstones later, so the first dirty offset decides, not the bound."""
    world, link = away_while_deleted()
    log = world[1].p.log
    log.tombstones_removed_below = 2  # ... but the value and the tombstone are both still here
    kept = rows(world[2].p.log)
    for _ in range(5):
        link.round()
        world.loop.advance(1.0)
    assert rows(world[2].p.log) == kept, "nothing is dropped, and nothing is copied"
    clean_at(world[1], 0)
    world.loop.advance(1.0)
    link.round()
    assert world[2].leo == 0
    clean_at(world[1], 2)
    link.settle()
    assert rows(world[2].p.log) == rows(world[1].p.log)
    assert restarts(world[2]) == 1


def test_first_copy_waits_until_the_leader_is_compacted_far_enough() -> None:
    world = led_by_1()
    put(world[1], (KEY, b"value"), (KEY, None), (b"other", b"1"))
    world[1].p.log.tombstones_removed_below = 2
    link = Link(world, 2, 1, partition_bytes_max=1)
    with capture_logs() as lines:
        for _ in range(4):
            link.round()
            world.loop.advance(1.0)
    assert world[2].leo == 0
    (waits,) = (line for line in lines if line["event"] == "fetcher.copy_delayed_by_cleaning")
    assert (waits["tombstones_removed_below"], waits["first_dirty_offset"]) == (2, 0)
    remove_tombstones(world[1])
    link.settle()
    assert rows(world[2].p.log) == rows(world[1].p.log)
    assert restarts(world[2]) == 0, "an empty log is not dropped"


def test_response_from_before_the_leaders_answer_does_not_count() -> None:
    """Its records were read before the leader answered up to which offset it is clean, so they may be values that were removed
    since."""
    world = led_by_1()
    world.topic(replicas=(1, 2), isr=(1,), topic_id=OTHER[0], name="other")
    leader, follower = world[1], world[2]
    link = Link(world, 2, 1)
    link.round()
    put(leader, (KEY, b"value"), (KEY, None), (b"other", b"1"))
    leader.p.log.tombstones_removed_below = 2
    first = link.ask()
    link.core.add(follower[OTHER])
    second = link.ask()
    assert first is not None
    assert second is not None
    assert [P in {(p.topic_id, p.partition) for p in request.answer.partitions} for _, request in (first, second)] == [True] * 2
    remove_tombstones(leader)
    link.deliver(*first)
    assert follower.p.copy_clean_below == 3
    link.deliver(*second)
    assert follower.leo == 0
    link.settle()
    assert KEY not in keys(follower)


# -- roles ------------------------------------------------------------------------------------------------------------


def test_member_of_the_isr_never_drops_its_log() -> None:
    """Its disk must have lost the tombstone, but it may have the only copy of other committed records."""
    world = led_by_1(isr=(1, 2))
    put(world[1], (KEY, b"value"))
    Link(world, 2, 1).settle()
    put(world[1], (KEY, None), (b"other", b"1"))
    remove_tombstones(world[1])
    kept = rows(world[2].p.log)
    link = Link(world, 2, 1)
    with capture_logs() as lines:
        for _ in range(3):
            link.round()
            world.loop.advance(1.0)
    assert rows(world[2].p.log) == kept
    assert "fetcher.append_refused" in [line["event"] for line in lines]
    world.set_isr(1)
    link.settle()
    assert rows(world[2].p.log) == rows(world[1].p.log)


def test_member_that_joined_after_the_question_keeps_its_log() -> None:
    world, _ = away_while_deleted()
    remove_tombstones(world[1])
    position = world[2].p.fetch_position()
    assert world[2].p.needs_fresh_copy(position, 2)
    world.set_isr(1, 2)
    with pytest.raises(BrokerError) as caught:
        world[2].p.begin_copy(position, 0, 3, [])
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert keys(world[2]) == {KEY: b"value"}


def test_another_leader_ends_what_the_first_one_said_of_the_copy() -> None:
    """The second leader still has the value and its tombstone. That the first one's log was clean says nothing about this one."""
    world = led_by_1(3)
    put(world[1], (b"a", b"1"), (b"a", None), (b"pad", b"1"), (KEY, b"value"), (KEY, None), (b"end", b"1"))
    Link(world, 3, 1).settle()
    world[3].p.log.roll(NOW_MS)
    remove_tombstones(world[1])
    first = Link(world, 2, 1, partition_bytes_max=1)
    while world[2].leo < 3:
        first.round()
    follower = world[2].p
    assert (follower.copy_clean_below, follower.log.tombstones_removed_below) == (6, 5)
    world.elect(3, isr=(3,))
    assert (follower.copy_clean_below, follower.log.tombstones_removed_below) == (0, 3)
    second = Link(world, 2, 3, partition_bytes_max=1)
    while world[2].leo < 4:
        second.round()
    assert keys(world[2])[KEY] == b"value"
    world[3].p.log.update_high_watermark(6)
    remove_tombstones(world[3])
    second.settle()
    assert KEY not in keys(world[2])
    assert restarts(world[2]) == 1


def test_follower_that_dies_during_a_copy_begins_another_one() -> None:
    """The next process does not know where the copy was clean, so it may have values whose tombstones were removed meanwhile."""
    world = led_by_1()
    put(world[1], (b"a", b"1"), (b"a", None), (b"pad", b"1"), (KEY, b"value"), (KEY, None), (b"end", b"1"))
    remove_tombstones(world[1])
    link = Link(world, 2, 1, partition_bytes_max=1)
    while world[2].leo < 3:
        link.round()
    files = world[2].files
    files.crash(lossy=False)
    world.add_node(2, files)
    world.catch_up(2)
    assert (world[2].leo, world[2].p.log.tombstones_removed_below, world[2].p.copy_clean_below) == (3, 3, 0)
    Link(world, 2, 1).settle()
    assert rows(world[2].p.log) == rows(world[1].p.log)
    assert restarts(world[2]) == 1


def test_follower_that_leads_later_warns_others() -> None:
    """It has never had the tombstone itself."""
    world = led_by_1(3)
    put(world[1], (KEY, b"value"))
    Link(world, 3, 1).settle()
    put(world[1], (KEY, None), (b"other", b"1"))
    remove_tombstones(world[1])
    Link(world, 2, 1).settle()
    assert world[2].p.log.tombstones_removed_below == 2
    world.elect(2, isr=(2,))
    Link(world, 3, 2).settle()
    assert KEY not in keys(world[3])
    assert restarts(world[3]) == 1


def test_copy_is_as_clean_as_its_original_was() -> None:
    """If its replica is elected, it can serve fresh copies at once, and its cleaner does not repeat the work."""
    world = led_by_1(2)
    put(world[1], (KEY, b"value"), (KEY, None), (b"a", b"1"), (b"b", b"1"))
    remove_tombstones(world[1])
    put(world[1], (b"dirty", b"1"))
    link = Link(world, 2, 1, partition_bytes_max=1)
    log = world[2].p.log
    while world[2].leo < 3:
        link.round()
    assert log.first_dirty_offset == world[2].leo < 4
    link.settle()
    assert (log.first_dirty_offset, log.log_end_offset) == (4, 5)


def test_bound_is_durable_before_the_records_are_appended() -> None:
    world, link = away_while_deleted()
    remove_tombstones(world[1])
    files = world[2].files
    saved = []
    log = world[2].p.log
    append = log.append_as_follower

    def watched(*args: object) -> object:
        saved.append(files.read(REMOVED).decode() if files.exists(REMOVED) else "")
        return append(*args)  # type: ignore[arg-type]

    log.append_as_follower = watched  # type: ignore[method-assign, assignment]
    link.settle()
    assert saved
    assert [text.splitlines()[2:] for text in saved] == [["orders 0 2"]] * len(saved)


def test_log_start_of_a_replica_does_not_move_back() -> None:
    """The follower's own retention has deleted records that the leader still has."""
    world = led_by_1()
    put(world[1], (b"old", b"1"), (KEY, b"value"))
    Link(world, 2, 1).settle()
    log = world[2].p.log
    log.increment_log_start_offset(1)
    put(world[1], (KEY, None), (b"other", b"1"))
    remove_tombstones(world[1])
    Link(world, 2, 1).settle()
    assert (world[1].p.log.log_start_offset, log.log_start_offset) == (0, 1)
    assert [row for row in rows(log) if row[0] >= 1] == [(3, b"other", b"1")]
    assert restarts(world[2]) == 1


# -- what is on the wire ----------------------------------------------------------------------------------------------


def test_only_followers_learn_the_bound() -> None:
    world, _ = away_while_deleted()
    remove_tombstones(world[1])
    assert world[1].fetch_from(world[2]).answer.partitions[0].tombstones_removed_below == 2
    assert world[1].fetch(want(0)).answer.partitions[0].tombstones_removed_below == 0


def test_bound_is_never_above_the_log_end() -> None:
    world, _ = away_while_deleted()
    world[1].p.log.tombstones_removed_below = 100
    assert world[1].fetch_from(world[2]).answer.partitions[0].tombstones_removed_below == 3


def test_only_followers_may_ask_for_the_first_dirty_offset() -> None:
    world, _ = away_while_deleted()
    clean_at(world[1], 0)
    answer = world[1].list_offsets(FIRST_DIRTY_TIMESTAMP, replica_id=2)
    assert (answer.error_code, answer.offset) == (ErrorCode.NONE, 3)
    assert world[1].list_offsets(FIRST_DIRTY_TIMESTAMP).error_code == ErrorCode.INVALID_REQUEST


def test_first_dirty_offset_is_never_below_the_log_start() -> None:
    world, _ = away_while_deleted()
    world[1].p.log.increment_log_start_offset(2)
    assert world[1].list_offsets(FIRST_DIRTY_TIMESTAMP, replica_id=2).offset == 2


def test_leader_without_the_bound_is_followed_as_before() -> None:
    """A broker of an earlier version sends no bound for tombstones, and refuses the question for its first dirty offset."""
    world, link = away_while_deleted()
    old = FetchPartitionResponse(*P, high_watermark=0)
    assert not old.tombstones_removed_below
    question = RangeQuestion(2, {P: FetchPosition(1, 1, 1, 0)})
    for timestamp, offset in ((LATEST_TIMESTAMP, 9), (EARLIEST_TIMESTAMP, 5)):
        question.on_answer(timestamp, ListOffsetsResponse([ListOffsetsPartitionResponse(*P, offset=offset)]))
    refused = ListOffsetsPartitionResponse(*P, error_code=ErrorCode.INVALID_REQUEST)
    question.on_answer(FIRST_DIRTY_TIMESTAMP, ListOffsetsResponse([refused]))
    question.on_producers(DescribeProducersResponse([DescribeProducersPartitionResponse(*P)]))
    assert not question.open
    assert question.range_of(P) == LeaderRange(5, 9, [], 0)
    link.settle()
    assert keys(world[2]) == {KEY: None, b"other": b"1"}
