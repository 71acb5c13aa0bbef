"""The look-ups of topics that are in progress in one shard, at most one per group.

The first slice of a look-up runs at once, and usually finishes it: a member that joins with an expression gets the topics in
the same response. A deadline runs the other slices one by one, and the event loop does its other work in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from strandline.broker.groups.consumer.regex_scans import RegexScan
from strandline.broker.groups.deadlines import Deadlines
from strandline.broker.groups.records.types import RegularExpressionValue
from strandline.broker.groups.result import Result

SCANS = "regex scans"
PAUSE_S = 0.001
"""The pause between two slices."""

OnFinished = Callable[[str, RegexScan, float, int], Result | None]


class RegexLookups:
    """The scans in progress, one per group. They take turns, slice by slice."""

    def __init__(self, deadlines: Deadlines, on_finished: OnFinished) -> None:
        self._deadlines = deadlines
        self._on_finished = on_finished
        self._scans: dict[str, RegexScan] = {}

    def __contains__(self, group_id: str) -> bool:
        return group_id in self._scans

    def look_up(self, group_id: str, regexes: Iterable[str], names: Iterable[str], now: float) -> RegexScan | None:
        """Look up expressions among all topics; returns the scan if it is finished. A look-up of the group that is in progress
        starts again, together with these expressions."""
        known = self._scans.pop(group_id, None)
        scan = RegexScan([*regexes, *(() if known is None else known.regexes)], names, {})
        return self._begin(group_id, scan, now)

    def look_again(
        self,
        group_id: str,
        known: Mapping[str, RegularExpressionValue],
        names: Iterable[str],
        all_names: Iterable[str],
        now: float,
    ) -> RegexScan | None:
        """Look up the group's expressions among topics that were created or deleted; returns the scan if it is finished. `known`:
        the previous topics of the expressions. A look-up in progress gets `names`, too; if it does not contain all of these
        expressions, it starts again with them."""
        scan = self._scans.get(group_id)
        if scan is None:
            return self._begin(group_id, RegexScan(known, names, known), now)
        if not known.keys() <= set(scan.regexes):
            return self.look_up(group_id, known, all_names, now)
        scan.add(names)
        return None

    def enqueue(self, group_id: str, regexes: Iterable[str], names: Iterable[str], now: float) -> None:
        """Look up expressions among all topics, beginning with the next slice."""
        self._scans[group_id] = RegexScan(regexes, names, {})
        self._arm(now)

    def _begin(self, group_id: str, scan: RegexScan, now: float) -> RegexScan | None:
        if scan.advance():
            return scan
        self._scans[group_id] = scan
        self._arm(now)
        return None

    def _arm(self, now: float) -> None:
        self._deadlines.set((SCANS,), now + PAUSE_S, self._on_due)

    def _on_due(self, now: float, now_ms: int) -> Result | None:
        if not self._scans:
            return None
        group_id, scan = next(iter(self._scans.items()))
        del self._scans[group_id]
        is_finished = scan.advance()
        if not is_finished:
            self._scans[group_id] = scan
        if self._scans:
            self._arm(now)
        return self._on_finished(group_id, scan, now, now_ms) if is_finished else None
