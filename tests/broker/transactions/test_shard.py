"""The transaction coordinator's decisions, one request after the other; every row of the tables of KIP-98 and KIP-890."""

from __future__ import annotations

import pytest

from strandline.broker.transactions.config import TransactionConfig
from strandline.broker.transactions.shard import Decision, Markers, ProducerIdAndEpoch, TransactionShard
from strandline.broker.transactions.states import EPOCH_EXHAUSTED, EPOCH_MAX, NO_EPOCH, TV1, TV2, State, Transaction
from strandline.protocol.errors import BrokerError, ErrorCode

ID, TIMEOUT_MS, NOW_MS = "orders-1", 60_000, 1_700_000_000_000
ORDERS, OFFSETS = ("orders", 0), ("__consumer_offsets", 7)


class World:
    """A shard whose records are committed at once. Producer ids are 1000, 1001, ..."""

    def __init__(self, **config: int) -> None:
        self.config = TransactionConfig(**config)
        self.shard = TransactionShard(self.config)
        self.now_ms = NOW_MS
        self.fresh_id = 1000
        self.log: list = []
        self.markers: list[Markers] = []

    def carry_out(self, decision: Decision) -> ProducerIdAndEpoch | None:
        if decision.record is not None:
            self.log.append(decision.record)
            self.shard.replay(decision.record)
        if decision.markers is not None:
            self.markers.append(decision.markers)
        if isinstance(decision.answer, BrokerError):
            raise decision.answer
        return decision.answer

    def init(self, expected: tuple[int, int] | None = None, timeout_ms: int = TIMEOUT_MS) -> ProducerIdAndEpoch:
        known = None if expected is None else ProducerIdAndEpoch(*expected)
        decision = self.shard.init_producer(ID, timeout_ms, known, self.fresh_id, self.now_ms)
        self.fresh_id += 1
        answer = self.carry_out(decision)
        assert answer is not None
        return answer

    def add(self, producer: tuple[int, int], *partitions: tuple[str, int], version: int = TV2) -> None:
        asker = ProducerIdAndEpoch(*producer)
        self.carry_out(self.shard.add_partitions(asker, ID, partitions or [ORDERS], version, self.now_ms))

    def end(self, producer: tuple[int, int], *, commit: bool = True, version: int = TV2) -> ProducerIdAndEpoch:
        asker = ProducerIdAndEpoch(*producer)
        decision = self.shard.end(asker, ID, commit=commit, version=version, fresh_id=self.fresh_id, now_ms=self.now_ms)
        self.fresh_id += 1
        answer = self.carry_out(decision)
        assert answer is not None
        return answer

    def complete(self) -> None:
        """All markers are written."""
        for markers in self.markers:
            self.carry_out(self.shard.complete(markers, self.now_ms))
        self.markers = []

    def expire(self) -> None:
        for decision in self.shard.expire(iter(range(9000, 9999)), self.now_ms):
            self.carry_out(decision)

    def set_epoch(self, epoch: int) -> None:
        self.shard.transactions[ID] = Transaction(
            transactional_id=ID, producer_id=1000, producer_epoch=epoch, timeout_ms=TIMEOUT_MS, updated_at_ms=self.now_ms
        )

    @property
    def found(self) -> Transaction:
        return self.shard.transactions[ID]

    @property
    def state(self) -> State:
        return self.found.state


def in_state(state: State, version: int = TV2) -> tuple[World, ProducerIdAndEpoch, ProducerIdAndEpoch]:
    """A world in this state; the id and epoch that its producer had before its last EndTxn, and those that it has now."""
    world = World()
    before = now = world.init()
    if state is State.EMPTY:
        return world, before, now
    world.add(now, version=version)
    if state is not State.ONGOING:
        now = world.end(now, commit=state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT), version=version)
        if not state.is_prepared:
            world.complete()
    assert world.state is state
    return world, before, now


def refused(code: ErrorCode):
    return pytest.raises(BrokerError, match=code.name)


# -- InitProducerId ---------------------------------------------------------------------------------------------------


def test_each_producer_gets_the_next_epoch_of_its_id() -> None:
    world = World()
    assert [world.init() for _ in range(3)] == [(1000, 0), (1000, 1), (1000, 2)]


