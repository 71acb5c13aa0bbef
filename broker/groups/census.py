"""How many groups there are of each type and state, for a scrape of the metrics.

No group counts itself on the path of a request: its state is looked up when it is counted. A broker with many groups counts them
in slices, which begin with a scrape, so that no scrape stops the event loop; the scrape has the numbers of the count before.
(Apache Kafka counts once a minute.)
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
        """The groups as they are now, or, if there are many, as they were when the last complete count was made."""
        if self._left is None:
            self._begin()
        return self._complete

    def _begin(self) -> None:
        shards = list(self._shards())
        # Ids that have nothing but offsets: each of a group that has offsets, too, is taken off when the group is counted.
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
