"""The purgatory: exactly one completion, deadlines by one timer, waiters by required offset."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from replica_world import VirtualLoop

from strandline.broker.purgatory import DelayedOperation, Purgatory, WatermarkWatchers


class Operation(DelayedOperation):
    def __init__(self, name: str = "") -> None:
        super().__init__()
        self.name = name
        self.ends: list[str] = []

    def on_complete(self) -> None:
        self.ends.append("completed")

    def on_expiration(self) -> None:
        self.ends.append("expired")


class Waiter:
    is_completed = False

    def __init__(self, completed: list[str], name: str) -> None:
        self._completed = completed
        self.name = name

    def on_reached(self, index: int) -> None:
        self._completed.append(f"{self.name}.{index}")

    def on_failed(self, index: int, error_code: int) -> None:
        self._completed.append(f"{self.name}.{index} failed {error_code}")


def parked(loop: VirtualLoop, purgatory: Purgatory, *timeouts_ms: int) -> list[Operation]:
    operations = [Operation(str(timeout)) for timeout in timeouts_ms]
    for operation, timeout in zip(operations, timeouts_ms, strict=True):
        purgatory.park(operation, timeout)
    return operations


def test_the_condition_wins_over_the_deadline_when_it_comes_first() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    (operation,) = parked(loop, purgatory, 100)
    assert operation.complete()
    loop.advance(1)
    assert operation.ends == ["completed"]


def test_the_deadline_wins_over_the_condition_when_it_comes_first() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    (operation,) = parked(loop, purgatory, 100)
    loop.advance(0.1)
    assert not operation.complete()
    assert operation.ends == ["expired"]


def test_each_deadline_is_met_whatever_the_order_of_arrival() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    operations = parked(loop, purgatory, 300, 100, 200, 100)
    seen = []
    for _ in range(3):
        loop.advance(0.1)
        seen.append([len(operation.ends) for operation in operations])
    assert seen == [[0, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]]


def test_one_timer_stands_for_all_deadlines() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    parked(loop, purgatory, *range(5000, 100, -100), *[30_000] * 100)
    assert loop.armed == [loop.time + 0.2]


def test_no_timer_is_left_when_everything_has_ended() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    for operation in parked(loop, purgatory, 100, 200, 300):
        operation.complete()
    assert len(purgatory) == 0
    loop.advance(1)
    assert loop.armed == []


def test_a_completed_operation_is_not_kept_until_its_deadline() -> None:
    """With 100,000 produces per second and a timeout of 30 s, three million requests would be kept."""
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    operations = parked(loop, purgatory, *[30_000] * 1000)
    for operation in operations[1:]:
        operation.complete()
    assert len(purgatory) == 1


def test_a_client_that_never_uses_a_timeout_twice_leaves_no_queues_behind() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    for timeout in range(10_000):
        parked(loop, purgatory, 100_000 + timeout)[0].complete()
    assert len(purgatory.queues) <= 1000


def test_a_timeout_of_zero_expires_at_once() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    (operation,) = parked(loop, purgatory, 0)
    loop.advance(0)
    assert operation.ends == ["expired"]


def test_an_operation_that_is_parked_while_others_expire_gets_its_own_deadline() -> None:
    loop = VirtualLoop()
    purgatory = Purgatory(loop.now, loop.call_later)
    later = Operation("later")

    class Parking(Operation):
        def on_expiration(self) -> None:
            super().on_expiration()
            purgatory.park(later, 50)

    purgatory.park(Parking(), 100)
    loop.advance(0.12)
    assert later.ends == []
    loop.advance(0.05)
    assert later.ends == ["expired"]


def test_covered_waiters_complete_in_the_order_of_their_offsets() -> None:
    completed: list[str] = []
    waiters = WatermarkWatchers()
    for name, required in [("a", 5), ("b", 7), ("c", 7), ("d", 9)]:
        waiters.add(required, 0, Waiter(completed, name), 1)
    assert waiters.reach(7, 1) == 3
    assert completed == ["a.0", "b.0", "c.0"]
    assert len(waiters) == 1


def test_a_retry_that_needs_an_earlier_offset_completes_earlier() -> None:
    completed: list[str] = []
    waiters = WatermarkWatchers()
    for name, required in [("new", 9), ("newer", 12), ("retry", 5)]:
        waiters.add(required, 0, Waiter(completed, name), 1)
    waiters.reach(5, 1)
    assert completed == ["retry.0"]


def test_a_high_watermark_completes_no_waiter_of_an_earlier_epoch() -> None:
    completed: list[str] = []
    waiters = WatermarkWatchers()
    first, given_up = Waiter(completed, "first"), Waiter(completed, "given up")
    waiters.add(5, 0, first, 1)
    waiters.add(6, 0, given_up, 1)
    waiters.add(3, 1, Waiter(completed, "second"), 2)
    waiters.discard(given_up)
    assert len(waiters) == 2
    assert waiters.reach(9, 2) == 1
    assert completed == ["first.0 failed 6", "second.1"]
    waiters.add(10, 2, Waiter(completed, "third"), 2)
    assert waiters.reach(20, 3) == 0
    assert completed[2:] == ["third.2 failed 6"]
    assert len(waiters) == 0


def test_a_failure_completes_every_waiter() -> None:
    completed: list[str] = []
    waiters = WatermarkWatchers()
    waiters.add(5, 0, Waiter(completed, "a"), 1)
    waiters.add(7, 1, Waiter(completed, "b"), 1)
    waiters.fail(6)
    assert completed == ["a.0 failed 6", "b.1 failed 6"]
    assert len(waiters) == 0


def test_a_move_looks_only_at_those_it_completes() -> None:
    """The cost of a new high watermark must not grow with the waiters at later offsets."""

    class Counting(WatermarkWatchers):
        looks = 0

    class Offset(int):
        def __le__(self, other: object) -> bool:
            Counting.looks += 1
            return int(self) <= other  # type: ignore[operator]

    waiters = Counting()
    waiters.leader_epoch = 1
    for offset in range(10_000):
        waiters._waiting.append((Offset(offset), 0, Waiter([], "")))
    waiters.reach(2, 1)
    assert Counting.looks == 4


class PurgatoryModel(RuleBasedStateMachine):
    """Operations that wait for several partitions, against high watermarks, failures, deadlines and shutdown, at random.

    I17: each completes exactly once; success only if the condition holds; none outlives its deadline; nothing is left.
    """

    class Produce(DelayedOperation):
        def __init__(self, model: PurgatoryModel, needs: dict[int, int]) -> None:
            super().__init__()
            self.model = model
            self.needs = needs
            self.open = dict(needs)
            self.failed = False
            self.ends: list[str] = []

        def on_reached(self, partition: int) -> None:
            assert not self.is_completed, "completed twice"
            assert self.failed or self.model.high_watermarks[partition] >= self.needs[partition]
            del self.open[partition]
            if not self.open:
                self.complete()

        def on_failed(self, partition: int, error_code: int) -> None:
            self.failed = True
            self.on_reached(partition)

        def on_complete(self) -> None:
            self.ends.append("failed" if self.failed else "completed")

        def on_expiration(self) -> None:
            self.ends.append("expired")
            for partition in self.open:
                self.model.waiters[partition].discard(self)

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.purgatory = Purgatory(self.loop.now, self.loop.call_later)
        self.high_watermarks = [0, 0, 0]
        self.waiters = [WatermarkWatchers() for _ in range(3)]
        self.operations: list[PurgatoryModel.Produce] = []

    @rule(
        needs=st.dictionaries(st.integers(0, 2), st.integers(1, 20), min_size=1),
        timeout_ms=st.sampled_from([0, 10, 10, 50, 500]),
    )
    def produce(self, needs: dict[int, int], timeout_ms: int) -> None:
        needs = {partition: self.high_watermarks[partition] + offset for partition, offset in needs.items()}
        operation = self.Produce(self, needs)
        for partition, offset in needs.items():
            self.waiters[partition].add(offset, partition, operation, 1)
        self.purgatory.park(operation, timeout_ms)
        self.operations.append(operation)

    @rule(partition=st.integers(0, 2), step=st.integers(0, 15))
    def move_high_watermark(self, partition: int, step: int) -> None:
        self.high_watermarks[partition] += step
        self.waiters[partition].reach(self.high_watermarks[partition], 1)

    @rule(partition=st.integers(0, 2))
    def lose_leadership(self, partition: int) -> None:
        self.waiters[partition].fail(6)

    @rule(ms=st.sampled_from([1, 9, 10, 49, 500]))
    def wait(self, ms: int) -> None:
        self.loop.advance(ms / 1000)

    @invariant()
    def each_ends_once_and_in_time(self) -> None:
        for operation in self.operations:
            assert len(operation.ends) == operation.is_completed
            if operation.ends == ["completed"]:
                assert all(self.high_watermarks[p] >= need for p, need in operation.needs.items())
            if not operation.is_completed:
                assert operation.deadline >= self.loop.time
                assert all(self.high_watermarks[p] < need for p, need in operation.open.items())

    @invariant()
    def nothing_is_left_of_who_has_ended(self) -> None:
        waiting = [operation for operation in self.operations if not operation.is_completed]
        assert len(self.purgatory) == len(waiting)
        assert sum(map(len, self.waiters)) == sum(len(operation.open) for operation in waiting)

    def teardown(self) -> None:
        self.loop.advance(1)
        assert all(len(operation.ends) == 1 for operation in self.operations)
        assert len(self.purgatory) == sum(map(len, self.waiters)) == len(self.loop.armed) == 0


PurgatoryModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPurgatoryModel = PurgatoryModel.TestCase
