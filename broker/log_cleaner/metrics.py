"""What the log cleaner measures, with Kafka's meaning."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.broker.log_cleaner.choice import LogToClean


class CleanerMetrics:
    """The measurements of the last rounds, and of the last look at the logs."""

    def __init__(self) -> None:
        self.max_dirty_percent = 0
        """The dirty ratio of the dirtiest log, in percent, when the logs were last looked at."""
        self.max_compaction_delay_ms = 0
        """By how much the most overdue log exceeded max.compaction.lag.ms at that time."""
        self.max_clean_time_s = 0.0
        """The longest of the last rounds of each thread."""
        self.max_buffer_utilization_percent = 0.0
        """How full the fullest map of keys was in the last rounds, in percent."""
        self.recopy_percent = 0
        """The share of the bytes read in the last rounds that was written again."""
        self.cleanings = 0
        self.bytes_removed = 0
        """Never decreases. A round can make a log larger, because a batch with a delete horizon has longer timestamps."""
        self._last: dict[int, tuple[float, float, int, int]] = {}
        """The last round of each thread: seconds, utilization, bytes read and bytes written."""

    def on_assessed(self, logs: Iterable[LogToClean]) -> None:
        logs = list(logs)
        self.max_dirty_percent = int(100 * max((each.dirty_ratio for each in logs), default=0.0))
        self.max_compaction_delay_ms = max((each.overdue_ms for each in logs), default=0)

    def on_cleaned(self, thread: int, seconds: float, utilization: float, read: int, written: int) -> None:
        self.cleanings += 1
        self.bytes_removed += max(0, read - written)
        self._last[thread] = seconds, utilization, read, written
        last = self._last.values()
        self.max_clean_time_s = max(each[0] for each in last)
        self.max_buffer_utilization_percent = 100 * max(each[1] for each in last)
        total = sum(each[2] for each in last)
        self.recopy_percent = int(100 * sum(each[3] for each in last) / total) if total else 0
