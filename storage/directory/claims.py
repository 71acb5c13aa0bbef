"""Claiming the data directories of one broker (`log.dirs`), before anything is changed in any of them.

A directory that must not be used (of another node, of another cluster, in use by another process) refuses the start. A
directory that cannot be used, because its disk has failed or is not mounted, is offline: the broker starts without it, as long as
another one can be used. A missing directory is offline if another one has data, because its disk may not be mounted. At the first
start, when none has data, all are created. An empty directory is taken as a new disk, and formatted.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.storage.directory.claim import Claim, UnusableDirectory
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.disk import DiskError, Files

logger = get_logger(__name__)


class Claims:
    """The locked data directories of this process. Continue with `open`, or give them back by `release`."""

    def __init__(self, claims: list[Claim], unusable: dict[str, str]) -> None:
        self._claims = claims
        self._unusable = unusable
        """Path -> the reason why the directory cannot be used."""

    @classmethod
    def take(
        cls, files: Files, paths: Sequence[str], *, node_id: int, cluster_id: str | None = None, role: str | None = None
    ) -> Claims:
        """Lock the directories. Raises UsageError, in one sentence, if one must not be used, or if none can be used."""
        claims, missing = cls([], {}), []
        try:
            for path in paths:
                if len(paths) > 1 and _is_missing(files, path):
                    missing.append(path)
                else:
                    claims._take(files, path, node_id, cluster_id, role)
            for path in missing:
                if any(claim.meta is not None for claim in claims._claims):
                    claims._unusable[path] = f"data directory {path} cannot be used: it does not exist (is its disk mounted?)"
                else:
                    claims._take(files, path, node_id, cluster_id, role)
            claims._check(paths)
        except BaseException:
            claims.release()
            raise
        return claims

    def _take(self, files: Files, path: str, node_id: int, cluster_id: str | None, role: str | None) -> None:
        try:
            self._claims.append(Claim.take(files, path, node_id=node_id, cluster_id=cluster_id, role=role))
        except UnusableDirectory as e:
            self._unusable[path] = str(e)

    def _check(self, paths: Sequence[str]) -> None:
        if not self._claims:
            raise UsageError(self._unusable[paths[0]])
        self._claims.sort(key=lambda claim: paths.index(claim.path))
        clusters = {claim.cluster_id: claim.path for claim in reversed(self._claims) if claim.cluster_id is not None}
        if len(clusters) > 1:
            (one, path), (other, other_path) = sorted(clusters.items(), key=lambda item: paths.index(item[1]))[:2]
            raise UsageError(f"{path} belongs to cluster {one}, and {other_path} to cluster {other}: check log.dirs")
        by_id: dict[bytes, str] = {}
        for claim in self._claims:
            if claim.meta is not None and (first := by_id.setdefault(claim.meta.directory_id, claim.path)) != claim.path:
                raise UsageError(f"{first} and {claim.path} have the same directory.id: one is a copy of the other; remove it")

    @property
    def cluster_id(self) -> str | None:
        """The cluster id, from a directory or else from the configuration; None if not known yet."""
        return next((claim.cluster_id for claim in self._claims if claim.cluster_id is not None), None)

    def open(self, *, cluster_id: str | None, random: Random | None = None, tail_bytes_max: int = 4 << 20) -> LogDirs:
        """Open the directories, and format fresh ones. Raises UsageError if none can be opened, or if two hold the same
        partition. On an error the claims are released."""
        unusable, opened, problem = dict(self._unusable), list[LogDir](), None
        waiting = list(self._claims)
        try:
            while waiting:
                claim = waiting.pop(0)  # `open_claimed` releases it on an error
                try:
                    opened.append(LogDir.open_claimed(claim, cluster_id=cluster_id, random=random, tail_bytes_max=tail_bytes_max))
                except UnusableDirectory as e:
                    unusable[claim.path], problem = str(e), problem or e
            if not opened:
                raise problem or UsageError("no data directory was claimed")
            log_dirs = LogDirs(opened, unusable)
            log_dirs.finish_moves()
            log_dirs.check_duplicates()
        except BaseException:
            for claim in waiting:
                claim.release()
            for log_dir in opened:
                log_dir.close(clean=log_dir.was_clean, broker_epoch=log_dir.previous_broker_epoch)
            raise
        for path, reason in unusable.items():
            logger.error("log_dir.unusable", log_dir=path, reason=reason)
        return log_dirs

    def release(self) -> None:
        """Release the locks."""
        for claim in self._claims:
            claim.release()


def _is_missing(files: Files, path: str) -> bool:
    try:
        return not files.exists(path)
    except DiskError:
        return False  # Claiming it finds the reason.
