"""The speed limit of a replay, and how its tasks share it. Pure.

Tasks of Spark cannot coordinate while they run. So there are as many tasks as run at the same time, and each gets the share of
the limit that it has of the work. Then all tasks end at about the same time, and together they are as fast as the limit allows.
If fewer tasks run at the same time than expected, the replay is slower, never faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(slots=True)
class Pace:
    """The speed limit of one task; None means no limit."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None
    _free_at: float | None = None
    """The time, in seconds, at which the next records may be written."""

    def share(self, part: float) -> Pace:
        """The limit of a task that has this part (0 to 1) of the work."""
        return replace(
            self,
            records_per_s=None if self.records_per_s is None else self.records_per_s * part,
            bytes_per_s=None if self.bytes_per_s is None else self.bytes_per_s * part,
        )

    def wait_s(self, records: int, size: int, now: float) -> float:
        """How many seconds to wait after `records` with `size` bytes were written at the time `now`, in seconds. Unused time does
        not accumulate, so no burst follows a stall."""
        cost = max(
            records / self.records_per_s if self.records_per_s else 0.0, size / self.bytes_per_s if self.bytes_per_s else 0.0
        )
        begin = now if self._free_at is None else max(now, self._free_at)
        self._free_at = begin + cost
        return self._free_at - now

    def step(self, most: int) -> int:
        """How many records to write at a time: `most`, or with a limit of records per second at most those of a tenth of a
        second, so that a slow replay is steady."""
        return most if self.records_per_s is None else max(1, min(most, int(self.records_per_s / 10)))


def dealt(sizes: Mapping[int, int], hands: int) -> list[list[int]]:
    """Distributes partitions to at most `hands` tasks, so that the tasks have similar sums of sizes. `sizes`: the size of each
    partition by its number. Returns the partitions of each task, sorted; no task is empty. The largest partition is the lower
    bound for the largest task, because a partition is not split."""
    tasks: list[list[int]] = [[] for _ in range(max(1, min(hands, len(sizes))))]
    loads = [0] * len(tasks)
    for piece in sorted(sizes, key=lambda p: (-sizes[p], p)):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += sizes[piece]
    return [sorted(task) for task in tasks if task]