@pytest.mark.parametrize(("timeout_ms", "ok"), [(1, True), (900_000, True), (900_001, False), (0, False), (-5, False)])
def test_timeout_has_a_limit(timeout_ms: int, ok: bool) -> None:
    if ok:
        World().init(timeout_ms=timeout_ms)
        return
    with refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT):
        World().init(timeout_ms=timeout_ms)


def test_producer_that_takes_over_aborts_the_transaction_first() -> None:
    """The old producer's records must not become part of anything, and the new one must not see them as its own."""
    world = World()
    old = world.init()
    world.add(old)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init()
    assert (world.state, world.found.producer_epoch) == (State.PREPARE_ABORT, 1)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init()
    world.complete()
    assert world.init() == (1000, 2)
    for commit in (True, False):
        with refused(ErrorCode.PRODUCER_FENCED):
            world.end(old, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
def test_producer_is_fenced_also_before_its_successor_has_begun(commit: bool) -> None:
    """Kafka takes its request for a retry of the abort, and returns the epoch of the abort."""
    world = World()
    old = world.init()
    world.add(old)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        world.init()
    with refused(ErrorCode.PRODUCER_FENCED):
        world.end(old, commit=commit)
    world.complete()
    with refused(ErrorCode.PRODUCER_FENCED):
        world.end(old, commit=commit)
    with refused(ErrorCode.PRODUCER_FENCED):
        world.init(expected=old)


def test_producer_goes_on_after_an_error_and_may_ask_twice() -> None:
    """KIP-360. The second request is a retry of the first one, whose answer was lost, unless a third producer has begun
    meanwhile."""
    world = World()
    first = world.init()
    second = world.init(expected=first)
    assert second == (1000, 1)
    assert world.init(expected=first) == second
    world.init()
    for known in (first, second, (77, 0)):
        with refused(ErrorCode.PRODUCER_FENCED):
            world.init(expected=known)


def test_replaced_producer_does_not_abort_the_transaction_of_its_successor() -> None:
    """A producer that does not know that it was replaced asks for its next epoch. Kafka aborts the transaction before it refuses
    this."""
    world = World()
    first = world.init()
    second = world.init()
    world.add(second)
    with refused(ErrorCode.PRODUCER_FENCED):
        world.init(expected=first)
    assert world.state is State.ONGOING


def test_retry_is_recognised_after_a_fail_over() -> None:
    """KAFKA-20357: the record must have the last epoch."""
    world = World()
    first = world.init()
    second = world.init(expected=first)
    later = World()
    for record in world.log:
        later.shard.replay(record)
    assert later.init(expected=first) == second


def test_exhausted_epochs_get_a_new_producer_id() -> None:
    world = World()
    world.set_epoch(EPOCH_EXHAUSTED)
    world.fresh_id = 2000
    assert world.init() == (2000, 0)
    world.set_epoch(EPOCH_EXHAUSTED)
    known = (1000, EPOCH_EXHAUSTED)
    world.fresh_id = 3000
    assert world.init(expected=known) == (3000, 0)
    assert world.init(expected=known) == (3000, 0)


def test_empty_id_is_refused() -> None:
    with refused(ErrorCode.INVALID_REQUEST):
        World().shard.init_producer("", TIMEOUT_MS, None, 1, NOW_MS)


# -- AddPartitionsToTxn -----------------------------------------------------------------------------------------------


def test_partitions_are_written_down_once() -> None:
    world = World()
    producer = world.init()
    world.add(producer, ORDERS)
    records = len(world.log)
    world.add(producer, ORDERS)
    assert len(world.log) == records
    world.now_ms += 1
    world.add(producer, ORDERS, OFFSETS)
    assert (world.found.partitions, world.found.started_at_ms) == ((OFFSETS, ORDERS), NOW_MS)


def test_only_the_present_producer_adds_partitions() -> None:
    world = World()
    old = world.init()
    world.init()
    with refused(ErrorCode.PRODUCER_FENCED):
        world.add(old)
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        world.add((77, 1))
    with refused(ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        World().add((77, 1))


def test_leader_refuses_what_is_not_in_the_transaction() -> None:
    """Otherwise no coordinator would write a marker there, and readers would wait for ever (KIP-890)."""
    world = World()
    producer = world.init()
    ask = world.shard.missing_partitions
    assert ask(producer, ID, [ORDERS]) == [ORDERS]
    world.add(producer, ORDERS)
    assert ask(producer, ID, [ORDERS, OFFSETS]) == [OFFSETS]
    world.end(producer, version=TV1)
    with refused(ErrorCode.CONCURRENT_TRANSACTIONS):
        ask(producer, ID, [ORDERS])
    world.complete()
    assert ask(producer, ID, [ORDERS]) == [ORDERS]


# -- EndTxn -----------------------------------------------------------------------------------------------------------

N = ErrorCode.NONE
ITS, CT, PF = ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.PRODUCER_FENCED

TV2_ENDS = [
    # state, commit?, retry?, code, epoch in the answer (the first transaction has epoch 0)
    (State.EMPTY, False, False, N, 1),
    (State.EMPTY, True, False, ITS, None),
    (State.ONGOING, True, False, N, 1),
    (State.ONGOING, False, False, N, 1),
    (State.PREPARE_COMMIT, True, True, CT, None),
    (State.PREPARE_COMMIT, False, True, ITS, None),
    (State.PREPARE_ABORT, False, True, CT, None),
    (State.PREPARE_COMMIT, True, False, CT, None),
    (State.PREPARE_COMMIT, False, False, CT, None),
    (State.PREPARE_ABORT, False, False, CT, None),
    (State.COMPLETE_COMMIT, True, True, N, 1),
    (State.COMPLETE_COMMIT, True, False, ITS, None),
    (State.COMPLETE_COMMIT, False, True, ITS, None),
    (State.COMPLETE_COMMIT, False, False, N, 2),
    (State.COMPLETE_ABORT, False, True, N, 1),
    (State.COMPLETE_ABORT, False, False, N, 2),
    (State.COMPLETE_ABORT, True, False, ITS, None),
]


@pytest.mark.parametrize(("state", "commit", "retry", "code", "epoch"), TV2_ENDS)
def test_end_in_tv2(state: State, commit: bool, retry: bool, code: ErrorCode, epoch: int | None) -> None:
    """The cases of Kafka's `endTransaction`."""
    world, before, now = in_state(state)
    producer = before if retry else now
    if code is N:
        assert world.end(producer, commit=commit) == (1000, epoch)
        return
    with refused(code):
        world.end(producer, commit=commit)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.COMPLETE_COMMIT, State.PREPARE_ABORT, State.COMPLETE_ABORT])
