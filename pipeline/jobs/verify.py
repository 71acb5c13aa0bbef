"""Verify: compares brokers' data directories on the disk: replicas with each other, and checkpoints with logs.

    found = verify(["/var/lib/strandline-1", "/var/lib/strandline-2"], topics=["orders"])
    found.is_ok, found.verdict

An operator runs it after a disaster, so it needs no cluster. Nor does it need Spark to compare directories with each other: each
partition is a task (`PartitionTask`), and tasks run one after the other in this process, or on the executors of a Spark session,
which must see the same paths. `verify_records.py` compares a lake, a copy or a ledger, always with Spark.

Brokers may run at the same time, and then append, truncate and delete between one read and the next. So if a partition has a bad
finding while a broker runs, it is read again, several times (`RETRY_WAITS_S`): damage stays, but a change in progress ends.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.pipeline.jobs.audit import check as check_audit
from strandline.pipeline.jobs.verify_checks import Facts, Indexes, LogCheck
from strandline.pipeline.jobs.verify_content import checked
from strandline.pipeline.jobs.verify_folders import LOCK, Directory, across, find, is_locked, opened
from strandline.pipeline.jobs.verify_log import read_batch, read_files, read_index, segments
from strandline.pipeline.jobs.verify_replicas import Source
from strandline.pipeline.jobs.verify_replicas import verify as verify_replicas
from strandline.pipeline.jobs.verify_result import Finding, Partition, Verification
from strandline.pipeline.jobs.verify_transactions import SUFFIX, read_entries
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

SCHEMA = "pickled binary"
METADATA_FILE = "partition.metadata"
OFFSET_ENTRY, TIME_ENTRY = 8, 12
"""Bytes of one entry of an `.index` and of a `.timeindex` file."""

RETRY_WAITS_S = (0.5, 1.0, 2.0, 3.0)
"""The waits before partitions with bad findings are read again. Their sum is longer than a broker's interval between two
checkpoints (`replica.high.watermark.checkpoint.interval.ms`)."""

Progress = Callable[[int, int, str], None]
"""Called before a partition is read, with its number from 1 on, the number of all partitions, and its name."""


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """The verification of one partition. Spark pickles it, so it holds plain values."""

    replicas: tuple[Facts, ...]
    now_ms: int
    findings: tuple[Finding, ...] = ()
    """Findings of this partition that its folders' metadata files already showed."""
    reads_records: bool = False

    @property
    def tp(self) -> tuple[str, int]:
        return self.replicas[0].topic, self.replicas[0].partition

    @property
    def name(self) -> str:
        return "{}-{}".format(*self.tp)

    def verify(self) -> Partition:
        """Reads all replicas of the partition and compares them. The result includes the earlier `findings`.

        If a file is deleted meanwhile (by retention, or because a replica moves), the result has a single finding, of kind
        `vanished`. Raises OSError if a file cannot be opened for another reason."""
        try:
            found = verify_replicas([_source(facts, self.now_ms, self.reads_records) for facts in self.replicas])
        except FileNotFoundError as e:
            return self._without(e)
        return replace(found, findings=(*self.findings, *found.findings))

    def _without(self, error: FileNotFoundError) -> Partition:
        one, path = self.replicas[0], str(error.filename)
        brokers = tuple(facts.broker for facts in self.replicas if Path(facts.path) in (Path(path), Path(path).parent))
        finding = Finding(kind="vanished", topic=one.topic, partition=one.partition, brokers=brokers, path=path)
        return Partition(
            topic=one.topic, partition=one.partition, topic_id=one.topic_id, committed=0, replicas=(), findings=(finding,)
        )

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        """Verifies the partition on an executor, and yields its result, pickled, as the only row."""
        import pyarrow

        yield pyarrow.RecordBatch.from_arrays([pyarrow.array([pickle.dumps(self.verify())], pyarrow.binary())], names=["pickled"])


