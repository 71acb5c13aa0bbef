"""`fencing_token`: after a record with a higher token, a partition rejects those with lower ones, with a typed error."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from strandline.client.errors import DeliveryFailed, OffsetConflict, TokenFenced, UsageError
from strandline.client.options import ProducerOptions
from strandline.client.producer.producer import Producer
from strandline.protocol.errors import ErrorCode
from strandline.protocol.records.batch import read_header
from strandline.protocol.records.fence import FENCING_TOKEN_MAX

from .scripted import ScriptedCluster


async def test_lower_token_is_fenced() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for token, value in ((5, b"0"), (5, b"1"), (7, b"2"), (FENCING_TOKEN_MAX, b"3")):
                await producer.send_and_wait("orders", value, partition=0, fencing_token=token)
            with pytest.raises(TokenFenced) as caught:
                await producer.send_and_wait("orders", b"x", partition=0, fencing_token=7)
            fenced = caught.value
            assert (fenced.fencing_token, fenced.highest_token) == (7, FENCING_TOKEN_MAX)
            assert (fenced.topic, fenced.partition, fenced.attempts) == ("orders", 0, 1)
            assert (fenced.code, fenced.retriable) == (ErrorCode.FENCED_TOKEN, False)
            text = f"fencing token 7 is fenced: a record with token {FENCING_TOKEN_MAX} came before; nothing was written ("
            assert str(fenced).startswith(text)
            assert producer.metrics()["failed_records"] == 1
        assert cluster.values("orders") == [b"0", b"1", b"2", b"3"]


async def test_each_way_of_sending_carries_a_token() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"first", partition=0, fencing_token=9)
            receipts = [
                await producer.send("orders", b"x", partition=0, fencing_token=1),
                producer.send_nowait("orders", b"x", key=b"k", fencing_token=2),
                producer.send_many("orders", [b"x", b"y"], partition=0, fencing_token=3),
            ]
            for receipt in receipts:
                with pytest.raises(TokenFenced):
                    await receipt
        assert cluster.values("orders") == [b"first"]


async def test_token_of_the_options_counts_for_each_record() -> None:
    """These records share batches, as records without a token do."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, fencing_token=4, linger_ms=20) as producer:
            plain = [producer.send_nowait("orders", b"%d" % n) for n in range(3)]
            many = producer.send_many("orders", [b"3", b"4"])
            columns = await producer.send_columns("orders", [b"5", b"6"])
            assert [(await receipt).offset for receipt in (*plain, *many, *columns)] == list(range(7))
            assert len(cluster.produce_requests) == 1
            assert cluster.partition("orders").fencing_token == 4
            assert (await producer.send_and_wait("orders", b"7", partition=0, expect_offset=7)).offset == 7
            await producer.send_and_wait("orders", b"8", partition=0, fencing_token=6)
            with pytest.raises(TokenFenced, match="token 4 is fenced: a record with token 6 came before"):
                await producer.send_and_wait("orders", b"x")
            with pytest.raises(TokenFenced, match="token 4 is fenced"):
                await producer.send_and_wait("orders", b"x", partition=0, expect_offset=9)
        assert len(cluster.values("orders")) == 9


async def test_record_without_a_token_is_not_affected() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0", partition=0, fencing_token=3)
            assert (await producer.send_and_wait("orders", b"1")).offset == 1


async def test_record_with_a_token_keeps_its_place_in_the_order() -> None:
    """It does so also before metadata is known. A batch has one token, so records of the producer's token do not join it."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=50, fencing_token=1) as producer:
            for _ in range(2):
                receipts = [
                    producer.send_nowait("orders", b"a"),
                    producer.send_nowait("orders", b"b", partition=0, fencing_token=1),
                    producer.send_nowait("orders", b"c"),
                    producer.send_nowait("orders", b"d"),
                ]
                await asyncio.gather(*receipts)
        assert cluster.values("orders") == [b"a", b"b", b"c", b"d"] * 2


@pytest.mark.parametrize("moves", [False, True])
async def test_retry_of_a_written_record_is_a_success(moves: bool) -> None:
    """Its response was lost, and meanwhile another program raised the token; perhaps another broker leads since."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        lost: list[int] = []

        def lose_first(broker_id: int, key: object) -> str:
            lost.append(broker_id)
            if len(lost) > 1:
                return "ok"
            asyncio.get_running_loop().call_soon(take_over)
            return "response lost"

        def take_over() -> None:
            cluster.partition("orders").fencing_token = 8
            if moves:
                cluster.move_leader("orders", 0, 2)

        cluster.produce_fate = lose_first
        async with Producer(bootstrap_servers=cluster.bootstrap, fencing_token=5) as producer:
            assert (await producer.send_and_wait("orders", b"mine", partition=0)).offset == 0
            with pytest.raises(TokenFenced):
                await producer.send_and_wait("orders", b"next", partition=0)
        assert len(lost) > 2
        assert cluster.values("orders") == [b"mine"]