def test_end_in_tv1(state: State, commit: bool) -> None:
    """The epoch stays, so the coordinator cannot tell a retry from a second call."""
    world, _, producer = in_state(state, TV1)
    is_same = commit == (state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT))
    if is_same and not state.is_prepared:
        assert world.end(producer, commit=commit, version=TV1) == (1000, 0)
        return
    with refused(CT if is_same else ITS):
        world.end(producer, commit=commit, version=TV1)


def test_end_of_nothing_is_refused_in_tv1() -> None:
    world = World()
    producer = world.init()
    for commit in (True, False):
        with refused(ITS):
            world.end(producer, commit=commit, version=TV1)


@pytest.mark.parametrize(("version", "epoch"), [(TV1, 0), (TV2, 1)])
def test_markers_have_the_epoch_after_the_end(version: int, epoch: int) -> None:
    """In TV2 a late batch of the transaction has a lower epoch than its marker, so the leader rejects it."""
    world = World()
    producer = world.init()
    world.add(producer, ORDERS, OFFSETS, version=version)
    world.end(producer, version=version)
    assert world.markers == [Markers(ID, 1000, epoch, True, (OFFSETS, ORDERS), version)]


def test_next_transaction_of_tv2_has_the_next_epoch_only() -> None:
    """KAFKA-19367: InitProducerId after a commit must not skip one."""
    world = World()
    producer = world.init()
    world.add(producer)
    producer = world.end(producer)
    world.complete()
    assert (producer, world.init()) == ((1000, 1), (1000, 2))


@pytest.mark.parametrize("commit", [True, False])
def test_exhausted_epochs_are_replaced_at_the_end_of_a_transaction(commit: bool) -> None:
    """The markers have the last epoch of the old id; the producer continues with the new id, also if it has to ask twice."""
    world = World()
    world.set_epoch(EPOCH_EXHAUSTED)
    old = ProducerIdAndEpoch(1000, EPOCH_EXHAUSTED)
    world.add(old)
    world.fresh_id = 2000
    assert world.end(old, commit=commit) == (2000, 0)
    assert world.markers[0][1:4] == (1000, EPOCH_MAX, commit)
    with refused(CT):
        world.end(old, commit=commit)
    with refused(CT):
        world.add((2000, 0))  # The next transaction waits. Another error would end the producer.
    with refused(CT):
        world.end((2000, 0), commit=False)
    world.complete()
    assert world.end(old, commit=commit) == (2000, 0)
    world.add((2000, 0))


