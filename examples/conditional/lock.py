"""A lock: the newest record of a partition names its holder, or is empty. Whoever appends the next record has the lock."""

from __future__ import annotations

from strandline import Consumer, OffsetConflict, Producer, TopicPartition


class Lock:
    """A lock in partition 0 of a topic. Producer and consumer are started; each lock needs a consumer of its own."""

    def __init__(self, topic: str, producer: Producer, consumer: Consumer) -> None:
        self.topic, self.producer, self.consumer = topic, producer, consumer
        self.holder, self.end = b"", 0

    async def acquire(self, name: bytes) -> int:
        """Wait for the lock. Returns a fencing token, which is higher than that of every holder before: a store that remembers
        the highest token it has seen can reject a holder that was away for too long."""
        await self.consumer.assign([TopicPartition(self.topic, 0)])
        self.consumer.seek(TopicPartition(self.topic, 0), self.end)
        while True:
            for records in (await self.consumer.getmany(timeout_ms=100)).values():
                self.holder, self.end = records[-1].value, records[-1].offset + 1
            if self.holder == b"":
                try:
                    return (await self.producer.send_and_wait(self.topic, name, partition=0, expect_offset=self.end)).offset
                except OffsetConflict:
                    pass  # Another one was faster: read who.

    async def release(self, token: int) -> None:
        """Give the lock back. Nobody appends while it is held, so the log still ends behind the holder's record."""
        await self.producer.send_and_wait(self.topic, b"", partition=0, expect_offset=token + 1)
