"""The errors of the records of a batch that a broker rejected because of some of them (KIP-467)."""

from __future__ import annotations

import pytest

from strandline import DeliveryFailed, Producer
from strandline.client.producer.receipts import Receipt
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.data import RecordError

from .scripted import ScriptedCluster


def error_of(receipt: Receipt) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as caught:
        receipt.result()
    assert caught.value.code == ErrorCode.INVALID_RECORD
    assert caught.value.topic == "orders"
    return caught.value


async def rejected(cluster: ScriptedCluster, producer: Producer, count: int) -> list[DeliveryFailed]:
    """The errors of the records of one batch."""
    await producer.partitions_for("orders")
    receipts = [producer.send_nowait("orders", b"%d" % n) for n in range(count)]
    assert len({id(receipt.batch) for receipt in receipts}) == 1
    await producer.flush()
    return [error_of(receipt) for receipt in receipts]


def scripted(cluster: ScriptedCluster, *invalid: int, count: int = 0) -> None:
    cluster.create("orders")
    cluster.produce_fate = lambda broker_id, key: "INVALID_RECORD"
    cluster.record_errors = [RecordError(index, f"the record has no key ({index})") for index in invalid]
    cluster.invalid_records = count or len(invalid)


@pytest.mark.parametrize("idempotent", [True, False])
async def test_each_record_learns_whether_it_is_invalid(idempotent: bool) -> None:
    async with ScriptedCluster() as cluster:
        scripted(cluster, 1, 3)
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20, enable_idempotence=idempotent) as producer:
            errors = await rejected(cluster, producer, 5)
            assert [error.is_invalid_record for error in errors] == [False, True, False, True, False]
            assert [str(errors[n]).partition(" (")[0] for n in (1, 3)] == ["the record has no key"] * 2
            assert "(3)" in str(errors[3])
            assert str(errors[0]).startswith(
                "the record is valid, but its batch was rejected because of other records: record 1 of the batch has no key"
            )
            cluster.produce_fate = lambda broker_id, key: "ok"
            assert (await producer.send_and_wait("orders", b"next")).offset == 0


async def test_records_behind_the_last_named_one_may_be_invalid() -> None:
    async with ScriptedCluster() as cluster:
        scripted(cluster, 0, 2, count=4)
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
            errors = await rejected(cluster, producer, 6)
            assert [error.is_invalid_record for error in errors] == [True, False, True, None, None, None]
            assert "names only its first invalid records" in str(errors[4])


async def test_an_error_of_the_whole_batch_blames_no_record() -> None:
    """An older broker's error, which names no record, is one of the whole batch, too."""
    async with ScriptedCluster() as cluster:
        scripted(cluster)
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
            errors = await rejected(cluster, producer, 3)
            assert [error.is_invalid_record for error in errors] == [None] * 3


async def test_receipts_of_a_call_know_their_records() -> None:
    async with ScriptedCluster() as cluster:
        scripted(cluster, 2)
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
            receipts = producer.send_many("orders", [b"a", b"b", b"c", b"d"])
            with pytest.raises(DeliveryFailed, match="record 1 of the batch has no key"):
                await receipts
            assert [error_of(receipt).is_invalid_record for receipt in receipts] == [False, False, True, False]


async def test_rows_of_a_named_producer_know_it_too() -> None:
    async with ScriptedCluster() as cluster:
        scripted(cluster, 1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap, linger_ms=20, producer_name="job", producer_work_epoch=1
        ) as producer:
            await producer.written([("orders", 0)])
            receipts = [producer.send_nowait("orders", b"1", partition=0) for _ in range(3)]
            await producer.flush()
            assert [error_of(receipt).is_invalid_record for receipt in receipts] == [False, True, False]
