"""An event store: what may happen next depends on everything that has happened.

A stream is one partition, and its version is the offset of the next event. A command reads the state at some version, decides on
one event, and appends it at this version. If another command was faster, the append is rejected; the command reads the new
events and decides again. So no decision rests on an old state, and no lock is held by a program that has died.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from strandline import Consumer, OffsetConflict, Producer, TopicPartition

Event = dict[str, Any]


class Refused(Exception):
    """The state does not permit the command."""


class Accounts:
    """The balances of accounts, as a fold over the events of one stream."""

    def __init__(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        self._topic, self._producer, self._consumer = topic, producer, consumer
        self._stream = TopicPartition(topic, 0)
        self.version = 0
        self.balances: dict[str, int] = {}

    async def open(self) -> None:
        await self._consumer.assign([self._stream])
        await self._consumer.seek_to_beginning()
        await self._read_up_to((await self._consumer.end_offsets([self._stream]))[self._stream])

    async def deposit(self, account: str, cents: int) -> None:
        await self._append(lambda: {"account": account, "cents": cents})

    async def withdraw(self, account: str, cents: int) -> None:
        def decide() -> Event:
            if self.balances.get(account, 0) < cents:
                raise Refused(f"{account} has {self.balances.get(account, 0)} cents, not {cents}")
            return {"account": account, "cents": -cents}

        await self._append(decide)

    async def _append(self, decide: Callable[[], Event]) -> None:
        while True:
            event = json.dumps(decide()).encode()
            try:
                await self._producer.send_and_wait(self._topic, event, partition=0, expect_offset=self.version)
            except OffsetConflict as conflict:
                await self._read_up_to(conflict.log_end_offset)
            else:
                return await self._read_up_to(self.version + 1)

    async def _read_up_to(self, version: int) -> None:
        while self.version < version:
            record = await self._consumer.getone()
            event = json.loads(record.value)
            self.balances[event["account"]] = self.balances.get(event["account"], 0) + event["cents"]
            self.version = record.offset + 1
