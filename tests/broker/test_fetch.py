"""Fetch: what followers and consumers may read, how much, and how long a request waits."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable
from typing import Any

import pytest
from handled_request import HandledRequest
from replica_world import TOPIC, Node, P, ReplicaWorld, batch, code, deliver, fetched, values, want

from strandline.broker.fetch.fetch_handler import Fetch
from strandline.broker.fetch.fetch_session import FetchSession, SessionPartition
from strandline.broker.replica_manager import ReplicaConfig
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.storage.files import ColdRead

Q = (TOPIC, 1)


def leader_with(*items: str, **options: Any) -> tuple[ReplicaWorld, Node]:
    """A leader of partition 0 with one batch per item, nothing committed unless it is alone."""
    world = ReplicaWorld()
    world.topic(**options)
    for item in items:
        world[1].produce(item, acks=1)
    return world, world[1]


# -- visibility -------------------------------------------------------------------------------------------------------


def test_a_follower_reads_to_the_log_end_and_a_consumer_to_the_high_watermark() -> None:
    _, leader = leader_with("a", "b", "c", replicas=(1, 2))
    leader.said_by(2, 2)
    assert values(leader.said_by(2, 0)) == [b"a", b"b", b"c"]
    for isolation_level in (0, 1):
        answer = leader.fetch(want(0, epoch=1), isolation_level=isolation_level)
        assert values(answer) == [b"a", b"b"]
        assert (fetched(answer)[P].high_watermark, fetched(answer)[P].last_stable_offset) == (2, 2)


def test_a_consumer_reads_from_a_follower_up_to_its_high_watermark() -> None:
    world, _leader = leader_with("a", "b", replicas=(1, 2))
    world.replicate(2, 1)
    assert values(world[2].fetch(want(0, epoch=1), rack_id="a")) == []
    world.replicate(2, 1)
    assert values(world[2].fetch(want(0, epoch=1), rack_id="a")) == [b"a", b"b"]


def test_a_follower_does_not_serve_followers() -> None:
    world, _ = leader_with()
    assert code(world[2].said_by(3, 0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_broker_that_is_no_replica_gets_nothing_as_a_follower() -> None:
    _, leader = leader_with("a", replicas=(1, 2))
    assert code(leader.said_by(3, 0)) == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_fetch_between_high_watermark_and_log_end_is_empty_and_no_error() -> None:
    """S13: a consumer may have seen a higher watermark at the previous leader."""
    _, leader = leader_with("a", "b")
    answer = leader.fetch(want(2, epoch=1))
    assert (code(answer), values(answer)) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("offset", [-5, -1, 3, 2**63 - 1])
def test_an_offset_outside_of_the_log_is_out_of_range(offset: int) -> None:
    _, leader = leader_with("a", "b", replicas=(1,))
    assert code(leader.fetch(want(offset, epoch=1))) == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(("epoch", "expected"), [(1, ErrorCode.FENCED_LEADER_EPOCH), (3, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_fetch_in_another_epoch_is_fenced_and_records_no_progress(epoch: int, expected: ErrorCode) -> None:
    """A former leader must not move its high watermark because of fetches of a later epoch, nor a new leader because of earlier
    ones."""
    _world, leader = leader_with("a", epoch=2)
    answer = leader.said_by(2, 1, epoch=epoch)
    assert code(answer) == expected
    assert fetched(answer)[P].current_leader.leader_id == 1
    leader_state = leader.p.leader_state
    assert leader_state is not None
    assert leader_state.replicas[2].log_end_offset == -1


def test_a_diverging_fetch_gets_no_records_and_shows_no_progress() -> None:
    world, leader = leader_with("a", "b")
    world.elect(1)
    leader.produce("c", acks=1)
    answer = leader.fetch(want(5, epoch=2, last_epoch=1), replica_id=2, replica_epoch=12)
    response = fetched(answer)[P]
    assert (response.diverging_epoch.epoch, response.diverging_epoch.end_offset) == (1, 2)
    assert values(answer) == []
    leader_state = leader.p.leader_state
    assert leader_state is not None
    assert leader_state.replicas[2].log_end_offset == -1


def test_a_fetch_response_carries_the_high_watermark_that_the_fetch_moved() -> None:
    _, leader = leader_with("a", replicas=(1, 2))
    assert fetched(leader.said_by(2, 1))[P].high_watermark == 1


def test_after_a_roll_an_uncommitted_record_stays_hidden() -> None:
    """S34: HW = LEO when the segment rolls. Its position must not be taken for the end of the new segment (KAFKA-9196)."""
    _, leader = leader_with(*"abcdefghij", replicas=(1, 2))
    leader.said_by(2, 10)
    leader.p.log.roll()
    leader.produce("uncommitted", acks=1)
    assert (leader.hw, leader.leo) == (10, 11)
    assert values(leader.fetch(want(10, epoch=1))) == []
    assert len(values(leader.fetch(want(9, epoch=1)))) == 1


# -- how much ---------------------------------------------------------------------------------------------------------


def test_the_first_partition_with_records_gives_one_batch_however_large() -> None:
    world = ReplicaWorld()
    world.topic(partitions=3, replicas=(1,))
    leader = world[1]
    for index in (1, 2):
        leader.produce(b"x" * 5000, key=(TOPIC, index))
    wanted = [want(0, key=(TOPIC, i), epoch=1) for i in range(3)]
    for limit in (0, 10, 4000):
        answer = leader.fetch(*wanted, max_bytes=limit)
        assert [len(values(answer, i)) for i in range(3)] == [0, 1, 0]


def test_a_response_is_limited_by_the_request_after_the_first_batch() -> None:
    _, leader = leader_with(*["x" * 1000] * 20, replicas=(1,))
    assert len(values(leader.fetch(want(0, epoch=1, max_bytes=3500)))) == 3
    assert len(values(leader.fetch(want(0, epoch=1), max_bytes=3500))) == 3


def test_only_the_first_partition_with_records_may_exceed_the_limit() -> None:
    world = ReplicaWorld()
    world.topic(partitions=2, replicas=(1,))
    world[1].produce(b"x" * 1000)
    world[1].produce(b"x" * 5000, key=Q)
    answer = world[1].fetch(want(0, epoch=1), want(0, key=Q, epoch=1), max_bytes=1500)
    assert [len(values(answer, i)) for i in range(2)] == [1, 0]


def test_a_response_is_limited_by_the_broker() -> None:
    """F14: max_bytes of 2^31 - 1 must not let one peer claim the memory."""
    world = ReplicaWorld(config=ReplicaConfig(fetch_max_bytes=3500))
    world.topic(replicas=(1,))
    for _ in range(20):
        world[1].produce("x" * 1000)
    answer = world[1].fetch(want(0, epoch=1, max_bytes=2**31 - 1), max_bytes=2**31 - 1)
    assert len(values(answer)) == 3


def test_fetch_with_a_limit_of_zero_bytes_waits_for_a_record() -> None:
    """It gets one batch, as every fetch does. Followers with `replica.fetch.response.max.bytes=0` used to fetch in a loop."""
    world = ReplicaWorld()
    world.topic(replicas=(1,))
    parked = world[1].fetch(want(0, epoch=1), max_bytes=0, max_wait_ms=500, session_epoch=0)
    first = not parked.is_answered
    world[1].produce("a")
    assert first
    assert values(parked) == [b"a"]


@pytest.mark.parametrize("field", ["max_bytes", "min_bytes", "partition_max_bytes"])
def test_negative_sizes_count_as_zero(field: str) -> None:
    _, leader = leader_with("a", replicas=(1,))
    if field == "partition_max_bytes":
        answer = leader.fetch(want(0, epoch=1, max_bytes=-7))
    else:
        answer = leader.fetch(want(0, epoch=1), **{field: -7})
    assert values(answer) == [b"a"]


def test_a_full_response_does_not_starve_the_partitions_behind() -> None:
    world = ReplicaWorld()
    world.topic(partitions=3, replicas=(1,))
    leader = world[1]
    wanted = []
    for index in range(3):
        for _ in range(3):
            leader.produce(b"x" * 1000, key=(TOPIC, index))
        wanted.append(want(0, key=(TOPIC, index), epoch=1))
    session = leader.fetch(*wanted, session_epoch=0, max_bytes=1100).answer.session_id
    served = [next(iter(fetched(leader.fetch(session_id=session, session_epoch=e, max_bytes=1100))))[1] for e in range(1, 4)]
    assert sorted(served) == [0, 1, 2]


def test_the_same_partition_twice_is_refused() -> None:
    _, leader = leader_with()
    with pytest.raises(BrokerError) as e:
        leader.fetch(want(0), want(0))
    assert e.value.code == ErrorCode.INVALID_REQUEST


# -- how long ---------------------------------------------------------------------------------------------------------


def test_a_followers_long_poll_ends_with_an_append() -> None:
    _, leader = leader_with()
    parked = leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=500)
    assert not parked.is_answered
    leader.produce("a", acks=1)
    assert values(parked) == [b"a"]
    assert len(leader.manager.purgatory) == 0
    assert leader.p.followers == {}, "a fetch without session leaves nothing behind"


def test_a_consumers_long_poll_ends_when_the_high_watermark_moves() -> None:
    _, leader = leader_with(replicas=(1, 2))
    parked = leader.fetch(want(0, epoch=1), max_wait_ms=500)
    leader.produce("a", acks=1)
    assert not parked.is_answered
    leader.said_by(2, 1)
    assert values(parked) == [b"a"]


def test_a_long_poll_at_a_follower_ends_when_its_high_watermark_moves() -> None:
    world, _leader = leader_with("a", replicas=(1, 2))
    parked = world[2].fetch(want(0, epoch=1), max_wait_ms=5000, rack_id="a")
    world.replicate(2, 1)
    assert not parked.is_answered
    world.replicate(2, 1)
    assert values(parked) == [b"a"]


def test_a_fetcher_that_appended_lets_consumers_be_answered_in_its_own_turn() -> None:
    world, leader = leader_with("a", replicas=(1, 2))
    world.replicate(2, 1)
    follower = world[2]
    parked = follower.fetch(want(0, epoch=1), max_wait_ms=5000, rack_id="a")
    position = follower.p.fetch_position()
    deliver(follower.p, position, leader.fetch_from(follower))
    assert not parked.is_answered
    follower.manager.complete_follower_appends([P])
    assert values(parked) == [b"a"]


def test_a_bug_met_while_one_is_served_does_not_keep_the_others_waiting() -> None:
    _, leader = leader_with(partitions=2)
    parked = [leader.fetch(want(0, key=key, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=500) for key in (P, Q)]

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a bug")

    leader.p.log.read = broken  # type: ignore[method-assign]
    for key in (P, Q):
        leader.produce("a", key=key, acks=1, end_turn=False)
    leader.loop.end_turn()
    assert values(parked[1]) == [b"a"]


def test_a_long_poll_without_news_ends_after_its_time_with_an_empty_answer() -> None:
    _, leader = leader_with()
    parked = leader.fetch(want(0, epoch=1), max_wait_ms=500)
    leader.loop.advance(0.49)
    assert not parked.is_answered
    leader.loop.advance(0.02)
    assert (code(parked), values(parked)) == (ErrorCode.NONE, [])


def test_several_appends_in_one_turn_make_one_answer() -> None:
    _, leader = leader_with()
    parked = leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=500)
    for value in "abc":
        leader.produce(value, acks=1, end_turn=False)
    leader.loop.end_turn()
    assert values(parked) == [b"a", b"b", b"c"]


def test_min_bytes_waits_for_so_many_from_all_partitions_together() -> None:
    world = ReplicaWorld()
    world.topic(partitions=2, replicas=(1,))
    leader = world[1]
    parked = leader.fetch(want(0, epoch=1), want(0, key=Q, epoch=1), min_bytes=2500, max_wait_ms=500)
    leader.produce(b"x" * 1000)
    leader.produce(b"x" * 1000, key=Q)
    assert not parked.is_answered
    leader.produce(b"x" * 1000)
    assert [len(values(parked, i)) for i in range(2)] == [2, 1]


def test_min_bytes_counts_each_byte_once_however_often_it_is_woken() -> None:
    """Otherwise a thousand small appends under a large minimum would cost a million reads."""
    _, leader = leader_with(replicas=(1,))
    reads: list[int] = []
    original = leader.p.log.read

    def read(offset: int, *args: Any, **options: Any) -> Any:
        found = original(offset, *args, **options)
        reads.append(found.size)
        return found

    leader.p.log.read = read  # type: ignore[method-assign]
    leader.fetch(want(0, epoch=1), min_bytes=1 << 20, max_wait_ms=500)
    for _ in range(200):
        leader.produce(b"x" * 100)
    assert sum(reads) == 200 * (len(batch(b"x" * 100)))


@pytest.mark.parametrize("key", [P, Q])
def test_min_bytes_counts_batches_that_do_not_fit_into_the_response(key: tuple[bytes, int]) -> None:
    """Otherwise a follower far behind would get one small batch per `replica.fetch.wait.max.ms`, and never catch up."""
    size = len(batch(b"x" * 100))
    for is_there_before in (True, False):
        world = ReplicaWorld()
        world.topic(partitions=2, replicas=(1,))
        leader = world[1]
        limits = {"min_bytes": size + 1, "max_bytes": 2 * size - 1, "max_wait_ms": 60_000}
        if is_there_before:
            leader.produce(b"x" * 100)
            leader.produce(b"x" * 100, key=key)
        answer = leader.fetch(want(0, epoch=1), want(0, key=Q, epoch=1), **limits)
        if not is_there_before:
            leader.produce(b"x" * 100)
            leader.produce(b"x" * 100, key=key)
        assert [len(values(answer, 0))] == [1]


def test_a_min_bytes_that_the_response_could_not_hold_is_capped() -> None:
    _, leader = leader_with(replicas=(1,))
    parked = leader.fetch(want(0, epoch=1), min_bytes=1 << 30, max_bytes=50, max_wait_ms=60_000)
    leader.produce("a")
    assert values(parked) == [b"a"]


@pytest.mark.parametrize("wanted", [(), (want(0, key=(b"no-such-topic-id", 0)),), (want(99, epoch=1),), (want(0, epoch=9),)])
def test_nothing_to_wait_for_or_an_error_is_answered_at_once(wanted: Any) -> None:
    _, leader = leader_with()
    assert leader.fetch(*wanted, max_wait_ms=10_000).is_answered


def test_a_parked_fetch_is_answered_when_the_leadership_ends() -> None:
    world, leader = leader_with()
    follower = leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=10_000)
    consumer = leader.fetch(want(0, epoch=1), max_wait_ms=10_000)
    world.elect(2)
    assert code(follower) == ErrorCode.FENCED_LEADER_EPOCH
    assert code(consumer) == ErrorCode.FENCED_LEADER_EPOCH


def test_a_parked_fetch_of_a_lost_connection_reads_nothing() -> None:
    _, leader = leader_with()
    parked = leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=10_000)
    parked.connection.close()
    leader.produce("a", acks=1)
    assert not parked.is_answered
    assert len(leader.manager.purgatory) == 0
    assert leader.p.followers == {}


def test_a_fetch_does_not_wait_for_weeks_for_a_client_that_is_gone() -> None:
    """The connection of a parked fetch is not checked while no partition moves, so the wait itself must end."""
    world, leader = leader_with()
    for _ in range(10):
        leader.fetch(want(0, epoch=1), max_wait_ms=2**31 - 1).connection.close()
    world.loop.advance(600)
    assert len(leader.manager.purgatory) == 0
    assert leader.p.consumers == {}


def test_a_second_look_is_no_fetch_of_the_follower() -> None:
    """A parked fetch that wakes up says nothing about the follower, which may have died meanwhile."""
    _, leader = leader_with()
    leader.fetch(want(0, epoch=1), replica_id=2, replica_epoch=12, max_wait_ms=60_000)
    leader.loop.advance(30)
    leader.produce("a", acks=1)
    leader_state = leader.p.leader_state
    assert leader_state is not None
    assert leader_state.replicas[2].last_fetch_time == 1000.0


# -- the disk ---------------------------------------------------------------------------------------------------------


class Threads:
    """Runs the work of threads when the test says so."""

    def __init__(self) -> None:
        self.queue: list[tuple[Callable[[], None], Callable[[], None]]] = []

    def __call__(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        self.queue.append((work, then))

    def run(self) -> int:
        queue, self.queue = self.queue, []
        for work, then in queue:
            work()
            then()
        return len(queue)


class ColdFiles:
    """Records which files were read into the page cache."""

    def __init__(self) -> None:
        self.warmed: set[str] = set()

    def warm(self, path: str, size: int, position: int) -> None:
        self.warmed.add(path)


def cold_leader(partitions: int = 1) -> tuple[ReplicaWorld, Node, Threads]:
    """The records below offset 1 are neither in the tail nor in the page cache."""
    threads = Threads()
    files = ColdFiles()
    world = ReplicaWorld(1, run_blocking=threads)
    world.topic(replicas=(1,), partitions=partitions)
    leader = world[1]
    for index in range(partitions):
        leader.produce("cold", key=(TOPIC, index))
        _chill(leader[(TOPIC, index)].log, files, f"file-{index}")
    return world, leader, threads


def _chill(log: Any, files: ColdFiles, path: str) -> None:
    original = log.read

    def read(offset: int, *args: Any, may_block: bool = True, **options: Any) -> Any:
        if offset < 1 and path not in files.warmed:
            assert not may_block, "this read would block the loop"
            raise ColdRead(files, path, 100, 0)  # type: ignore[arg-type]
        return original(offset, *args, **options)

    log.read = read


def test_a_cold_read_does_not_block_and_is_answered_when_it_is_warm() -> None:
    _, leader, threads = cold_leader()
    request = leader.fetch(want(0, epoch=1))
    assert not request.is_answered
    assert threads.run() == 1
    assert values(request) == [b"cold"]


def test_a_cold_read_is_checked_again_when_it_is_warm() -> None:
    """The leadership ended while the thread was reading."""
    world, leader, threads = cold_leader()
    request = leader.fetch(want(0, epoch=1))
    world.elect(1)
    threads.run()
    assert code(request) == ErrorCode.FENCED_LEADER_EPOCH


def test_warm_partitions_do_not_wait_for_cold_ones() -> None:
    _world, leader, threads = cold_leader(2)
    leader.produce("warm")
    answer = leader.fetch(want(1, epoch=1), want(0, key=Q, epoch=1))
    assert [values(answer, i) for i in range(2)] == [[b"warm"], []]
    assert threads.run() == 1
    again = leader.fetch(want(1, epoch=1), want(0, key=Q, epoch=1))
    assert [values(again, i) for i in range(2)] == [[b"warm"], [b"cold"]]


def test_a_read_error_takes_the_log_directory_offline() -> None:
    failed: list[object] = []
    world = ReplicaWorld(1, on_log_dir_failed=lambda log_dir, had_leaders: failed.append(log_dir))
    world.topic(replicas=(1,))
    leader = world[1]
    leader.produce("a")
    leader.p.log.tail.clear()
    leader.files.fail_next("read", "*.log", errno.EIO)
    assert code(leader.fetch(want(0, epoch=1))) == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(failed) == 1
    assert code(leader.fetch(want(0, epoch=1))) == ErrorCode.KAFKA_STORAGE_ERROR


def test_requests_answered_are_forgotten() -> None:
    """After a thousand long polls, no request is parked, attached to a partition or registered in a session."""
    _, leader = leader_with()
    for _ in range(1000):
        request: HandledRequest = leader.fetch(want(0, epoch=1), max_wait_ms=10)
        leader.loop.advance(0.02)
        assert request.is_answered
    assert leader.p.consumers == {}
    assert len(leader.manager.purgatory) == len(leader.manager.sessions) == 0


def fetch_objects() -> list[object]:
    return [one for one in gc.get_objects() if isinstance(one, (Fetch, FetchSession, SessionPartition))]


def test_a_fetch_without_session_leaves_no_work_for_the_garbage_collector() -> None:
    """A broker rarely runs the garbage collector, and the fetches of consumers would pile up until then."""
    _, leader = leader_with("a", replicas=(1,))
    gc.collect()
    before = {id(one) for one in fetch_objects()}  # of other tests
    gc.disable()
    try:
        for max_wait_ms in (0, 10):
            for offset in (0, 1):
                leader.fetch(want(offset, epoch=1), max_wait_ms=max_wait_ms)
                leader.loop.advance(0.02)
        assert [one for one in fetch_objects() if id(one) not in before] == []
    finally:
        gc.enable()
