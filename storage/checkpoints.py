"""The small text files of a data directory, in exactly Kafka's format if Kafka has the file.

    replication-offset-checkpoint, recovery-point-offset-checkpoint, log-start-offset-checkpoint,
    cleaner-offset-checkpoint, removed-tombstones-checkpoint (per data directory; Kafka has no file like the last one)
        0                       version
        2                       number of lines that follow
        orders 0 1200           topic partition offset
        orders 1 7

    leader-epoch-checkpoint (per log)
        0
        2
        0 0                     epoch, start offset
        3 5000

    partition.metadata (per log)
        version: 0
        topic_id: rXFtV1X6TzW9AKhaBFMPEg          (base64url of the 16 bytes, unpadded)

    stray.metadata (per stray log; Kafka has no such file)
        version: 0
        since_ms: 1700000000000
        witness_topic_id: rXFtV1X6TzW9AKhaBFMPEg

    meta.properties (per data directory)
        version=1, cluster.id, node.id, directory.id

    .kafka_cleanshutdown (per data directory, only while no process runs on it)
        {"version":0,"brokerEpoch":17}

A `decode` returns None for a file that is empty, half written, or of an unknown version, and its caller treats the file as
missing or damaged. Only `MetaProperties.decode` raises UsageError, so that the process does not start: no other file contains the
owner of the directory.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strandline.protocol.errors import UsageError
from strandline.storage.disk import DiskError, Files

HIGH_WATERMARKS = "replication-offset-checkpoint"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
FIRST_DIRTY_OFFSETS = "cleaner-offset-checkpoint"
REMOVED_TOMBSTONES = "removed-tombstones-checkpoint"
SUPERSEDING_RECORDS = "superseding-records-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
STRAY_METADATA = "stray.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOT_ID = "boot-id"

VERSION = 0
_MAX_OFFSET = 2**63 - 1
_MAX_EPOCH = 2**31 - 1
_NUMBER = re.compile(r"\d{1,19}\Z", re.ASCII)

TopicPartition = tuple[str, int]


def _number(text: str, maximum: int) -> int | None:
    """The number, or None unless `text` has only ASCII digits and is at most `maximum`. `int()` would also accept `+1`, `1_000`
    and digits of other alphabets."""
    if not _NUMBER.match(text):
        return None
    value = int(text)
    return value if value <= maximum else None


def _checkpoint_rows(data: bytes) -> list[list[str]] | None:
    """The rows of a file of the form `version, count, rows`, split at blanks; None if any part is wrong."""
    if not data.endswith(b"\n"):
        return None  # Half written: the last number may lack digits.
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return None
    if len(lines) < 2 or lines[0] != str(VERSION):
        return None
    count = _number(lines[1], 2**31)
    if count is None or count != len(lines) - 2:
        return None
    return [line.split() for line in lines[2:]]


def _checkpoint_text(rows: Sequence[str]) -> bytes:
    return "\n".join([str(VERSION), str(len(rows)), *rows, ""]).encode()


class OffsetCheckpoint:
    """A file with one offset per partition, for all logs of a data directory."""

    @staticmethod
    def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
        return _checkpoint_text([f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()])

    @staticmethod
    def decode(data: bytes) -> dict[TopicPartition, int] | None:
        rows = _checkpoint_rows(data)
        if rows is None:
            return None
        offsets: dict[TopicPartition, int] = {}
        for row in rows:
            if len(row) != 3:
                return None
            partition, offset = _number(row[1], 2**31 - 1), _number(row[2], _MAX_OFFSET)
            if partition is None or offset is None or (row[0], partition) in offsets:
                return None
            offsets[row[0], partition] = offset
        return offsets


class LeaderEpochCheckpoint:
    """The file with the start offset of each leader epoch of one log."""

    @staticmethod
    def encode(entries: Sequence[tuple[int, int]]) -> bytes:
        return _checkpoint_text([f"{epoch} {start}" for epoch, start in entries])

    @staticmethod
    def decode(data: bytes) -> list[tuple[int, int]] | None:
        """Return (epoch, start offset) of each entry. Returns None if the file is malformed, or if the epochs do not increase
        or the offsets decrease, because no log writes that."""
        rows = _checkpoint_rows(data)
        if rows is None:
            return None
        entries: list[tuple[int, int]] = []
        for row in rows:
            epoch = _number(row[0], _MAX_EPOCH) if len(row) == 2 else None
            start = _number(row[1], _MAX_OFFSET) if epoch is not None else None
            if epoch is None or start is None:
                return None
            if entries and (epoch <= entries[-1][0] or start < entries[-1][1]):
                return None
            entries.append((epoch, start))
        return entries


def uuid_to_text(uuid: bytes) -> str:
    """The unpadded base64url text of a 16-byte id, as Kafka prints ids."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode()


