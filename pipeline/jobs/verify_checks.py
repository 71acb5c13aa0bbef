"""Checks one replica's log for contradictions in itself, and with its indexes and its broker's checkpoints. Pure.

A broker that was killed may leave unfinished writes and old checkpoints behind, which are notes. After a clean shutdown, or at
offsets below the checkpointed high watermark or recovery point, the same things are bad findings. `Facts.is_settled` decides
which of the two applies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.pipeline.jobs.verify_log import Batch, Damage, Index
from strandline.pipeline.jobs.verify_result import Finding, joined
from strandline.pipeline.jobs.verify_transactions import SUFFIX, Entry, TransactionCheck
from strandline.protocol.producer_names import FIRST_NAMED
from strandline.protocol.records.batch import MAX_SEQUENCE, next_sequence

FUTURE_MS = 3_600_000
"""How far a timestamp may be ahead of the clock without a note: Kafka's default of `message.timestamp.after.max.ms`."""
SILENCE_MS = 3_600_000
"""A gap in a producer's sequence numbers is a bad finding only if the producer was silent for at most this time: after
`producer.id.expiration.ms` (a day by default) a broker forgets a producer and accepts any sequence number from it."""

Entries = Sequence[tuple[int, int]]
"""Pairs of numbers from a checkpoint or an index file."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One log's entries in its broker's checkpoints. A value of None means that the checkpoint has no entry for the log."""

    broker: str
    path: str
    topic: str
    partition: int
    topic_id: str | None = None
    high_watermark: int | None = None
    recovery_point: int | None = None
    log_start: int | None = None
    first_dirty: int | None = None
    """Where the next cleaning begins."""
    tombstones_removed_below: int | None = None
    """Every tombstone that a cleaner has removed lies below this offset."""
    epochs: Entries | None = ()
    """The entries of `leader-epoch-checkpoint`: leader epoch and start offset. None: the file cannot be read."""
    is_clean: bool = True
    """Whether the broker was shut down cleanly and does not run."""
    may_have_gaps: bool = False
    """Whether offsets may be missing between batches: Apache Kafka's cleaner leaves such gaps, a broker of ours does not."""

    def is_settled(self, offset: int) -> bool:
        """Whether a kill cannot explain a fault at this offset: the broker was shut down cleanly, or the offset is below the
        checkpointed high watermark or recovery point."""
        return self.is_clean or offset < max(self.high_watermark or 0, self.recovery_point or 0)


@dataclass(slots=True)
class Indexes:
    """The entries of one segment's index files. None: the file does not exist or cannot be read."""

    offsets: Index | None = None
    """Each entry has the last offset of a batch, relative to the segment's base offset, and the batch's position in the file."""
    aborted: Sequence[Entry] | None = ()
    """The entries of the `.txnindex`; none if there is no such file. None: the file cannot be decoded."""
    times: Index | None = None
    """Each entry has a timestamp in ms and a relative offset. The timestamp is the largest of the batch with that offset, and no
    earlier batch of the segment has a larger one."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_sequence: int
    max_timestamp: int
    breaks: int
    """The number of `_breaks` before this producer's last batch. Sequence numbers are not compared across a break."""


