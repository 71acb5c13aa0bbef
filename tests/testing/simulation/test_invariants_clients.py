"""I8, I9, I16, I17, I20, I23, I33: the responses of a broker, and the state that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from invariant_bench import Bench, batch_of, bench

from strandline.broker.purgatory import DelayedOperation, Purgatory
from strandline.protocol.messages.data import FetchPartitionResponse
from strandline.protocol.producer_names import named_producer_id
from strandline.testing.simulation.invariants import circles, clean_starts, honesty, producers, purgatory, reads, resources
from strandline.testing.simulation.invariants.ghosts import Ghosts, Process
from strandline.testing.simulation.invariants.violation import Violation


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench() as found:
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def breaks(invariant: str, text: str) -> Any:
    return pytest.raises(Violation, match=f"^{invariant}: .*{text}")


def stored(at: Bench, node: int, offset: int = 0) -> list[Any]:
    log = at.log(node)
    return list(log.read(offset, 1 << 20, log.log_end_offset).buffers)


# -- I8 -----------------------------------------------------------------------------------------------------------------


def test_committed_records_may_be_served(at: Bench):
    at.replicated("a", "b")
    reads.on_records(at.replica(2), 2, stored(at, 2))
    assert at.orders.read_end == 2


def test_i8_a_record_at_the_high_watermark(at: Bench):
    """KAFKA-9196: because of a stale position, a broker served an uncommitted record."""
    at.replicated("a")
    at.append(1, "b")
    with breaks("I8", "serves records up to 2, but its high watermark is 1"):
        reads.on_records(at.replica(1), 1, stored(at, 1))


def test_i8_uncommitted_record_is_served(at: Bench):
    at.append(1, "a")
    with breaks("I8", "serves the records 0 to 0 of epoch 0, but the committed log is"):
        reads.on_records(at.replica(1), 1, stored(at, 1))


def test_i8_the_fork_of_a_former_leader(at: Bench):
    at.replicated("a")
    at.append(1, "fork")
    at.change(isr=(2, 3), leader=2)
    at.take_role(2)
    at.append(2, "b")
    at.copy(2, 3)
    at.raise_hw(2, 2)
    with breaks("I8", "of epoch 0, but the committed log is"):
        reads.on_records(at.replica(1), 2, stored(at, 1))


def test_i8_damaged_bytes(at: Bench):
    at.replicated("a")
    rotten = bytearray(b"".join(bytes(buffer) for buffer in stored(at, 1)))
    rotten[-1] ^= 1
    with breaks("I8", "damaged bytes for the records 0 to 0"):
        reads.on_records(at.replica(1), 1, [rotten])


# -- I9 -----------------------------------------------------------------------------------------------------------------


def test_i9_another_record_where_one_was_read(at: Bench):
    at.replicated("a")
    reads.on_records(at.replica(1), 1, stored(at, 1))
    with breaks("I9", "but a consumer has read"):
        reads.on_batch(at.replica(2), 0, 1, 1, 0xABCD)


def test_i9_reached_position_is_out_of_range(at: Bench):
    """S13: the new leader's high watermark is old, so it takes the consumer's position for one beyond its log."""
    at.replicated("a", "b")
    reads.on_records(at.replica(1), 2, stored(at, 1))
    with breaks("I9", "offset 2 as out of range, but consumers have read up to 2"):
        reads.on_out_of_range(at.ghosts, at.replica(1), 2)


def test_deleted_offset_may_be_out_of_range(at: Bench):
    at.replicated("a", "b")
    reads.on_records(at.replica(1), 2, stored(at, 1))
    at.log(1).increment_log_start_offset(2)
    reads.on_out_of_range(at.ghosts, at.replica(1), 1)


def test_position_that_no_consumer_reached_may_be_out_of_range(at: Bench):
    at.replicated("a")
    reads.on_out_of_range(at.ghosts, at.replica(1), 5)


# -- I16 ----------------------------------------------------------------------------------------------------------------


def test_consecutive_sequences_are_right_also_after_an_epoch_bump(at: Bench):
    at.replicated("a", "b", producer_id=7, producer_epoch=0, base_sequence=0)
    at.replicated("c", producer_id=7, producer_epoch=0, base_sequence=2)
    at.replicated("d", producer_id=7, producer_epoch=1, base_sequence=0)
    at.step()
    for node in (1, 2, 3):
        producers.check_states(at.replica(node))


@pytest.mark.parametrize(
    ("epoch", "sequence"), [(0, 0), (0, 2), (1, 3), (-1, 0)], ids=["twice", "a gap", "a new epoch from 3 on", "an old epoch"]
)
def test_i16_sequences_out_of_order(at: Bench, epoch: int, sequence: int):
    at.replicated("a", producer_id=7, producer_epoch=0, base_sequence=0)
    at.log(1).producers.clear()
    at.append(1, "b", producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    at.copy(1, 2, 3)
    with at.flags("I16", "ends with epoch 0 sequence 0 at offset 0"):
        at.raise_hw(1, 2)


def test_the_first_batch_may_have_any_number(at: Bench):
    """The earlier batches were given up, or deleted, before any remaining leader received them."""
    at.replicated("a", producer_id=7, producer_epoch=0, base_sequence=5)
    at.log(1).increment_log_start_offset(1)
    at.log(1).producers.clear()
    at.append(1, "b", producer_id=7, producer_epoch=0, base_sequence=9)
    at.copy(1, 2, 3)
    at.raise_hw(1, 2)
    at.step()


FIRST, SECOND = named_producer_id(5, 1), named_producer_id(5, 2)


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence"),
    [(FIRST, 1, 0), (FIRST, 0, 2), (SECOND, 0, 1), (named_producer_id(5, 0), 9, 0)],
    ids=["another attempt begins again", "a gap", "another work epoch goes on", "a work epoch that is over"],
)
def test_i16_rows_of_a_name_out_of_order(at: Bench, producer_id: int, epoch: int, sequence: int):
    at.replicated("a", producer_id=FIRST, producer_epoch=0, base_sequence=0)
    at.log(1).producers.check = lambda header, pending: None
    at.append(1, "b", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)
    at.copy(1, 2, 3)
    with at.flags("I16", "epoch 0 sequence 0 at offset 0"):
        at.raise_hw(1, 2)


def test_i16_a_name_begins_with_its_first_row(at: Bench):
    at.log(1).producers.check = lambda header, pending: None
    at.append(1, "b", producer_id=FIRST, producer_epoch=0, base_sequence=3)
    at.copy(1, 2, 3)
    with at.flags("I16", "has sequence 3 at offset 0"):
        at.raise_hw(1, 1)


def test_attempts_continue_the_sequence_and_work_epochs_restart_it(at: Bench):
    at.replicated("a", producer_id=FIRST, producer_epoch=0, base_sequence=0)
    at.replicated("b", producer_id=FIRST, producer_epoch=4, base_sequence=1)
    at.replicated("c", producer_id=SECOND, producer_epoch=0, base_sequence=0)
    at.step()
    producers.check_states(at.replica(2))


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_i16_a_broker_that_forgets_batches(at: Bench, kept: int):
    """Any of the five batches in flight may be sent again."""
    for sequence in range(5):
        at.replicated("x", producer_id=7, producer_epoch=0, base_sequence=sequence)
    producers.check_states(at.replica(2))
    batches = at.log(2).producers._entries[7].batches
    while len(batches) > kept:
        batches.popleft()
    with breaks("I16", "broker 2 has the state .* for producer 7"):
        producers.check_states(at.replica(2))


def test_i16_broker_has_state_of_a_producer_that_never_wrote(at: Bench):
    at.replicated("a", producer_id=7, producer_epoch=0, base_sequence=0)
    at.log(2).producers._entries[8] = at.log(2).producers._entries[7]
    with breaks("I16", r"states for the producers \[8\]"):
        producers.check_states(at.replica(2))


# -- I17 ----------------------------------------------------------------------------------------------------------------


class Parked(DelayedOperation):
    def on_complete(self) -> None: ...
    def on_expiration(self) -> None: ...


class Timer:
    def cancel(self) -> None: ...


def waiting() -> tuple[Purgatory, Parked]:
    found, operation = Purgatory(lambda: 10.0, lambda delay, callback: Timer()), Parked()
    found.park(operation, 500)
    return found, operation


def test_a_parked_operation_has_a_timer(at: Bench):
    purgatory.check_timer(1, waiting()[0])


def test_i17_a_deadline_without_a_timer(at: Bench):
    found, _ = waiting()
    found.close()
    with breaks("I17", r"broker 1 has no timer for an operation \(timeout 500 ms\) at its deadline 10.500"):
        purgatory.check_timer(1, found)


def test_i17_a_timer_that_is_too_late(at: Bench):
    found, _ = waiting()
    found._timer_due = 11.0
    with breaks("I17", "has no timer"):
        purgatory.check_timer(1, found)


def test_i17_an_operation_that_is_completed_and_kept(at: Bench):
    found, operation = waiting()
    operation.is_completed = True
    with breaks("I17", "keeps a completed operation"):
        purgatory.check_timer(1, found)


def broker(node: int = 1, **replicas: Any) -> tuple[Ghosts, Any]:
    """A running broker, as far as these checks look at it."""
    ghosts = Ghosts()
    parked = Purgatory(lambda: 0.0, lambda delay, callback: Timer())
    manager = SimpleNamespace(**{"purgatory": parked, "partitions": {}, "sessions": (), **replicas})
    server = SimpleNamespace(lifecycle=None, has_logs=True, replicas=manager, servers=[], incarnation_id=bytes(16))
    ghosts.begin(node, server, object())
    return ghosts, server


def test_i17_answered_operation_still_waits(at: Bench):
    partition = at.partitions[1]
    ghosts, _ = broker(partitions={partition.key: partition})
    waiter = SimpleNamespace(is_completed=False)
    partition.waiters.add(5, 0, waiter, 1)  # type: ignore[arg-type]
    purgatory.check_deadlines(ghosts)
    waiter.is_completed = True
    with breaks("I17", "an answered produce request still waits at broker 1"):
        purgatory.check_deadlines(ghosts)


def test_i17_idle_broker_keeps_waiting_operations(at: Bench):
    partition = at.partitions[1]
    ghosts, _ = broker(partitions={partition.key: partition})
    purgatory.check_idle(ghosts)
    partition.waiters.add(5, 0, SimpleNamespace(is_completed=False), 1)  # type: ignore[arg-type]
    with breaks("I17", "is idle, but keeps 0 delayed produce requests and 1 watchers"):
        purgatory.check_idle(ghosts)


def test_i17_a_second_answer():
    request = SimpleNamespace(is_answered=True, connection=SimpleNamespace(closed=False))
    with breaks("I17", "a second time"):
        purgatory.check_answered_once(1, request)


# -- I20 ----------------------------------------------------------------------------------------------------------------


def test_i20_a_truncation_below_the_high_watermark_that_is_not_counted(at: Bench):
    at.replicated("a")
    honesty.on_truncated_below(at.replica(2), 1, 0, 1)
    with breaks("I20", "but did not count it"):
        honesty.on_truncated_below(at.replica(2), 1, 0, 0)


def test_i20_uncounted_damage(at: Bench):
    at.replicated("a")
    at.log(2).mark_corrupt(0)
    assert at.orders.reported == ["damage at 0 on broker 2"]
    with breaks("I20", "its metric of damaged ranges is still 1"):
        honesty.on_damage(at.replica(2), 0, 1)


def test_i20_unreported_failure_of_a_log_directory(at: Bench):
    honesty.on_log_dir_failed(at.ghosts, 2, [], True)
    assert at.orders.reported == [], "the replica is in another directory"
    honesty.on_log_dir_failed(at.ghosts, 2, [at.orders.key], True)
    assert at.orders.reported == ["replica of broker 2 offline"]
    with breaks("I20", "a log directory of broker 2 failed"):
        honesty.on_log_dir_failed(at.ghosts, 2, [], False)


def test_i20_unreported_loss(at: Bench):
    at.replicated("a")
    at.ghosts.permit_loss("more power cuts than promised")
    at.log(2).truncate_to(0)
    at.change(leader=2)
    at.take_role(2)
    with breaks("I20", "the committed records 0 to 0 are lost since broker 2 became leader in epoch 1"):
        honesty.check(at.orders)
    at.orders.reported.append("a truncation below the high watermark")
    honesty.check(at.orders)


# -- I23 ----------------------------------------------------------------------------------------------------------------


def loaded(**found: Any) -> Process:
    limits = SimpleNamespace(max_connections=2, max_in_flight_per_connection=3)
    connections = {
        n: SimpleNamespace(in_flight=found.get("in_flight", 0), closed=False) for n in range(found.get("connections", 0))
    }
    budget = SimpleNamespace(bytes=found.get("bytes", 0), bytes_max=10, queue=[0] * found.get("batches", 0), batches_max=4)
    sessions = type("Sessions", (list,), {"slots": 1})([0] * found.get("sessions", 0))
    moving = {n: SimpleNamespace(segments=[0]) for n in range(found.get("moving", 0))}
    server = SimpleNamespace(
        lifecycle=None,
        has_logs=True,
        incarnation_id=bytes(16),
        servers=[SimpleNamespace(connections=connections, limits=limits)],
        log_dirs=SimpleNamespace(budget=budget, logs=[], dirs=[SimpleNamespace(futures=SimpleNamespace(logs=moving))]),
        replicas=SimpleNamespace(sessions=sessions),
    )
    task = SimpleNamespace(cancelling=lambda: 0, get_coro=lambda: SimpleNamespace(__qualname__="Broker._leaked"))
    process = Process(1, 1, server, object(), SimpleNamespace(unfinished=[task] * found.get("tasks", 0)))
    process.open_files = dict.fromkeys(range(found.get("files", 0)))
    return process


MUCH = [("connections", 3), ("bytes", 11), ("batches", 5), ("sessions", 2), ("tasks", 101), ("files", 17)]


@pytest.mark.parametrize(("what", "much"), MUCH)
def test_i23_more_than_is_allowed(what: str, much: int):
    ghosts = Ghosts()
    for amount in (much - 1, much):
        process = loaded(**{what: amount})
        ghosts.processes[1] = process
        if amount == much:
            with breaks("I23", "node 1 has "):
                resources.check_bounds(ghosts)
        else:
            resources.check_bounds(ghosts)


def test_copies_of_logs_that_move_have_files_too():
    ghosts = Ghosts()
    ghosts.processes[1] = loaded(files=18, moving=2)
    resources.check_bounds(ghosts)


def test_i23_too_many_requests_of_one_peer():
    ghosts = Ghosts()
    ghosts.processes[1] = loaded(connections=1, in_flight=4)
    with breaks("I23", "4 requests in flight on one connection"):
        resources.check_bounds(ghosts)


def test_i23_a_task_that_is_left_after_the_stop():
    resources.check_stopped(loaded(tasks=2), allowed=2)
    with breaks("I23", r"1 of its tasks still run: \['Broker._leaked'"):
        resources.check_stopped(loaded(tasks=3), allowed=2)


def test_i23_a_connection_that_is_left_after_the_stop():
    with breaks("I23", "still has 1 open connections"):
        resources.check_stopped(loaded(connections=1), allowed=2)


def test_the_bench_can_make_batches():
    assert len(batch_of("a")) > 61


# -- I25 ----------------------------------------------------------------------------------------------------------------


def test_i25_start_trusts_a_false_clean_shutdown_marker(at: Bench):
    disk = object()
    clean_starts.on_loaded(at.ghosts, disk, 1, False)
    clean_starts.on_closing(at.ghosts, disk)
    clean_starts.on_loaded(at.ghosts, disk, 1, True)
    with breaks("I25", "node 1 treats its logs as cleanly closed"):
        clean_starts.on_loaded(at.ghosts, disk, 1, True)


# -- I33 ----------------------------------------------------------------------------------------------------------------


class Circle:
    """A broker that answers the fetches of one connection at these times after their arrival."""

    def __init__(self, *, max_wait_ms: int = 500, replica_id: int = 2) -> None:
        body = SimpleNamespace(max_wait_ms=max_wait_ms, min_bytes=1)
        request = SimpleNamespace(body=body, received_at=0.0)
        self.fetch = SimpleNamespace(request=request, session=SimpleNamespace(replica_id=replica_id))
        self.last = circles.LastResponses()
        self.now = 0.0

    def answer(self, *, after_s: float = 0.001, high_watermark: int = 7, buffers: tuple[bytes, ...] = ()) -> None:
        self.fetch.request.received_at = self.now
        self.now += after_s
        response = FetchPartitionResponse(b"t" * 16, 0, 0, high_watermark, high_watermark, 0)
        answer = SimpleNamespace(responses=[response], records=[list(buffers)])
        circles.on_fetch_answered(self.last, 1, self.fetch, answer, self.now)


def test_i33_empty_answers_without_their_wait():
    circle = Circle()
    with breaks("I33", "has answered 101 fetches of broker 2 within 0.100 s, before their wait of 500 ms was over"):
        for _ in range(200):
            circle.answer()


def test_i33_consumers_are_judged_too():
    circle = Circle(replica_id=-1)
    with breaks("I33", "fetches of a consumer"):
        for _ in range(200):
            circle.answer()


@pytest.mark.parametrize("after_s", [0.3, 0.5])
def test_empty_answers_after_their_wait_are_no_circle(after_s: float):
    circle = Circle()
    for _ in range(300):
        circle.answer(after_s=after_s)


def test_early_answers_with_news_are_no_circle():
    circle = Circle()
    for high_watermark in range(300):
        circle.answer(high_watermark=high_watermark)
    for _ in range(300):
        circle.answer(buffers=(b"records",))


def test_early_answers_with_a_pause_between_them_are_no_circle():
    """For example, a client repeats a request that fails."""
    circle = Circle()
    for _ in range(300):
        circle.answer()
        circle.now += 0.02


def test_fetch_that_does_not_want_to_wait_is_no_circle():
    circle = Circle(max_wait_ms=0)
    for _ in range(300):
        circle.answer()
