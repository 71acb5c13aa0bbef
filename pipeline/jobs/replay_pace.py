"""Not faster than that: a limit for a whole replay, shared among its tasks. Pure.

There is no place where tasks of Spark could ask for leave. So the work is dealt to as many tasks as run at the same time,
and each may write its share of the limit: what it has to do, of all that is to do. Then all of them end at about the same time,
and together they are as fast as the limit allows. Where fewer of them run at a time than were expected it is less, never more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(slots=True)
class Pace:
    """Of one task. None: no limit."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None
    _free_at: float | None = None

    def share(self, part: float) -> Pace:
        return replace(
            self,
            records_per_s=None if self.records_per_s is None else self.records_per_s * part,
            bytes_per_s=None if self.bytes_per_s is None else self.bytes_per_s * part,
        )

    def wait_s(self, records: int, size: int, now: float) -> float:
        """So many records of so many bytes were written just now: how long to wait before the next. What was not used in time
        is not saved up: a stall is not followed by a burst."""
        cost = max(
            records / self.records_per_s if self.records_per_s else 0.0, size / self.bytes_per_s if self.bytes_per_s else 0.0
        )
        begin = now if self._free_at is None else max(now, self._free_at)
        self._free_at = begin + cost
        return self._free_at - now

    def step(self, most: int) -> int:
        """Records at a time: a tenth of a second's, so that a slow replay is a trickle, not a drip of lumps."""
        return most if self.records_per_s is None else max(1, min(most, int(self.records_per_s / 10)))


def dealt(sizes: Mapping[int, int], hands: int) -> list[list[int]]:
    """Whose work each task does: at most `hands` tasks, as even as the largest piece allows."""
    tasks: list[list[int]] = [[] for _ in range(max(1, min(hands, len(sizes))))]
    loads = [0] * len(tasks)
    for piece in sorted(sizes, key=lambda p: (-sizes[p], p)):
        least = loads.index(min(loads))
        tasks[least].append(piece)
        loads[least] += sizes[piece]
    return [sorted(task) for task in tasks if task]
