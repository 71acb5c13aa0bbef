"""The findings of a verification, their meaning, and what to do about them. Pure: no files, no Spark.

A **finding** is about one partition or one broker's directory. A bad finding means that bytes or checkpoints contradict each
other, or that committed records are missing; the command then exits with 3. Any other finding is a note about a legal difference:

    behind               the replica ends below the committed offset that other replicas know: it was not in the ISR
    not_committed        different records above the high watermark: their leader was replaced before they were committed
    torn_tail            an unfinished write at the end, of a process that was killed
    later_start          the log begins later than other replicas' logs: retention, DeleteRecords, or a lost first segment

Records are committed if a checkpointed high watermark is above them. Such a high watermark may be lower than the cluster's last
one, but never higher. So some committed records may be treated as not committed, but no legal difference becomes a finding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from strandline.pipeline.jobs import audit_result
from strandline.pipeline.jobs.audit_result import Audit
from strandline.pipeline.jobs.results import bad_first, counted, finding_document, only_bad, result_document

BAD = {
    "lost": "committed records that no replica has",
    "missing_below_hw": "the log lacks these records, although the replica's own checkpoint says that they are committed",
    "replica_missing": "the checkpoint names a log with committed records, but its folder is missing",
    "vanished": "a file was deleted while the log was read, at each attempt",
    "damaged": "bytes that are not a sound batch",
    "offset_gap": "offsets that no batch has, between two batches",
    "records": "the checksum of the batch is right, but its records cannot be read",
    "offset_overlap": "a batch begins below the end of the batch before it",
    "segment_name": "a segment's name is not the offset of its first batch",
    "head_missing": "first segments are missing, but leader-epoch-checkpoint still begins there; a broker changes it first",
    "replicas_differ": "the replicas have different batches, of which at most one can be right",
    "committed_replaced": "records of a later leader epoch replaced committed records (an unclean election)",
    "epoch_backwards": "the leader epoch of a batch is lower than that of the batch before it",
    "epoch_checkpoint": "leader-epoch-checkpoint contradicts the batches",
    "checkpoint_unreadable": "a checkpoint file cannot be read",
    "tombstones_unreadable": "the checkpoint of removed tombstones cannot be read, so a deleted key could come back",
    "checkpoint_beyond_log": "a checkpoint lies above the end of the log",
    "index": "an index entry points to no batch",
    "transaction_index": "the index of aborted transactions contradicts the batches, so readers may get aborted records",
    "snapshot": "a producer snapshot contradicts the batches",
    "topic_id": "the folder belongs to a different topic with the same name as that of the other replicas",
    "cluster_id": "the directories belong to different clusters",
    "node_id": "two directories belong to the same node",
    "doubled": "records of an idempotent producer are stored twice",
    "sequence_gap": "sequence numbers of an idempotent producer are missing",
    "producer_epoch_backwards": "a batch of a fenced producer epoch was appended",
}
NOTES = {
    "behind": "the replica ends before these records: it was not in the ISR, or its checkpoint is old; it will catch up",
    "not_committed": "the replicas have different batches above the high watermark; these are not committed, so this is legal",
    "torn_tail": "the log ends with an unfinished write, as after a kill; recovery cuts it off",
    "later_start": "the log begins later than other replicas' logs: retention, DeleteRecords, or a lost first segment",
    "compacted": "offsets that no batch has; this directory is Apache Kafka's, whose cleaner leaves such gaps",
    "swap_unfinished": "the broker was stopped while it replaced segments by a cleaned one; it finishes this when it starts",
    "cleaned_unfinished": "the broker was stopped while it cleaned segments; it removes this file when it starts",
    "compacted_differently": "the replicas have not removed the same superseded records yet; records that they share are equal",
    "cleaner_begins_again": "the cleaner's checkpoint lies outside of the log, so the next cleaning begins at the log start",
    "snapshot_old": "a producer snapshot contradicts the batches, as after a kill; recovery rebuilds it",
    "snapshot_version": "a producer snapshot has an unknown version and was not compared",
    "head_gone": "the log begins later than its leader-epoch-checkpoint: retention before a power failure, or a lost segment",
    "log_start_moved": "these records are deleted (retention, DeleteRecords), but their segment still exists",
    "epoch_checkpoint_old": "leader-epoch-checkpoint lags behind the batches, as after a kill; recovery rebuilds it",
    "index_old": "an index lags behind its segment, as after a kill; recovery rebuilds it",
    "no_high_watermark": "there is no checkpointed high watermark, so no record is known to be committed",
    "sequence_gap_after_silence": "sequence numbers of a producer are missing after a long silence: its state may have expired",
    "future": "timestamps in the future",
    "log_missing": "the checkpoint names a log that no directory has: its topic was deleted, or the log is lost",
    "no_logs": "the directory has no log: the broker is new, its disk was replaced, or all its logs are lost",
    "stray": "the broker renamed this folder because it deletes it or has no use for it; it is not compared",
    "unknown_entry": "not a file or folder of a broker; it is not compared",
    "running": "the broker of this directory is running, so its last writes may look unfinished",
    "unclean": "the broker of this directory was not shut down cleanly, so its logs may end with unfinished writes",
}
HEAL = (
    "with the other replicas running, stop {brokers}, move the folder {folder} away and start again: the leader has the records"
)
"""The action `{heal}`: replaces a damaged replica by a copy from its leader."""
ACTIONS = {
    "lost": "keep all directories as they are; look for another copy (a lake, a backup, a broker that was not given)",
    "missing_below_hw": "start {others} first, so that the leader has the records; {heal}",
    "replica_missing": "start {others} first, so that the leader has the records; this broker then copies them",
    "vanished": "stop the program that deletes these files, or verify a copy of the directories",
    "damaged": "{heal}",
    "offset_gap": "{heal}",
    "records": "{heal}",
    "offset_overlap": "{heal}",
    "segment_name": "{heal}",
    "head_missing": "{heal}",
    "replicas_differ": "keep a copy of all folders, then compare these offsets with the producer's ledger or the lake",
    "committed_replaced": "keep a copy of the folders of {brokers}: they have the records that were replaced",
    "epoch_backwards": "{heal}",
    "epoch_checkpoint": "with the broker stopped, remove the file: the broker rebuilds it from the batches",
    "checkpoint_unreadable": "with the broker stopped, remove the file: the broker then scans its logs when it starts",
    "tombstones_unreadable": "keep the file: the broker then reads its logs when it starts, and writes the checkpoint again",
    "checkpoint_beyond_log": "if the log was cut, records are missing; if the checkpoint was edited, remove the file",
    "index": "with the broker stopped, remove the file: the broker rebuilds it from the segment",
    "transaction_index": "with the broker stopped, overwrite the file with one byte: the broker rebuilds it and all after it",
    "snapshot": "with the broker stopped, remove the file: the broker rebuilds it from the batches",
    "topic_id": "start the broker while the cluster runs: it then sets a folder of a deleted topic aside",
    "cluster_id": "give the directories of one cluster only",
    "node_id": "give each broker's directory once",
    "doubled": "report this bug: a broker must not append a sequence twice; consumers see the records twice",
    "sequence_gap": "compare the topic with the producer's ledger (--ledger): acknowledged records may be missing",
    "producer_epoch_backwards": "report this bug: a broker must reject a fenced producer",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str
    """A key of `BAD` or `NOTES`."""
    topic: str = ""
    """Empty for a finding about a whole directory."""
    partition: int = -1
    brokers: tuple[str, ...] = ()
    """The brokers whose directories have the fault."""
    first: int | None = None
    """The first offset with the fault; None: it is not about offsets."""
    end: int | None = None
    """The offset after the last one with the fault; None: it is not known."""
    others: tuple[str, ...] | None = None
    """The brokers that have sound batches at all these offsets; None: not searched."""
    detail: str = ""
    path: str = ""
    """The file or folder with the fault."""

    @property
    def is_bad(self) -> bool:
        return self.kind in BAD

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}" if self.topic else ""

    @property
    def sentence(self) -> str:
        """Place and fault: `orders-0, broker 2, offsets 100 to 119: bytes that are not a sound batch; broker 1 has them`."""
        return ": ".join(part for part in (self._where, self._what) if part)

    @property
    def _where(self) -> str:
        brokers = named(self.brokers) if self.brokers else ""
        offsets = ""
        if self.first is not None:
            is_one = self.end is None or self.end - self.first <= 1
            offsets = f"offset {self.first}" if is_one else f"offsets {self.first} to {(self.end or 0) - 1}"
        return ", ".join(part for part in (self.name, brokers, offsets) if part)

    @property
    def _what(self) -> str:
        text = {**BAD, **NOTES}[self.kind]
        if self.others:
            text += f"; {named(self.others)} {'has' if len(self.others) == 1 else 'have'} them"
        elif self.others is not None:
            text += "; no other replica given has them"
        return text + (f" ({self.detail})" if self.detail else "")

    @property
    def action(self) -> str:
        """What the operator should do next; empty for a note."""
        words = {"brokers": named(self.brokers), "others": named(self.others or ()), "folder": self.name}
        if self.others == () and self.kind in ("missing_below_hw", "replica_missing", "damaged", "offset_gap", "head_missing"):
            return "no replica given can repair this: " + ACTIONS["lost"]
        return ACTIONS.get(self.kind, "").format(heal=HEAL.format(**words), **words)

    @property
    def below(self) -> tuple[str, ...]:
        """The lines below the sentence: the action, if there is one."""
        return (self.action,) if self.action else ()


def named(brokers: Sequence[str]) -> str:
    """`broker 1`, `brokers 1, 2 and 3`."""
    if len(brokers) == 1:
        return f"broker {brokers[0]}"
    return f"brokers {', '.join(brokers[:-1])} and {brokers[-1]}" if brokers else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One replica of a partition, as its log and its broker's checkpoints describe it."""

    broker: str
    path: str
    start: int
    """Base offset of the first segment, where the log begins."""
    end: int
    """The offset after the last sound batch."""
    high_watermark: int | None
    """The checkpointed high watermark; None: the checkpoint does not name this partition."""
    recovery_point: int | None
    log_start: int | None
    """The checkpointed log start; None: the log starts at the first segment's base offset."""
    batches: int
    records: int
    size: int
    """Bytes of all sound batches."""
    epochs: tuple[tuple[int, int, int], ...]
    """For each run of batches of one leader epoch: the epoch, its first offset, and the offset after its last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    topic: str
    partition: int
    topic_id: str | None
    committed: int
    """The highest checkpointed high watermark of the replicas: records below it are committed."""
    replicas: tuple[Replica, ...]
    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        return not any(finding.is_bad for finding in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    made_at_s: float
    directories: tuple[str, ...]
    brokers: tuple[str, ...]
    partitions: tuple[Partition, ...]
    findings: tuple[Finding, ...]
    """The findings about whole directories."""
    comparison: Audit | None = None
    """The comparison of the logs with lake, copies and ledger; None if there are none to compare."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings about directories and partitions, the bad ones first."""
        return bad_first([*self.findings, *(finding for partition in self.partitions for finding in partition.findings)])

    @property
    def bad(self) -> tuple[Finding, ...]:
        """The bad findings about directories and partitions."""
        return only_bad(self.all_findings)

    @property
    def compared(self) -> tuple[audit_result.Finding, ...]:
        """The bad findings of the comparison with lake, copies and ledger."""
        return self.comparison.bad if self.comparison is not None else ()

    @property
    def is_ok(self) -> bool:
        return not self.bad and not self.compared

    @property
    def verdict(self) -> str:
        replicas = sum(len(partition.replicas) for partition in self.partitions)
        size = sum(replica.size for partition in self.partitions for replica in partition.replicas)
        read = f"{counted(len(self.partitions), 'partition')}, {counted(replicas, 'replica')}, {size:,} bytes read"
        if self.is_ok:
            return f"sound: {read}{self._sources}"
        return f"not sound: {counted(len(self.bad) + len(self.compared), 'finding')}; {read}{self._sources}"

    @property
    def _sources(self) -> str:
        if self.comparison is None:
            return ""
        names = [name for name in self.comparison.sources if name != "log"] + (["copies"] if self.comparison.copies else [])
        return f", compared with {' and '.join(names)}: {counted(self.comparison.count('log'), 'record')}"

    @property
    def document(self) -> dict[str, Any]:
        return result_document(
            self,
            directories=list(self.directories),
            partitions=[{**asdict(one), "findings": _documents(one.findings)} for one in self.partitions],
            findings=_documents(self.findings),
            comparison=None if self.comparison is None else self.comparison.document,
        )


