"""How far an offload is, and what it has written: from what Spark reports after each batch, and from the lake's manifests.

Plain values in, sentences and a summary out; the command does the printing. Only the last two functions read files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import DataFile
from strandline.pipeline.jobs.lake_folder import Folder, local_path

Offsets = dict[TopicPartition, int]


class Batch(NamedTuple):
    """One batch of the query, as Spark reports it."""

    number: int
    records: int
    duration_ms: int
    begin: Offsets
    """The first offset, by partition; a partition that the query has just met is missing."""
    end: Offsets
    """The offset after the last record."""
    latest: Offsets
    """The end of the log, by partition."""

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Batch:
        """`report`: an element of a query's `recentProgress`, as JSON has it."""
        source = (report.get("sources") or [{}])[0]
        offsets = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        duration_ms = int((report.get("durationMs") or {}).get("triggerExecution", 0))
        return cls(int(report["batchId"]), int(report.get("numInputRows") or 0), duration_ms, *offsets)

    @property
    def lag(self) -> int:
        """Offsets of the log that are not read yet."""
        return sum(max(0, end - self.end.get(place, 0)) for place, end in self.latest.items())


def _offsets(stored: Any) -> Offsets:
    found = json.loads(stored) if isinstance(stored, str) else stored
    topics = (found or {}).get("topics", {})
    return {TopicPartition(topic, int(p)): offset for topic, of_topic in topics.items() for p, offset in of_topic.items()}


@dataclass(slots=True)
class OffloadProgress:
    """What this run has done so far."""

    batches: int = 0
    records: int = 0
    begin: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    _newest: int = -1
    """Number of the last batch that was counted: Spark also reports triggers that had nothing to read."""

    def take(self, reports: Iterable[Mapping[str, Any]]) -> list[Batch]:
        """The batches that are new among these reports."""
        new = [batch for batch in map(Batch.of, reports) if batch.number > self._newest and batch.records]
        for batch in new:
            self._newest = batch.number
            self.batches += 1
            self.records += batch.records
            for place, offset in batch.end.items():
                self.begin.setdefault(place, batch.begin.get(place, 0))
                self.end[place] = offset
        return new

    def line(self, batch: Batch, elapsed_s: float) -> str:
        """One line per batch."""
        rate = batch.records * 1000 / batch.duration_ms if batch.duration_ms else 0
        return (
            f"{elapsed_s:6.0f} s  batch {batch.number}: {self.records:,} records written, {rate:,.0f} records/s, "
            f"{batch.lag:,} behind the log's end"
        )

    def summary(self, elapsed_s: float, files: Iterable[DataFile] | None) -> dict[str, Any]:
        """`files`: those that this run added to a lake; None for a Delta table, whose own history has them.

        partitions: `first_offset` and `last_offset` of what was read, `records`, `files` and `bytes` of what was written."""
        written = None if files is None else list(files)
        places = sorted(place for place, end in self.end.items() if end > self.begin[place])
        return {
            "records": self.records if written is None else sum(file.count for file in written),
            "batches": self.batches,
            "seconds": round(elapsed_s, 1),
            "files": None if written is None else len(written),
            "bytes": None if written is None else sum(file.bytes for file in written),
            "partitions": _rows(written) if written is not None else [self._row(place) for place in places],
        }

    def _row(self, place: TopicPartition) -> dict[str, Any]:
        first, last = self.begin[place], self.end[place] - 1
        return {"topic": place.topic, "partition": place.partition, "first_offset": first, "last_offset": last}


def _rows(files: Iterable[DataFile]) -> list[dict[str, Any]]:
    by_place: dict[TopicPartition, list[DataFile]] = {}
    for file in files:
        by_place.setdefault(file.place, []).append(file)
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "first_offset": min(file.first for file in own),
            "last_offset": max(file.last for file in own),
            "records": sum(file.count for file in own),
            "files": len(own),
            "bytes": sum(file.bytes for file in own),
        }
        for place, own in sorted(by_place.items())
    ]


def sentence(summary: Mapping[str, Any], to: str) -> str:
    """The summary for people; its partitions are a table below."""
    if not summary["records"]:
        return f"nothing new was written to {to}"
    files = "" if summary["files"] is None else f" in {_many(summary['files'], 'file')} ({summary['bytes']:,} bytes)"
    batches = _many(summary["batches"], "batch", "batches")
    return f"{_many(summary['records'], 'record')}{files} written to {to}, in {summary['seconds']:g} s and {batches}"


def _many(count: int, one: str, more: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else more or one + 's'}"


def files_since(root: str, number: int, query: str) -> list[DataFile] | None:
    """The files that a query listed in a lake after the manifest `number` (-1: all); None if a compaction has joined these
    manifests meanwhile."""
    folder = Folder(local_path(root))
    base = folder.base()
    if base is not None and base.number > number:
        return None
    manifests = (folder.manifest(each) for each in folder.numbers(base) if each > number)
    return [file for manifest in manifests if manifest.query == query for file in manifest.files]


def newest_manifest(root: str) -> int:
    """Its number; -1: there is none."""
    folder = Folder(local_path(root))
    base = folder.base()
    return max([*folder.numbers(base), -1 if base is None else base.number])
