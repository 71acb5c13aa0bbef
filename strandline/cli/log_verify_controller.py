"""`strandline log verify` of a controller's data directory: the metadata log, its snapshots, and quorum-state.

    __cluster_metadata-0/
        00000000000000000000.log                      no gap, right checksums, records that this version can read
        00000000000000001200-0000000005.checkpoint    complete, from header to footer
        quorum-state                                  its checksum, and not ahead of the log
        recovery-point-offset-checkpoint              not above the end of the log

A voter has promised every record that it has flushed, so damage below that offset is damage, unless a snapshot has the records.
Above it, an unfinished write is a note. Nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strandline.controller.metadata.records import METADATA_TOPIC, decode_record
from strandline.controller.raft.election import decode_quorum_state
from strandline.controller.raft.snapshots import check_snapshot, parse_snapshot_name, snapshot_values
from strandline.pipeline.jobs.verify_log import Batch, Damage, read_log, segment_path
from strandline.protocol.errors import BrokerError, PeerError, UsageError
from strandline.protocol.records.batch import read_header
from strandline.protocol.records.reader import decode_values
from strandline.storage.checkpoints import META_PROPERTIES, RECOVERY_POINTS, MetaProperties, OffsetCheckpoint

FOLDER = f"{METADATA_TOPIC}-0"
QUORUM_STATE = "quorum-state"


class Fault(NamedTuple):
    is_bad: bool
    """False: a note about something that a kill leaves, and that the next start repairs."""
    sentence: str


@dataclass(slots=True)
class ControllerCheck:
    """The check of one controller's data directory: call `run`, then read `faults` and the counts."""

    path: Path
    faults: list[Fault] = field(default_factory=list)
    records: int = 0
    snapshots: int = 0
    """Number of complete snapshots."""
    end: int = 0
    """The offset after the last sound batch, or that of the newest complete snapshot if it is higher."""
    _covered: int = 0
    """A complete snapshot has all records below this offset."""

    def run(self) -> None:
        folder = self.path / FOLDER
        flushed = self._flushed(folder / RECOVERY_POINTS)
        self._check_snapshots(folder)
        self._check_log(folder, max(flushed, self._applied(folder)))
        self.end = max(self.end, self._covered)
        if flushed > self.end:
            self._bad(
                f"the metadata log ends at offset {self.end}, but {RECOVERY_POINTS} says that it was flushed up to {flushed}"
            )
        self._check_quorum_state(folder)

    def _bad(self, sentence: str) -> None:
        self.faults.append(Fault(True, sentence))

    def _note(self, sentence: str) -> None:
        self.faults.append(Fault(False, sentence))

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _check_snapshots(self, folder: Path) -> None:
        for path in sorted(folder.glob("*.checkpoint*")):
            snapshot = parse_snapshot_name(path.name)
            if snapshot is None:
                self._note(f"{path.name} is no finished snapshot; the controller does not use it")
                continue
            problem = self._snapshot_problem(path)
            if problem:
                self._bad(f"{path.name}: {problem}")
                continue
            self.snapshots += 1
            self._covered = max(self._covered, snapshot.end_offset)

    @staticmethod
    def _snapshot_problem(path: Path) -> str:
        data = path.read_bytes()
        try:
            check_snapshot(data)
            return _unreadable(snapshot_values(data))
        except BrokerError as e:
            return e.message or str(e)

    # -- the log ------------------------------------------------------------------------------------------------------

    def _check_log(self, folder: Path, promised: int) -> None:
        expected: int | None = None
        epoch = -1
        for item in read_log(folder):
            if expected is None:
                self._check_start(item.base_offset if isinstance(item, Batch) else item.segment)
            elif isinstance(item, Batch) and item.base_offset != expected:
                self._damage(expected, f"the next batch begins at offset {item.base_offset}")
            if isinstance(item, Damage):
                self._take_damage(item, promised)
                expected = item.next_offset
                continue
            if item.leader_epoch < epoch:
                self._damage(item.base_offset, f"leader epoch {item.leader_epoch} after {epoch}")
            self._check_records(folder, item)
            expected = self.end = item.next_offset
            epoch, self.records = item.leader_epoch, self.records + item.record_count

    def _check_start(self, start: int) -> None:
        if start > self._covered:
            self._bad(f"the metadata log begins at offset {start}, and no complete snapshot has the records before it")

    def _take_damage(self, item: Damage, promised: int) -> None:
        where = f"{item.segment:020}.log, byte {item.position}: {item.text}"
        if item.next_offset is None and item.base_offset >= promised:
            self._note(f"the metadata log ends with an unfinished write at offset {item.base_offset} ({where})")
        else:
            self._damage(item.base_offset, where)

    def _damage(self, offset: int, text: str) -> None:
        if offset < self._covered:
            self._note(f"the metadata log is damaged at offset {offset}, but a complete snapshot has these records ({text})")
        else:
            self._bad(f"the metadata log is damaged at offset {offset} ({text})")

    def _check_records(self, folder: Path, batch: Batch) -> None:
        if batch.is_control:
            return
        with segment_path(folder, batch.segment).open("rb") as file:
            file.seek(batch.position)
            data = file.read(batch.size)
        try:
            problem = _unreadable(value or b"" for value in decode_values(data, 0, read_header(data)))
        except BrokerError as e:
            problem = e.message or str(e)
        if problem:
            self._bad(f"records of the metadata log at offset {batch.base_offset} cannot be read: {problem}")

    # -- the files beside it ------------------------------------------------------------------------------------------

    def _flushed(self, path: Path) -> int:
        """How far the log was flushed; 0 if that is not known."""
        if not path.exists():
            return 0
        found = OffsetCheckpoint.decode(path.read_bytes())
        if found is None:
            self._note(f"{path.name} cannot be read; the controller then trusts the log and quorum-state alone")
        return (found or {}).get((METADATA_TOPIC, 0), 0)

    @staticmethod
    def _applied(folder: Path) -> int:
        found = _json(folder / QUORUM_STATE).get("appliedOffset")
        return found if isinstance(found, int) else 0

    def _check_quorum_state(self, folder: Path) -> None:
        path = folder / QUORUM_STATE
        if not path.exists():
            if self.end:
                self._bad(f"{path} is missing beside a metadata log that ends at offset {self.end}: the vote is lost")
            return
        state = _json(path)
        try:
            cluster_id = self._cluster_id() or str(state.get("clusterId"))
            applied = decode_quorum_state(path.read_bytes(), str(path), cluster_id, _voters(state)).applied_offset
        except UsageError as e:
            self._bad(str(e))
            return
        if applied > self.end:
            self._bad(
                f"the metadata log ends at offset {self.end}, but quorum-state says that records up to {applied} were committed"
            )

    def _cluster_id(self) -> str | None:
        path = self.path / META_PROPERTIES
        return MetaProperties.decode(path.read_bytes(), str(path)).cluster_id if path.exists() else None


def _unreadable(values: Iterable[bytes]) -> str:
    """Why one of these metadata records cannot be decoded; empty if all can."""
    try:
        for value in values:
            decode_record(value)
    except PeerError as e:
        return str(e)
    return ""


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _voters(state: dict[str, Any]) -> list[int]:
    """The voters that the file names. `decode_quorum_state` reports a list that has another form."""
    listed = state.get("currentVoters")
    return list(_ids(listed)) if isinstance(listed, list) else []


def _ids(listed: list[Any]) -> Iterator[int]:
    for one in listed:
        if isinstance(one, dict) and isinstance(one.get("voterId"), int):
            yield one["voterId"]