@dataclass(slots=True)
class LogCheck:
    """The check of one log: pass its items in order to `take`, then call `finish`, then read `findings` and `holes`."""

    facts: Facts
    now_ms: int
    indexes: Mapping[int, Indexes] = field(default_factory=dict)
    """The index files, by base offset of the segment."""
    first_segment: int | None = None
    """Base offset of the first segment, where the log begins; None: there is no segment."""
    start: int | None = None
    end: int = 0
    """The offset after the last sound batch."""
    batches: int = 0
    records: int = 0
    size: int = 0
    epochs: list[list[int]] = field(default_factory=list)
    """For each run of batches of one leader epoch: [leader epoch, first offset, offset after the last]."""
    sound: list[list[int]] = field(default_factory=list)
    """For each run of sound batches without a gap: [first offset, offset after the last]."""
    holes: list[Finding] = field(default_factory=list)
    """The findings about missing records, such as damage and gaps: other replicas may have these records."""
    findings: list[Finding] = field(default_factory=list)
    """All other findings."""
    _expected: int | None = None
    """The offset at which the next batch should begin; None: unknown, after damage."""
    _segment: _Segment | None = None
    _removed: int = 0
    """How many times a cleaner has removed records, so far: legal gaps, and batches without records."""
    _producers: dict[int, _Producer] = field(default_factory=dict)
    _transactions: TransactionCheck = field(default_factory=TransactionCheck)

    def watch(self, items: Iterable[Batch | Damage]) -> Iterator[Batch | Damage]:
        """Checks the items while they pass through."""
        for item in items:
            self.take(item)
            yield item

    def take(self, item: Batch | Damage) -> None:
        if isinstance(item, Damage):
            self._take_damage(item)
            return
        self._check_order(item)
        self._check_epoch(item)
        self._removed += not item.record_count and not item.is_control
        self._open_segment(item.segment).take(item)
        self._transactions.take(item)
        if item.producer_id >= 0 and item.base_sequence >= 0 and not item.is_control:
            self._check_producer(item)
        if item.max_timestamp > self.now_ms + FUTURE_MS:
            self.find("future", item.base_offset, item.next_offset)
        self.batches += 1
        self.records += item.record_count
        self.size += item.size

    def finish(self) -> None:
        """Compares the checkpoints with the whole log. All items must have been taken."""
        if self.end >= max(self.facts.high_watermark or 0, self.facts.recovery_point or 0):
            self._close_segment()
        if self.start is None:
            self.start = self.first_segment or 0
            self.end = max(self.end, self.start)
        self._check_checkpoints()

    def find(self, kind: str, first: int | None = None, end: int | None = None, detail: str = "", path: str = "") -> None:
        """Adds a finding, or extends the last one if this one differs only in that its offsets follow."""
        finding = self._finding(kind, first, end, detail, path)
        if self.findings and (both := joined(self.findings[-1], finding)) is not None:
            self.findings[-1] = both
        else:
            self.findings.append(finding)

    def _finding(self, kind: str, first: int | None, end: int | None, detail: str = "", path: str = "") -> Finding:
        f = self.facts
        return Finding(
            kind=kind, topic=f.topic, partition=f.partition, brokers=(f.broker,), first=first, end=end, detail=detail, path=path
        )

    # -- batches ------------------------------------------------------------------------------------------------------

    def _take_damage(self, item: Damage) -> None:
        where = f"{item.segment:020}.log, byte {item.position}: {item.text}"
        is_torn = item.next_offset is None and not self.facts.is_settled(item.base_offset)
        finding = self._finding("torn_tail" if is_torn else "damaged", item.base_offset, item.next_offset, where, self.facts.path)
        (self.findings if is_torn else self.holes).append(finding)
        if self.start is None:
            self.start = item.base_offset
        self._open_segment(item.segment).pass_over(item)
        self._transactions.forget()
        self._expected = item.next_offset

    def _check_order(self, batch: Batch) -> None:
        if self.start is None:
            self.start = self._expected = batch.base_offset if self.first_segment is None else self.first_segment
        expected = self._expected
        if expected is not None and batch.base_offset > expected and self.facts.may_have_gaps:
            self._pass_legal_gap(expected, batch.base_offset)
        elif expected is not None and batch.base_offset > expected:
            self.holes.append(self._finding("offset_gap", expected, batch.base_offset))
            self._transactions.forget()
        elif expected is not None and batch.base_offset < expected:
            self.find("offset_overlap", batch.base_offset, min(expected, batch.next_offset))
        elif batch.position == 0 and batch.base_offset != batch.segment:
            name = f"{batch.segment:020}.log"
            self.find("segment_name", batch.base_offset, batch.next_offset, name, f"{self.facts.path}/{name}")
        if self.sound and self.sound[-1][1] == batch.base_offset:
            self.sound[-1][1] = batch.next_offset
        else:
            self.sound.append([batch.base_offset, batch.next_offset])
        self._expected = self.end = max(self.end, batch.next_offset)

    def _pass_legal_gap(self, first: int, end: int) -> None:
        self._removed += 1
        self.find("compacted", first, end)
        if self.sound and self.sound[-1][1] == first:
            self.sound[-1][1] = end
        else:
            self.sound.append([first, end])

    @property
    def _breaks(self) -> int:
        """The number of places, so far, at which batches of a producer may be missing."""
        return len(self.holes) + self._removed

    def _check_epoch(self, batch: Batch) -> None:
        runs, epoch = self.epochs, batch.leader_epoch
        if runs and runs[-1][0] == epoch and (runs[-1][2] == batch.base_offset or self.facts.may_have_gaps):
            runs[-1][2] = batch.next_offset
        else:
            if runs and epoch < runs[-1][0]:
                self.find("epoch_backwards", batch.base_offset, batch.next_offset, f"{epoch} after {runs[-1][0]}")
            runs.append([epoch, batch.base_offset, batch.next_offset])

    def _open_segment(self, base: int) -> _Segment:
        if self._segment is None or self._segment.base != base:
            self._close_segment()
            self._segment = _Segment(base, self.indexes.get(base) or Indexes(), len(self.holes))
        return self._segment

    def _close_segment(self) -> None:
        """Reports faults of the segment's indexes, unless the segment has a hole: entries for missing batches are no faults."""
        segment, f = self._segment, self.facts
        if segment is None:
            return
        wrong = self._transactions.end_segment(segment.aborted)
        if len(self.holes) > segment.holes_before:
            return
        is_settled = f.is_clean or self.end <= (f.recovery_point or 0)
        for text in wrong[:1]:
            name = f"{segment.base:020}.{SUFFIX}"
            self.find("transaction_index" if is_settled else "index_old", None, None, f"{name}: {text}", f"{f.path}/{name}")
        for name, text in segment.problems():
            path = f"{f.path}/{segment.base:020}.{name}"
            self.find("index" if is_settled else "index_old", None, None, f"{segment.base:020}.{name}: {text}", path)
        for name in segment.allocated_ahead:
            path, text = f"{f.path}/{segment.base:020}.{name}", f"{segment.base:020}.{name} ends with zeros"
            self.find("index" if f.is_clean else "index_old", None, None, text, path)

    def _check_producer(self, batch: Batch) -> None:
        known, key = self._producers.get(batch.producer_id), batch.producer_id
        if known is not None:
            self._compare_sequence(batch, known)
        last = next_sequence(batch.base_sequence, batch.next_offset - batch.base_offset - 1)
        if known is None:
            self._producers[key] = _Producer(batch.producer_epoch, last, batch.max_timestamp, self._breaks)
            return
        known.epoch, known.last_sequence = max(known.epoch, batch.producer_epoch), last
        known.max_timestamp, known.breaks = batch.max_timestamp, self._breaks

    def _compare_sequence(self, batch: Batch, known: _Producer) -> None:
        text, first, end = f"producer {batch.producer_id}, epoch {batch.producer_epoch}", batch.base_offset, batch.next_offset
        if batch.producer_epoch < known.epoch:
            self.find("producer_epoch_backwards", first, end, f"{text}; after epoch {known.epoch}")
            return
        begins_again = batch.producer_epoch > known.epoch and batch.producer_id < FIRST_NAMED
        expected = 0 if begins_again else (known.last_sequence + 1) & MAX_SEQUENCE
        ahead = (batch.base_sequence - expected) & MAX_SEQUENCE
        if not ahead:
            return
        if ahead > MAX_SEQUENCE // 2:
            self.find("doubled", first, end, text)
        elif known.breaks == self._breaks:
            is_silent = batch.max_timestamp - known.max_timestamp > SILENCE_MS
            kind = "sequence_gap_after_silence" if is_silent else "sequence_gap"
            self.find(kind, first, end, f"{text}: sequence {batch.base_sequence} instead of {expected}")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _check_checkpoints(self) -> None:
        f, end = self.facts, self.end
        if f.high_watermark is None:
            self.find("no_high_watermark")
        elif f.high_watermark > end:
            self.holes.append(self._finding("missing_below_hw", end, f.high_watermark, f"high watermark {f.high_watermark}"))
        if f.recovery_point is not None and f.recovery_point > max(end, f.high_watermark or 0):
            text = f"recovery-point-offset-checkpoint has {f.recovery_point}, but the log ends at {end}"
            self.find("checkpoint_beyond_log", end, f.recovery_point, text)
        if f.log_start is not None and f.log_start > end and f.is_clean:
            text = f"log-start-offset-checkpoint has {f.log_start}, but the log ends at {end}"
            self.find("checkpoint_beyond_log", end, f.log_start, text)
        self._check_cleaner_checkpoints()
        self._check_epoch_checkpoint()

    def _check_cleaner_checkpoints(self) -> None:
        """The broker resets a first dirty offset outside of the log, and lowers both offsets when it cuts a log after a kill."""
        f, start, end = self.facts, self.start or 0, self.end
        if f.first_dirty is not None and not start <= f.first_dirty <= end:
            text = f"cleaner-offset-checkpoint has {f.first_dirty}, but the log has the offsets {start} to {end}"
            self.find("cleaner_begins_again", None, None, text)
        if f.tombstones_removed_below is not None and f.tombstones_removed_below > end and f.is_clean:
            text = f"removed-tombstones-checkpoint has {f.tombstones_removed_below}, but the log ends at {end}"
            self.find("checkpoint_beyond_log", end, f.tombstones_removed_below, text)

    def _check_epoch_checkpoint(self) -> None:
        f = self.facts
        path = f"{f.path}/leader-epoch-checkpoint"
        if f.epochs is None:
            self.find("checkpoint_unreadable", None, None, "leader-epoch-checkpoint", path)
            return
        self._check_head(f.epochs, path)
        for first, end, text in self._epoch_problems(f.epochs):
            kind = "epoch_checkpoint" if f.is_settled(first) else "epoch_checkpoint_old"
            self.find(kind, first, end, text, path)

    def _check_head(self, entries: Entries, path: str) -> None:
        """Checks that the first segments exist. When the log start moves, a broker first changes the start of the first leader
        epoch in `leader-epoch-checkpoint`, and then deletes segments. It writes `log-start-offset-checkpoint` later: once a
        minute, and when it stops."""
        base, begin = self.first_segment, self._epochs_begin(entries)
        if base is None or not entries:
            return
        if entries[0][1] < base:
            text = f"leader epoch {entries[0][0]} starts at {entries[0][1]}, the first segment at {base}"
            if self.facts.is_clean:
                self.holes.append(self._finding("head_missing", entries[0][1], base, text, path))
            else:
                self.find("head_gone", entries[0][1], base, text, path)
        elif begin > self._log_start:
            self.find("log_start_moved", self._log_start, begin, f"leader-epoch-checkpoint begins at {begin}", path)

    @property
    def _log_start(self) -> int:
        """The later one of the checkpointed log start and the first offset in the log."""
        return max(self.facts.log_start or 0, self.start or 0)

    def _epochs_begin(self, entries: Entries) -> int:
        """The offset from which on `leader-epoch-checkpoint` must have the leader epochs of batches: the log start. After a kill
        it may be above the checkpointed log start, but not after the end of the log."""
        begin = self._log_start
        if entries and not self.facts.is_clean and entries[0][1] <= self.end:
            begin = max(begin, entries[0][1])
        return begin

    def _epoch_problems(self, entries: Entries) -> Iterator[tuple[int, int | None, str]]:
        starts, begin = [start for _, start in entries], self._epochs_begin(entries)
        runs = [(epoch, max(first, begin), end) for epoch, first, end in self.epochs if end > begin]
        for epoch, first, end in runs:
            index, last = bisect_right(starts, first) - 1, bisect_right(starts, end - 1) - 1
            if index < 0:
                yield first, end, f"the file has no entry for leader epoch {epoch}"
            elif entries[index][0] != epoch:
                yield first, end, f"the file has leader epoch {entries[index][0]}, but the batches have {epoch}"
            elif entries[last][0] != epoch:
                yield starts[index + 1], end, f"the file has leader epoch {entries[last][0]}, but the batches have {epoch}"
        known = {epoch: first for epoch, first, _ in reversed(runs)}
        for epoch, start in entries:
            first_of_epoch = known.get(epoch)
            if start > self.end:
                yield start, None, f"leader epoch {epoch} starts at {start}, but the log ends at {self.end}"
            elif first_of_epoch is not None and start > first_of_epoch:
                yield first_of_epoch, start, f"leader epoch {epoch} starts at {start}, but its first batch is at {first_of_epoch}"


