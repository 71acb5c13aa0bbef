"""Claiming a data directory: checks that it belongs to this node and that no other process uses it, before anything is changed.

    Claim.take       check the owner, create the directory if there is none, lock it, check the owner again
    LogDir.open      format it if it is fresh (meta.properties, durably), then read the checkpoints

Between the two a node may find out its cluster: a fresh directory does not name one, and a broker or controller without a
configured `cluster.id` asks other nodes for it. A directory with data is never formatted: one with logs and without
meta.properties is refused, and so is one of another node, of another cluster, of the other role (broker or controller), or of a
newer release. A refusal leaves the directory byte for byte as it was.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from random import Random

from strandline.protocol.doors import new_uuid
from strandline.protocol.errors import UsageError
from strandline.storage.checkpoints import (
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    read_if_present,
)
from strandline.storage.disk import DiskError, Files, Lock, join, make_dirs_durably, parent
from strandline.storage.log.log import METADATA_TOPIC
from strandline.storage.log_names import parse_log_name

LOCK = ".lock"
METADATA_LOG = f"{METADATA_TOPIC}-0"
_CHECKPOINTS = frozenset({HIGH_WATERMARKS, RECOVERY_POINTS, LOG_STARTS})


class UnusableDirectory(UsageError):
    """The disk does not let this process use a data directory. Directories on other disks may be usable."""


class Claim:
    """A locked data directory of this process. Continue with `LogDir.open_claimed`, or give it back by `release`."""

    def __init__(
        self, files: Files, path: str, lock: Lock, node_id: int, meta: MetaProperties | None, wanted: str | None
    ) -> None:
        self.files = files
        self.path = path
        self.lock = lock
        self.node_id = node_id
        self.meta = meta
        """The content of meta.properties; None if the directory is fresh."""
        self.cluster_id = meta.cluster_id if meta is not None and meta.cluster_id is not None else wanted
        """The cluster id, from the directory or else from the configuration; None if not known yet."""

    @classmethod
    def take(cls, files: Files, path: str, *, node_id: int, cluster_id: str | None = None, role: str | None = None) -> Claim:
        """Lock the directory, or create it. Raises UsageError, in one sentence, if it must not or cannot be used.

        `cluster_id` (from the configuration) and `role` ("broker" or "controller") are checked if given."""
        try:
            _look(files, path, node_id, cluster_id, role)
            make_dirs_durably(files, path)
            lock = files.lock(join(path, LOCK))
        except DiskError as e:
            raise cannot_use(files, path, e) from e
        try:
            return cls(files, path, lock, node_id, _look(files, path, node_id, cluster_id, role), cluster_id)
        except DiskError as e:
            lock.release()
            raise cannot_use(files, path, e) from e
        except BaseException:
            lock.release()
            raise

    @property
    def is_fresh(self) -> bool:
        return self.meta is None

    def format(self, cluster_id: str | None, random: Random | None) -> MetaProperties:
        """Write meta.properties durably if the directory is fresh or names no cluster. Returns its content."""
        meta = self.meta
        if meta is None or (meta.cluster_id is None and cluster_id is not None):
            directory_id = _new_directory_id(self.path, self.node_id, cluster_id, random) if meta is None else meta.directory_id
            self.meta = meta = MetaProperties(cluster_id, self.node_id, directory_id)
            self.files.write_atomic(join(self.path, META_PROPERTIES), meta.encode())
            with suppress(DiskError):  # A parent that this process may not open is a mount point, or an operator created it.
                self.files.fsync_dir(parent(self.path))
        return meta

    def release(self) -> None:
        """Release the lock."""
        self.lock.release()


def cannot_use(files: Files, path: str, e: DiskError) -> UnusableDirectory:
    """The error for a directory that the disk refuses. For a lack of permissions it names the owner and this process's user."""
    text = f"data directory {path} cannot be used: {e}"
    if e.errno in (errno.EACCES, errno.EPERM):
        existing = path
        while files.owner(existing) is None and existing != parent(existing):
            existing = parent(existing)
        text += f" ({existing} belongs to uid {files.owner(existing)}, this process runs as uid {os.geteuid()})"
    return UnusableDirectory(text)


def _look(files: Files, path: str, node_id: int, cluster_id: str | None, role: str | None) -> MetaProperties | None:
    """The directory's meta.properties, None if it is fresh or missing. Changes nothing. Raises UsageError if it must not be
    used."""
    if not files.exists(path):
        return None
    names = set(files.list(path))
    file = join(path, META_PROPERTIES)
    data = read_if_present(files, file)
    meta = None if data is None else MetaProperties.decode(data, file)
    _check_role(path, names, role)
    if meta is None:
        _check_is_fresh(files, path, names)
        return None
    if meta.node_id != node_id:
        raise UsageError(f"{path} belongs to node {meta.node_id}; this is node {node_id}: check node.id and the data directory")
    if cluster_id is not None and meta.cluster_id is not None and meta.cluster_id != cluster_id:
        text = f"{path} belongs to cluster {meta.cluster_id}; this node is configured for {cluster_id}"
        raise UsageError(f"{text}: check cluster.id and the data directory")
    return meta


def _check_role(path: str, names: set[str], role: str | None) -> None:
    """Refuse a directory of the other role. Its other files show the role, because meta.properties does not contain it."""
    if role == "broker" and METADATA_LOG in names:
        text = f"{path} is a controller's data directory (it holds {METADATA_LOG}); this is a broker"
        raise UsageError(f"{text}: use another data directory")
    if role == "controller":
        found = next(
            (name for name in sorted(names) if name in _CHECKPOINTS or (name != METADATA_LOG and parse_log_name(name))), None
        )
        if found is not None:
            text = f"{path} is a broker's data directory (it holds {found}); this is a controller"
            raise UsageError(f"{text}: use another data directory")


def _check_is_fresh(files: Files, path: str, names: set[str]) -> None:
    holds = any(name != METADATA_LOG and parse_log_name(name) for name in names)
    if holds or (METADATA_LOG in names and files.list(join(path, METADATA_LOG))):
        text = f"{path} holds logs but no meta.properties, so their node and cluster are not known"
        raise UsageError(f"{text}: restore the file or use another data directory")


def _new_directory_id(path: str, node_id: int, cluster_id: str | None, random: Random | None) -> bytes:
    """A random id if a source is given; else one derived from cluster, node and path, the same each time."""
    if random is not None:
        return new_uuid(random)
    return hashlib.sha256(f"{cluster_id} {node_id} {path}".encode()).digest()[:16]