async def test_fenced_token_precedes_a_conflict() -> None:
    """The conflict would invite the program to read on and send again."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0", partition=0, fencing_token=3, expect_offset=0)
            with pytest.raises(TokenFenced):
                await producer.send_and_wait("orders", b"x", partition=0, fencing_token=2, expect_offset=0)
            with pytest.raises(OffsetConflict):
                await producer.send_and_wait("orders", b"x", partition=0, fencing_token=4, expect_offset=0)
            assert cluster.partition("orders").fencing_token == 3, "nothing was written, so nothing was raised"


async def test_records_behind_a_fenced_one_are_delivered() -> None:
    """Their sequence numbers follow that of the rejected batch."""
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            await producer.send_and_wait("orders", b"0", partition=0, fencing_token=5)
            fenced = [producer.send_nowait("orders", b"x", partition=0, fencing_token=n) for n in range(3)]
            after = [producer.send_nowait("orders", b"%d" % n, partition=0) for n in (1, 2)]
            assert [(await receipt).offset for receipt in after] == [1, 2]
            for receipt in fenced:
                with pytest.raises(TokenFenced):
                    await receipt
        assert cluster.values("orders") == [b"0", b"1", b"2"]


async def test_halves_of_a_batch_that_is_too_large_keep_the_token() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        cluster.max_message_bytes = 500
        cluster.partition("orders").fencing_token = 6
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=5, fencing_token=5) as producer:
            receipts = [producer.send_nowait("orders", bytes(100)) for _ in range(8)]
            for receipt in receipts:
                with pytest.raises(TokenFenced):
                    await receipt
        sizes = [read_header(data).record_count for sent in cluster.produce_requests for _, data in sent]
        assert 8 in sizes
        assert 4 in sizes
        assert cluster.values("orders") == []


@pytest.mark.parametrize("version", [0, 1])
async def test_old_broker_fails_only_the_record_with_a_token(version: int) -> None:
    """A broker of version 1 supports expected offsets, one of version 0 not even these. The other records of the request are sent
    again."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders", 3)
        cluster.newest_produce_version = version
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20) as producer:
            await producer.partitions_for("orders")
            plain = producer.send_nowait("orders", b"plain", partition=1)
            fencing = producer.send_nowait("orders", b"x", partition=0, fencing_token=0)
            conditional = producer.send_nowait("orders", b"c", partition=2, expect_offset=0)
            with pytest.raises(DeliveryFailed, match="the broker is of an older version, which has no fencing tokens") as e:
                await fencing
            assert e.value.code == ErrorCode.UNSUPPORTED_VERSION
            assert (await plain).offset == 0
            if version:
                assert (await conditional).offset == 0
            else:
                with pytest.raises(DeliveryFailed, match="which has no conditional appends"):
                    await conditional


@pytest.mark.parametrize(
    ("options", "token", "message"),
    [
        ({"acks": 1}, 0, "fencing_token needs an idempotent producer"),
        ({"enable_idempotence": False}, 0, "fencing_token needs an idempotent producer"),
        ({"producer_name": "sink"}, 0, "fencing_token needs a producer without a name"),
        ({}, -1, "fencing_token is a whole number of at least 0, not -1"),
        ({}, "1", "fencing_token is a whole number"),
        ({}, True, "fencing_token is a whole number"),
        ({}, FENCING_TOKEN_MAX + 1, "fencing_token is a whole number"),
    ],
)
async def test_impossible_token_is_a_usage_error(options: dict[str, Any], token: Any, message: str) -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        async with Producer(bootstrap_servers=cluster.bootstrap, **options) as producer:
            for call in (producer.send, producer.send_and_wait):
                with pytest.raises(UsageError, match=message):
                    await call("orders", b"x", partition=0, fencing_token=token)
            for plain_call, value in ((producer.send_nowait, b"x"), (producer.send_many, [b"x"])):
                with pytest.raises(UsageError, match=message):
                    plain_call("orders", value, partition=0, fencing_token=token)  # type: ignore[operator]
        assert cluster.values("orders") == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acks": 0}, "fencing_token needs an idempotent producer"),
        ({"producer_name": "sink"}, "fencing_token needs a producer without a name"),
    ],
)
def test_options_with_an_impossible_token_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ProducerOptions(fencing_token=1, **options)
