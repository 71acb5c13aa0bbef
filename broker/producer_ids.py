"""Producer ids for idempotent producers: taken from blocks that the controller hands out.

A block belongs to this broker alone, so an id is given once in the life of a cluster. A broker that dies takes the rest
of its block with it; there are 2^63 of them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from strandline.broker.controller_channel import Channel
from strandline.protocol.apis import ALLOCATE_PRODUCER_IDS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import AllocateProducerIdsRequest, AllocateProducerIdsResponse

TIMEOUT_MS = 10_000


class Registration(Protocol):
    @property
    def broker_epoch(self) -> int: ...


class ProducerIds:
    def __init__(self, broker_id: int, channel: Channel, registration: Registration) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._registration = registration
        self._next = 0
        self._end = 0
        """Ids in [next, end) are ours to give."""
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        """An id that nobody had before. `BrokerError`, retriable, when the controller can not be asked."""
        while self._next >= self._end:
            async with self._lock:
                if self._next >= self._end:
                    await self._take_block()
        self._next += 1
        return self._next - 1

    async def _take_block(self) -> None:
        request = AllocateProducerIdsRequest(self._broker_id, self._registration.broker_epoch)
        try:
            answer = await self._channel.request(ALLOCATE_PRODUCER_IDS, request, TIMEOUT_MS)
            response = cast(AllocateProducerIdsResponse, answer)
            if response.error_code:
                raise BrokerError(response.error_code)
        except BrokerError as e:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"no producer ids from the controller: {e}") from None
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len
