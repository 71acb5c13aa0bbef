"""A link: one direction between two machines. What travels it takes time, and may be lost, held up or cut off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

RTO_S = 0.2
"""A lost packet is sent again after this, then after twice as long, and so on."""
FAST = 1e9
"""Bytes per second from which on a link is as fast as may be."""
_SLOW_PIECE_S, _PACKET_BYTES = 0.02, 1460


@dataclass(slots=True)
class Link:
    """Its numbers may be changed at any time: they are looked at for each segment."""

    delay_s: float
    """The shortest way."""
    jitter_s: float
    """Mean of what is added to it (exponential)."""
    loss: float = 0.0
    """Share of segments that must be sent again."""
    cut: int = 0
    """How many faults keep it cut now; 0: open. Changed by `Network.cut` and `mend` alone, which tell the connections."""
    bytes_per_s: float = FAST
    clogged_until: float = 0.0
    """What is sent before then leaves then."""
    free_at: float = 0.0
    """Of a slow link: until then it is busy with what was sent before. All connections share it."""

    @property
    def piece_bytes(self) -> int:
        """How much travels a slow link together: little, since the receiver acknowledges what it has."""
        return max(_PACKET_BYTES, int(self.bytes_per_s * _SLOW_PIECE_S))

    def arrival(self, now: float, draw: Callable[[], float], size: int) -> float:
        """When it is there, if it leaves now."""
        start = now
        if self.clogged_until > start:
            start = self.clogged_until
        if self.bytes_per_s < FAST:
            start = self.free_at = max(start, self.free_at) + size / self.bytes_per_s
        return start + self.delay_s - log(1.0 - draw()) * self.jitter_s

    def lost_s(self, draw: Callable[[], float]) -> float:
        """What it takes to send it again until it is not lost."""
        lost_s, rto_s = 0.0, RTO_S
        if self.loss:
            while draw() < self.loss and lost_s < 1e4:
                lost_s += rto_s
                rto_s *= 2
        return lost_s
