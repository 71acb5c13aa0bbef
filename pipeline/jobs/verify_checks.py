"""One replica's log held against itself and against its broker's checkpoints. Pure.

What a broker that was killed may leave behind is a note, and the same thing after an orderly stop is a finding. So each check
asks `Facts.is_settled`: is the place below what the checkpoints vouch for, or was the broker stopped in order?
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strandline.pipeline.jobs.verify_log import Batch, Damage, Index
from strandline.pipeline.jobs.verify_result import Finding, joined
from strandline.protocol.producer_names import FIRST_NAMED
from strandline.protocol.records.batch import MAX_SEQUENCE, next_sequence

FUTURE_MS = 3_600_000
"""Clocks of producers may be so much ahead: Kafka's default of `message.timestamp.after.max.ms`."""
SILENCE_MS = 3_600_000
"""A broker forgets a producer that is silent for `producer.id.expiration.ms`, by default a day, and then takes any sequence
number from it. After a shorter silence than this a gap is a finding."""

Entries = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a broker's checkpoints say of one log."""

    broker: str
    path: str
    topic: str
    partition: int
    topic_id: str | None = None
    high_watermark: int | None = None
    recovery_point: int | None = None
    log_start: int | None = None
    epochs: Entries | None = ()
    """Leader epoch and start offset, as in `leader-epoch-checkpoint`. None: the file cannot be read."""
    is_clean: bool = True
    """Whether the broker was stopped in order."""

    def is_settled(self, offset: int) -> bool:
        """Whether a fault at this offset cannot come from a process that was killed."""
        return self.is_clean or offset < max(self.high_watermark or 0, self.recovery_point or 0)


@dataclass(slots=True)
class Indexes:
    """The entries of one segment's index files; None: there is no such file, or it cannot be read."""

    offsets: Index | None = None
    """Relative last offset of a batch, position of the batch."""
    times: Index | None = None
    """Timestamp, relative offset: the batch with that offset has it as its newest, and no batch before has a newer one."""


@dataclass(slots=True)
class _Producer:
    epoch: int
    last_sequence: int
    max_timestamp: int
    hole: int
    """How many holes the log had before its last batch: behind a hole nothing is known of the sequences between."""