def uuid_from_text(text: str) -> bytes | None:
    """The 16 bytes of an unpadded base64url text; None if it is not one."""
    try:
        raw = base64.b64decode(text.encode("ascii") + b"==", altchars=b"-_", validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError):
        return None
    return raw if len(raw) == 16 and uuid_to_text(raw) == text else None


class PartitionMetadata:
    """The file with the topic id of a log's directory. A topic's name may be reused, its id is not."""

    @staticmethod
    def encode(topic_id: bytes) -> bytes:
        return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}\n".encode()

    @staticmethod
    def decode(data: bytes) -> bytes | None:
        try:
            lines = data.decode("ascii").splitlines()
        except UnicodeDecodeError:
            return None
        if len(lines) < 2 or lines[0].strip() != "version: 0" or not lines[1].startswith("topic_id:"):
            return None
        return uuid_from_text(lines[1].removeprefix("topic_id:").strip())


@dataclass(frozen=True, slots=True)
class StrayMetadata:
    """Since when a directory is a stray, and the proof that the metadata that did not list it belongs to its cluster."""

    since_ms: int
    """Wall-clock time."""
    witness_id: bytes
    """The topic id of another log of this directory that the same metadata listed. Ids are random and never reused, so that
    metadata continues the one in which the stray's topic was created, and has deleted or moved the topic since."""

    def encode(self) -> bytes:
        return f"version: 0\nsince_ms: {self.since_ms}\nwitness_topic_id: {uuid_to_text(self.witness_id)}\n".encode()

    @classmethod
    def decode(cls, data: bytes) -> StrayMetadata | None:
        match = re.fullmatch(rb"version: 0\nsince_ms: (\d{1,18})\nwitness_topic_id: (\S+)\n", data)
        if match is None or not match[2].isascii():
            return None
        witness_id = uuid_from_text(match[2].decode("ascii"))
        return None if witness_id is None else cls(int(match[1]), witness_id)


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The owner of a data directory: its cluster and node. No other file contains this, so it is never guessed or rebuilt."""

    cluster_id: str | None
    node_id: int
    directory_id: bytes

    def encode(self) -> bytes:
        lines = ["#", "node.id=" + str(self.node_id), "directory.id=" + uuid_to_text(self.directory_id), "version=1"]
        if self.cluster_id is not None:
            lines.append("cluster.id=" + self.cluster_id)
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes, path: str) -> MetaProperties:
        """Parse the file. Raises UsageError unless `data` is a complete meta.properties of a known version."""
        values = _properties(data, path)
        version = values.get("version", "")
        if _NUMBER.match(version) and int(version) > 1:
            text = f"{path} has version {version}, written by a newer release; this release supports version 1"
            raise UsageError(f"{text}: start the newer release")
        if version != "1":
            raise UsageError(f"{path} is damaged: its version is {version!r}, not 1")
        node_id = _number(values.get("node.id", ""), 2**31 - 1)
        directory_id = uuid_from_text(values.get("directory.id", ""))
        if node_id is None or directory_id is None:
            raise UsageError(f"{path} is damaged: it has no valid node.id or directory.id")
        return cls(values.get("cluster.id"), node_id, directory_id)


def _properties(data: bytes, path: str) -> dict[str, str]:
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{path} is damaged: it is not text") from None
    values: dict[str, str] = {}
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, separator, value = line.partition("=")
        if not separator:
            raise UsageError(f"{path} is damaged: {line[:80]!r} is not key=value")
        values[key.strip()] = value.strip()
    return values


class CleanShutdown:
    """The marker file of an orderly stop, with the broker epoch that ended."""

    @staticmethod
    def encode(broker_epoch: int) -> bytes:
        return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()

    @staticmethod
    def decode(data: bytes) -> int | None:
        """The broker epoch, -1 if the marker has none. None if the file is not a valid marker, which then counts as missing."""
        try:
            fields = json.loads(data)
        except ValueError:
            return None
        if not isinstance(fields, dict) or fields.get("version") != 0:
            return None
        epoch = fields.get("brokerEpoch", -1)
        return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None


def read_if_present(files: Files, path: str) -> bytes | None:
    """The file's content, None if it does not exist. Raises DiskError if it cannot be read."""
    try:
        return files.read(path)
    except DiskError as e:
        if e.is_missing:
            return None
        raise
