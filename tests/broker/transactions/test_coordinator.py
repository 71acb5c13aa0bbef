"""The shell of the transaction coordinator: only committed records count, and the present or the next coordinator completes each
decided transaction."""

from __future__ import annotations

from dataclasses import replace

import pytest
from replica_world import NOW_MS
from transaction_world import ID, KEY, ORDERS, TransactionWorld
from waiting import until

from strandline.broker.transactions.completion_waiters import WAIT_S
from strandline.broker.transactions.metrics import End
from strandline.broker.transactions.states import EPOCH_EXHAUSTED, State, Transaction
from strandline.protocol.apis import END_TXN
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import GroupTopicPartitions
from strandline.protocol.messages.transactions import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction


async def test_answer_and_markers_wait_for_the_commit_of_the_decision() -> None:
    """A decision that the next coordinator may not have must be neither reported to the producer nor written to a partition."""
    world = TransactionWorld()
    producer = await world.began()
    ended = await world.first.end(producer)
    assert not ended.is_answered
    assert not world.first.markers.sent
    world.replicate()
    assert (ended.answer.error_code, ended.answer.producer_epoch) == (0, producer[1] + 1)
    ((_, markers, epoch),) = world.first.markers.sent
    assert (markers.is_commit, markers.producer_epoch, markers.partitions) == (True, producer[1] + 1, (("orders", 0),))
    assert epoch == 1
    assert world.first.coordinator.metrics.ended[End.COMMIT] == 1


async def test_transaction_is_complete_when_all_markers_are_written() -> None:
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    assert world.first.found.state is State.PREPARE_COMMIT
    world.first.write_markers()
    assert world.first.found.state is State.COMPLETE_COMMIT
    world.replicate()
    described = await world.first.describe()
    assert described.answer.transactions[0].transaction_state == "CompleteCommit"


async def test_next_transaction_begins_when_the_one_before_is_complete() -> None:
    """The request waits at the coordinator. A refusal would cost the leader and the producer a pause each time."""
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    added = await world.first.add((producer[0], producer[1] + 1))
    world.replicate()
    assert not added.is_answered
    world.first.write_markers()
    assert world.first.found.state is State.ONGOING
    assert not added.is_answered
    world.replicate()
    assert added.answer.results[0].error_code == 0
    assert len(world.first.coordinator.completions) == 0


async def test_transaction_that_must_wait_does_not_hold_up_others_of_its_request() -> None:
    """One request has all transactions to which a leader adds partitions at the same time. They must not wait for one whose
    markers cannot be written because a partition has no leader."""
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    (active,) = world.first.coordinator.shards.values()
    active.shard.transactions["another"] = Transaction(
        transactional_id="another", producer_id=1, producer_epoch=0, timeout_ms=60_000, updated_at_ms=NOW_MS
    )
    topics = [GroupTopicPartitions(ORDERS, [0])]
    waits = AddPartitionsToTxnTransaction(ID, producer[0], producer[1] + 1, topics)
    free = AddPartitionsToTxnTransaction("another", 1, 0, topics)
    request = await world.first.ask(world.first.handlers.add_partitions, AddPartitionsToTxnRequest([waits, free]))
    world.replicate()
    codes = [result.error_code for result in request.answer.results]
    assert codes == [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NONE]


