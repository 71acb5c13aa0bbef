"""The verbs of a story about transactions: producers that act only when the story calls them, the coordinator, and readers.

    shop = await open_transactions(stage)
    first = shop.producer("first")
    await first.init()
    await first.append(0, b"a")              # to partition 0, through its leader
    await first.end(commit=True)

A verb sends one request, keeps the producer id, epoch and sequences of the answer, and raises the `BrokerError` of an error code.
`answered` repeats it after errors that pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from strandline.broker.fetch.fetch_handler import READ_COMMITTED
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages import transactions as messages
from strandline.protocol.messages.data import (
    FetchPartition,
    FetchRequest,
    InitProducerIdRequest,
    ProducePartition,
    ProduceRequest,
)
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.testing.simulation.scenarios.stage import Stage

TOPIC = "orders"
SETTINGS = {
    "transaction.state.log.num.partitions": 1,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 100,
}
TIMEOUT_MS = 60_000
"""The default time-out of a transaction."""
PRODUCE_MS = 5_000


async def open_transactions(
    stage: Stage,
    *,
    partitions: int = 2,
    coordinators: tuple[int, ...] = (3, 1, 2),
    more: Mapping[str, Any] | None = None,
    **configs: Any,
) -> Shop:
    """Start a cluster with a topic whose partitions are led by broker 1 and 2 alternately, and with one partition of
    `__transaction_state` on the brokers `coordinators`; the first one coordinates. `more` are settings of the brokers, `configs`
    those of the topic."""
    replicas = [[1, 2, 3], [2, 3, 1]] * partitions
    await stage.open(topic=TOPIC, replicas=replicas[:partitions], settings={**SETTINGS, **(more or {})}, **configs)
    await stage.create(TRANSACTION_STATE_TOPIC, [coordinators], configs={"cleanup_policy": "compact"})
    shop = Shop(stage)
    await stage.until(lambda: shop.coordinates(coordinators[0]), what="the coordinator serves")
    return shop


class Shop:
    """A transactional id, by default `shop`, and the state of its coordinator."""

    def __init__(self, stage: Stage, transactional_id: str = "shop") -> None:
        self.stage = stage
        self.transactional_id = transactional_id

    # -- the coordinator ----------------------------------------------------------------------------------------------

    @property
    def coordinator(self) -> int:
        return int(self.stage.cluster.image().topic(TRANSACTION_STATE_TOPIC).partitions[0].leader)

    def coordinates(self, broker: int) -> bool:
        """Whether the broker leads and has loaded the transactional ids."""
        server = self.stage.cluster.brokers.get(broker)
        active = None if server is None or server.opened is None else server.opened.transactions.shards.get(0)
        return active is not None and active.is_current and active.loader is None and self.coordinator == broker

    async def moves(self) -> int:
        """Kill the coordinator, and wait until another one has loaded its ids. Returns the dead one."""
        dead = self.coordinator
        self.stage.crash(dead)
        await self.stage.until(lambda: self.coordinator not in (dead, -1), what="another broker leads")
        await self.stage.until(lambda: self.coordinates(self.coordinator), what="it coordinates")
        return dead

    async def state(self) -> str:
        """The state of the transactional id, as Kafka's tools print it."""
        return str((await self.described()).transaction_state)

    async def described(self) -> messages.DescribedTransaction:
        async def ask() -> messages.DescribedTransaction:
            request = messages.DescribeTransactionsRequest([self.transactional_id])
            response = await self.stage.ask(self.coordinator, apis.DESCRIBE_TRANSACTIONS, request)
            described: messages.DescribedTransaction = response.transactions[0]
            _check(described.error_code, described.error_message)
            return described

        found: messages.DescribedTransaction = await self.answered(ask)
        return found

    async def becomes(self, state: str, within_s: float = 20.0) -> None:
        deadline = self.stage.world.now + within_s
        while (found := await self.state()) != state:
            self.stage.must(self.stage.world.now < deadline, f"the transaction becomes {state}; it is {found}")
            await asyncio.sleep(0.02)

    async def answered(self, attempt: Callable[[], Awaitable[Any]], within_s: float = 20.0) -> Any:
        """Repeat the attempt after errors that pass."""
        return await self.stage.retried(attempt, within_s)

    # -- readers of committed records ---------------------------------------------------------------------------------

    async def fetched(
        self, index: int, *, broker: int | None = None, offset: int = 0
    ) -> tuple[Any, list[tuple[int, bytes]], int]:
        """The answer to a reader of committed records, the records in it that are not aborted, and the next offset."""
        stage = self.stage
        wanted = FetchPartition(stage.cluster.topic_id(TOPIC), index, -1, offset, -1, -1, 1 << 20)
        request = FetchRequest(-1, -1, 0, 1, 1 << 20, READ_COMMITTED, 0, -1, [wanted], rack_id="any")
        response = await stage.ask(stage.leader(index) if broker is None else broker, apis.FETCH, request)
        answer = response.partitions[0]
        _check(answer.error_code)
        records = b"".join(bytes(buffer) for buffer in response.records)
        following = max((header.next_offset for _, header in iter_headers(records)), default=offset)
        found = [each for each in _committed(records, answer.aborted_transactions or ()) if each[0] >= offset]
        return answer, found, following

    async def read(self, broker: int, offset: int, index: int = 0) -> list[tuple[int, bytes]]:
        """The committed records of a replica, from an offset to the last stable one. (Takes several fetches, because a response
        ends with its segment.)"""
        found: list[tuple[int, bytes]] = []
        while True:

            async def attempt(at: int = offset) -> Any:
                return await self.fetched(index, broker=broker, offset=at)

            _, more, following = await self.answered(attempt)
            if following == offset:
                return found
            found += more
            offset = following

    async def values(self, index: int = 0) -> list[bytes]:
        """The committed values of a partition."""
        return [value for _, value in await self.read(self.stage.leader(index), 0, index)]

    async def shows(self, values: list[bytes], index: int = 0, within_s: float = 20.0) -> None:
        """Wait until readers of committed records see these values, and no others."""
        deadline = self.stage.world.now + within_s
        while (found := await self.values(index)) != values:
            self.stage.must(self.stage.world.now < deadline, f"readers of partition {index} see {values}; they see {found}")
            await asyncio.sleep(0.02)

    def stable(self, broker: int, index: int = 0) -> int:
        """The last stable offset of a replica."""
        return int(self.stage.replica(broker, index).log.last_stable_offset)

    def markers(self, index: int = 0) -> int:
        """The number of control batches in the leader's log."""
        headers = iter_headers(self.stage.log_bytes(self.stage.leader(index), index))
        return sum(header.is_control for _, header in headers)

    def producer(self, name: str, *, timeout_ms: int = TIMEOUT_MS) -> Producer:
        return Producer(self, name, timeout_ms)


