"""Assigns ranges to tasks. Pure.

A Spark task costs tens of milliseconds in Python, however little it reads. So if a batch has many small ranges, a task reads
several of them.

The tasks depend on the offsets of the batch and on its `Packing`, never on the number of cores. A batch that is run again after a
restart, perhaps on other machines, must have the same tasks, because an exactly-once sink names its producers by task. A stream
therefore stores the `Packing` of each batch in the checkpoint, beside the offsets. A changed option applies from the next batch.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from strandline.pipeline.planning import Range, split
from strandline.protocol.errors import UsageError

SMALL_OFFSETS = 10_000
"""Rule 1: a batch has one task per `SMALL_OFFSETS` offsets, up to `TASKS`. A task costs 60 ms of processor time before its first
row; reading this many small records costs less."""
TASKS = 8
"""Rule 1: a large batch has at least this many tasks, if it has as many ranges. Enough for the cores of most machines, and few
enough that the fixed costs of the tasks stay small."""
TASK_OFFSETS = 50_000
"""Rule 1: a task of several ranges reads at most this many offsets. Reading them takes about as long as the task's fixed
costs."""
NEWEST_RULE = 1


@dataclass(frozen=True, slots=True)
class Packing:
    """How a batch is divided into tasks: the user's options, and the rule that applies to what they leave open."""

    min_tasks: int = 0
    """Option `minPartitions`."""
    max_tasks: int | None = None
    """Option `maxPartitions`. None: the rule decides."""
    max_offsets: int | None = None
    """Option `maxRecordsPerPartition`: a task reads at most this many offsets, even if that takes more than `max_tasks` tasks."""
    rule: int = NEWEST_RULE
    """1: the three constants above. 0: every range is a task of its own, as in releases before `maxPartitions`. Each change of
    the rule needs a new number, because checkpoints hold batches that were planned by the old one."""

    def to_json(self) -> dict[str, int]:
        """The form in the checkpoint: the rule, and the options that are set."""
        given = {
            "rule": self.rule,
            "minPartitions": self.min_tasks or None,
            "maxPartitions": self.max_tasks,
            "maxRecordsPerPartition": self.max_offsets,
        }
        return {name: value for name, value in sorted(given.items()) if value is not None}

    def of_batch(self, offsets: Mapping[str, Any]) -> Packing:
        """The packing of the batch that ends at these offsets (JSON). If they hold none, an earlier release planned the batch:
        the options of `self` and rule 0 apply. Raises UsageError if a newer release planned it."""
        stored = offsets.get("packing")
        if stored is None:
            return Packing(self.min_tasks, None, self.max_offsets, rule=0)
        names = ("rule", "minPartitions", "maxPartitions", "maxRecordsPerPartition")
        if not isinstance(stored, dict) or not all(type(stored.get(name, 1)) is int for name in names):
            raise UsageError(f"the checkpoint holds {stored!r}, which does not say how a batch is divided into tasks")
        rule = stored.get("rule", NEWEST_RULE)
        if not 0 <= rule <= NEWEST_RULE:
            raise UsageError(
                f"the checkpoint's last batch was divided into tasks by rule {rule}, and this release knows rules up to "
                f"{NEWEST_RULE}: continue with the newer release that began it"
            )
        return Packing(stored.get("minPartitions", 0), stored.get("maxPartitions"), stored.get("maxRecordsPerPartition"), rule)


def packed(ranges: Sequence[Range], packing: Packing) -> list[tuple[Range, ...]]:
    """The ranges of each task. Every offset belongs to exactly one task, and a task reads a partition's offsets in order."""
    pieces = split(ranges, packing.min_tasks, packing.max_offsets)
    most, most_offsets = _limits(packing, sum(piece.size for piece in pieces))
    if packing.rule == 0 or len(pieces) <= most:
        return [(piece,) for piece in pieces]
    bins = _fill(pieces, most, most_offsets)
    return [tuple(pieces[index] for index in sorted(held)) for held in sorted(bins, key=min)]


def _limits(packing: Packing, size: int) -> tuple[int, int | None]:
    """Limits for a batch of `size` offsets: the number of tasks, and the offsets of a task with several ranges."""
    if packing.max_tasks is not None:
        return packing.max_tasks, packing.max_offsets
    tasks = max(1, packing.min_tasks, min(TASKS, ceil(size / SMALL_OFFSETS)))
    return tasks, min(TASK_OFFSETS, packing.max_offsets or TASK_OFFSETS)


def _fill(pieces: Sequence[Range], count: int, most_offsets: int | None) -> list[list[int]]:
    """Distributes pieces to `count` bins, the largest piece first, each into the bin with the fewest offsets; returns the indexes
    of the pieces in each bin. A bin with several pieces holds at most `most_offsets`; if no bin has room, one more is added."""
    bins: list[list[int]] = [[] for _ in range(count)]
    heap = [(0, number) for number in range(count)]
    for index in sorted(range(len(pieces)), key=lambda i: (-pieces[i].size, i)):
        load, number = heap[0]
        size = pieces[index].size
        if load and most_offsets is not None and load + size > most_offsets:
            heapq.heappush(heap, (size, len(bins)))
            bins.append([index])
        else:
            heapq.heapreplace(heap, (load + size, number))
            bins[number].append(index)
    return [held for held in bins if held]
