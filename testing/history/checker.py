"""`check`: runs all checks on a history, one partition after the other."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import TypeVar

from strandline.testing.history.deletions import check_deleted_keys
from strandline.testing.history.dumps import Dump, check_dumps
from strandline.testing.history.operations import (
    EVERY_ACK,
    FAIL,
    INFO,
    OK,
    OPEN,
    Acks,
    Declared,
    History,
    Latest,
    Partition,
    Poll,
    SeenEpoch,
    Send,
    Value,
    acks_numbers,
)
from strandline.testing.history.order import check_order
from strandline.testing.history.reads import check_reads
from strandline.testing.history.realtime import check_latest, check_stale_leaders, check_unseen, worst_lag
from strandline.testing.history.verdict import Findings, Lag, Verdict, short, unseen_over_time
from strandline.testing.history.view import View
from strandline.testing.history.writes import (
    check_duplicates,
    check_inconsistent_offsets,
    check_lost_writes,
    check_reads_of_nothing,
)


def check(
    history: History,
    *,
    acks: Acks = EVERY_ACK,
    idempotent: bool = True,
    lag_s_max: float | None = None,
    replicas: Mapping[Partition, Mapping[str, Iterable[Dump]]] | None = None,
) -> Verdict:
    """Check a history for anomalies (listed in the package's docstring) and return the verdict.

    `acks`: the acknowledgements that are promises. By default all: a record whose producer received an offset must stay there.
    With `acks="all"` each send is held to Kafka's promise for its own acks instead, so a record acknowledged by its leader
    alone (acks=1) may be lost, and is then counted in `Verdict.unpromised_lost`. `idempotent`: whether sends that do not say so
    themselves are idempotent. `lag_s_max`: a poll that is more seconds behind is an anomaly; without it the worst lag is only
    measured. `replicas`: partition -> replica -> its records as (offset, epoch, bytes) by ascending offset, which must be equal.
    ValueError: `acks` is not one or several of 0, 1 and "all".
    """
    checker = _Checker(history, acks_numbers(acks), idempotent, lag_s_max)
    for partition in checker.partitions():
        checker.judge(partition)
    checker.judge_unplaced()
    for partition, dumps in (replicas or {}).items():
        declared = history.declared.get(partition, Declared())
        check_dumps(partition, dumps, checker.findings, log_start=declared.log_start)
    return checker.verdict()


_Operation = TypeVar("_Operation", Send, Poll, Latest, SeenEpoch)


def _by_partition(operations: Iterable[_Operation]) -> dict[Partition, list[_Operation]]:
    grouped: dict[Partition, list[_Operation]] = {}
    for operation in operations:
        grouped.setdefault(operation.partition, []).append(operation)
    return grouped


class _Checker:
    def __init__(self, history: History, binding: frozenset[int], idempotent: bool, lag_s_max: float | None) -> None:
        self.history = history
        self.binding = binding
        self.idempotent = idempotent
        self.lag_s_max = lag_s_max
        self.findings = Findings()
        self.sends = _by_partition(history.sends)
        self.polls = _by_partition(history.polls)
        self.latests = _by_partition(history.latests)
        self.epochs = _by_partition(history.epochs)
        self.final_expected = any(poll.final for poll in history.polls)
        self.unplaced = [send for send in self.sends.get(None, ()) if send.outcome != FAIL]
        self._sends_by_value: dict[Value, Send] | None = None
        self.read = self.judged = self.duplicates = self.unpromised_lost = 0
        self.lag: Lag | None = None
        self.acked_at, self.seen_at = array("d"), array("d")

    def partitions(self) -> list[Partition]:
        return [p for p in dict.fromkeys([*self.sends, *self.polls, *self.latests]) if p is not None]

    def judge(self, partition: Partition) -> None:
        view, findings = self._view(partition), self.findings
        check_inconsistent_offsets(view, findings)
        self.duplicates += check_duplicates(view, findings)
        self.unpromised_lost += check_lost_writes(view, findings)
        check_reads_of_nothing(view, findings)
        check_reads(view, findings)
        check_deleted_keys(view, findings)
        check_order(view, findings)
        check_latest(view, findings)
        check_stale_leaders(view, findings)
        check_unseen(view, self.acked_at, self.seen_at, self.history.healed_at, findings)
        self._take_lag(worst_lag(view))
        self.read += len(view.read_at)
        self.judged += len(view.promised)

    def judge_unplaced(self) -> None:
        """Check acknowledged sends of an unknown partition: the final read of some partition must show the value."""
        if not self.final_expected or any(d.log_start > 0 or d.compacted for d in self.history.declared.values()):
            return  # A record may have been deleted in any partition.
        lost_until = max((loss.at for declared in self.history.declared.values() for loss in declared.losses), default=-inf)
        acked = [send for send in self.sends.get(None, ()) if send.outcome == OK and send.acks in self.binding]
        acked = [send for send in acked if send.invoked_at > lost_until]
        self.judged += len(acked)
        there = {value for poll in self.history.polls if poll.final for value in poll.values}
        for send in acked:
            if send.value not in there:
                text = f"{short(send.value)}, acknowledged without a partition, is not in the final read"
                self.findings.add("lost-write", None, text, None, send.ended_at)

    def _view(self, partition: Partition) -> View:
        return View(
            partition,
            self.sends.get(partition, []),
            self.polls.get(partition, []),
            self.latests.get(partition, []),
            self.epochs.get(partition, []),
            self.history.declared.get(partition, Declared()),
            binding=self.binding,
            idempotent=self.idempotent,
            final_expected=self.final_expected,
            unplaced=self.unplaced,
            find_send=self._find_send,
        )

    def _find_send(self, value: Value) -> Send | None:
        """A send of this value to any partition. Needed only for values that were not sent to a partition in which they were
        read, so the index is built on first use."""
        if self._sends_by_value is None:
            self._sends_by_value = {send.value: send for send in self.history.sends}
        return self._sends_by_value.get(value)

    def _take_lag(self, lag: Lag | None) -> None:
        if lag is None:
            return
        if self.lag is None or lag.seconds > self.lag.seconds:
            self.lag = lag
        if self.lag_s_max is not None and lag.seconds > self.lag_s_max:
            self.findings.add("realtime-lag", lag.partition, str(lag), lag.offset, lag.at)

    def verdict(self) -> Verdict:
        outcomes = Counter(send.outcome for send in self.history.sends)
        return Verdict(
            acknowledged=outcomes[OK],
            judged=self.judged,
            unknown=outcomes[INFO] + outcomes[OPEN],
            failed=outcomes[FAIL],
            read=self.read,
            anomalies=tuple(self.findings.kept),
            total=self.findings.counts,
            polls=len(self.history.polls),
            duplicates_allowed=self.duplicates,
            unpromised_lost=self.unpromised_lost,
            lag=self.lag,
            unseen=unseen_over_time(self.acked_at, self.seen_at),
        )
