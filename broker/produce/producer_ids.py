"""Producer ids for idempotent producers: taken from blocks that the controller hands out; those of a name, one by one.

A block belongs to this broker alone, so an id is given once in the life of a cluster. A broker that dies takes the rest
of its block with it; there are 2^62 of them.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from strandline.broker.process.controller_channel import Channel
from strandline.protocol.apis import ALLOCATE_PRODUCER_IDS, INIT_NAMED_PRODUCER
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    InitNamedProducerRequest,
    InitNamedProducerResponse,
)
from strandline.protocol.messages.data import InitProducerIdRequest, InitProducerIdResponse

TIMEOUT_MS = 10_000

_DECIDED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
"""The controller will not say anything else however often it is asked."""


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
            raise _unanswered(e) from None
        self._next = response.producer_id_start
        self._end = response.producer_id_start + response.producer_id_len

    async def of_name(self, asked: InitProducerIdRequest) -> InitProducerIdResponse:
        """What the controller decides about the name, be it a refusal. `BrokerError`, retriable, when it can not be asked:
        the client asks the next broker then, but a decision is one wherever it was asked for."""
        assert asked.name is not None, "an id without a name is ours to give"
        request = InitNamedProducerRequest(
            self._broker_id, self._registration.broker_epoch, asked.name, asked.work_epoch, asked.note, asked.producer_epoch
        )
        try:
            answer = await self._channel.request(INIT_NAMED_PRODUCER, request, TIMEOUT_MS)
        except BrokerError as e:
            if e.code in _DECIDED:
                return InitProducerIdResponse(e.code, error_message=e.message)
            raise _unanswered(e) from None
        response = cast(InitNamedProducerResponse, answer)
        return InitProducerIdResponse(response.error_code, response.producer_id, response.producer_epoch, note=response.note)


def _unanswered(error: BrokerError) -> BrokerError:
    return BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"no producer ids from the controller: {error}")
