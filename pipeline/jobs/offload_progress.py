"""The progress and the summary of an offload, from Spark's report of each batch and from the lake's manifests.

It returns sentences and plain values, which the command prints. Only the last two functions read files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import DataFile, partition_rows
from strandline.pipeline.jobs.lake_folder import Folder, local_path
from strandline.pipeline.jobs.results import counted

Offsets = dict[TopicPartition, int]


class Batch(NamedTuple):
    """One batch of the query, as Spark reports it."""

    number: int
    records: int
    duration_ms: int
    begin: Offsets
    """The first offset of each partition. In the query's first batch with a partition, the partition is missing here."""
    end: Offsets
    """The offset after the last record of each partition."""
    latest: Offsets
    """The end of each partition's log when Spark planned the batch."""

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Batch:
        """The batch that `report` describes, an element of a query's `recentProgress` as JSON."""
        source = (report.get("sources") or [{}])[0]
        offsets = (_offsets(source.get(name)) for name in ("startOffset", "endOffset", "latestOffset"))
        duration_ms = int((report.get("durationMs") or {}).get("triggerExecution", 0))
        return cls(int(report["batchId"]), int(report.get("numInputRows") or 0), duration_ms, *offsets)

    @property
    def lag(self) -> int:
        """The number of offsets, of all partitions, between the end of the batch and the end of the log."""
        return sum(max(0, end - self.end.get(tp, 0)) for tp, end in self.latest.items())


def _offsets(stored: Any) -> Offsets:
    found = json.loads(stored) if isinstance(stored, str) else stored
    topics = (found or {}).get("topics", {})
    return {TopicPartition(topic, int(p)): offset for topic, of_topic in topics.items() for p, offset in of_topic.items()}


@dataclass(slots=True)
class OffloadProgress:
    """The sums of all batches of this run so far."""

    batches: int = 0
    records: int = 0
    begin: dict[TopicPartition, int | None] = field(default_factory=dict)
    """The first offset that this run read of each partition; None: Spark has not reported it."""
    end: Offsets = field(default_factory=dict)
    """The offset after the last one that this run read of each partition."""
    _newest: int = -1
    """Number of the last counted batch. Spark repeats its reports, and also reports triggers that had nothing to read."""

    def take(self, reports: Iterable[Mapping[str, Any]]) -> list[Batch]:
        """Counts the batches that are new in these reports, and returns them."""
        new = [batch for batch in map(Batch.of, reports) if batch.number > self._newest and batch.records]
        for batch in new:
            self._newest = batch.number
            self.batches += 1
            self.records += batch.records
            for tp, offset in batch.end.items():
                self.begin.setdefault(tp, batch.begin.get(tp))
                self.end[tp] = offset
        return new

    def line(self, batch: Batch, elapsed_s: float) -> str:
        """A line for people about a batch that ended `elapsed_s` seconds after the start of the command."""
        rate = batch.records * 1000 / batch.duration_ms if batch.duration_ms else 0
        return (
            f"{elapsed_s:6.0f} s  batch {batch.number}: {self.records:,} records written, {rate:,.0f} records/s, "
            f"{batch.lag:,} behind the log's end"
        )

    def summary(self, elapsed_s: float, files: Iterable[DataFile] | None) -> dict[str, Any]:
        """The sums of this run for programs. `files` are those that the run added to a lake; None for a Delta table, whose own
        history has its files.

        `partitions` has a row for each partition: `first_offset` (None: not known) and `last_offset`, and for a lake `records`,
        `files` and `bytes`."""
        written = None if files is None else list(files)
        tps = sorted(tp for tp, end in self.end.items() if end > (self.begin[tp] or 0))
        return {
            "records": self.records if written is None else sum(file.count for file in written),
            "batches": self.batches,
            "seconds": round(elapsed_s, 1),
            "files": None if written is None else len(written),
            "bytes": None if written is None else sum(file.bytes for file in written),
            "partitions": partition_rows(written) if written is not None else [self._row(tp) for tp in tps],
        }

    def _row(self, tp: TopicPartition) -> dict[str, Any]:
        first, last = self.begin[tp], self.end[tp] - 1
        return {"topic": tp.topic, "partition": tp.partition, "first_offset": first, "last_offset": last}


def sentence(summary: Mapping[str, Any], to: str) -> str:
    """The summary as a sentence for people; a table of the partitions follows it."""
    if not summary["records"]:
        return f"there were no new records to write to {to}"
    files = "" if summary["files"] is None else f" in {counted(summary['files'], 'file')} ({summary['bytes']:,} bytes)"
    batches = counted(summary["batches"], "batch", "batches")
    return f"{counted(summary['records'], 'record')}{files} written to {to}, in {summary['seconds']:g} s and {batches}"


def files_since(root: str, number: int, query: str) -> list[DataFile] | None:
    """The files that a query added to a lake after the manifest `number` (-1: all of its files). None if a compaction has
    replaced these manifests."""
    folder = Folder(local_path(root))
    base = folder.base()
    if base is not None and base.number > number:
        return None
    manifests = (folder.manifest(each) for each in folder.numbers(base) if each > number)
    return [file for manifest in manifests if manifest.query == query for file in manifest.files]


def newest_manifest(root: str) -> int:
    """The number of the lake's newest manifest; -1 if there is none."""
    folder = Folder(local_path(root))
    base = folder.base()
    return max([*folder.numbers(base), -1 if base is None else base.number])
