"""Counts the groups of each type and state, for a scrape of the metrics.

Requests do not update the counts: a count looks at the state of each group. A scrape starts a count. If there are many groups,
the count runs in slices, so that it does not block the event loop, and the scrape gets the numbers of the previous count. (Apache
Kafka counts once a minute.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from strandline.broker.groups.shard import GroupShard
from strandline.broker.groups.state import CLASSIC, Group
from strandline.broker.purgatory import CallLater

SLICE = 500
"""Groups that are counted at a time: about a millisecond, if they have ten members each."""
EMPTY = "Empty"

StateCounts = Counter[tuple[str, str]]
"""(type, state) -> groups, both as Kafka spells them."""


class GroupCensus:
    """Counts the groups of all loaded shards of a broker."""

    def __init__(self, shards: Callable[[], Iterable[GroupShard]], call_later: CallLater) -> None:
        self._shards = shards
        self._call_later = call_later
        self._complete = StateCounts()
        """The result of the last complete count."""
        self._counting = StateCounts()
        self._left: Iterator[tuple[GroupShard, Group]] | None = None
        """The groups that the present count has not reached; None if no count is under way."""

    def counts(self) -> StateCounts:
        """The last complete count. Starts a new one unless one is under way; if there are few groups, it is complete at once."""
        if self._left is None:
            self._begin()
        return self._complete

    def _begin(self) -> None:
        shards = list(self._shards())
        # First all ids that have offsets. When a group with offsets is counted, its id is subtracted. The ids that have only
        # offsets remain, and count as empty classic groups.
        self._counting = StateCounts({(CLASSIC, EMPTY): sum(shard.offsets.group_count for shard in shards)})
        self._left = iter([(shard, group) for shard in shards for group in shard.groups])
        self._count_slice()

    def _count_slice(self) -> None:
        assert self._left is not None
        slice_ = list(islice(self._left, SLICE))
        for shard, group in slice_:
            self._counting[group.group_type, group.state_name] += 1
            self._counting[CLASSIC, EMPTY] -= shard.offsets.has_offsets(group.group_id)
        if len(slice_) < SLICE:
            self._complete, self._left = self._counting, None
        else:
            self._call_later(0.0, self._count_slice)
