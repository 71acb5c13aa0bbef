"""The format of a lake: Parquet files with the records of topics, and manifests that list the valid files. Pure.

    ROOT/<topic>/date=YYYY-MM-DD/<topic>-<partition>-<first offset, 20 digits>-<last offset>.parquet
    ROOT/_manifest/<number, 20 digits>.json
    ROOT/_manifest/<number, 20 digits>.base.json                            all manifests up to this number in one
    ROOT/_checkpoint/                                                       Spark's checkpoint of the offload that fills the lake

A file holds records of one partition and one date (UTC), in the order of the log. Offsets in it may have gaps, as in the
log. The name contains the offsets, so a batch that is run again replaces its own files. A writer that dies leaves stray files:
**a file counts only if a manifest lists it**, and one manifest lists all files of a batch.

    {"v": 1, "number": 7,
     "query": "4f...", "batch": 3,                            the micro-batch of Spark that wrote these files
     "committed": {"4f...": 3},                               the last batch of each query, this one included
     "after": {"orders": {"0": 1200}},                        where each partition ended before this manifest
     "files": [{"path": "orders/date=...", "topic": "orders", "partition": 0, "date": "2025-01-31",
                "first": 1200, "last": 1310, "count": 111, "bytes": 8731, "crc32c": 305419896}]}

Manifests are numbered from 0 without a gap, and each names the ends of all before it (`after`): readers notice a missing manifest
and a range that is listed twice. A writer needs only the newest manifest to know where partitions end and which batches are done.

A compaction (`compact.py`) joins small neighbouring files into larger ones, and writes a **base**: a manifest with `after` empty
that replaces all manifests up to its number, and lists the larger files instead of the small ones. Its partitions end at the same
offsets. Readers begin at the newest base. Replaced files stay for a day, for readers that began before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import StrandlineError, UsageError

VERSION = 1
MANIFESTS, CHECKPOINT = "_manifest", "_checkpoint"
Ends = dict[TopicPartition, int]
"""The offset after the last record of each partition."""

_FILE = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)-(?P<first>\d{20})-(?P<last>\d+)\.parquet")
_MANIFEST = re.compile(r"(\d{20})\.json")
_BASE = re.compile(r"(\d{20})\.base\.json")


class LakeDamaged(StrandlineError):
    """The manifests contradict each other, or a listed file is missing or was changed."""


# -- names ------------------------------------------------------------------------------------------------------------


def check_topic(topic: str) -> None:
    """Raises UsageError for a topic whose folder readers would skip, or mistake for a folder of the lake itself."""
    if topic.startswith(("_", ".")):
        raise UsageError(f"topic {topic} cannot go into a lake: readers skip folders whose names begin with {topic[0]!r}")


def file_path(topic: str, partition: int, date: str, first: int, last: int) -> str:
    """The path of a data file, relative to the lake's root."""
    return f"{topic}/date={date}/{topic}-{partition}-{first:020}-{last}.parquet"


def file_place(name: str) -> tuple[TopicPartition, int] | None:
    """Partition and last offset in the name of a data file; None for any other name."""
    match = _FILE.fullmatch(name)
    return (TopicPartition(match["topic"], int(match["partition"])), int(match["last"])) if match else None


def manifest_name(number: int) -> str:
    return f"{number:020}.json"


def manifest_number(name: str) -> int | None:
    match = _MANIFEST.fullmatch(name)
    return int(match[1]) if match else None


def base_name(number: int) -> str:
    return f"{number:020}.base.json"


def base_number(name: str) -> int | None:
    match = _BASE.fullmatch(name)
    return int(match[1]) if match else None


