"""Verify: what brokers' directories hold, at rest, without a broker: replicas against each other, checkpoints against logs.

    found = verify(["/var/lib/strandline-1", "/var/lib/strandline-2"], topics=["orders"])
    found.is_ok, found.verdict

It is what an operator runs after a disaster, so it needs no cluster, and no Spark as long as only directories are compared with
each other: each partition is a task (`PartitionTask`), and tasks run one after the other in this process, or on Spark's executors
(`spark`), which must see the same paths. A lake, a copy or a ledger is compared by `verify_records.py`, always with Spark.

Brokers may run meanwhile: they append, truncate, delete segments and whole topics between one read and the next. What looks wrong
then is looked at again, several times (`LOOK_AGAIN_S`). Damage stays, and what a broker was just changing does not.
"""

from __future__ import annotations

import os
import pickle
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.pipeline.jobs.audit import check as check_audit
from strandline.pipeline.jobs.verify_checks import Facts, Indexes, LogCheck
from strandline.pipeline.jobs.verify_folders import LOCK, Directory, across, find, is_locked, opened
from strandline.pipeline.jobs.verify_log import read_files, read_index, segments
from strandline.pipeline.jobs.verify_replicas import Source
from strandline.pipeline.jobs.verify_replicas import verify as verify_replicas
from strandline.pipeline.jobs.verify_result import Finding, Partition, Verification
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import SparkSession

SCHEMA = "pickled binary"
OFFSET_ENTRY, TIME_ENTRY = 8, 12
"""Bytes of an entry of `.index` and `.timeindex`."""

LOOK_AGAIN_S = (0.5, 1.0, 2.0, 3.0)
"""Waits before partitions with findings are read again while a broker runs: in sum longer than a broker waits before it writes
its checkpoints (`replica.high.watermark.checkpoint.interval.ms`)."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PartitionTask:
    """Verifies one partition: plain values, so that it can be pickled."""

    replicas: tuple[Facts, ...]
    now_ms: int
    findings: tuple[Finding, ...] = ()
    """What the directories' metadata already shows of this partition."""

    @property
    def place(self) -> tuple[str, int]:
        return self.replicas[0].topic, self.replicas[0].partition

    @property
    def name(self) -> str:
        return "{}-{}".format(*self.place)

    def verify(self) -> Partition:
        """OSError if a file may not be read."""
        try:
            found = verify_replicas([_source(facts, self.now_ms) for facts in self.replicas])
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
        """The same as a task of Spark."""
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
    spark: SparkSession | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Reads all logs of the brokers' directories in these folders (or of directories found before), or those of `topics`. A lake,
    a ledger and copies are those of an audit (`audit.py`), and need `spark`. UsageError if a folder does not exist or has no
    logs, or no directory has a log of a topic."""
    directories = [one for one in folders if isinstance(one, Directory)]
    directories += find([one for one in folders if not isinstance(one, Directory)])
    check(directories, topics, lake, ledger, copies or {})
    wanted = {*topics, *(copies or {}), *(copies or {}).values()} if topics else set()
    found = _settled(directories, wanted, lambda tasks: _run(tasks, progress) if spark is None else _run_on(spark, tasks))
    if lake is None and not ledger and not copies:
        return found
    if spark is None:
        raise UsageError("a lake, a ledger or a copy is compared with Spark: give a session")
    from strandline.pipeline.jobs.verify_records import compare

    return replace(found, comparison=compare(spark, found.partitions, topics, lake, ledger, copies or {}, is_complete))


def _settled(
    directories: Sequence[Directory], topics: Collection[str], run: Callable[[Sequence[PartitionTask]], Iterable[Partition]]
) -> Verification:
    """Looks once; while a broker runs, and there is a finding, again at the partitions that have one."""
    made_at_s = time.time()
    now_ms = int(made_at_s * 1000)
    partitions = list(run(plan(directories, topics, now_ms)))
    general = _general(directories, topics)
    for wait_s in LOOK_AGAIN_S:
        doubtful = {(one.topic, one.partition) for one in partitions if not one.is_ok}
        is_in_doubt = doubtful or any(finding.is_bad for finding in general)
        if not is_in_doubt or not any(one.is_running or is_locked(one.path / LOCK) for one in directories):
            break
        time.sleep(wait_s)
        directories = opened([one.path for one in directories])
        again = [task for task in plan(directories, topics, now_ms) if task.place in doubtful]
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
    """What is not of one partition's logs."""
    together = [one for one in across(directories) if not topics or not one.topic or one.topic in topics]
    return (*(finding for directory in directories for finding in directory.findings), *together)


