"""The transaction coordinator of real brokers, asked by raw requests: transactions are committed, aborted, fenced, timed out, and
completed by the next coordinator."""

from __future__ import annotations

import asyncio

import pytest
from wire_cluster import WireCluster, retried
from wire_transactions import ID, SETTINGS, TransactionalProducer, committed_as, read_committed

from strandline.broker.coordination.partitioning import partition_of
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import InitProducerIdRequest
from strandline.protocol.messages.groups import KEY_TYPE_TRANSACTION, FindCoordinatorRequest, GroupTopicPartitions
from strandline.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    ListTransactionsRequest,
)


async def test_first_question_creates_the_internal_topic() -> None:
    async with WireCluster(brokers=3, transaction_state_log_num_partitions=3) as cluster:
        leader = await TransactionalProducer(cluster).coordinator()
        topic = await cluster.topic(TRANSACTION_STATE_TOPIC)
        assert topic.is_internal
        assert {len(partition.replica_nodes) for partition in topic.partitions} == {3}
        assert topic.partitions[partition_of(ID, 3)].leader_id == leader


async def test_too_few_brokers_for_the_topic_are_named() -> None:
    async with WireCluster(brokers=1, transaction_state_log_replication_factor=3) as cluster:
        for _ in range(2):
            request = FindCoordinatorRequest([ID], KEY_TYPE_TRANSACTION)
            found = (await cluster.ask(1, apis.FIND_COORDINATOR, request)).coordinators[0]
            assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "transaction.state.log.replication.factor" in (found.error_message or "")


async def test_committed_transaction_is_visible_in_all_partitions_and_an_aborted_one_in_none() -> None:
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        orders = await cluster.create("orders", partitions=2, replication_factor=3)
        producer = TransactionalProducer(cluster)
        await producer.init()
        await producer.send(orders, "a")
        await producer.send(orders, "b", partition=1)
        described = await producer.describe()
        assert (described.transaction_state, described.topics[0].partitions) == ("Ongoing", [0, 1])
        assert await read_committed(cluster, orders) == []
        await producer.end()
        await committed_as(cluster, orders, "a")
        await committed_as(cluster, orders, "b", partition=1)
        await producer.send(orders, "never")
        await producer.end(commit=False)
        await producer.send(orders, "c")
        await producer.end()
        await committed_as(cluster, orders, "a", "c")
        assert (await producer.describe()).transaction_state in ("PrepareCommit", "CompleteCommit")


async def test_next_coordinator_completes_what_was_decided() -> None:
    """The coordinator dies when the Prepare record is committed and no marker is written: the transaction is committed all the
    same, and its producer goes on with the epoch that it was given."""
    async with WireCluster(brokers=3, **SETTINGS) as cluster:
        orders = await cluster.create("orders", replication_factor=3)
        producer = TransactionalProducer(cluster)
        await producer.init()
        await producer.send(orders, "a")
        coordinator = await producer.coordinator()
        transactions = cluster.server(coordinator).opened.transactions
        await cluster.inside(coordinator, lambda: setattr(transactions, "_send_markers", lambda *_: None))
        await producer.end()
        assert (await producer.describe()).transaction_state == "PrepareCommit"
        assert await read_committed(cluster, orders) == []
        await cluster.kill(coordinator)
        await committed_as(cluster, orders, "a")
        await producer.send(orders, "b")
        await producer.end()
        await committed_as(cluster, orders, "a", "b")


async def test_second_producer_fences_the_first_and_aborts_its_transaction() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        orders = await cluster.create("orders")
        first, second = TransactionalProducer(cluster), TransactionalProducer(cluster)
        await first.init()
        await first.send(orders, "never")
        await second.init()
        with pytest.raises(BrokerError) as fenced:
            await first.end()
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        with pytest.raises(BrokerError) as late:
            await first.send(orders, "late")
        assert late.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
        await second.send(orders, "a")
        await second.end()
        await committed_as(cluster, orders, "a")


async def test_transaction_that_takes_too_long_is_aborted() -> None:
    """Its producer gets an error after which it can begin the next transaction."""
    sweep = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 100}
    async with WireCluster(brokers=1, **SETTINGS, **sweep) as cluster:
        orders = await cluster.create("orders")
        producer = TransactionalProducer(cluster, timeout_ms=200)
        await producer.init()
        await producer.send(orders, "never")

        async def is_aborted() -> None:
            if (await producer.describe()).transaction_state != "CompleteAbort":
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)

        await retried(is_aborted)
        with pytest.raises(BrokerError) as lost:
            await producer.end()
        assert lost.value.code is ErrorCode.TRANSACTION_ABORTABLE
        await producer.end(commit=False)
        await producer.send(orders, "a")
        await producer.end()
        await committed_as(cluster, orders, "a")


async def test_transaction_without_records_is_aborted_for_the_epoch() -> None:
    """A client of TV2 cannot know whether a leader has added a partition for it."""
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        producer = TransactionalProducer(cluster)
        await producer.init()
        before = producer.epoch
        await producer.end(commit=False)
        assert producer.epoch == before + 1


