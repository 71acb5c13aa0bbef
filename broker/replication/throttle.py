"""The throttle of reassignments (KIP-73): how many bytes a broker may send to, or receive for, the replicas that they add. Pure.

A broker has two, one for each direction. They slow down only an added replica that is not in the ISR yet. A member of the ISR is
never slowed down: it would leave the ISR, and with it the high watermark would stop. The rate belongs to the reassignment in the
metadata and ends with it; in Kafka it is a configuration that an operator has to remove.

Each byte of a partition costs 1 / rate seconds. So partitions with the same rate share it, and a partition never gets more than
its own rate.
"""

from __future__ import annotations

BURST_S = 0.5
"""Up to this much unused time may be used later, so that the average rate does not depend on when followers fetch."""

CHUNK_S = 0.1
"""A chunk is the bytes that the rate permits in this time. A fetch asks a throttled partition for at most one chunk, and a
response that has cost this much time gets no records of further throttled partitions. A follower may receive a chunk from each
leader before the first of them is counted, so large chunks would exceed the rate."""


class ReplicationThrottle:
    """One direction of one broker."""

    def __init__(self) -> None:
        self.paid_until = float("-inf")
        """The time at which the bytes so far are paid for (loop time, in seconds). Until then, no throttled byte is sent or
        received."""

    def is_exceeded(self, now: float) -> bool:
        return self.paid_until > now

    def record(self, cost_s: float, now: float) -> None:
        """Count bytes: `cost_s` is their number divided by the rate. They may exceed what the rate permits, because a batch is
        sent whole; then the next bytes wait longer."""
        self.paid_until = max(self.paid_until, now - BURST_S) + cost_s