# -- manifests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """The manifest entry of one Parquet file. Spark pickles it on its way to the driver."""

    path: str
    topic: str
    partition: int
    date: str
    first: int
    last: int
    count: int
    """Number of records, at most `last - first + 1`."""
    bytes: int
    crc32c: int
    """CRC-32C of the whole file."""

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def order(self) -> tuple[str, int, int]:
        return self.topic, self.partition, self.first

    def check(self) -> None:
        """Raises LakeDamaged if the fields contradict each other."""
        if self.path != file_path(self.topic, self.partition, self.date, self.first, self.last):
            raise LakeDamaged(f"{self.path} is listed as offsets {self.first} to {self.last} of {self.tp}, {self.date}")
        if not (0 <= self.first <= self.last and 0 < self.count <= self.last - self.first + 1):
            raise LakeDamaged(f"{self.path} cannot have {self.count} records in offsets {self.first} to {self.last}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    number: int
    query: str
    batch: int
    committed: Mapping[str, int] = field(default_factory=dict)
    after: Ends = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()

    @property
    def ends(self) -> Ends:
        """The ends of all partitions after this manifest."""
        ends = dict(self.after)
        for file in self.files:
            ends[file.tp] = max(ends.get(file.tp, 0), file.last + 1)
        return ends

    def is_done(self, query: str, batch: int) -> bool:
        return self.committed.get(query, -1) >= batch

    def check(self) -> None:
        """Raises LakeDamaged if an offset may be listed twice, here or in the manifests before."""
        reached: dict[tuple[TopicPartition, str], int] = {}
        for file in sorted(self.files, key=lambda f: f.order):
            file.check()
            begin = max(self.after.get(file.tp, 0), reached.get((file.tp, file.date), 0))
            if file.first < begin:
                raise LakeDamaged(f"{file.path} overlaps: the lake has {file.tp} up to offset {begin - 1} already")
            reached[file.tp, file.date] = file.last + 1


def following(last: Manifest | None, query: str, batch: int, files: Iterable[DataFile]) -> Manifest:
    """The manifest of a batch that follows `last`. Raises UsageError if the lake has some of the offsets already."""
    after = {} if last is None else last.ends
    manifest = Manifest(
        number=0 if last is None else last.number + 1,
        query=query,
        batch=batch,
        committed={**(last.committed if last else {}), query: batch},
        after=after,
        files=tuple(sorted(files, key=lambda f: f.order)),
    )
    for file in manifest.files:
        check_is_new(file.tp, file.first, after)
    manifest.check()
    return manifest


def check_is_new(tp: TopicPartition, first: int, ends: Ends) -> None:
    """Raises UsageError if the lake already has this offset, from another query."""
    if first < (end := ends.get(tp, 0)):
        raise UsageError(
            f"offset {first} of {tp} is already in the lake, which has this partition up to offset {end - 1}: was the "
            "checkpoint of its offload lost, or was the topic recreated? Start another lake, or give the old checkpoint"
        )


def based_on(newest: Manifest, files: Iterable[DataFile], ends: Ends) -> Manifest:
    """A base that replaces all manifests up to the newest. Raises LakeDamaged if its files would end at other offsets."""
    base = replace(newest, after={}, files=tuple(sorted(files, key=lambda f: f.order)))
    base.check()
    if base.ends != ends:
        raise LakeDamaged(f"the base {base_name(base.number)} would end at other offsets than the manifests that it replaces")
    return base


def join(manifests: Sequence[Manifest], base: Manifest | None = None) -> tuple[tuple[DataFile, ...], Ends]:
    """All files, sorted by topic, partition and offset, and the end of each partition. `manifests` are those after the base.
    Raises LakeDamaged on a gap or an overlap."""
    files: list[DataFile] = []
    ends: Ends = {}
    if base is not None:
        base.check()
        files, ends = list(base.files), base.ends
    for number, manifest in enumerate(manifests, start=0 if base is None else base.number + 1):
        if manifest.number != number:
            raise LakeDamaged(f"manifest {manifest_name(number)} is missing: the next one is {manifest_name(manifest.number)}")
        _check_begins_at(manifest, ends)
        manifest.check()
        files += manifest.files
        ends = manifest.ends
    return tuple(sorted(files, key=lambda f: f.order)), ends


def partition_rows(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    """A row for each partition, sorted: first and last offset, and the number of records, files and bytes."""
    by_tp: dict[TopicPartition, list[DataFile]] = {}
    for file in files:
        by_tp.setdefault(file.tp, []).append(file)
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "first_offset": min(file.first for file in own),
            "last_offset": max(file.last for file in own),
            "records": sum(file.count for file in own),
            "files": len(own),
            "bytes": sum(file.bytes for file in own),
        }
        for tp, own in sorted(by_tp.items())
    ]


def _check_begins_at(manifest: Manifest, ends: Ends) -> None:
    for tp in sorted({*ends, *manifest.after}):
        was, says = ends.get(tp, 0), manifest.after.get(tp, 0)
        if was != says:
            kind = "a gap" if says > was else "an overlap"
            text = f"there is {kind} in {tp}: manifest {manifest_name(manifest.number)} continues at offset {says}"
            raise LakeDamaged(f"{text}, but the manifests before it end at {was}")


# -- as JSON ----------------------------------------------------------------------------------------------------------


def encode(manifest: Manifest) -> bytes:
    after: dict[str, dict[str, int]] = {}
    for tp, end in sorted(manifest.after.items()):
        after.setdefault(tp.topic, {})[str(tp.partition)] = end
    document = {
        "v": VERSION,
        "number": manifest.number,
        "query": manifest.query,
        "batch": manifest.batch,
        "committed": dict(manifest.committed),
        "after": after,
        "files": [asdict(file) for file in manifest.files],
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def decode(name: str, data: bytes) -> Manifest:
    """Parses a manifest. Raises LakeDamaged if the data is not a manifest with this name."""
    try:
        document = json.loads(data)
        version = document["v"]
        manifest = _manifest(document) if version == VERSION else None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise LakeDamaged(f"manifest {name} cannot be read: {type(e).__name__}: {e}") from e
    if manifest is None:
        raise LakeDamaged(f"manifest {name} has version {version}; this program knows version {VERSION}")
    if name not in (manifest_name(manifest.number), base_name(manifest.number)):
        raise LakeDamaged(f"manifest {name} says that it is number {manifest.number}")
    return manifest


def _manifest(document: Any) -> Manifest:
    return Manifest(
        number=int(document["number"]),
        query=str(document["query"]),
        batch=int(document["batch"]),
        committed={str(query): int(batch) for query, batch in document["committed"].items()},
        after={TopicPartition(t, int(p)): int(end) for t, ends in document["after"].items() for p, end in ends.items()},
        files=tuple(DataFile(**file) for file in document["files"]),
    )
