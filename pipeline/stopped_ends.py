"""Detects end offsets that have not moved for a while. Pure.

An open transaction stops a stream that reads committed records. The last stable offset alone does not distinguish that from a
topic without new records. So the stream reader looks up the end of the log, for partitions whose last stable offset has stopped,
at most once in `WAIT_S` for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strandline.client.consumer.records import TopicPartition

WAIT_S = 60.0


@dataclass(slots=True)
class StoppedEnds:
    """The newest end offset of each partition, and the time since which it has not moved."""

    _since: dict[TopicPartition, tuple[int, float]] = field(default_factory=dict)

    def take(self, ends: Mapping[TopicPartition, int], now_s: float) -> list[TopicPartition]:
        """Takes the newest end offsets. Returns the partitions whose end has not moved for `WAIT_S`, each at most once in that
        time."""
        stopped = []
        since: dict[TopicPartition, tuple[int, float]] = {}
        for tp, end in ends.items():
            offset, at_s = self._since.get(tp, (end, now_s))
            if offset != end:
                at_s = now_s
            elif now_s - at_s >= WAIT_S:
                stopped.append(tp)
                at_s = now_s
            since[tp] = end, at_s
        self._since = since
        return stopped
