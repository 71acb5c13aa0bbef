"""Reloads the files of a node's security when they change: certificates, authorities, users.

Certificates expire, and are renewed by programs that only write files. A node checks its files every few seconds, and reloads
them at once after a SIGHUP. Both happen in a thread. A file that cannot be used is logged, and its previous content stays in use,
while the other files take effect; it is read again when a file has changed, or after a SIGHUP.
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
    """Watches the files of one node, from `start` until `stop`."""

    def __init__(self, security: NodeSecurity) -> None:
        self._security = security
        self._hurry = asyncio.Event()
        self._must_reload = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch. Does nothing if the node's security has no files."""
        if self._security.has_files:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="file-watch")

    def stop(self) -> None:
        """Stop watching."""
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