async def test_asker_does_not_wait_for_ever() -> None:
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    added = await world.first.add((producer[0], producer[1] + 1))
    world.replicas.loop.advance(WAIT_S - 0.01)
    assert not added.is_answered
    world.replicas.loop.advance(0.02)
    assert added.answer.results[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
    assert len(world.first.coordinator.completions) == 0


async def test_second_producer_waits_until_the_transaction_of_the_first_is_aborted() -> None:
    world = TransactionWorld()
    producer = await world.began()
    taken = await world.first.init()
    world.replicate()
    assert not taken.is_answered
    world.first.write_markers()
    world.replicate()
    assert (taken.answer.error_code, taken.answer.producer_id) == (0, producer[0])
    assert taken.answer.producer_epoch == producer[1] + 2
    late = await world.first.end(producer)
    assert late.answer.error_code == ErrorCode.PRODUCER_FENCED


async def test_asker_that_waits_is_refused_when_the_leadership_ends() -> None:
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    added = await world.first.add((producer[0], producer[1] + 1))
    world.elect(2)
    assert added.answer.results[0].error_code == ErrorCode.NOT_COORDINATOR


async def test_nothing_changes_while_too_few_replicas_are_in_sync() -> None:
    world = TransactionWorld()
    producer = await world.began()
    world.watch(lambda: world.replicas.set_isr(1, key=KEY))
    ended = await world.first.end(producer)
    assert ended.answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.first.found.state is State.ONGOING


async def test_markers_are_sent_although_the_asker_has_given_up() -> None:
    """The ISR shrinks while the Prepare record waits. EndTxn returns a retriable error, and the record is committed later."""
    world = TransactionWorld()
    producer = await world.began()
    ended = await world.first.end(producer)
    world.watch(lambda: world.replicas.set_isr(1, key=KEY))
    assert ended.answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not world.first.markers.sent
    world.watch(lambda: world.replicas.set_isr(1, 2, key=KEY))
    world.replicate()
    assert len(world.first.markers.sent) == 1
    retried = await world.first.end(producer)
    assert not retried.is_answered
    world.first.write_markers()
    world.replicate()
    assert (retried.answer.error_code, retried.answer.producer_epoch) == (0, producer[1] + 1)


async def test_last_record_is_tried_again_until_enough_replicas_are_in_sync() -> None:
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicate()
    world.watch(lambda: world.replicas.set_isr(1, key=KEY))
    world.first.write_markers()
    assert world.first.found.state is State.PREPARE_COMMIT
    assert world.first.coordinator.retried_completions == 1
    world.watch(lambda: world.replicas.set_isr(1, 2, key=KEY))
    world.replicas.loop.advance(1.0)
    assert world.first.found.state is State.COMPLETE_COMMIT
    assert world.first.coordinator.retried_completions == 0


async def test_next_coordinator_sends_the_markers_when_it_knows_that_the_decision_is_committed() -> None:
    world = TransactionWorld()
    producer = await world.began()
    await world.first.end(producer)
    world.replicas.replicate(2, 1, key=KEY)
    world.elect(2)
    assert len(world.first.markers.cancelled) == 1
    second = world.at[2]
    early = await second.describe()
    assert early.answer.transactions[0].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.replicas.loop.advance(0.01)
    assert not second.markers.sent
    world.replicate(leader=2)
    ((_, markers, epoch),) = second.markers.sent
    assert (markers.transactional_id, markers.is_commit, epoch) == (ID, True, 2)
    second.write_markers()
    world.replicate(leader=2)
    described = await second.describe()
    assert described.answer.transactions[0].transaction_state == "CompleteCommit"


async def test_decision_that_was_not_replicated_is_forgotten() -> None:
    world = TransactionWorld()
    producer = await world.began()
    ended = await world.first.end(producer)
    world.elect(2)
    world.replicas.loop.advance(0.01)
    assert ended.answer.error_code == ErrorCode.NOT_COORDINATOR
    assert not world.first.markers.sent
    assert world.at[2].found.state is State.ONGOING


async def test_leadership_that_ends_while_a_producer_id_is_awaited() -> None:
    """The coordinator checks its leadership again after the wait."""
    world = TransactionWorld()
    world.first.fresh_ids.while_asked = lambda: world.elect(2)
    answer = await world.first.init()
    assert answer.answer.error_code == ErrorCode.NOT_COORDINATOR


async def test_broker_that_was_paused_does_not_decide() -> None:
    world = TransactionWorld()

    def pause() -> None:
        world.first.is_trusted = False

    world.first.fresh_ids.while_asked = pause
    answer = await world.first.init()
    assert answer.answer.error_code == ErrorCode.NOT_COORDINATOR
    assert not world.replicas[1][KEY].log.log_end_offset


async def test_transaction_beyond_its_timeout_is_aborted_by_the_sweep() -> None:
    world = TransactionWorld(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
    await world.began()
    world.replicas.loop.advance(59)
    assert world.first.found.state is State.ONGOING
    world.replicas.loop.advance(3)
    assert world.first.found.state is State.PREPARE_ABORT
    assert not world.first.markers.sent
    world.replicate()
    assert len(world.first.markers.sent) == 1
    assert world.first.coordinator.metrics.ended[End.TIMEOUT] == 1


async def test_transaction_that_is_too_large_to_be_aborted_does_not_hold_up_the_others() -> None:
    """An operator has lowered max.message.bytes. The other transactions of the shard must still end by their timeouts."""
    world = TransactionWorld(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
    await world.began()
    (active,) = world.first.coordinator.shards.values()
    known = active.shard.transactions
    known["another"] = replace(known[ID], transactional_id="another")
    known[ID] = replace(known[ID], partitions=tuple(("orders", number) for number in range(500)))
    log = world.replicas[1][KEY].log
    log.config = replace(log.config, max_message_bytes=1000)
    world.replicas.loop.advance(62)
    assert (known[ID].state, known["another"].state) == (State.ONGOING, State.PREPARE_ABORT)


async def with_exhausted_epochs() -> TransactionWorld:
    """Two ongoing transactions. The one of `ID` can only be aborted with a new producer id, the one of `another` needs none."""
    world = TransactionWorld(transaction_abort_timed_out_transaction_cleanup_interval_ms=1000)
    await world.began()
    known = world.first.transactions
    known["another"] = replace(known[ID], transactional_id="another")
    known[ID] = replace(known[ID], producer_epoch=EPOCH_EXHAUSTED)
    return world


async def test_transaction_without_epochs_left_does_not_hold_up_the_others() -> None:
    """If the controller is away, no producer id can be allocated. The other transactions of the shard must still end by their
    timeouts, because readers of committed records wait for them."""
    world = await with_exhausted_epochs()
    known, ids = world.first.transactions, world.first.fresh_ids
    ids.error = BrokerError(ErrorCode.BROKER_NOT_AVAILABLE)
    world.replicas.loop.advance(62)
    assert (known[ID].state, known["another"].state) == (State.ONGOING, State.PREPARE_ABORT)
    await until(lambda: ids.asked == 2)
    ids.error = None
    world.replicas.loop.advance(1)
    await until(lambda: known[ID].state is State.PREPARE_ABORT)
    assert world.first.coordinator.metrics.ended[End.TIMEOUT] == 2


async def test_later_sweep_awaits_no_further_producer_id() -> None:
    """While the controller does not answer, each sweep would otherwise add a request for an id that is not needed."""
    world = await with_exhausted_epochs()
    known, ids = world.first.transactions, world.first.fresh_ids
    ids.may_answer.clear()
    world.replicas.loop.advance(62)
    await until(lambda: ids.asked == 2)
    world.replicas.loop.advance(5)
    ids.may_answer.set()
    await until(lambda: known[ID].state is State.PREPARE_ABORT)
    assert ids.asked == 2


async def test_unused_id_is_forgotten_at_its_own_interval() -> None:
    world = TransactionWorld(
        transactional_id_expiration_ms=5000,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
        transaction_remove_expired_transaction_cleanup_interval_ms=20_000,
    )
    await world.first.init()
    world.replicate()
    (active,) = world.first.coordinator.shards.values()
    world.replicas.loop.advance(18)
    assert list(active.shard.transactions) == [ID]
    world.replicas.loop.advance(4)
    assert not active.shard.transactions


async def test_producer_id_is_replaced_when_its_epochs_are_exhausted() -> None:
    """Kafka's rule for TV2. The coordinator gets the new id before it decides."""
    world = TransactionWorld()
    producer = await world.began()
    (active,) = world.first.coordinator.shards.values()
    object.__setattr__(active.shard.transactions[ID], "producer_epoch", EPOCH_EXHAUSTED)
    ended = await world.first.end((producer[0], EPOCH_EXHAUSTED))
    world.replicate()
    assert (ended.answer.error_code, ended.answer.producer_id, ended.answer.producer_epoch) == (0, 1001, 0)


async def test_errors_of_a_request_are_in_its_response() -> None:
    world = TransactionWorld()
    ended = await world.at[2].end((1000, 0))
    assert ended.answer.error_code == ErrorCode.NOT_COORDINATOR
    unknown = await world.first.end((1000, 0))
    assert unknown.answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    described = await world.first.describe()
    assert described.answer.transactions[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    world.first.is_trusted = False
    guarded = world.first.handlers.handlers()[END_TXN]
    with pytest.raises(BrokerError) as paused:
        guarded(ended)  # type: ignore[arg-type]
    assert paused.value.code is ErrorCode.NOT_COORDINATOR
