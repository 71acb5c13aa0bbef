"""The metrics of a broker's transaction coordinator. `strandline/observe` reads them.

They count the decisions of this broker, once the record is in its log. Records that are loaded are not counted.
"""

from __future__ import annotations

from enum import StrEnum

from strandline.broker.coordination.load_times import LoadTimes
from strandline.protocol.metrics import Histogram


class End(StrEnum):
    """How a transaction has ended."""

    COMMIT = "commit"
    ABORT = "abort"
    """Aborted by the producer, or because another producer took over the transactional id."""
    TIMEOUT = "timeout"


class TransactionMetrics(LoadTimes):
    """The counters of all shards of a broker. Except for `recent_loads_s`, they only increase."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = dict.fromkeys(End, 0)
        """The number of transactions that were decided in each way, including aborts of transactions without partitions."""
        self.markers_written = 0
        """Markers that leaders have committed: one for each partition of a transaction, more if a marker was repeated."""
        self.append = Histogram()
        """Seconds that an append and the replay of its record took."""
        self.completion = Histogram()
        """Seconds from the commit of a decision until all its markers are written."""
