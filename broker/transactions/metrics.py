"""The metrics of a broker's transaction coordinator. `strandline/observe` reads them.

Counted is what this broker has decided, when the record is in its log: a load counts nothing.
"""

from __future__ import annotations

from enum import StrEnum

from strandline.broker.coordination.load_times import LoadTimes
from strandline.protocol.metrics import Histogram


class End(StrEnum):
    """How a transaction has ended."""

    COMMIT = "commit"
    ABORT = "abort"
    """By the producer, or by another one that has taken the id over."""
    TIMEOUT = "timeout"


class TransactionMetrics(LoadTimes):
    """The counters of all shards of a broker. Except for `recent_loads_s`, they only increase."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = dict.fromkeys(End, 0)
        """Transactions that were decided, by how. The abort of a transaction without partitions counts."""
        self.markers_written = 0
        """Markers that leaders have answered for: one for each partition of a transaction."""
        self.append = Histogram()
        """Seconds that an append and the replay of its record took."""
        self.completion = Histogram()
        """Seconds from the commit of a decision until all its markers are written."""
