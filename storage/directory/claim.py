"""Taking a data directory, before anything in it is changed: is it ours, and has anybody else got it?

    take:    look (whose is it?), make the directory if there is none, lock it, look once more
    open:    format it if it is fresh (meta.properties, durably), then read the checkpoints: a `LogDir`

Between the two a node may find out what it needs for the format: a fresh directory does not know its cluster, and a
broker or controller without a configured `cluster.id` asks others for it first. Nothing is ever formatted over data: a
directory with logs and without meta.properties is refused, and so is one that is another node's, another cluster's, a
controller's where a broker's is expected, or written by a newer release. All refusals are found by looking alone: the
directory stays byte for byte as it was.
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


class Claim:
    """A data directory that this process holds. Give it back (`release`) or go on with it (`LogDir.open_claimed`)."""

    def __init__(
        self, files: Files, path: str, lock: Lock, node_id: int, meta: MetaProperties | None, wanted: str | None
    ) -> None:
        self.files = files
        self.path = path
        self.lock = lock
        self.node_id = node_id
        self.meta = meta
        """What the directory says of itself; None: it is fresh."""
        self.cluster_id = meta.cluster_id if meta is not None and meta.cluster_id is not None else wanted
        """The cluster's id, from the directory or else from the configuration; None: not known yet."""

    @classmethod
    def take(cls, files: Files, path: str, *, node_id: int, cluster_id: str | None = None, role: str | None = None) -> Claim:
        """`cluster_id`, the configured one, and `role` ("broker" or "controller") are checked where given. UsageError, in
        one sentence, when the directory must not or cannot be used."""
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

    def format(self, cluster_id: str | None, random: Random | None) -> MetaProperties:
        """What meta.properties says from now on, durably; written when the directory is fresh or knows no cluster."""
        meta = self.meta
        if meta is None or (meta.cluster_id is None and cluster_id is not None):
            directory_id = _new_directory_id(self.path, self.node_id, cluster_id, random) if meta is None else meta.directory_id
            self.meta = meta = MetaProperties(cluster_id, self.node_id, directory_id)
            self.files.write_atomic(join(self.path, META_PROPERTIES), meta.encode())
            with suppress(DiskError):  # where we may not open the parent, it is a mount point or an operator's
                self.files.fsync_dir(parent(self.path))
        return meta

    def release(self) -> None:
        self.lock.release()


def cannot_use(files: Files, path: str, e: DiskError) -> UsageError:
    """One sentence; where it is a matter of permissions, it names the owner and who we are."""
    text = f"data directory {path} cannot be used: {e}"
    if e.errno in (errno.EACCES, errno.EPERM):
        existing = path
        while files.owner(existing) is None and existing != parent(existing):
            existing = parent(existing)
        text += f" ({existing} belongs to uid {files.owner(existing)}, this process runs as uid {os.geteuid()})"
    return UsageError(text)


def _look(files: Files, path: str, node_id: int, cluster_id: str | None, role: str | None) -> MetaProperties | None:
    """Whose the directory is, None when it is nobody's yet. Changes nothing; UsageError when it is not ours."""
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
        raise UsageError(f"{path} belongs to node {meta.node_id}; this is node {node_id}")
    if cluster_id is not None and meta.cluster_id is not None and meta.cluster_id != cluster_id:
        raise UsageError(f"{path} belongs to cluster {meta.cluster_id}; this node is configured for {cluster_id}")
    return meta


def _check_role(path: str, names: set[str], role: str | None) -> None:
    """meta.properties does not tell a broker's directory from a controller's; what lies beside it does."""
    if role == "broker" and METADATA_LOG in names:
        raise UsageError(f"{path} is a controller's data directory (it holds {METADATA_LOG}); this is a broker")
    if role == "controller":
        found = next(
            (name for name in sorted(names) if name in _CHECKPOINTS or (name != METADATA_LOG and parse_log_name(name))), None
        )
        if found is not None:
            raise UsageError(f"{path} is a broker's data directory (it holds {found}); this is a controller")


def _check_is_fresh(files: Files, path: str, names: set[str]) -> None:
    holds = any(name != METADATA_LOG and parse_log_name(name) for name in names)
    if holds or (METADATA_LOG in names and files.list(join(path, METADATA_LOG))):
        raise UsageError(f"{path} holds logs but no meta.properties: it is not known whose they are")


def _new_directory_id(path: str, node_id: int, cluster_id: str | None, random: Random | None) -> bytes:
    """Random where a source is given; else a name-based one, the same for the same directory of the same node."""
    if random is not None:
        return new_uuid(random)
    return hashlib.sha256(f"{cluster_id} {node_id} {path}".encode()).digest()[:16]
