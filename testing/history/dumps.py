"""The logs of all replicas, record by record (or batch by batch), after everything has come to rest: equal in every byte.

`testing/replicas.py` compares files and can only say that they differ. This one compares what anybody reads out of a log, on a
disk or in a simulated machine, and says where, and who differs from whom. It reads all of them in step and keeps nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from strandline.testing.history.operations import Partition
from strandline.testing.history.verdict import Findings, label


class Dump(NamedTuple):
    """A record or batch of one replica. Plain tuples do, too."""

    offset: int
    """Of a batch, its base offset."""
    epoch: int
    data: bytes

    def __str__(self) -> str:
        return f"offset {self.offset} of epoch {self.epoch}, {len(self.data)} bytes"


class DumpComparison(NamedTuple):
    partition: Partition
    replicas: tuple[str, ...]
    entries: int
    """That were compared, up to the first difference."""
    difference: str
    """Where the logs begin to differ; empty when they do not."""
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
    """Each replica's (offset, epoch, bytes), ascending. What lies below `log_start` may be deleted here and not there."""
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
    """Those who differ from what most hold; with equal numbers, from the first."""
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
