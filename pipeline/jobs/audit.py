"""Audit: compares a log, record by record, with its lake, the producer's ledger and copies in other topics.

    found = audit(spark, "localhost:9092", ["orders"], lake="/data/lake", ledger=["acks.jsonl"], copies={"orders": "orders2"})
    found.is_ok, found.verdict

The end of a source is read after the ends of its copies: first that of the ledger, then the lake's manifests, then the copies'
ends, then the ends of the topics. So records that arrive meanwhile do not make a copy look ahead of its source. Records after the
lake's end are *pending* and not lost, unless the caller says that the offload is over (`is_complete`).

Log and copies are read with `isolation.level=read_committed`, as an offload reads them, unless the options name another level. So
records of aborted transactions in a lake are foreign to the log. A ledger may have acknowledgements of such records: if records
of the ledger seem to be lost, the uncommitted records of the log are read, too.

Executors do all counting (`audit_frames.py`); the driver gets a row for each partition and interval, and a few examples of each
finding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.audit_result import (
    BAD,
    COPY_BAD,
    NOTES,
    SOURCES,
    Audit,
    CopyInterval,
    Finding,
    Interval,
    Partition,
    Seen,
)
from strandline.pipeline.jobs.lake import MANIFESTS, DataFile, LakeDamaged, join
from strandline.pipeline.jobs.lake_folder import DELTA_LOG, Folder, is_delta, local_path
from strandline.pipeline.jobs.results import bad_first, counted
from strandline.pipeline.jobs.spark_paths import literal_path
from strandline.pipeline.options import isolation_level_of, with_committed, with_isolation_level
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from strandline.pipeline.cluster_view import ClusterView

HOUR_S = 3600
BOUNDS = (
    "topic string, partition int, log_start bigint, log_end bigint, lake_first bigint, lake_due bigint, ledger_end bigint, "
    "is_compacted boolean"
)


@dataclass(frozen=True, slots=True)
class LakeView:
    """The lake's undamaged files of the audited topics, and findings about the damaged ones."""

    root: Path
    files: tuple[DataFile, ...] = ()
    firsts: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The first offset of each partition in the lake."""
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset after the last one of each partition in the lake."""
    findings: tuple[Finding, ...] = ()
    rows: DataFrame | None = None
    """The rows of a Delta table, whose own log says which files count. None: a lake of Parquet files."""

    def files_of(self, tp: TopicPartition, offset: int) -> list[str]:
        return [file.path for file in self.files if file.tp == tp and file.first <= offset <= file.last]


def audit(
    spark: SparkSession,
    servers: str,
    topics: str | Sequence[str] = (),
    *,
    lake: str | os.PathLike[str] | None = None,
    ledger: Sequence[str | os.PathLike[str]] = (),
    copies: Mapping[str, str] | None = None,
    is_complete: bool = False,
    grace_ms: int = 0,
    interval_s: int = HOUR_S,
    include_headers: bool = False,
    options: Mapping[str, str] | None = None,
) -> Audit:
    """Compares lake, ledger and copies, as far as given, with the log.

    `is_complete`: the offload is over, so records that are not in the lake are lost. `grace_ms`: younger records may be missing
    in a copy. `include_headers`: a copy must have the same headers. `options` are those of the source (docs/spark.md). Raises
    UsageError if the arguments cannot be compared."""
    names = check(topics, lake, ledger, copies)
    job = Job(spark, servers, with_committed(options or {}), names, interval_s)
    return run(job, lake, ledger, copies or {}, is_complete, grace_ms, include_headers)


def run(
    job: Job,
    lake: str | os.PathLike[str] | None,
    ledger: Sequence[str | os.PathLike[str]],
    copies: Mapping[str, str],
    is_complete: bool = False,
    grace_ms: int = 0,
    include_headers: bool = False,
) -> Audit:
    """Runs the comparison with checked arguments. The job defines where the log is read from."""
    begun_at_s = time.time()
    ledger_ends, notes = job.measure_ledger([os.fspath(path) for path in ledger])
    view = None if lake is None else job.look_at_lake(local_path(lake))
    copied = [job.compare(source, copy, begun_at_s, grace_ms, include_headers) for source, copy in copies.items()]
    intervals, partitions, findings = job.count(view, ledger_ends, [os.fspath(path) for path in ledger], is_complete)
    sources = [source for source, given in zip(SOURCES, (True, view is not None, bool(ledger)), strict=True) if given]
    all_findings = [*(view.findings if view else ()), *findings, *(one for _, found in copied for one in found), *notes]
    return Audit(
        made_at_s=begun_at_s,
        interval_s=job.interval_s,
        sources=tuple(sources),
        partitions=partitions,
        intervals=intervals,
        copies=tuple(row for rows, _ in copied for row in rows),
        findings=bad_first(all_findings),
    )