def _documents(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [finding_document(finding, bad=finding.is_bad, action=finding.action) for finding in findings]


def joined(one: Finding | None, following: Finding) -> Finding | None:
    """Both findings as one, if the second differs only in that its offsets follow those of the first; else None."""
    if one is None or following.first is None or one.end != following.first:
        return None
    return replace(one, end=following.end) if replace(following, first=one.first, end=one.end) == one else None


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Fewer findings with the same meaning: those of neighbouring offsets become one, and so do equal findings of several
    brokers."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in _without_neighbours(findings):
        alike.setdefault(replace(finding, brokers=(), path=""), []).append(finding)
    return [_of_all_brokers(one, group) for one, group in alike.items()]


def _without_neighbours(findings: Iterable[Finding]) -> list[Finding]:
    groups: dict[Finding, list[Finding]] = {}
    for finding in findings:
        group = groups.setdefault(replace(finding, first=None, end=None), [])
        last = group[-1] if group else None
        if last is not None and last.end is not None and last.end == finding.first:
            group[-1] = replace(last, end=finding.end)
        elif last != finding:
            group.append(finding)
    return [finding for group in groups.values() for finding in group]


def _of_all_brokers(one: Finding, group: Sequence[Finding]) -> Finding:
    brokers = sorted({broker for finding in group for broker in finding.brokers})
    return replace(one, brokers=tuple(brokers), path=group[-1].path if len(brokers) < 2 else "")