def _committed(records: bytes, aborted: Any) -> Any:
    """Drop the records of aborted transactions: from each first offset on, up to the producer's next marker."""
    waiting = sorted(aborted, key=lambda each: each.first_offset)
    dropped: dict[int, None] = {}
    for position, header in iter_headers(records):
        while waiting and waiting[0].first_offset <= header.last_offset:
            dropped[waiting.pop(0).producer_id] = None
        if header.is_control:
            dropped.pop(header.producer_id, None)
        elif header.producer_id not in dropped:
            yield from ((r.offset, bytes(r.value or b"")) for r in iter_records(records[position : position + header.size]))


def _check(code: int, message: str | None = None) -> None:
    if code:
        raise BrokerError(to_code(code), message)


class Producer:
    """A producer of version 2 of the protocol, which sends a request only when the story calls its verb."""

    def __init__(self, shop: Shop, name: str, timeout_ms: int) -> None:
        self.shop = shop
        self.name = name
        self.timeout_ms = timeout_ms
        self.producer_id = self.epoch = -1
        self._sequences: dict[int, int] = {}

    async def init(self) -> None:
        """Take the transactional id."""
        await self.shop.answered(self.init_once)

    async def init_once(self) -> None:
        request = InitProducerIdRequest(self.shop.transactional_id, self.timeout_ms)
        answer = await self.shop.stage.ask(self.shop.coordinator, apis.INIT_PRODUCER_ID, request)
        _check(answer.error_code, answer.error_message)
        self._goes_on_with(answer.producer_id, answer.producer_epoch)

    async def init_again_once(self) -> None:
        """Ask for the next epoch, as a producer does after an error (KIP-360)."""
        request = InitProducerIdRequest(self.shop.transactional_id, self.timeout_ms, self.producer_id, self.epoch)
        answer = await self.shop.stage.ask(self.shop.coordinator, apis.INIT_PRODUCER_ID, request)
        _check(answer.error_code, answer.error_message)
        self._goes_on_with(answer.producer_id, answer.producer_epoch)

    def _goes_on_with(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch, self._sequences = producer_id, epoch, {}

    async def append(self, index: int, *values: bytes, broker: int | None = None, key: bytes | None = None) -> int:
        """Append to a partition as part of the transaction; returns the base offset."""

        async def attempt() -> int:
            return await self.append_once(index, *values, broker=broker, key=key)

        offset: int = await self.shop.answered(attempt)
        return offset

    async def append_once(self, index: int, *values: bytes, broker: int | None = None, key: bytes | None = None) -> int:
        stage, sequence = self.shop.stage, self._sequences.get(index, 0)
        batch = encode_batch(
            [(key, value, [], stage.world.machine.wall_clock_ms()) for value in values],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        partition = ProducePartition(stage.cluster.topic_id(TOPIC), index)
        request = ProduceRequest(self.shop.transactional_id, -1, PRODUCE_MS, [partition], [])
        leader = stage.leader(index) if broker is None else broker
        answer = (await stage.ask(leader, apis.PRODUCE, request, [[batch]], 2 * PRODUCE_MS)).partitions[0]
        _check(answer.error_code, getattr(answer, "error_message", None))
        self._sequences[index] = sequence + len(values)
        return int(answer.base_offset)

    async def end(self, *, commit: bool) -> None:
        """End the transaction. The request is repeated after errors that pass."""
        await self.shop.answered(lambda: self.end_once(commit=commit))

    async def end_once(self, *, commit: bool) -> None:
        request = messages.EndTxnRequest(self.shop.transactional_id, self.producer_id, self.epoch, commit)
        answer = await self.shop.stage.ask(self.shop.coordinator, apis.END_TXN, request)
        _check(answer.error_code, answer.error_message)
        self._goes_on_with(answer.producer_id, answer.producer_epoch)

    def start(self, attempt: Awaitable[Any]) -> asyncio.Task[Any]:
        """Begin a verb. The task ends with its result or error."""
        task = asyncio.ensure_future(attempt)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a story that ended early never awaits it
        return task


async def code_of(attempt: Awaitable[Any]) -> ErrorCode:
    """The error with which the attempt ends; NONE if it succeeds."""
    try:
        await attempt
    except BrokerError as e:
        return e.code
    return ErrorCode.NONE
