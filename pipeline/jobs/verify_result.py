"""What a verification has found, in plain words, and what to do about it. Pure: no files, no Spark.

A **finding** is about one partition or one broker's directory. A bad one says that bytes or checkpoints contradict each other,
or that committed records are missing; exit code 3. A note explains a difference that is legal:

    behind               the replica ends below what other replicas know to be committed, and never knew it: it was out of the ISR
    not_committed        other records above the high watermark: of a leader that was replaced before they were committed
    torn_tail            the last write of a process that was killed
    later_start          the log begins later than other replicas' logs: retention, DeleteRecords, or a lost first segment

"Committed" is what a checkpoint says. A checkpointed high watermark can be lower than the last one the cluster had, never
higher: then less is compared as committed, and nothing legal is taken for a fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from strandline.pipeline.jobs import audit_result
from strandline.pipeline.jobs.audit_result import Audit, iso

BAD = {
    "lost": "committed records that no replica has",
    "missing_below_hw": "the replica's own checkpoint says that these records are committed, and they are not in its log",
    "replica_missing": "the checkpoint names a log with committed records, and there is no such folder",
    "vanished": "a file disappeared again and again while the log was read",
    "damaged": "bytes that are no sound batch",
    "offset_gap": "offsets that no batch has, between two batches",
    "offset_overlap": "a batch begins below the end of the batch before it",
    "segment_name": "a segment's name is not the offset of its first batch",
    "head_missing": "the log's first segments are missing: a broker that deletes them first moves the start in its checkpoint",
    "replicas_differ": "the replicas have different batches, and both cannot be right",
    "committed_replaced": "committed records were replaced by those of a later leader epoch (an unclean election)",
    "epoch_backwards": "the leader epoch of a batch is lower than that of the batch before it",
    "epoch_checkpoint": "leader-epoch-checkpoint contradicts the batches",
    "checkpoint_unreadable": "a checkpoint file cannot be read",
    "checkpoint_beyond_log": "a checkpoint lies above the end of the log",
    "index": "an index entry points to no batch",
    "topic_id": "the folder belongs to another topic of this name than the other replicas' folders",
    "cluster_id": "the directories belong to different clusters",
    "node_id": "two directories belong to the same node",
    "doubled": "records of an idempotent producer are stored twice",
    "sequence_gap": "sequence numbers of an idempotent producer are missing",
    "producer_epoch_backwards": "a batch of a fenced producer epoch was appended",
}
NOTES = {
    "behind": "the replica ends here: it was not in the ISR, or its checkpoint is old; it catches up when its broker runs",
    "not_committed": "the replicas have different batches above the high watermark: not committed, so this is legal",
    "torn_tail": "the log ends with an unfinished write, as after a kill; recovery cuts it off",
    "later_start": "the log begins later than other replicas' logs: retention, DeleteRecords, or a lost first segment",
    "head_gone": "the log begins later than its leader-epoch-checkpoint: retention before a power failure, or a lost segment",
    "log_start_moved": "these records are deleted (retention, DeleteRecords), and their segment is still there",
    "epoch_checkpoint_old": "leader-epoch-checkpoint lags behind the batches, as after a kill; recovery rebuilds it",
    "index_old": "an index lags behind its segment, as after a kill; recovery rebuilds it",
    "no_high_watermark": "no checkpointed high watermark: nothing here is known to be committed",
    "sequence_gap_after_silence": "sequence numbers of a producer are missing after a long silence (its state expired)",
    "future": "timestamps in the future",
    "log_missing": "the checkpoint names a log with records that no directory has: its topic was deleted, or it is lost",
    "no_logs": "no log is here: a new broker, a replaced disk, or all its logs are lost",
    "stray": "a folder that a broker has set aside or is removing; it is not compared",
    "unknown_entry": "not a file or folder of a broker; it is not compared",
    "running": "the broker of this directory is running: what is being written may look unfinished",
    "unclean": "the broker of this directory was not stopped in order: its tails may be unfinished",
}
HEAL = (
    "with the other replicas running, stop {brokers}, move the folder {folder} away and start again: the leader has the records"
)
ACTIONS = {
    "lost": "keep all directories as they are; look for another copy (a lake, a backup, a broker that was not given)",
    "missing_below_hw": "start {others} first, so that a replica that has the records leads; {heal}",
    "replica_missing": "start {others} first, so that a replica that has the records leads; this broker then copies them",
    "vanished": "verify a copy of the directories, or stop what deletes these files",
    "damaged": "{heal}",
    "offset_gap": "{heal}",
    "offset_overlap": "{heal}",
    "segment_name": "{heal}",
    "head_missing": "{heal}",
    "replicas_differ": "keep a copy of all folders, then compare these offsets with the producer's ledger or the lake",
    "committed_replaced": "keep a copy of the folders of {brokers}: they have the records that were replaced",
    "epoch_backwards": "{heal}",
    "epoch_checkpoint": "with the broker stopped, remove the file: the broker rebuilds it from the batches",
    "checkpoint_unreadable": "with the broker stopped, remove the file: the broker then scans its logs at the start",
    "checkpoint_beyond_log": "if the log was cut, treat it as missing records; if the checkpoint was edited, remove the file",
    "index": "with the broker stopped, remove the file: the broker rebuilds it from the segment",
    "topic_id": "start the broker while the cluster runs: it sets a folder of a deleted topic aside",
    "cluster_id": "give the directories of one cluster only",
    "node_id": "give each broker's directory once",
    "doubled": "report this: a broker must not append a sequence twice; consumers see the records twice",
    "sequence_gap": "compare the topic with the producer's ledger (--ledger): acknowledged records may be missing",
    "producer_epoch_backwards": "report this: a broker must refuse a fenced producer",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    kind: str
    """A key of `BAD` or `NOTES`."""
    topic: str = ""
    """Empty: it is about the whole directory."""
    partition: int = -1
    brokers: tuple[str, ...] = ()
    """Those that have the fault."""
    first: int | None = None
    """First offset concerned."""
    end: int | None = None
    """The offset behind the last one concerned."""
    others: tuple[str, ...] | None = None
    """Brokers that have sound batches at all these offsets; None: not looked for."""
    detail: str = ""
    path: str = ""
    """The file or folder."""

    @property
    def is_bad(self) -> bool:
        return self.kind in BAD

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}" if self.topic else ""

    @property
    def sentence(self) -> str:
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
        """What to do next; empty for a note."""
        words = {"brokers": named(self.brokers), "others": named(self.others or ()), "folder": self.name}
        if self.others == () and self.kind in ("missing_below_hw", "replica_missing", "damaged", "offset_gap", "head_missing"):
            return "no replica given can repair this: " + ACTIONS["lost"]
        return ACTIONS.get(self.kind, "").format(heal=HEAL.format(**words), **words)


def named(brokers: Sequence[str]) -> str:
    """`broker 1`, `brokers 1, 2 and 3`."""
    if len(brokers) == 1:
        return f"broker {brokers[0]}"
    return f"brokers {', '.join(brokers[:-1])} and {brokers[-1]}" if brokers else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What was read of one replica."""

    broker: str
    path: str
    start: int
    """Base offset of its first segment, where the log begins."""
    end: int
    """The offset behind its last sound batch."""
    high_watermark: int | None
    """As checkpointed; None: there is none."""
    recovery_point: int | None
    log_start: int | None
    """As checkpointed; None: it is the first segment's base offset."""
    batches: int
    records: int
    size: int
    """In bytes, of its sound batches."""
    epochs: tuple[tuple[int, int, int], ...]
    """Leader epoch, first offset, end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    topic: str
    partition: int
    topic_id: str | None
    committed: int
    """The highest checkpointed high watermark of the replicas: below, records are committed."""
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
    """Of whole directories."""
    comparison: Audit | None = None
    """Lake, copies and ledger against the logs, if there are such."""

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """Bad ones first."""
        found = [*self.findings, *(finding for partition in self.partitions for finding in partition.findings)]
        return tuple(sorted(found, key=lambda finding: not finding.is_bad))

    @property
    def bad(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.all_findings if finding.is_bad)

    @property
    def compared(self) -> tuple[audit_result.Finding, ...]:
        """Bad findings of the comparison with lake, copies and ledger."""
        return self.comparison.bad if self.comparison is not None else ()

    @property
    def is_ok(self) -> bool:
        return not self.bad and not self.compared

    @property
    def verdict(self) -> str:
        replicas = sum(len(partition.replicas) for partition in self.partitions)
        size = sum(replica.size for partition in self.partitions for replica in partition.replicas)
        read = f"{_count(len(self.partitions), 'partition')}, {_count(replicas, 'replica')}, {size:,} bytes read"
        if self.is_ok:
            return f"sound: {read}{self._sources}"
        return f"not sound: {_count(len(self.bad) + len(self.compared), 'finding')}; {read}{self._sources}"

    @property
    def _sources(self) -> str:
        if self.comparison is None:
            return ""
        names = [name for name in self.comparison.sources if name != "log"] + (["copies"] if self.comparison.copies else [])
        return f", compared with {' and '.join(names)}: {_count(self.comparison.count('log'), 'record')}"

    @property
    def document(self) -> dict[str, Any]:
        """For programs; the keys are stable."""
        return {
            "ok": self.is_ok,
            "verdict": self.verdict,
            "made_at": iso(int(self.made_at_s)),
            "directories": list(self.directories),
            "partitions": [
                {**asdict(partition), "findings": [_document(one) for one in partition.findings]} for partition in self.partitions
            ],
            "findings": [_document(one) for one in self.findings],
            "comparison": None if self.comparison is None else self.comparison.document,
        }


def _document(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "bad": finding.is_bad, "sentence": finding.sentence, "action": finding.action}


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def joined(one: Finding | None, following: Finding) -> Finding | None:
    """Both as one finding, if the second says the same of the offsets behind the first; else None."""
    if one is None or following.first is None or one.end != following.first:
        return None
    return replace(one, end=following.end) if replace(following, first=one.first, end=one.end) == one else None


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for neighbouring offsets, and for what several brokers have alike."""
    by_broker: dict[tuple[Any, ...], list[Finding]] = {}
    for finding in findings:
        key = (finding.kind, finding.topic, finding.partition, finding.brokers, finding.others, finding.path, finding.detail)
        group = by_broker.setdefault(key, [])
        last = group[-1] if group else None
        if last is not None and last.end is not None and finding.first is not None and last.end == finding.first:
            group[-1] = replace(last, end=finding.end)
        elif last != finding:
            group.append(finding)
    alike: dict[Finding, list[str]] = {}
    for finding in (one for group in by_broker.values() for one in group):
        alike.setdefault(replace(finding, brokers=(), path=""), []).extend(finding.brokers)
    paths = {replace(one, brokers=(), path=""): one.path for group in by_broker.values() for one in group}
    return [
        replace(one, brokers=tuple(sorted(set(brokers))), path=paths[one] if len(set(brokers)) < 2 else "")
        for one, brokers in alike.items()
    ]
