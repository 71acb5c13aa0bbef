"""Transactions of `AIOKafkaProducer`: aiokafka's calls and errors, on a scripted coordinator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from strandline.compat import aiokafka
from strandline.compat.aiokafka import AIOKafkaProducer, OffsetAndMetadata, TopicPartition
from strandline.compat.aiokafka import errors as theirs
from strandline.protocol.messages.transactions import EndTxnRequest

from .scripted import ScriptedCluster
from .scripted_groups import ScriptedGroups
from .scripted_transactions import ScriptedTransactions

P0 = TopicPartition("orders", 0)


@pytest_asyncio.fixture
async def tx() -> AsyncIterator[ScriptedTransactions]:
    cluster = ScriptedCluster()
    tx = ScriptedTransactions(ScriptedGroups(cluster))
    cluster.create("orders", 2)
    async with cluster:
        yield tx


def producer_of(tx: ScriptedTransactions, **options: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(**{"bootstrap_servers": tx.cluster.bootstrap, "transactional_id": "tx", **options})


async def test_block_commits_or_aborts(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        async with producer.transaction():
            future = await producer.send("orders", b"a", partition=0)
        assert (await future).offset == 0
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("orders", b"b", partition=0)
                raise ZeroDivisionError
        await producer.begin_transaction()
        batch = producer.create_batch()
        batch.append(key=None, value=b"c", timestamp=None)
        await producer.send_batch(batch, "orders", partition=0)
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.send("orders", b"d", partition=0)
        await producer.abort_transaction()
    assert tx.committed() == [b"a", b"c"]


async def test_offsets_are_committed_with_the_transaction(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        async with producer.transaction():
            await producer.send_offsets_to_transaction({P0: 3, TopicPartition("orders", 1): OffsetAndMetadata(4, "x")}, "g")
        assert [tx.groups.offset("orders", index) for index in (0, 1)] == [3, 4]
        with pytest.raises(ValueError, match="group_id"):
            await producer.send_offsets_to_transaction({P0: 3}, "")


async def test_misuse_is_an_illegal_operation(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as producer:
        with pytest.raises(aiokafka.IllegalOperation):
            await producer.send("orders", b"a")
        with pytest.raises(aiokafka.IllegalOperation):
            await producer.commit_transaction()
        async with producer.transaction():
            with pytest.raises(aiokafka.IllegalOperation):
                await producer.begin_transaction()
    async with producer_of(tx, transactional_id=None) as plain:
        for call in (plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(aiokafka.IllegalOperation, match="transactional_id"):
                await call()
        with pytest.raises(aiokafka.IllegalOperation):
            plain.transaction()
    with pytest.raises(ValueError, match="acks"):
        producer_of(tx, acks=1)


async def test_error_of_a_record_is_that_of_the_commit(tx: ScriptedTransactions) -> None:
    tx.cluster.produce_fate = lambda broker_id, key: "RECORD_LIST_TOO_LARGE"
    async with producer_of(tx) as producer:
        with pytest.raises(theirs.RecordListTooLargeError):
            async with producer.transaction():
                await producer.send("orders", b"a", partition=0)
        tx.cluster.produce_fate = lambda broker_id, key: "ok"
        async with producer.transaction():
            await producer.send("orders", b"b", partition=0)
    assert tx.committed() == [b"b"]


async def test_fenced_producer_says_so(tx: ScriptedTransactions) -> None:
    async with producer_of(tx) as zombie:
        await zombie.begin_transaction()
        await zombie.send_and_wait("orders", b"a", partition=0)
        async with producer_of(tx):
            with pytest.raises(theirs.ProducerFenced):
                await zombie.commit_transaction()
    assert tx.committed() == []


async def test_commit_without_answer_is_a_timeout(tx: ScriptedTransactions) -> None:
    async with producer_of(tx, request_timeout_ms=300) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("orders", b"a", partition=0)
        tx.fate = lambda request: "request lost" if isinstance(request, EndTxnRequest) else "ok"
        with pytest.raises(theirs.KafkaTimeoutError):
            await producer.commit_transaction()
        tx.fate = lambda request: "ok"
        await producer.commit_transaction()
    assert tx.committed() == [b"a"]