def verify(
    folders: Sequence[str | os.PathLike[str]] | Sequence[Directory],
    topics: Sequence[str] = (),
    *,
    lake: str | os.PathLike[str] | None = None,
    ledger: Sequence[str | os.PathLike[str]] = (),
    copies: Mapping[str, str] | None = None,
    is_complete: bool = False,
    reads_records: bool = False,
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Verifies all logs in these folders, or those of `topics`. A folder is a broker's data directory, or contains some.

    `lake`, `ledger`, `copies` and `is_complete` are those of an audit (`audit.py`); they need `spark`. `reads_records`: decode
    the records of every batch and compare the producer snapshots too, which takes several times as long. Raises UsageError if a
    folder does not exist or has no logs, if no directory has a log of a named topic, or if Spark is missing for a comparison."""
    directories = [one for one in folders if isinstance(one, Directory)]
    directories += find([one for one in folders if not isinstance(one, Directory)])
    check(directories, topics, lake, ledger, copies or {})
    wanted = {*topics, *(copies or {}), *(copies or {}).values()} if topics else set()

    def run(tasks: Sequence[PartitionTask]) -> Iterable[Partition]:
        tasks = [replace(task, reads_records=reads_records) for task in tasks]
        return _run(tasks, progress) if spark is None else _run_on(spark, tasks)

    found = _settled(directories, wanted, run)
    if lake is None and not ledger and not copies:
        return found
    if spark is None:
        raise UsageError("a lake, a ledger or a copy can be compared only with Spark; pass a session as `spark`")
    from strandline.pipeline.jobs.verify_records import compare

    return replace(found, comparison=compare(spark, found.partitions, topics, lake, ledger, copies or {}, is_complete))


def _settled(
    directories: Sequence[Directory], topics: Collection[str], run: Callable[[Sequence[PartitionTask]], Iterable[Partition]]
) -> Verification:
    """Runs the verification. As long as a broker runs and there is a bad finding, the partitions that have one are read again,
    at most once for each of `RETRY_WAITS_S`."""
    made_at_s = time.time()
    now_ms = int(made_at_s * 1000)
    partitions = list(run(plan(directories, topics, now_ms)))
    general = _general(directories, topics)
    for wait_s in RETRY_WAITS_S:
        doubtful = {(one.topic, one.partition) for one in partitions if not one.is_ok}
        is_bad = doubtful or any(finding.is_bad for finding in general)
        if not is_bad or not any(one.is_running or is_locked(one.path / LOCK) for one in directories):
            break
        time.sleep(wait_s)
        directories = opened([one.path for one in directories])
        again = [task for task in plan(directories, topics, now_ms) if task.tp in doubtful]
        partitions = [*(one for one in partitions if (one.topic, one.partition) not in doubtful), *run(again)]
        general = _general(directories, topics)
    return Verification(
        made_at_s=made_at_s,
        directories=tuple(str(directory.path) for directory in directories),
        brokers=tuple(directory.broker for directory in directories),
        partitions=tuple(sorted(partitions, key=lambda one: (one.topic, one.partition))),
        findings=general,
    )


def _general(directories: Sequence[Directory], topics: Collection[str]) -> tuple[Finding, ...]:
    """The findings about whole directories, or about logs that are missing."""
    together = [one for one in across(directories) if not topics or not one.topic or one.topic in topics]
    return (*(finding for directory in directories for finding in directory.findings), *together)


def check(
    directories: Sequence[Directory],
    topics: Sequence[str],
    lake: str | os.PathLike[str] | None,
    ledger: Sequence[str | os.PathLike[str]],
    copies: Mapping[str, str],
) -> None:
    """Checks the arguments before logs are read and Spark is started. Raises UsageError."""
    known = sorted({topic for directory in directories for topic, _ in directory.logs})
    for topic in (*topics, *copies, *copies.values()):
        if topic not in known:
            raise UsageError(f"no directory has a log of topic {topic}; there are logs of {', '.join(known) or 'no topic'}")
    if lake is not None or ledger or copies:
        check_audit(topics or known, lake, ledger, copies)


def plan(directories: Sequence[Directory], topics: Collection[str], now_ms: int) -> list[PartitionTask]:
    """A task for each partition. If folders of one partition have different topic ids, there is a task for each topic id."""
    tps = sorted({tp for directory in directories for tp in directory.logs if not topics or tp[0] in topics})
    return [task for tp in tps for task in _tasks_of(tp, directories, now_ms)]


def _tasks_of(tp: tuple[str, int], directories: Iterable[Directory], now_ms: int) -> Iterator[PartitionTask]:
    replicas = [directory.facts(tp) for directory in directories if tp in directory.logs]
    counts = Counter(facts.topic_id for facts in replicas if facts.topic_id is not None)
    main = counts.most_common(1)[0][0] if counts else None
    groups: dict[str | None, list[Facts]] = {}
    for facts in replicas:
        groups.setdefault(facts.topic_id if facts.topic_id is not None else main, []).append(facts)
    for topic_id, group in sorted(groups.items(), key=lambda item: item[0] != main):
        findings = [_about(facts, "checkpoint_unreadable", METADATA_FILE) for facts in group if facts.topic_id is None]
        findings += [finding for facts in group for finding in _unfinished(facts)]
        if topic_id != main:
            findings += [_about(facts, "topic_id", f"{topic_id} instead of {main}", METADATA_FILE) for facts in group]
        yield PartitionTask(tuple(replace(facts, topic_id=topic_id) for facts in group), now_ms, tuple(findings))


def _unfinished(facts: Facts) -> Iterator[Finding]:
    """A note for each file of a cleaning that was interrupted. Of a replacement, only the segment is named."""
    with suppress(FileNotFoundError):  # The broker is removing the folder.
        for path in sorted(Path(facts.path).iterdir()):
            if path.name.endswith(".log.swap"):
                yield _about(facts, "swap_unfinished", path.name)
            elif path.name.endswith(".log.cleaned"):
                yield _about(facts, "cleaned_unfinished", path.name)


def _about(facts: Facts, kind: str, detail: str, name: str = "") -> Finding:
    path = str(Path(facts.path) / (name or detail))
    return Finding(kind=kind, topic=facts.topic, partition=facts.partition, brokers=(facts.broker,), detail=detail, path=path)


def _source(facts: Facts, now_ms: int, reads_records: bool) -> Source:
    folder = Path(facts.path)
    files = segments(folder)
    indexes = {base: _indexes(path) for base, path in files}
    check, items = LogCheck(facts, now_ms, indexes, files[0][0] if files else None), read_files(files)
    return Source(check, checked(items, folder, check) if reads_records else items, partial(read_batch, folder))


def _indexes(segment: Path) -> Indexes:
    return Indexes(
        offsets=read_index(segment.with_suffix(".index"), OFFSET_ENTRY),
        times=read_index(segment.with_suffix(".timeindex"), TIME_ENTRY),
        aborted=read_entries(segment.with_suffix(f".{SUFFIX}")),
    )


def _run(tasks: Sequence[PartitionTask], progress: Progress | None) -> Iterator[Partition]:
    for number, task in enumerate(tasks, 1):
        if progress is not None:
            progress(number, len(tasks), task.name)
        yield task.verify()


def _run_on(spark: SparkSession, tasks: Sequence[PartitionTask]) -> Iterator[Partition]:
    from strandline.pipeline.jobs.tasks import rows_of

    found = [pickle.loads(row.pickled) for row in rows_of(spark, tasks, SCHEMA).collect()]
    yield from sorted(found, key=lambda one: (one.topic, one.partition))