def check(
    topics: str | Sequence[str],
    lake: str | os.PathLike[str] | None,
    ledger: Sequence[str | os.PathLike[str]],
    copies: Mapping[str, str] | None,
) -> list[str]:
    """Checks the arguments before Spark is started; returns the named topics and those that were copied. Raises UsageError."""
    names = sorted({*([topics] if isinstance(topics, str) else topics), *(copies or {})} - {""})
    if not names:
        raise UsageError("say what to audit: topics by name, or copies")
    if lake is not None and not ((local_path(lake) / MANIFESTS).is_dir() or is_delta(local_path(lake))):
        raise UsageError(f"there is no lake in {os.fspath(lake)}: it has neither a folder {MANIFESTS} nor {DELTA_LOG}")
    for path in ledger:
        if not Path(path).exists():
            raise UsageError(f"there is no ledger {os.fspath(path)}")
    for source, copy in (copies or {}).items():
        if source == copy:
            raise UsageError(f"topic {source} cannot be a copy of itself")
    return names


@dataclass(frozen=True, slots=True)
class Job:
    """Compares the log that a cluster serves. A subclass that overrides `_bounds` and `_read` reads it from elsewhere."""

    spark: SparkSession
    servers: str
    options: Mapping[str, str]
    topics: Sequence[str]
    interval_s: int

    # -- ledger -------------------------------------------------------------------------------------------------------

    def measure_ledger(self, paths: Sequence[str]) -> tuple[dict[TopicPartition, int], list[Finding]]:
        """The end offset of the ledger's entries in each partition, and notes about lines that cannot be compared."""
        if not paths:
            return {}, []
        from pyspark.sql import functions as f

        from strandline.pipeline.jobs.audit_frames import TORN, ledger_lines

        lines = ledger_lines(self.spark, paths)
        # A torn line may have a wrong topic, so torn lines form a group of their own.
        torn = f.col(TORN).isNotNull()
        groups = lines.select(
            f.when(torn, None).otherwise(f.col("topic")).alias("topic"),
            f.when(torn, None).otherwise(f.col("partition")).alias("partition"),
            (f.col("offset") + f.coalesce("count", f.lit(1))).alias("end"),
            (f.col("offset") < 0).alias("is_unknown"),
        ).groupBy("topic", "partition")
        rows = groups.agg(f.max("end").alias("end"), f.count_if("is_unknown").alias("unknown"), f.count("*").alias("lines"))
        found = rows.collect()
        ends = {TopicPartition(row.topic, row.partition): row.end for row in found if row.topic in self.topics}
        return ends, list(_ledger_notes(found, self.topics))

    # -- lake ---------------------------------------------------------------------------------------------------------

    def look_at_lake(self, root: Path) -> LakeView:
        """Compares the manifests with the files. Executors read every byte of each file."""
        if is_delta(root):
            return self._look_at_delta(root)
        all_files, ends, problems = listed(Folder(root))
        files = [file for file in all_files if file.topic in self.topics]
        damaged = self._damaged(root, files)
        firsts: dict[TopicPartition, int] = {}
        for file in files:
            firsts[file.tp] = min(file.first, firsts.get(file.tp, file.first))
        return LakeView(
            root,
            tuple(file for file in files if file.path not in damaged),
            firsts,
            {tp: end for tp, end in ends.items() if tp.topic in self.topics},
            tuple(_damage(text) for text in (*problems, *damaged.values())),
        )

    def _look_at_delta(self, root: Path) -> LakeView:
        """Reads one version of the table, even if another is written meanwhile."""
        from pyspark.sql import functions as f

        from strandline.pipeline.jobs.delta_offload import newest

        rows = newest(self.spark, str(root)).filter(f.col("topic").isin(list(self.topics)))
        found = rows.groupBy("topic", "partition").agg(f.min("offset").alias("first"), f.max("offset").alias("last")).collect()
        firsts = {TopicPartition(row.topic, row.partition): row["first"] for row in found}
        ends = {TopicPartition(row.topic, row.partition): row["last"] + 1 for row in found}
        return LakeView(root, (), firsts, ends, (), rows)

    def _damaged(self, root: Path, files: Sequence[DataFile]) -> dict[str, str]:
        """The damaged files: path -> what is wrong."""
        from strandline.pipeline.jobs.audit_files import SCHEMA, check_files
        from strandline.pipeline.jobs.tasks import rows_of

        pieces = self._parallelism() * 2
        rows = rows_of(self.spark, check_files(root, files, pieces), SCHEMA).collect()
        return {row.path: row.problem for row in rows}

    # -- log ----------------------------------------------------------------------------------------------------------

    def count(
        self, view: LakeView | None, ledger_ends: Mapping[TopicPartition, int], ledger: Sequence[str], is_complete: bool
    ) -> tuple[tuple[Interval, ...], tuple[Partition, ...], list[Finding]]:
        """Counts the records of log, lake and ledger by partition and interval, and makes findings of the counts."""
        from strandline.pipeline.jobs import audit_frames as frames

        bounds = self._bounds(self.topics)
        read = self._read(self.topics, bounds)
        rows = frames.log_rows(read, has_ledger=bool(ledger))
        if view is not None and view.rows is not None:
            rows = rows.unionByName(frames.lake_rows(view.rows))
        elif view is not None and view.files:
            parquet = self.spark.read.parquet(*(literal_path(str(view.root / file.path)) for file in view.files))
            rows = rows.unionByName(frames.lake_rows(parquet))
        tps = {*bounds, *ledger_ends, *(view.ends if view else ())}
        compacted = self.compacted(self.topics)
        table = [_bound(tp, bounds, view, ledger_ends, is_complete, tp.topic in compacted) for tp in sorted(tps)]

        def compared(uncommitted: DataFrame | None) -> DataFrame:
            lines = frames.ledger_lines(self.spark, ledger) if ledger else None
            sides = rows if lines is None else rows.unionByName(frames.ledger_rows(lines, self.topics, uncommitted))
            judged = frames.superseded(sides, sorted(compacted))
            return frames.by_offset(judged, self.spark.createDataFrame(table, BOUNDS))

        offsets = compared(None)
        collected = frames.by_interval(offsets, self.interval_s).collect()
        if ledger and self._reads_committed and any(row.lost_in_log or row.lost_in_lake for row in collected):
            offsets = compared(frames.unread(self._uncommitted(bounds), read))
            collected = frames.by_interval(offsets, self.interval_s).collect()
        intervals = tuple(sorted((_interval(row) for row in collected), key=lambda i: (i.topic, i.partition, i.at_s or 0)))
        partitions = tuple(_partition(tp, bounds, view) for tp in sorted(tps))
        findings = list(_findings(intervals, gaps_of(collected, partitions)))
        if any(finding.is_bad for finding in findings):
            findings = _with_examples(findings, frames.examples(offsets), view)
        return intervals, partitions, findings

    def _bounds(self, topics: Sequence[str]) -> dict[TopicPartition, tuple[int, int]]:
        """The start and end offsets of the logs now."""
        view = self._view(topics)
        tps = view.partitions()
        ends = view.latest(tps)
        return {tp: (first, max(first, ends[tp].offset)) for tp, first in view.earliest(tps).items()}

    @property
    def _reads_committed(self) -> bool:
        return isolation_level_of(self.options) == "read_committed"

    def _uncommitted(self, bounds: Mapping[TopicPartition, tuple[int, int]]) -> DataFrame:
        """The records of the log up to its end, with those of open and aborted transactions."""
        ends = self._log_ends(bounds)
        job = replace(self, options=with_isolation_level(self.options, "read_uncommitted"))
        return job._read(self.topics, {tp: (first, max(end, ends[tp])) for tp, (first, end) in bounds.items()})

    def _log_ends(self, tps: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The ends of the logs now: records of open transactions count, too."""
        return self._view(self.topics).log_ends(tps)

    def _view(self, topics: Sequence[str]) -> ClusterView:
        from strandline.pipeline.cluster_view import ClusterView
        from strandline.pipeline.options import Subscription, read_options

        written = {"bootstrap.servers": self.servers, "subscribe": ",".join(topics), **self.options}
        return ClusterView(read_options(written, is_stream=False).client, Subscription(tuple(topics)))

    def compacted(self, topics: Sequence[str]) -> set[str]:
        """The topics whose logs may lack records because they are compacted."""
        view = self._view(topics)
        return {topic for topic in topics if "compact" in view.config(topic, "cleanup.policy").split(",")}

    def _read(
        self, topics: Sequence[str], bounds: Mapping[TopicPartition, tuple[int, int]], include_headers: bool = False
    ) -> DataFrame:
        from strandline.pipeline.jobs.audit_files import offsets_json

        reader = self.spark.read.format("strandline").option("bootstrap.servers", self.servers)
        fixed = {
            "subscribe": ",".join(topics),
            "startingOffsets": offsets_json({tp: first for tp, (first, _) in bounds.items()}),
            "endingOffsets": offsets_json({tp: end for tp, (_, end) in bounds.items()}),
            "includeHeaders": str(include_headers).lower(),
            "minPartitions": str(self._parallelism()),
        }
        return reader.options(**{**self.options, **fixed}).load()

    def _parallelism(self) -> int:
        from strandline.pipeline.jobs.tasks import slots

        return slots(self.spark)

    # -- copies -------------------------------------------------------------------------------------------------------

    def compare(
        self, source: str, copy: str, now_s: float, grace_ms: int, include_headers: bool
    ) -> tuple[list[CopyInterval], list[Finding]]:
        """Compares a topic with its copy. A record of the last `grace_ms` before `now_s` may be missing in the copy."""
        from strandline.pipeline.jobs import audit_frames as frames

        of_copy, of_source = self._bounds([copy]), self._bounds([source])
        due_ms = int(now_s * 1000) - grace_ms if grace_ms else 1 << 52
        contents = frames.by_content(
            self._read([source], of_source, include_headers),
            self._read([copy], of_copy, include_headers),
            due_ms,
            include_headers,
        )
        rows = [
            CopyInterval(
                topic=source, copy=copy, at_s=row.at_s, count=row.sources, copied=row.copies,
                kinds={kind: row[kind] for kind in COPY_BAD if row[kind]},
            )
            for row in frames.copy_by_interval(contents, self.interval_s, COPY_BAD).collect()
        ]  # fmt: skip
        counts = {kind: sum(row.kinds.get(kind, 0) for row in rows) for kind in COPY_BAD}
        findings = [Finding(kind=kind, where=f"{source} to {copy}", count=count) for kind, count in counts.items() if count]
        if findings:
            findings = _with_copy_examples(findings, frames.copy_examples(contents, COPY_BAD).collect(), source, copy)
        return sorted(rows, key=lambda row: row.at_s or 0), findings


# -- from rows to findings --------------------------------------------------------------------------------------------


def _bound(
    tp: TopicPartition,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    view: LakeView | None,
    ledger_ends: Mapping[TopicPartition, int],
    is_complete: bool,
    is_compacted: bool,
) -> tuple[Any, ...]:
    """A row of `BOUNDS`. A partition that the cluster does not have counts as an empty log."""
    start, end = bounds.get(tp, (0, 0))
    lake_first = lake_due = None
    if view is not None:
        lake_first = min(view.firsts.get(tp, start), start)
        lake_due = max(view.ends.get(tp, 0), end if is_complete else 0)
    return (*tp, start, end, lake_first, lake_due, ledger_ends.get(tp, 0), is_compacted)


def _partition(tp: TopicPartition, bounds: Mapping[TopicPartition, tuple[int, int]], view: LakeView | None) -> Partition:
    start, end = bounds.get(tp, (0, 0))
    lake_end = None if view is None else view.ends.get(tp)
    return Partition(topic=tp.topic, partition=tp.partition, log_start=start, log_end=end, lake_end=lake_end)


def _interval(row: Row) -> Interval:
    seen = {
        source: Seen(row[source], *(row[f"{source}_{what}"] for what in ("first", "last", "first_ms", "last_ms")))
        for source in SOURCES
    }
    kinds = {kind: row[kind] for kind in (*BAD, *NOTES) if row[kind]}
    return Interval(topic=row.topic, partition=row.partition, at_s=row.at_s, seen=seen, kinds=kinds)


def gaps_of(rows: Sequence[Row], partitions: Sequence[Partition]) -> dict[TopicPartition, int]:
    """For each partition, the number of offsets that have no record in the log, the lake and the ledger."""
    gaps = {TopicPartition(p.topic, p.partition): p.log_end - p.log_start for p in partitions}
    for row in rows:
        gaps[TopicPartition(row.topic, row.partition)] -= row.log - row.doubled_in_log + row.absent
    return gaps


def _findings(intervals: Sequence[Interval], gaps: Mapping[TopicPartition, int]) -> Iterator[Finding]:
    for kind in (*BAD, *NOTES):
        counts: dict[TopicPartition, int] = {}
        for row in intervals:
            tp = TopicPartition(row.topic, row.partition)
            counts[tp] = counts.get(tp, 0) + row.kinds.get(kind, 0)
        for tp, count in sorted((gaps if kind == "gaps" else counts).items()):
            if count > 0:
                yield Finding(kind=kind, where=str(tp), count=count, is_bad=kind in BAD)


def _with_examples(findings: Sequence[Finding], frame: DataFrame, view: LakeView | None) -> list[Finding]:
    offsets: dict[tuple[str, str], list[str]] = {}
    for row in frame.orderBy("topic", "partition", "kind", "offset").collect():
        tp = TopicPartition(row.topic, row.partition)
        files = view.files_of(tp, row.offset) if view is not None and row.kind != "lost_in_lake" else []
        text = f"offset {row.offset}" + (f", {' and '.join(files[:2])}" if files else "")
        offsets.setdefault((row.kind, str(tp)), []).append(text)
    return [replace(found, examples=tuple(offsets.get((found.kind, found.where), ()))) for found in findings]


def _with_copy_examples(findings: Sequence[Finding], rows: Sequence[Row], source: str, copy: str) -> list[Finding]:
    examples: dict[str, list[str]] = {}
    for row in rows:
        topic = copy if row.kind == "foreign_in_copy" else source
        examples.setdefault(row.kind, []).append(f"such as one of partition {row.partition}, offset {row.offset} ({topic})")
    return [replace(found, examples=tuple(examples.get(found.kind, ()))) for found in findings]


def listed(folder: Folder) -> tuple[list[DataFile], dict[TopicPartition, int], list[str]]:
    """The listed files, the end offset of each partition, and a sentence for each fault of the manifests. If manifests contradict
    each other, all their files count: the records show which of them are lost or doubled."""
    manifests, problems = [], []
    try:
        base = folder.base()
    except LakeDamaged as e:
        base, problems = None, [str(e)]
    for number in folder.numbers(base):
        try:
            manifests.append(folder.manifest(number))
        except LakeDamaged as e:
            problems.append(str(e))
    try:
        files, ends = join(manifests, base)
        return list(files), dict(ends), problems
    except LakeDamaged as e:
        problems.append(str(e))
    listing = [*([base] if base else []), *manifests]
    ends = {}
    for manifest in listing:
        for tp, end in manifest.ends.items():
            ends[tp] = max(end, ends.get(tp, 0))
    return [file for manifest in listing for file in manifest.files], ends, problems


def _damage(text: str) -> Finding:
    return Finding(kind="damaged", where="lake", count=0, text=f"the lake is damaged: {text}")


def _ledger_notes(rows: Sequence[Row], topics: Sequence[str]) -> Iterator[Finding]:
    torn = sum(row["lines"] for row in rows if row.topic is None)
    unknown = sum(row.unknown for row in rows if row.topic in topics)
    if torn:
        text = f"{counted(torn, 'line')} of the ledger cannot be read (the last line of a killed writer may be incomplete)"
        yield Finding(kind="torn_ledger", where="ledger", count=0, is_bad=False, text=text)
    if unknown:
        text = f"{counted(unknown, 'line')} of the ledger without an offset cannot be compared"
        yield Finding(kind="unknown_ledger", where="ledger", count=0, is_bad=False, text=text)
