"""The timer by which the active controller removes producer names that are no longer used.

It runs ten times per expiration time, and at least once an hour. If there are many names to remove, it continues shortly after
each batch of removals is committed, so that other decisions come in between. A name is removed late rather than early, because
after that, later attempts to write under the name cannot learn anything about the earlier ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from strandline.controller.controller import Controller
from strandline.controller.producer_id_control import REMOVALS_MAX, remove_unused_names
from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

INTERVAL_S_MAX = 3600.0
GO_ON_S = 0.1


class NameExpiry:
    """Removes unused producer names while this controller is active."""

    def __init__(self, controller: Controller, *, wall_clock_ms: Callable[[], int], expiration_ms: int) -> None:
        self._controller = controller
        self._wall_clock_ms = wall_clock_ms
        self._expiration_ms = expiration_ms
        self._interval_s = max(GO_ON_S, min(expiration_ms / 10_000, INTERVAL_S_MAX))
        self._timer: asyncio.TimerHandle | None = None

    def on_active(self) -> None:
        self.on_inactive()
        self._arm(self._interval_s)

    def on_inactive(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms, image = self._wall_clock_ms(), self._controller.image
        self._controller.submit(lambda _: remove_unused_names(image, now_ms, self._expiration_ms), self._on_removed)

    def _on_removed(self, reply: int | BrokerError) -> None:
        """The removals are committed. If the reply is an error, this controller is no longer active, and the new active one has
        its own timer."""
        if isinstance(reply, BrokerError):
            return
        if reply:
            logger.info("controller.names_removed", node_id=self._controller.node_id, names=reply)
        self._arm(GO_ON_S if reply == REMOVALS_MAX else self._interval_s)
