"""Reads the files of a node's security again when they change: certificates, authorities, users.

Certificates expire, and are renewed by programs that only write files. A process looks every few seconds, and at once after a
SIGHUP. The look and the reading happen in a thread. Files that cannot be used are reported, and what was read before stays in
use; they are not read again until they change once more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from strandline.logs import structlog
from strandline.protocol.errors import StrandlineError

if TYPE_CHECKING:
    from strandline.controller.metadata.node_security.node_security import NodeSecurity

INTERVAL_S = 3.0


class FileWatch:
    """The look-out for one node."""

    def __init__(self, security: NodeSecurity) -> None:
        self._security = security
        self._hurry = asyncio.Event()
        self._must_reload = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look. A node whose listeners have no files does not look."""
        if self._security.has_files:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="file-watch")

    def stop(self) -> None:
        """End it."""
        if self._task is not None:
            self._task.cancel()

    def reload(self) -> None:
        """Read the files now, whether they seem to have changed or not (SIGHUP)."""
        self._must_reload = True
        self._hurry.set()

    async def _run(self) -> None:
        while True:
            await self._pause()
            self._hurry.clear()
            must_reload, self._must_reload = self._must_reload, False
            await self._look(must_reload)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(INTERVAL_S):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _look(self, must_reload: bool) -> None:
        logger, loop = structlog.get_logger(), asyncio.get_running_loop()
        try:
            if must_reload or await loop.run_in_executor(None, self._security.has_changed_files):
                await loop.run_in_executor(None, self._security.reload)
                logger.info("security.reloaded", path=", ".join(self._security.watched_files))
        except StrandlineError as e:
            logger.error("security.reload_failed", reason=str(e))
