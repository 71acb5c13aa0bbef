"""A lock: the newest record of a partition names its holder, or is empty. The program that appends the next record gets the lock.

The offset of that record is a fencing token. The holder sends it with each record that it may write only while it has the lock:

    token = await lock.acquire(b"alice", patience_s=30)
    await producer.send_and_wait("ledger", entry, partition=0, fencing_token=token)

A holder that was paused for too long finds out there: once its successor has written to the ledger, it gets TokenFenced.
"""

from __future__ import annotations

import asyncio
import math

from strandline import Consumer, OffsetConflict, Producer, TopicPartition


class Lock:
    """A lock in partition 0 of a topic. Producer and consumer are started; each lock needs a consumer of its own."""

    def __init__(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        self.topic, self.producer, self.consumer = topic, producer, consumer
        self.holder, self.end = b"", 0

    async def acquire(self, name: bytes, patience_s: float = math.inf) -> int:
        """Wait for the lock, and take it from a holder that keeps it for longer than `patience_s`. Returns a fencing token, which
        is higher than those of all holders before."""
        await self.consumer.assign([TopicPartition(self.topic, 0)])
        self.consumer.seek(TopicPartition(self.topic, 0), self.end)
        loop = asyncio.get_running_loop()
        taken_at = loop.time()
        while True:
            for records in (await self.consumer.getmany(timeout_ms=100)).values():
                self.holder, self.end, taken_at = records[-1].value, records[-1].offset + 1, loop.time()
            if self.holder == b"" or loop.time() - taken_at > patience_s:
                try:
                    return (await self.producer.send_and_wait(self.topic, name, partition=0, expect_offset=self.end)).offset
                except OffsetConflict:
                    pass  # Another program was faster: read the new holder's record.

    async def release(self, token: int) -> None:
        """Release the lock. OffsetConflict if another program has taken it."""
        await self.producer.send_and_wait(self.topic, b"", partition=0, expect_offset=token + 1)
