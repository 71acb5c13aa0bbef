"""A link: one direction between two machines. Segments on it take time, and may be lost, delayed or cut off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log

RTO_S = 0.2
"""A lost packet is sent again after this time, then after twice the time, and so on."""
FAST = 1e9
"""From this rate on (bytes per second), a link has no limit."""
_SLOW_PIECE_S, _PACKET_BYTES = 0.02, 1460


@dataclass(slots=True)
class Link:
    """Its numbers may be changed at any time: those at the moment when a segment is sent apply to the segment."""

    delay_s: float
    """The shortest time that a segment takes."""
    jitter_s: float
    """Mean of the additional time (exponential)."""
    loss: float = 0.0
    """Share of segments that have to be sent again."""
    cut: int = 0
    """How many faults cut the link at present; 0 means open. Only `Network.cut` and `mend` change it, because they notify the
    connections."""
    bytes_per_s: float = FAST
    clogged_until: float = 0.0
    """Segments that are sent before this time leave at this time."""
    free_at: float = 0.0
    """A slow link is busy with earlier segments until this time. All connections share it."""

    @property
    def piece_bytes(self) -> int:
        """Bytes that a slow link carries as one segment: few, because the receiver acknowledges what it has."""
        return max(_PACKET_BYTES, int(self.bytes_per_s * _SLOW_PIECE_S))

    def arrival(self, now: float, draw: Callable[[], float], size: int) -> float:
        """When a segment arrives that leaves now."""
        start = now
        if self.clogged_until > start:
            start = self.clogged_until
        if self.bytes_per_s < FAST:
            start = self.free_at = max(start, self.free_at) + size / self.bytes_per_s
        return start + self.delay_s - log(1.0 - draw()) * self.jitter_s

    def lost_s(self, draw: Callable[[], float]) -> float:
        """Time until a segment gets through, for all its retransmissions."""
        lost_s, rto_s = 0.0, RTO_S
        if self.loss:
            while draw() < self.loss and lost_s < 1e4:
                lost_s += rto_s
                rto_s *= 2
        return lost_s
