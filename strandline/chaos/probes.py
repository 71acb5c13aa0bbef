"""Raw requests to one chosen broker, as a producer with stale metadata sends them to a former leader.

A Strandline client would refresh its metadata and go to the new leader; a probe always asks the same broker. Its records
are part of the history, because the check must not take a record that a probe wrote for one without a sender.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from strandline.chaos.picture import Picture
from strandline.chaos.watch import Peer
from strandline.client.producer.encoding import encode_values
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.data import (
    LATEST_TIMESTAMP,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from strandline.testing.history import History

SERVER_TIMEOUT_MS = 2000
"""How long, in ms, the broker may wait for the high watermark before it responds REQUEST_TIMED_OUT."""
ANY_RACK = "probe"
"""Followers serve consumers that name a rack; which one makes no difference to them."""
ANSWER_TIMEOUT_MS = 120_000
"""Longer than any pause: a paused broker answers its requests when it resumes."""
PARTITION = 0
ACKS = {"all": -1, "1": 1}


@dataclass(slots=True)
class Answer:
    """The outcome of one raw produce request. `code` is None if the connection broke before the response."""

    value: bytes
    code: ErrorCode | None
    offset: int = -1

    @property
    def is_acknowledged(self) -> bool:
        return self.code == ErrorCode.NONE

    @property
    def text(self) -> str:
        return "connection lost" if self.code is None else "acknowledged" if self.is_acknowledged else self.code.name


class Prober:
    """Sends raw produce requests to one broker, singly (`send`) or at an interval (`start`)."""

    _numbers = 0

    def __init__(self, peer: Peer, picture: Picture, history: History, acks: str) -> None:
        Prober._numbers += 1
        self.name = f"probe-{Prober._numbers}"
        self.peer = peer
        self.acks = acks
        self.answers: list[Answer] = []
        self._picture = picture
        self._history = history
        self._sent = 0
        self._sending: asyncio.Task[None] | None = None
        self._pending: set[asyncio.Task[Answer]] = set()

    @property
    def sent(self) -> int:
        return self._sent

    def start(self, every_s: float) -> None:
        self._sending = asyncio.create_task(self._send_always(every_s))

    async def stop(self, within_s: float) -> int:
        """Stop sending, wait up to `within_s` seconds for responses, and return the number still missing."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        left: set[asyncio.Task[Answer]] = set()
        if self._pending:
            _, left = await asyncio.wait(self._pending, timeout=within_s)
        self.peer.close()
        await asyncio.gather(*left, return_exceptions=True)
        return len(left)

    async def _send_always(self, every_s: float) -> None:
        while True:
            task = asyncio.create_task(self.send())
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)
            await asyncio.sleep(every_s)

    async def send(self) -> Answer:
        """Send one record in one request, and note the outcome in the history."""
        self._sent += 1
        value = f"{self.name}/{self._sent}".encode()
        send = self._history.invoke(self.name, PARTITION, value, acks=self.acks, idempotent=False)
        batch = encode_values([value], time.time_ns() // 1_000_000, -1, -1, -1)
        where = ProducePartition(self._picture.topic_id, PARTITION)
        # The field for records is empty: it is for decoded requests, and on the wire the records follow the message.
        request = ProduceRequest(None, ACKS[self.acks], SERVER_TIMEOUT_MS, [where], [])
        try:
            response = await self.peer.ask(
                apis.PRODUCE, request, ProduceResponse, records=[[batch]], timeout_ms=ANSWER_TIMEOUT_MS
            )
            (part,) = response.partitions
            answer = Answer(value, to_code(part.error_code), part.base_offset)
        except BrokerError as e:
            answer = Answer(value, None if e.code == ErrorCode.NETWORK_EXCEPTION else e.code)
        if answer.is_acknowledged and self.acks == "all":
            send.ok(answer.offset)
        elif answer.code == ErrorCode.NOT_ENOUGH_REPLICAS:
            send.fail()  # the only error that the broker certainly returns before the append
        else:
            send.info()
        self.answers.append(answer)
        return answer


async def high_watermark(peer: Peer, picture: Picture, partition: int) -> int:
    """The partition's high watermark, as its leader reports it. Raises BrokerError if the leader does not answer."""
    request = ListOffsetsRequest(-1, 0, [ListOffsetsPartition(picture.topic_id, partition, -1, LATEST_TIMESTAMP)])
    response = await peer.ask(apis.LIST_OFFSETS, request, ListOffsetsResponse)
    (part,) = response.partitions
    if part.error_code:
        raise BrokerError(to_code(part.error_code))
    return part.offset


@dataclass(slots=True)
class ReplicaEnd:
    """A follower's response to a request for its log end offset."""

    reaches: bool
    """True if the follower's log end offset is at or beyond the requested offset."""
    high_watermark: int = field(default=-1)


async def replica_end(peer: Peer, picture: Picture, partition: int, offset: int) -> ReplicaEnd:
    """Find whether a follower's log reaches `offset`, with a fetch as a consumer sends it (KIP-392): the follower returns an
    error for an offset beyond its log end. Raises BrokerError if the request as a whole fails."""
    where = FetchPartition(picture.topic_id, partition, -1, offset, -1, 0, 1)
    request = FetchRequest(-1, -1, 0, 0, 1, 0, 0, -1, [where], rack_id=ANY_RACK)
    response = await peer.ask(apis.FETCH, request, FetchResponse)
    if response.error_code:
        raise BrokerError(to_code(response.error_code))
    (part,) = response.partitions
    return ReplicaEnd(not part.error_code, part.high_watermark)