def _entries(index: Index | None) -> Entries:
    return index.entries if index is not None else ()


class _Segment:
    """Compares the batches of one segment with the entries of its index files."""

    def __init__(self, base: int, indexes: Indexes, holes_before: int) -> None:
        self.base, self.holes_before, self.aborted = base, holes_before, indexes.aborted
        self._offsets, self._times = _entries(indexes.offsets), _entries(indexes.times)
        pairs = (("index", indexes.offsets), ("timeindex", indexes.times))
        self.allocated_ahead = [name for name, index in pairs if index is not None and index.ends_in_zeros]
        self._next_offset, self._next_time = 0, 0
        self._newest = -1
        self._texts: dict[str, str] = {}

    def take(self, batch: Batch) -> None:
        first, last = batch.base_offset - self.base, batch.next_offset - 1 - self.base
        while self._next_offset < len(self._offsets) and self._offsets[self._next_offset][1] <= batch.position:
            entry = self._offsets[self._next_offset]
            self._next_offset += 1
            if entry != (last, batch.position):
                self._note("index", f"the entry (offset {self.base + entry[0]}, byte {entry[1]}) points to no such batch")
        while self._next_time < len(self._times) and self._times[self._next_time][1] <= last:
            timestamp, offset = self._times[self._next_time]
            self._next_time += 1
            if offset < first or timestamp != batch.max_timestamp or timestamp < self._newest:
                self._note(
                    "timeindex", f"the entry ({timestamp} ms, offset {self.base + offset}) is not that of the largest timestamp"
                )
        self._newest = max(self._newest, batch.max_timestamp)

    def pass_over(self, damage: Damage) -> None:
        """Skips the entries of damaged batches: they cannot be compared."""
        end = damage.position + damage.size
        while self._next_offset < len(self._offsets) and self._offsets[self._next_offset][1] < end:
            self._next_offset += 1
        last = damage.next_offset - 1 - self.base if damage.next_offset is not None else 1 << 31
        while self._next_time < len(self._times) and self._times[self._next_time][1] <= last:
            self._next_time += 1

    def problems(self) -> Iterator[tuple[str, str]]:
        """The suffix of each index file with a fault, and its first fault."""
        if self._next_offset < len(self._offsets):
            self._note("index", f"{len(self._offsets) - self._next_offset} entries point after the segment's last batch")
        if self._next_time < len(self._times):
            self._note("timeindex", f"{len(self._times) - self._next_time} entries point after the segment's last batch")
        yield from self._texts.items()

    def _note(self, name: str, text: str) -> None:
        self._texts.setdefault(name, text)