def check(
    directories: Sequence[Directory],
    topics: Sequence[str],
    lake: str | os.PathLike[str] | None,
    ledger: Sequence[str | os.PathLike[str]],
    copies: Mapping[str, str],
) -> None:
    """Raises UsageError before anything is read, and before Spark is started."""
    known = sorted({topic for directory in directories for topic, _ in directory.logs})
    for topic in (*topics, *copies, *copies.values()):
        if topic not in known:
            raise UsageError(f"no directory has a log of topic {topic}; there are logs of {', '.join(known) or 'no topic'}")
    if lake is not None or ledger or copies:
        check_audit(topics or known, lake, ledger, copies)


def plan(directories: Sequence[Directory], topics: Collection[str], now_ms: int) -> list[PartitionTask]:
    """A task for each partition, or for each topic id if folders of one name belong to several topics."""
    places = sorted({place for directory in directories for place in directory.logs if not topics or place[0] in topics})
    return [task for place in places for task in _tasks_of(place, directories, now_ms)]


def _tasks_of(place: tuple[str, int], directories: Iterable[Directory], now_ms: int) -> Iterator[PartitionTask]:
    replicas = [directory.facts(place) for directory in directories if place in directory.logs]
    counts = Counter(facts.topic_id for facts in replicas if facts.topic_id is not None)
    main = counts.most_common(1)[0][0] if counts else None
    groups: dict[str | None, list[Facts]] = {}
    for facts in replicas:
        groups.setdefault(facts.topic_id if facts.topic_id is not None else main, []).append(facts)
    for topic_id, group in sorted(groups.items(), key=lambda item: item[0] != main):
        findings = [_about(facts, "checkpoint_unreadable", "partition.metadata") for facts in group if facts.topic_id is None]
        if topic_id != main:
            findings += [_about(facts, "topic_id", f"{topic_id} instead of {main}") for facts in group]
        yield PartitionTask(tuple(replace(facts, topic_id=topic_id) for facts in group), now_ms, tuple(findings))


def _about(facts: Facts, kind: str, detail: str) -> Finding:
    path = str(Path(facts.path) / "partition.metadata")
    return Finding(kind=kind, topic=facts.topic, partition=facts.partition, brokers=(facts.broker,), detail=detail, path=path)


def _source(facts: Facts, now_ms: int) -> Source:
    folder = Path(facts.path)
    files = segments(folder)
    indexes = {base: _indexes(path) for base, path in files}
    return Source(LogCheck(facts, now_ms, indexes, files[0][0] if files else None), read_files(files))


def _indexes(segment: Path) -> Indexes:
    return Indexes(
        read_index(segment.with_suffix(".index"), OFFSET_ENTRY), read_index(segment.with_suffix(".timeindex"), TIME_ENTRY)
    )


def _run(tasks: Sequence[PartitionTask], progress: Progress | None) -> Iterator[Partition]:
    for number, task in enumerate(tasks, 1):
        if progress is not None:
            progress(f"{number} of {len(tasks)}: {task.name}")
        yield task.verify()


def _run_on(spark: SparkSession, tasks: Sequence[PartitionTask]) -> Iterator[Partition]:
    from strandline.pipeline.jobs.tasks import rows_of

    found = [pickle.loads(row.pickled) for row in rows_of(spark, tasks, SCHEMA).collect()]
    yield from sorted(found, key=lambda one: (one.topic, one.partition))
