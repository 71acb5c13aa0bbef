"""A consumer that reads committed records, and records in the history what it has read, and up to which offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from strandline.client import OffsetOutOfRange, TopicPartition
from strandline.client.errors import CorruptRecords, LogTruncated, StrandlineError
from strandline.testing.history.transactions import TransactionHistory

RETRY_S = 0.1
POLL_MS = 100


class CommittedReader:
    def __init__(self, name: str, places: list[tuple[str, int]], history: TransactionHistory, problems: list[str]) -> None:
        self.name = name
        self.places = places
        self.history = history
        self.problems = problems
        self.positions: dict[tuple[str, int], int] = {}

    async def read(self, consumer: Any, going: Callable[[], bool]) -> None:
        if not await self._assign(consumer, going):
            return
        for place in self.places:
            self.history.seek(self.name, place, 0)
            self.positions[place] = 0
        while going():
            try:
                await self._poll(consumer)
            except (OffsetOutOfRange, LogTruncated, CorruptRecords) as e:
                self.problems.append(f"{self.name}: {type(e).__name__}: {e}")
                await asyncio.sleep(RETRY_S)
            except StrandlineError:
                await asyncio.sleep(RETRY_S)

    async def _assign(self, consumer: Any, going: Callable[[], bool]) -> bool:
        while going():
            try:
                await consumer.assign(self.places)
            except StrandlineError:
                await asyncio.sleep(RETRY_S)
            else:
                return True
        return False

    async def _poll(self, consumer: Any) -> None:
        began_at = self.history.clock()
        polled = await consumer.getmany(timeout_ms=POLL_MS)
        for place in self.places:
            pairs = [(record.offset, bytes(record.value)) for record in polled.get(TopicPartition(*place), ())]
            position = self._position(consumer, place)
            if pairs or position > self.positions[place]:
                self.history.read(self.name, place, pairs, position=position, began_at=began_at)
                self.positions[place] = position

    def _position(self, consumer: Any, place: tuple[str, int]) -> int:
        """The present position. (It is read without an await, during which the consumer could read on.)"""
        return int(consumer.metrics()["partitions"].get(str(TopicPartition(*place)), {}).get("position", -1))
