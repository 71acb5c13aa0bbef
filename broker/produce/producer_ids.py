"""Producer ids for idempotent producers (KIP-730), from blocks that the controller allocates; and the ids of named producers,
which the controller decides one by one.

A block belongs to this broker alone, so each id is given once in the life of a cluster. If the broker stops, the rest of its
block is lost; there are 2^62 ids.
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
"""Errors that are the controller's final decision: it would answer the same again."""


class Registration(Protocol):
    """The broker's registration, whose epoch goes into each request (`broker/process/lifecycle.py`)."""

    @property
    def broker_epoch(self) -> int: ...


class ProducerIds:
    """Gives producer ids to the clients of this broker."""

    def __init__(self, broker_id: int, channel: Channel, registration: Registration) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._registration = registration
        self._next = 0
        self._end = 0
        """The ids in [next, end) belong to this broker and were not given yet."""
        self._lock = asyncio.Lock()

    async def next_id(self) -> int:
        """A producer id that was never given before. Raises BROKER_NOT_AVAILABLE if the controller allocates no block."""
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

    async def of_name(self, name: str, asked: InitProducerIdRequest) -> InitProducerIdResponse:
        """The controller's decision about a producer name, which may be a refusal. It is final: the client would get the same
        answer from another broker.

        Raises BROKER_NOT_AVAILABLE if the controller cannot be reached; then the client asks another broker."""
        request = InitNamedProducerRequest(
            self._broker_id, self._registration.broker_epoch, name, asked.work_epoch, asked.note, asked.producer_epoch
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
    return BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"the controller did not allocate a producer id: {error}")