@dataclass(slots=True)
class LogCheck:
    """Takes the items of one log in order (`take`), then says what it found (`finish`)."""

    facts: Facts
    now_ms: int
    indexes: Mapping[int, Indexes] = field(default_factory=dict)
    """By base offset of the segment."""
    first_segment: int | None = None
    """Base offset of the first segment, where the log begins; None: there is no segment."""
    start: int | None = None
    end: int = 0
    """Behind the last sound batch."""
    batches: int = 0
    records: int = 0
    size: int = 0
    epochs: list[list[int]] = field(default_factory=list)
    """[leader epoch, first offset, end], one for each run of batches of one epoch."""
    sound: list[list[int]] = field(default_factory=list)
    """[first offset, end] of each run of sound batches."""
    holes: list[Finding] = field(default_factory=list)
    """Damage and gaps: another replica may have what should be there."""
    findings: list[Finding] = field(default_factory=list)
    _expected: int | None = None
    _segment: _Segment | None = None
    _producers: dict[int, _Producer] = field(default_factory=dict)

    def watch(self, items: Iterable[Batch | Damage]) -> Iterator[Batch | Damage]:
        for item in items:
            self.take(item)
            yield item

    def take(self, item: Batch | Damage) -> None:
        if isinstance(item, Damage):
            self._take_damage(item)
            return
        self._check_order(item)
        self._check_epoch(item)
        self._open_segment(item.segment).take(item)
        if item.producer_id >= 0 and item.base_sequence >= 0 and not item.is_control:
            self._check_producer(item)
        if item.max_timestamp > self.now_ms + FUTURE_MS:
            self._find("future", item.base_offset, item.next_offset)
        self.batches += 1
        self.records += item.record_count
        self.size += item.size

    def finish(self) -> None:
        """The log is read to its end."""
        if self.end >= max(self.facts.high_watermark or 0, self.facts.recovery_point or 0):
            self._close_segment()
        if self.start is None:
            self.start = self.first_segment or 0
            self.end = max(self.end, self.start)
        self._check_checkpoints()

    def _find(self, kind: str, first: int | None = None, end: int | None = None, detail: str = "", path: str = "") -> None:
        """Add a finding, or extend the last one of its kind if this one begins where that ended."""
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
        self._expected = item.next_offset

    def _check_order(self, batch: Batch) -> None:
        if self.start is None:
            self.start = self._expected = batch.base_offset if self.first_segment is None else self.first_segment
        expected = self._expected
        if expected is not None and batch.base_offset > expected:
            self.holes.append(self._finding("offset_gap", expected, batch.base_offset))
        elif expected is not None and batch.base_offset < expected:
            self._find("offset_overlap", batch.base_offset, min(expected, batch.next_offset))
        elif batch.position == 0 and batch.base_offset != batch.segment:
            name = f"{batch.segment:020}.log"
            self._find("segment_name", batch.base_offset, batch.next_offset, name, f"{self.facts.path}/{name}")
        if self.sound and self.sound[-1][1] == batch.base_offset:
            self.sound[-1][1] = batch.next_offset
        else:
            self.sound.append([batch.base_offset, batch.next_offset])
        self._expected = self.end = max(self.end, batch.next_offset)

    def _check_epoch(self, batch: Batch) -> None:
        runs, epoch = self.epochs, batch.leader_epoch
        if runs and runs[-1][0] == epoch and runs[-1][2] == batch.base_offset:
            runs[-1][2] = batch.next_offset
        else:
            if runs and epoch < runs[-1][0]:
                self._find("epoch_backwards", batch.base_offset, batch.next_offset, f"{epoch} after {runs[-1][0]}")
            runs.append([epoch, batch.base_offset, batch.next_offset])

    def _open_segment(self, base: int) -> _Segment:
        if self._segment is None or self._segment.base != base:
            self._close_segment()
            self._segment = _Segment(base, self.indexes.get(base) or Indexes(), len(self.holes))
        return self._segment

    def _close_segment(self) -> None:
        """Report its indexes, unless the segment has a hole: then the hole is what matters."""
        segment, f = self._segment, self.facts
        if segment is None or len(self.holes) > segment.holes_before:
            return
        is_settled = f.is_clean or self.end <= (f.recovery_point or 0)
        for name, text in segment.problems():
            path = f"{f.path}/{segment.base:020}.{name}"
            self._find("index" if is_settled else "index_old", None, None, f"{segment.base:020}.{name}: {text}", path)
        for name in segment.allocated_ahead:
            path, text = f"{f.path}/{segment.base:020}.{name}", f"{segment.base:020}.{name} ends in zeros"
            self._find("index" if f.is_clean else "index_old", None, None, text, path)

    def _check_producer(self, batch: Batch) -> None:
        known, key = self._producers.get(batch.producer_id), batch.producer_id
        if known is not None:
            self._compare_sequence(batch, known)
        last = next_sequence(batch.base_sequence, batch.next_offset - batch.base_offset - 1)
        if known is None:
            self._producers[key] = _Producer(batch.producer_epoch, last, batch.max_timestamp, len(self.holes))
            return
        known.epoch, known.last_sequence = max(known.epoch, batch.producer_epoch), last
        known.max_timestamp, known.hole = batch.max_timestamp, len(self.holes)

    def _compare_sequence(self, batch: Batch, known: _Producer) -> None:
        text, first, end = f"producer {batch.producer_id}, epoch {batch.producer_epoch}", batch.base_offset, batch.next_offset
        if batch.producer_epoch < known.epoch:
            self._find("producer_epoch_backwards", first, end, f"{text}; epoch {known.epoch} came before")
            return
        begins_again = batch.producer_epoch > known.epoch and batch.producer_id < FIRST_NAMED
        expected = 0 if begins_again else (known.last_sequence + 1) & MAX_SEQUENCE
        ahead = (batch.base_sequence - expected) & MAX_SEQUENCE
        if not ahead:
            return
        if ahead > MAX_SEQUENCE // 2:
            self._find("doubled", first, end, text)
        elif known.hole == len(self.holes):
            is_silent = batch.max_timestamp - known.max_timestamp > SILENCE_MS
            kind = "sequence_gap_after_silence" if is_silent else "sequence_gap"
            self._find(kind, first, end, f"{text}: sequence {batch.base_sequence} instead of {expected}")

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def _check_checkpoints(self) -> None:
        f, end = self.facts, self.end
        if f.high_watermark is None:
            self._find("no_high_watermark")
        elif f.high_watermark > end:
            self.holes.append(self._finding("missing_below_hw", end, f.high_watermark, f"high watermark {f.high_watermark}"))
        if f.recovery_point is not None and f.recovery_point > max(end, f.high_watermark or 0):
            text = f"recovery-point-offset-checkpoint has {f.recovery_point}, the log ends at {end}"
            self._find("checkpoint_beyond_log", end, f.recovery_point, text)
        if f.log_start is not None and f.log_start > end and f.is_clean:
            text = f"log-start-offset-checkpoint has {f.log_start}, the log ends at {end}"
            self._find("checkpoint_beyond_log", end, f.log_start, text)
        self._check_epoch_checkpoint()

    def _check_epoch_checkpoint(self) -> None:
        f = self.facts
        path = f"{f.path}/leader-epoch-checkpoint"
        if f.epochs is None:
            self._find("checkpoint_unreadable", None, None, "leader-epoch-checkpoint", path)
            return
        self._check_head(f.epochs, path)
        for first, end, text in self._epoch_problems(f.epochs):
            kind = "epoch_checkpoint" if f.is_settled(first) else "epoch_checkpoint_old"
            self._find(kind, first, end, text, path)

    def _check_head(self, entries: Entries, path: str) -> None:
        """When the log start moves, a broker first moves the start of the first leader epoch there, and only then deletes
        segments. `log-start-offset-checkpoint` follows at a stop, and once a minute."""
        base, begin = self.first_segment, self._epochs_begin(entries)
        if base is None or not entries:
            return
        if entries[0][1] < base:
            text = f"leader epoch {entries[0][0]} starts at {entries[0][1]}, the first segment at {base}"
            if self.facts.is_clean:
                self.holes.append(self._finding("head_missing", entries[0][1], base, text, path))
            else:
                self._find("head_gone", entries[0][1], base, text, path)
        elif begin > self._log_start:
            self._find("log_start_moved", self._log_start, begin, f"leader-epoch-checkpoint begins at {begin}", path)

    @property
    def _log_start(self) -> int:
        """As checkpointed."""
        return max(self.facts.log_start or 0, self.start or 0)

    def _epochs_begin(self, entries: Entries) -> int:
        """The offset from which on batches have a leader epoch in the checkpoint: the log start. It can be above the checkpointed
        one if the broker was not stopped in order, but not above what is committed."""
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
                yield first, end, f"it has no entry for leader epoch {epoch}"
            elif entries[index][0] != epoch:
                yield first, end, f"it has leader epoch {entries[index][0]}, the batches have {epoch}"
            elif entries[last][0] != epoch:
                yield starts[index + 1], end, f"it has leader epoch {entries[last][0]}, the batches have {epoch}"
        known = {epoch: first for epoch, first, _ in reversed(runs)}
        for epoch, start in entries:
            first_of_epoch = known.get(epoch)
            if start > self.end:
                yield start, None, f"leader epoch {epoch} starts at {start}, the log ends at {self.end}"
            elif first_of_epoch is not None and start > first_of_epoch:
                yield first_of_epoch, start, f"leader epoch {epoch} starts at {start}, its first batch is at {first_of_epoch}"


