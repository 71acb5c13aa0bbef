"""Compares the logs of all replicas, record by record (or batch by batch), once the cluster is at rest: every byte must be equal.

`testing/replicas.py` compares files and can only tell that they differ. This module compares records that the caller has read
from a log, on a disk or in a simulated machine, and tells where the logs differ and which replicas. It reads all logs in step
and keeps no records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from strandline.testing.history.operations import Partition
from strandline.testing.history.verdict import Findings, label


class Dump(NamedTuple):
    """A record or batch of one replica. Plain tuples are accepted, too."""

    offset: int
    """Offset of the record, or base offset of the batch."""
    epoch: int
    data: bytes

    def __str__(self) -> str:
        return f"offset {self.offset} of epoch {self.epoch}, {len(self.data)} bytes"


class DumpComparison(NamedTuple):
    partition: Partition
    replicas: tuple[str, ...]
    entries: int
    """Number of records or batches that were compared, up to the first difference."""
    difference: str
    """Description of the first difference; empty if the logs are equal."""
    offset: int | None = None

    @property
    def equal(self) -> bool:
        return not self.difference

    def __str__(self) -> str:
        names = ", ".join(self.replicas)
        told = f"equal ({self.entries} entries)" if self.equal else f"DIFFERENT: {self.difference}"
        return f"{label(self.partition)} on {names}: {told}"


def compare_dumps(
    partition: Partition, replicas: Mapping[str, Iterable[tuple[int, int, bytes]]], *, log_start: int = 0
) -> DumpComparison:
    """Compare the logs of a partition up to the first difference.

    `dumps`: replica -> its (offset, epoch, bytes), by ascending offset. Entries below `log_start` are ignored, because some
    replicas may have deleted them.
    """
    names = tuple(replicas)
    ends = {name: _from(log_start, replicas[name]) for name in names}
    entries = 0
    last: dict[str, int] = {}
    while True:
        row = {name: next(dump, None) for name, dump in ends.items()}
        present = [entry for entry in row.values() if entry is not None]
        if not present:
            return DumpComparison(partition, names, entries, "")
        difference = _out_of_order(row, last) or _difference(row)
        if difference:
            return DumpComparison(partition, names, entries, difference, min(entry.offset for entry in present))
        last = dict.fromkeys(names, present[0].offset)
        entries += 1


def check_dumps(
    partition: Partition, replicas: Mapping[str, Iterable[tuple[int, int, bytes]]], findings: Findings, *, log_start: int = 0
) -> None:
    comparison = compare_dumps(partition, replicas, log_start=log_start)
    if not comparison.equal:
        findings.add("replica-mismatch", partition, comparison.difference, comparison.offset)


def _from(log_start: int, entries: Iterable[tuple[int, int, bytes]]) -> Iterator[Dump]:
    return (Dump(offset, epoch, bytes(data)) for offset, epoch, data in entries if offset >= log_start)


def _out_of_order(row: Mapping[str, Dump | None], last: Mapping[str, int]) -> str:
    for name, entry in row.items():
        if entry is not None and entry.offset <= last.get(name, -1):
            return f"{name} holds offset {entry.offset} after {last[name]}"
    return ""


def _difference(row: Mapping[str, Dump | None]) -> str:
    """Names the replicas that differ from the majority, or on a tie from the first replica."""
    usual = Counter(row.values()).most_common(1)[0][0]
    if all(entry == usual for entry in row.values()):
        return ""
    most = next(name for name, entry in row.items() if entry == usual)
    told = [f"{name} holds {_told(entry, usual)}" for name, entry in row.items() if entry != usual]
    return f"{'; '.join(told)}; {most} holds {_told(usual, None)}"


def _told(entry: Dump | None, usual: Dump | None) -> str:
    if entry is None:
        return "nothing more"
    if usual is not None and entry[:2] == usual[:2] and len(entry.data) == len(usual.data):
        byte = next(i for i, (a, b) in enumerate(zip(entry.data, usual.data, strict=True)) if a != b)
        return f"{entry}, other from byte {byte} on"
    return str(entry)
