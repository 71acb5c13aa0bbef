"""A client that appends conditionally (`expect_offset`) to a partition to which other clients write as well.

It sends each record with the offset at which it believes that the log ends. An acknowledged record is at this offset. A rejected
record is in no log: in the history it has failed, so a consumer that reads it shows a bug. An OffsetConflict contains the log
end, which is above the offset, because the leader recognises a record that it has appended before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from strandline.client import OffsetConflict
from strandline.client.errors import StrandlineError
from strandline.testing.history import History
from strandline.testing.simulation.options import ALL, Options

PARTITION = 0
PAUSE_S = 0.3
SIZE_MAX = 50


class Racer:
    def __init__(self, name: str, history: History, options: Options, problems: list[str], draw: Random) -> None:
        self.name = name
        self.history = history
        self.options = options
        self.problems = problems
        self.draw = draw
        self.topic = draw.choice([topic for topic in options.topics if topic.promise == ALL])
        self.offset = 0
        """The offset at which it believes that the log ends."""
        self._sent = 0

    async def work(self, producer: Any, going: Callable[[], bool]) -> None:
        while going():
            await self._send(producer)
            await asyncio.sleep(self.draw.uniform(0, PAUSE_S))

    async def _send(self, producer: Any) -> None:
        self._sent += 1
        value = b"%s.%d %s" % (self.name.encode(), self._sent, b"x" * self.draw.randint(0, SIZE_MAX))
        keyed: dict[str, Any] = {"key": b"k%d" % self.draw.randrange(self.topic.keys)} if self.topic.keys else {}
        if keyed:
            value = b"%s/%s" % (keyed["key"], value)
        place = (self.topic.name, PARTITION)
        send = self.history.invoke(self.name, place, value, acks="all", idempotent=True, **keyed)
        try:
            metadata = await producer.send_and_wait(*place[:1], value, partition=PARTITION, expect_offset=self.offset, **keyed)
        except OffsetConflict as e:
            send.fail()
            self._check(
                e.log_end_offset > self.offset, f"a record is refused at {self.offset}, but the log ends at {e.log_end_offset}"
            )
            self.offset = e.log_end_offset
        except StrandlineError:
            send.info()
        else:
            send.ok(metadata.offset)
            self._check(metadata.offset == self.offset, f"a record is at {metadata.offset}, but was to be at {self.offset}")
            self.offset = metadata.offset + 1

    def _check(self, holds: bool, problem: str) -> None:
        if not holds and not self.options.loss_permitted:
            self.problems.append(f"{self.name}: {problem}")