async def test_partitions_are_added_all_or_none_and_verified_one_by_one() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        orders = await cluster.create("orders", partitions=2)
        producer = TransactionalProducer(cluster)
        await producer.init()

        async def add(*topics: GroupTopicPartitions, **options: object) -> list[int]:
            asked = AddPartitionsToTxnTransaction(ID, producer.producer_id, producer.epoch, list(topics), **options)  # type: ignore[arg-type]
            answer = await cluster.ask(1, apis.ADD_PARTITIONS_TO_TXN, AddPartitionsToTxnRequest([asked]))
            return [answer.results[0].error_code, *(each.error_code for each in answer.results[0].partitions)]

        known, unknown = GroupTopicPartitions(orders.topic_id, [0]), GroupTopicPartitions(b"\1" * 16, [0])
        not_attempted = ErrorCode.OPERATION_NOT_ATTEMPTED
        assert await add(known, unknown) == [0, not_attempted, ErrorCode.UNKNOWN_TOPIC_ID]
        assert await add(known, verify_only=True) == [0, ErrorCode.TRANSACTION_ABORTABLE]
        assert await add(known) == [0, 0]
        both = GroupTopicPartitions(orders.topic_id, [0, 1])
        assert await add(both, verify_only=True) == [0, 0, ErrorCode.TRANSACTION_ABORTABLE]
        producer.epoch -= 1
        assert await add(known) == [ErrorCode.PRODUCER_FENCED]


async def test_transactions_are_listed_by_state_duration_and_pattern() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        orders = await cluster.create("orders")
        idle, busy = TransactionalProducer(cluster, "idle-1"), TransactionalProducer(cluster, "busy-1")
        await idle.init()
        await busy.init()
        await busy.send(orders, "a")

        async def listed(**filters: object) -> list[str]:
            answer = await cluster.ask(1, apis.LIST_TRANSACTIONS, ListTransactionsRequest(**filters))  # type: ignore[arg-type]
            return [*sorted(each.transactional_id for each in answer.transactions), *answer.unknown_states]

        assert await listed() == ["busy-1", "idle-1"]
        assert await listed(states=["Ongoing", "Odd"]) == ["busy-1", "Odd"]
        assert await listed(producer_ids=[idle.producer_id]) == ["idle-1"]
        assert await listed(duration_filter_ms=600_000) == []
        assert await listed(transactional_id_pattern="id.*") == ["idle-1"]
        with pytest.raises(BrokerError) as bad:
            await listed(transactional_id_pattern="(")
        assert bad.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_name_is_a_producer_name_or_a_transactional_id() -> None:
    """They have separate epochs, so one that was both would not be fenced as its user expects."""
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        producer = TransactionalProducer(cluster, "both")
        await producer.init()
        answer = await cluster.ask(1, apis.INIT_PRODUCER_ID, InitProducerIdRequest(name="named"))
        assert answer.error_code == 0
        with pytest.raises(BrokerError, match="is a transactional id") as clash:
            await cluster.ask(1, apis.INIT_PRODUCER_ID, InitProducerIdRequest(name="both"))
        assert clash.value.code is ErrorCode.INVALID_REQUEST
        with pytest.raises(BrokerError, match="name of a named producer") as clash:
            await TransactionalProducer(cluster, "named").init()
        assert clash.value.code is ErrorCode.INVALID_REQUEST


async def test_timeout_beyond_the_limit_is_refused() -> None:
    async with WireCluster(brokers=1, **SETTINGS, transaction_max_timeout_ms=1000) as cluster:
        with pytest.raises(BrokerError, match=r"transaction\.max\.timeout\.ms") as refused:
            await TransactionalProducer(cluster, timeout_ms=1001).init()
        assert refused.value.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT


async def test_id_that_is_not_used_is_forgotten() -> None:
    settings = {
        "transactional_id_expiration_ms": 100,
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 50,
        "transaction_remove_expired_transaction_cleanup_interval_ms": 50,
    }
    async with WireCluster(brokers=1, **SETTINGS, **settings) as cluster:
        producer = TransactionalProducer(cluster)
        await producer.init()
        request = EndTxnRequest(ID, producer.producer_id, producer.epoch, True)

        async def is_forgotten() -> bool:
            answer = await cluster.ask(1, apis.END_TXN, request)
            return bool(answer.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING)

        async def once() -> None:
            if not await is_forgotten():
                raise BrokerError(ErrorCode.CONCURRENT_TRANSACTIONS)

        await retried(once)


async def test_requests_that_come_while_a_leader_asks_the_coordinator_keep_their_order() -> None:
    """The connection is on hold meanwhile. The kit's wires once gave a protocol data from within `resume_reading`, which asyncio
    never does, and the frames that were held were lost."""
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        orders = await cluster.create("orders")
        producer = TransactionalProducer(cluster)
        await producer.init()
        for number in range(3):
            values = [f"{number}-{index}" for index in range(20)]
            sent = [producer.send_once(1, (orders.topic_id, 0), index, value) for index, value in enumerate(values)]
            answers = await asyncio.gather(*sent)
            assert [answer.error_code for answer in answers] == [0] * 20
            await producer.end()
        expected = [f"{number}-{index}" for number in range(3) for index in range(20)]
        await committed_as(cluster, orders, *expected)