def _entries(index: Index | None) -> Entries:
    return index.entries if index is not None else ()


class _Segment:
    """Compares a segment's batches with its index entries."""

    def __init__(self, base: int, indexes: Indexes, holes_before: int) -> None:
        self.base, self.holes_before = base, holes_before
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
                self._note("index", f"the entry (offset {self.base + entry[0]}, byte {entry[1]}) leads to no such batch")
        while self._next_time < len(self._times) and self._times[self._next_time][1] <= last:
            timestamp, offset = self._times[self._next_time]
            self._next_time += 1
            if offset < first or timestamp != batch.max_timestamp or timestamp < self._newest:
                self._note(
                    "timeindex", f"the entry ({timestamp} ms, offset {self.base + offset}) is not that of the newest record"
                )
        self._newest = max(self._newest, batch.max_timestamp)

    def pass_over(self, damage: Damage) -> None:
        """Entries of batches that are damaged themselves say nothing of the index."""
        end = damage.position + damage.size
        while self._next_offset < len(self._offsets) and self._offsets[self._next_offset][1] < end:
            self._next_offset += 1
        last = damage.next_offset - 1 - self.base if damage.next_offset is not None else 1 << 31
        while self._next_time < len(self._times) and self._times[self._next_time][1] <= last:
            self._next_time += 1

    def problems(self) -> Iterator[tuple[str, str]]:
        if self._next_offset < len(self._offsets):
            self._note("index", f"{len(self._offsets) - self._next_offset} entries lie behind the segment's last batch")
        if self._next_time < len(self._times):
            self._note("timeindex", f"{len(self._times) - self._next_time} entries lie behind the segment's last batch")
        yield from self._texts.items()

    def _note(self, name: str, text: str) -> None:
        self._texts.setdefault(name, text)
