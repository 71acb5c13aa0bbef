"""Raw requests of a transactional producer to a `WireCluster`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from wire_cluster import NOW_MS, WireCluster, retried

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import MetadataTopic
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import (
    AbortedTransaction,
    FetchPartition,
    FetchRequest,
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
)
from strandline.protocol.messages.groups import KEY_TYPE_TRANSACTION, FindCoordinatorRequest
from strandline.protocol.messages.transactions import (
    DescribedTransaction,
    DescribeTransactionsRequest,
    EndTxnRequest,
)
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import decode_batch

ID = "orders-1"
SETTINGS = {"transaction_state_log_num_partitions": 3, "transaction_state_log_min_isr": 1}


class TransactionalProducer:
    """One transactional id, with the requests of a client of TV2. Errors are raised; retriable ones are retried."""

    def __init__(self, cluster: WireCluster, transactional_id: str = ID, timeout_ms: int = 60_000) -> None:
        self.cluster, self.transactional_id, self.timeout_ms = cluster, transactional_id, timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[bytes, int], int] = {}

    async def coordinator(self) -> int:
        async def once() -> int:
            request = FindCoordinatorRequest([self.transactional_id], KEY_TYPE_TRANSACTION)
            found = (await self.cluster.ask(self.cluster.running[0], apis.FIND_COORDINATOR, request)).coordinators[0]
            check(found)
            if found.node_id not in self.cluster.running:
                raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "it does not run")
            return int(found.node_id)

        return await retried(once)

    async def ask(self, api_key: int, body: Message) -> Any:
        async def once() -> Any:
            answer = await self.cluster.ask(await self.coordinator(), api_key, body)
            check(answer)
            return answer

        return await retried(once)

    async def init(self) -> None:
        answer = await self.ask(apis.INIT_PRODUCER_ID, InitProducerIdRequest(self.transactional_id, self.timeout_ms))
        self.take(answer)

    def take(self, answer: Any) -> None:
        self.producer_id, self.epoch, self.sequences = answer.producer_id, answer.producer_epoch, {}

    async def send(self, topic: MetadataTopic, *values: str, partition: int = 0) -> None:
        """Send records of the transaction to the leader, until it accepts them."""
        key = (topic.topic_id, partition)
        sequence = self.sequences.get(key, 0)

        async def once() -> None:
            leader = (await self.cluster.topic(topic.name or "")).partitions[partition].leader_id
            if leader not in self.cluster.running:
                raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
            check(await self.send_once(leader, key, sequence, *values))

        await retried(once)
        self.sequences[key] = sequence + len(values)

    async def send_once(self, leader: int, key: tuple[bytes, int], sequence: int, *values: str) -> Any:
        batch = encode_batch(
            [(None, value.encode(), [], NOW_MS) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = ProduceRequest(self.transactional_id, -1, 5000, [ProducePartition(*key)], [])
        return (await self.cluster.ask(leader, apis.PRODUCE, request, [[batch]])).partitions[0]

    async def end(self, *, commit: bool = True) -> None:
        self.take(await self.ask(apis.END_TXN, EndTxnRequest(self.transactional_id, self.producer_id, self.epoch, commit)))

    async def describe(self) -> DescribedTransaction:
        async def once() -> DescribedTransaction:
            body = DescribeTransactionsRequest([self.transactional_id])
            found = (await self.cluster.ask(await self.coordinator(), apis.DESCRIBE_TRANSACTIONS, body)).transactions[0]
            check(found)
            assert isinstance(found, DescribedTransaction)
            return found

        return await retried(once)


def check(answer: Any) -> None:
    if answer.error_code:
        raise BrokerError(answer.error_code, getattr(answer, "error_message", None))


async def read_committed(cluster: WireCluster, topic: MetadataTopic, partition: int = 0) -> list[str]:
    """The values that a consumer of committed records reads, from the first offset on."""

    async def once() -> list[str]:
        leader = (await cluster.topic(topic.name or "")).partitions[partition].leader_id
        if leader not in cluster.running:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE)
        wanted = FetchPartition(topic.topic_id, partition, -1, 0, -1, -1, 1 << 20)
        response = await cluster.ask(leader, apis.FETCH, FetchRequest(-1, -1, 0, 1, 1 << 20, 1, 0, -1, [wanted]))
        check(response.partitions[0])
        aborted = response.partitions[0].aborted_transactions or ()
        return [text for records in response.records for text in _committed(records, aborted)]

    return await retried(once)


async def committed_as(cluster: WireCluster, topic: MetadataTopic, *values: str, partition: int = 0) -> None:
    """Wait until a consumer of committed records sees these values."""

    async def once() -> None:
        found = await read_committed(cluster, topic, partition)
        if found != list(values):
            raise BrokerError(ErrorCode.OFFSET_NOT_AVAILABLE, f"{found} is committed, and not {values}")

    await retried(once)


def _committed(records: Any, aborted: Iterable[AbortedTransaction]) -> Iterator[str]:
    for position, header in iter_headers(records):
        if header.is_control or any(
            each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
            for each in aborted
        ):
            continue
        for record in decode_batch(records, position, header):
            yield bytes(record.value or b"").decode()
