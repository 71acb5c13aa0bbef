"""Clients that hold a lock in turn, and write to one partition with the fencing token of their turn.

No holder is notified when another one takes the lock. It continues with its old token, as a paused process would, until a record
is rejected. Then it takes the lock again, with the next token; sometimes it does so earlier. In the history a rejected record has
failed, so a consumer that reads it shows a bug. A record that is sent after the acknowledgement of a higher token must not be
acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client import TokenFenced
from strandline.client.errors import StrandlineError
from strandline.testing.history import History
from strandline.testing.simulation.options import ALL, Options

PARTITION = 0
PAUSE_S = 0.3
TURN_MAX = 12
"""The most records that a holder writes before it takes the lock again."""
SIZE_MAX = 50


class Lock:
    """The service that gives out the lock, with rising tokens. It takes the lock from its holder when another one asks."""

    def __init__(self, options: Options, draw: Random) -> None:
        self.newest = draw.randrange(2**40)
        self.acknowledged = -1
        """The highest token of an acknowledged record."""
        self.topic = draw.choice([topic for topic in options.topics if topic.promise == ALL])
        """The topic to which all holders write."""

    def take(self) -> int:
        self.newest += 1
        return self.newest


class Holder:
    def __init__(self, name: str, lock: Lock, history: History, options: Options, problems: list[str], draw: Random) -> None:
        self.name = name
        self.lock = lock
        self.history = history
        self.options = options
        self.problems = problems
        self.draw = draw
        self._sent = 0

    async def work(self, producer: Any, going: Callable[[], bool]) -> None:
        while going():
            token, left = self.lock.take(), self.draw.randint(1, TURN_MAX)
            while left and going() and await self._send(producer, token):
                left -= 1
                await asyncio.sleep(self.draw.uniform(0, PAUSE_S))
            await asyncio.sleep(self.draw.uniform(0, PAUSE_S))

    async def _send(self, producer: Any, token: int) -> bool:
        """Send one record. False if it was rejected, so that the turn is over."""
        self._sent += 1
        value = b"%s.%d %s" % (self.name.encode(), self._sent, b"x" * self.draw.randint(0, SIZE_MAX))
        keyed: dict[str, Any] = {}
        if self.lock.topic.keys:
            keyed = {"key": b"k%d" % self.draw.randrange(self.lock.topic.keys)}
            value = b"%s/%s" % (keyed["key"], value)
        topic, acknowledged = self.lock.topic.name, self.lock.acknowledged
        place = (topic, PARTITION)
        send = self.history.invoke(self.name, place, value, acks="all", idempotent=True, fencing_token=token, **keyed)
        try:
            metadata = await producer.send_and_wait(topic, value, partition=PARTITION, fencing_token=token, **keyed)
        except TokenFenced as e:
            send.fail()
            self._check(token < e.highest_token <= self.lock.newest, f"token {token} is rejected for token {e.highest_token}")
            return False
        except StrandlineError:
            send.info()
        else:
            send.ok(metadata.offset)
            self._check(token >= acknowledged, f"token {token} is acknowledged, although token {acknowledged} was before")
            self.lock.acknowledged = max(self.lock.acknowledged, token)
        return True

    def _check(self, holds: bool, problem: str) -> None:
        if not holds and not self.options.loss_permitted:
            self.problems.append(f"{self.name}: {problem}")