def test_markers_of_an_older_transaction_complete_nothing() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    producer = world.end(producer)
    late = list(world.markers)
    world.complete()
    world.add(producer)
    world.end(producer)
    for markers in late:
        assert world.shard.complete(markers, NOW_MS).record is None


def test_new_coordinator_writes_the_markers_of_what_was_decided() -> None:
    world = World()
    producer = world.init()
    world.add(producer)
    world.end(producer)
    later = TransactionShard(world.config)
    for record in world.log:
        later.replay(record)
    assert list(later.on_loaded()) == world.markers


# -- time -------------------------------------------------------------------------------------------------------------


def test_transaction_that_takes_too_long_is_aborted_and_its_producer_goes_on() -> None:
    """Its commit is refused with TRANSACTION_ABORTABLE, which does not end a client: it aborts, which succeeds, and begins the
    next transaction."""
    world = World()
    producer = world.init()
    world.add(producer)
    world.now_ms += TIMEOUT_MS - 1
    world.expire()
    assert world.state is State.ONGOING
    world.now_ms += 1
    world.expire()
    assert (world.state, world.markers[0].producer_epoch) == (State.PREPARE_ABORT, 1)
    with refused(ErrorCode.TRANSACTION_ABORTABLE):
        world.end(producer)
    with refused(CT):
        world.end(producer, commit=False)
    world.complete()
    with refused(ErrorCode.TRANSACTION_ABORTABLE):
        world.end(producer)
    producer = world.end(producer, commit=False)
    assert producer == (1000, 1)
    world.add(producer)
    assert world.end(producer) == (1000, 2)


def test_timeout_of_tv1_fences_the_producer() -> None:
    """Otherwise it would continue in the epoch of the aborted transaction."""
    world = World()
    producer = world.init()
    world.add(producer, version=TV1)
    world.now_ms += TIMEOUT_MS
    world.expire()
    world.complete()
    with refused(PF):
        world.end(producer, version=TV1)
    with refused(PF):
        world.add(producer, version=TV1)


def test_exhausted_epochs_are_replaced_by_a_timeout() -> None:
    world = World()
    world.set_epoch(EPOCH_EXHAUSTED)
    world.add((1000, EPOCH_EXHAUSTED))
    world.now_ms += TIMEOUT_MS
    world.expire()
    world.complete()
    assert (world.found.producer_id, world.found.producer_epoch) == (9000, 0)


@pytest.mark.parametrize("asks_to_abort", [True, False])
def test_producer_never_gets_the_last_epoch(asks_to_abort: bool) -> None:
    """The coordinator keeps the last epoch for the marker of an abort, also in TV1. If the producer continued with it, the marker
    of its next transaction could have no higher epoch: leaders would reject it, and the transaction would never end."""
    world = World()
    world.set_epoch(EPOCH_EXHAUSTED)
    old = (1000, EPOCH_EXHAUSTED)
    world.add(old, version=TV1)
    world.now_ms += TIMEOUT_MS
    world.expire()
    assert world.markers[0][1:3] == (1000, EPOCH_MAX)
    world.complete()
    assert (world.end(old, commit=False) if asks_to_abort else world.init(old)) == (9000, 0)


def test_producer_with_a_new_id_that_goes_on_after_an_error_waits() -> None:
    """EndTxn has returned the new id, but the markers of that transaction are still being written. The producer is not fenced."""
    world = World()
    world.set_epoch(EPOCH_EXHAUSTED)
    world.add((1000, EPOCH_EXHAUSTED))
    new = world.end((1000, EPOCH_EXHAUSTED))
    with refused(CT):
        world.init(new)
    world.complete()
    assert world.init(new) == (new.producer_id, 1)


@pytest.mark.parametrize("state", [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT])
def test_id_expires_only_without_a_transaction(state: State) -> None:
    world, _, _ = in_state(state)
    world.now_ms += world.config.transactional_id_expiration_ms
    world.expire()
    assert (ID in world.shard.transactions) == (not state.is_idle)


def test_fenced_epoch_is_not_remembered_as_the_producers_own() -> None:
    world = World()
    world.add(world.init())
    with refused(CT):
        world.init()
    assert world.found.last_producer_epoch == NO_EPOCH
