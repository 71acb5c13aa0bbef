"""Which records `Consumer.run` may handle now, and what it may commit."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import ConsumerRecord, TopicPartition
from strandline.client.consumer.run.schedule import Call, Delivery, Schedule, Work, lane_of_key, lane_of_partition
from strandline.client.consumer.run.taken import TakenRecords

TP = TopicPartition("orders", 0)


def record(offset: int, key: bytes | None = None, epoch: int = 0) -> ConsumerRecord:
    return ConsumerRecord("orders", 0, offset, 0, key, b"", (), epoch)


def work() -> Work:
    return Work(PartitionState(TP, bytes(16), {}, lambda error: False), -1)


def add(schedule: Schedule, its: Work, keys: str, first: int = 0) -> None:
    """Take a record per letter of `keys`, which is its key; "-" has none."""
    records = [record(first + i, None if key == "-" else key.encode()) for i, key in enumerate(keys)]
    its.taken.take(records)
    schedule.add(its, [Delivery(each, each.offset) for each in records])


def offsets(call: Call | None) -> list[int]:
    assert call is not None
    return [delivery.offset for delivery in call.deliveries]


def by_partition(batch_size: int = 1) -> Schedule:
    return Schedule(lane_of_partition, is_ordered=True, batch_size=batch_size)


def by_key(batch_size: int = 1) -> Schedule:
    return Schedule(lane_of_key, is_ordered=True, batch_size=batch_size)


def without_order(batch_size: int = 1) -> Schedule:
    return Schedule(lane_of_partition, is_ordered=False, batch_size=batch_size)


def calls_of(schedule: Schedule) -> list[Call]:
    """Take all calls that may begin now."""
    calls = []
    while (call := schedule.next_call()) is not None:
        calls.append(call)
    return calls


# -- what may be committed --------------------------------------------------------------------------------------------


def test_first_open_record_is_committed_with_the_epoch_before_it() -> None:
    taken = TakenRecords(-1)
    taken.take([record(5, epoch=3), record(7, epoch=4)])
    taken.take([record(9, epoch=6)])
    assert taken.first_open() == (5, -1)
    taken.finish(7)
    assert taken.first_open() == (5, -1)
    taken.finish(5)
    assert taken.first_open() == (9, 4)
    taken.finish(9)
    assert taken.first_open() is None
    taken.take([record(12, epoch=6)])
    assert (taken.first_open(), len(taken)) == ((12, 6), 1)


@given(st.lists(st.integers(1, 3), max_size=40), st.randoms(use_true_random=False))
def test_all_records_before_the_first_open_one_are_finished(gaps: list[int], random) -> None:
    """This holds in whatever order they finish, also between takes."""
    taken, finished, unfinished, offset = TakenRecords(-1), set(), [], 0
    for gap in gaps:
        offset += gap
        taken.take([record(offset)])
        unfinished.append(offset)
        while unfinished and random.random() < 0.45:
            chosen = random.choice(unfinished)
            unfinished.remove(chosen)
            finished.add(chosen)
            taken.finish(chosen)
        first = taken.first_open()
        assert first is None if not unfinished else first is not None and first[0] == min(unfinished)


# -- lanes ------------------------------------------------------------------------------------------------------------


def test_partition_has_one_call_at_a_time() -> None:
    schedule, a, b = by_partition(), work(), work()
    add(schedule, a, "xyz")
    add(schedule, b, "xy")
    first, second = calls_of(schedule)
    assert (first.state, offsets(first)) == (a.state, [0])
    assert (second.state, offsets(second)) == (b.state, [0])
    schedule.finish(first)
    assert offsets(schedule.next_call()) == [1]
    assert schedule.next_call() is None


def test_keys_are_handled_at_the_same_time_and_each_in_order() -> None:
    schedule, its = by_key(), work()
    add(schedule, its, "xxyx-y-")
    calls = calls_of(schedule)
    assert [offsets(call) for call in calls] == [[0], [2], [4]]
    schedule.finish(calls[1])
    assert offsets(schedule.next_call()) == [5]
    schedule.finish(calls[0])
    assert offsets(schedule.next_call()) == [1]
    assert its.taken.first_open() == (1, 0)


def test_keys_without_records_are_forgotten() -> None:
    """A topic may have more keys than fit into memory."""
    schedule, its = by_key(), work()
    for number in range(100):
        add(schedule, its, "xy", 2 * number)
        for call in calls_of(schedule):
            schedule.finish(call)
    assert its.lanes == {}


def test_without_order_everything_is_handled_at_the_same_time() -> None:
    schedule, its = without_order(), work()
    add(schedule, its, "xxx")
    calls = calls_of(schedule)
    assert [offsets(call) for call in calls] == [[0], [1], [2]]
    schedule.finish(calls[2])
    assert its.taken.first_open() == (0, -1)


def test_batches_have_records_of_one_lane_in_order() -> None:
    schedule, its = by_key(batch_size=3), work()
    add(schedule, its, "xyxxxy")
    assert [offsets(call) for call in calls_of(schedule)] == [[0, 2, 3], [1, 5]]


def test_failed_batch_is_handled_record_by_record() -> None:
    """This finds the record that fails. The records behind the batch form batches again."""
    schedule, its = by_partition(batch_size=3), work()
    add(schedule, its, "-----")
    call = schedule.next_call()
    assert call is not None
    schedule.divide(call)
    seen = []
    while (call := schedule.next_call()) is not None:
        seen.append(offsets(call))
        schedule.finish(call)
    assert seen == [[0], [1], [2], [3, 4]]


# -- retries ----------------------------------------------------------------------------------------------------------


def test_neighbours_go_on_while_a_key_rests() -> None:
    schedule, its = by_key(), work()
    add(schedule, its, "xxy")
    failed = schedule.next_call()
    assert failed is not None
    schedule.retry_at(failed, 10.0)
    assert [offsets(call) for call in calls_of(schedule)] == [[2]]
    assert (schedule.next_time(), schedule.delayed) == (10.0, 1)
    schedule.on_time(9.9)
    assert schedule.next_call() is None
    schedule.on_time(10.0)
    again = schedule.next_call()
    assert again is not None
    assert (offsets(again), again.deliveries[0].attempt) == ([0], 2)
    schedule.finish(again)
    assert offsets(schedule.next_call()) == [1]
    assert schedule.next_time() is None


def test_without_order_only_the_failed_record_waits() -> None:
    schedule, its = without_order(), work()
    add(schedule, its, "xxx")
    first = schedule.next_call()
    assert first is not None
    schedule.retry_at(first, 10.0)
    assert [offsets(call) for call in calls_of(schedule)] == [[1], [2]]
    schedule.on_time(10.0)
    assert offsets(schedule.next_call()) == [0]


def test_records_of_a_retry_topic_wait_for_their_own_time() -> None:
    """A long delay must not hold up the short ones behind it."""
    schedule, its = by_partition(), work()
    its.taken.take([record(0), record(1), record(2)])
    for offset, at in ((0, 60.0), (1, 5.0), (2, 5.0)):
        schedule.add_at(its, Delivery(record(offset), offset), at)
    assert schedule.next_call() is None
    schedule.on_time(5.0)
    call = schedule.next_call()
    assert offsets(call) == [1]
    assert call is not None
    schedule.finish(call)
    assert offsets(schedule.next_call()) == [2]
    assert its.taken.first_open() == (0, -1)


# -- partitions that are blocked or closed ----------------------------------------------------------------------------


def test_blocked_work_waits_until_it_is_unblocked() -> None:
    schedule, its = by_key(), work()
    add(schedule, its, "xy")
    first = schedule.next_call()
    assert first is not None
    schedule.block(its)
    schedule.put_back(first)
    add(schedule, its, "xz", 2)
    assert calls_of(schedule) == []
    schedule.unblock(its)
    assert sorted(offsets(call) for call in calls_of(schedule)) == [[0], [1], [3]]


def test_record_that_is_put_back_comes_before_those_behind_it() -> None:
    schedule, its = by_partition(batch_size=2), work()
    add(schedule, its, "----")
    call = schedule.next_call()
    assert call is not None
    schedule.put_back(call)
    assert offsets(schedule.next_call()) == [0, 1]


def test_nothing_of_closed_work_starts() -> None:
    """No record starts that waits, rests for a retry, or was put back; but a running call may finish, and counts."""
    schedule, its = by_key(), work()
    add(schedule, its, "abcd")
    a, b, c, d = calls_of(schedule)
    add(schedule, its, "aef", 4)
    schedule.retry_at(b, 10.0)
    e = schedule.next_call()
    assert schedule.close(its) == 3  # one behind a, one that rests, one that is ready
    assert schedule.close(its) == 0
    schedule.put_back(c)
    schedule.finish(a)
    schedule.finish(d)
    schedule.on_time(20.0)
    assert e is not None
    schedule.finish(e)
    assert schedule.next_call() is None
    assert (its.taken.first_open(), its.handling, schedule.delayed) == ((1, 0), 0, 0)


# -- anything in any order --------------------------------------------------------------------------------------------

KINDS = ["take", "finish", "back", "retry", "divide", "block", "time", "close"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), max_size=80)
MODES = {"partition": by_partition, "key": by_key, "none": without_order}


@settings(max_examples=300)
@given(st.sampled_from(sorted(MODES)), st.integers(1, 3), STEPS)
def test_any_history_keeps_the_order_and_commits_only_what_is_finished(mode: str, batch_size: int, steps) -> None:
    schedule, its = MODES[mode](batch_size), work()
    running: list[Call] = []
    done: dict[object, list[int]] = {}
    taken, finished, next_offset, now = set(), set(), 0, 0.0

    def lane(offset: int) -> object:
        return {"partition": None, "key": offset % 3, "none": offset}[mode]

    def end(call: Call) -> None:
        running.remove(call)
        for offset in offsets(call):
            assert offset not in finished
            finished.add(offset)
            done.setdefault(lane(offset), []).append(offset)
        schedule.finish(call)

    def start_all() -> None:
        for call in calls_of(schedule):
            assert not its.is_closed
            assert not its.is_blocked
            busy = {lane(offset) for other in running for offset in offsets(other)}
            assert not busy & {lane(offset) for offset in offsets(call)}, "two calls of one lane at a time"
            running.append(call)

    for step, number in steps:
        call = running[number % len(running)] if running else None
        if step == "take" and not its.is_closed:
            batch = [record(next_offset + i, b"%d" % ((next_offset + i) % 3)) for i in range(number)]
            next_offset += number + 1
            taken.update(each.offset for each in batch)
            its.taken.take(batch)
            schedule.add(its, [Delivery(each, each.offset) for each in batch])
        elif step == "block" and not its.is_closed:
            (schedule.unblock if its.is_blocked else schedule.block)(its)
        elif step == "time":
            now += number
            schedule.on_time(now)
        elif step == "close" and number == 0:
            schedule.close(its)
        elif call is not None and step == "finish":
            end(call)
        elif call is not None and step == "back":
            running.remove(call)
            schedule.put_back(call)
        elif call is not None and step == "retry" and len(call.deliveries) == 1:
            running.remove(call)
            schedule.retry_at(call, now + number)
        elif call is not None and step == "divide":
            running.remove(call)
            schedule.divide(call)
        start_all()
        first = its.taken.first_open()
        assert (first[0] if first else None) == min(taken - finished, default=None)
        assert its.handling == sum(len(each.deliveries) for each in running)

    if not its.is_closed:
        schedule.unblock(its)
        while True:
            schedule.on_time(now := now + 100)
            start_all()
            if not running:
                break
            end(running[0])
        assert finished == taken
        assert its.lanes == {}
    for order in done.values():
        assert order == sorted(order)
