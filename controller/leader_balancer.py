"""The timer by which the active controller moves leaders back to their preferred replicas (`leader_balance.py` decides when).

It looks every second, or ten times per interval if that is more often. If a broker gets more leaders than one decision may elect,
it continues as soon as the elections are committed. Changed settings apply at once, and every broker waits for a whole interval
again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from strandline.controller.controller import ActiveState, Controller
from strandline.controller.decision import Decision
from strandline.controller.leader_balance import ELECTIONS_MAX, LateReturn, LeaderBalance, leaving_brokers, move_leaders_back
from strandline.protocol.errors import BrokerError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

LOOK_S_MAX = 1.0
"""The longest time between two looks, in seconds."""


class BalanceSettings(NamedTuple):
    """The settings `auto.leader.rebalance.enable` and `leader.imbalance.*`."""

    is_enabled: bool
    interval_s: float
    percentage: int


class LeaderBalancer:
    """Moves leaders back while this controller is active."""

    def __init__(self, controller: Controller, settings: Callable[[], BalanceSettings]) -> None:
        """`settings` returns the present settings. Call `on_configs_changed` when they may have changed."""
        self._controller = controller
        self._present_settings = settings
        self._settings = settings()
        self._balance = self._new_balance()
        self._due: deque[int] = deque()
        """Brokers whose leaders move back now, the next one first."""
        self._is_moving = False
        """Whether elections wait for their commit. Then there is no timer."""
        self._timer: asyncio.TimerHandle | None = None

    def on_active(self) -> None:
        self.on_inactive()
        self._settings = self._present_settings()
        self._balance = self._new_balance()
        self._arm()

    def on_inactive(self) -> None:
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_configs_changed(self) -> None:
        """Use the present settings, if they differ from those before."""
        if self._controller.active is not None and self._present_settings() != self._settings:
            self.on_active()

    def late(self) -> list[LateReturn]:
        """The brokers that have waited for their leaders for a long time."""
        controller = self._controller
        if controller.active is None:
            return []
        return self._balance.late(controller.image, controller.active.index, controller.now())

    def _new_balance(self) -> LeaderBalance:
        return LeaderBalance(interval_s=self._settings.interval_s, percentage=self._settings.percentage)

    def _arm(self) -> None:
        """Look again after a while, unless elections wait for their commit: then that is the next event."""
        if self._settings.is_enabled and not self._is_moving:
            look_s = min(self._settings.interval_s / 10, LOOK_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(look_s, self._look)

    def _look(self) -> None:
        self._timer = None
        controller = self._controller
        if controller.active is not None:
            self._due.extend(self._balance.due(controller.image, controller.active.index, controller.now()))
            self._move_next()

    def _move_next(self) -> None:
        """Move leaders to the first broker that waits. If none waits, or if a broker has begun its controlled shutdown since the
        look, look again later."""
        self._timer = None
        if not self._due or leaving_brokers(self._controller.image):
            self._due.clear()
            self._arm()
            return
        broker_id, self._is_moving = self._due[0], True
        self._controller.submit(self._moves_to(broker_id), self._on_moved_to(broker_id))

    def _moves_to(self, broker_id: int) -> Callable[[ActiveState], Decision[int]]:
        return lambda active: move_leaders_back(self._controller.image, active.index, broker_id)

    def _on_moved_to(self, broker_id: int) -> Callable[[int | BrokerError], None]:
        def on_moved(reply: int | BrokerError) -> None:
            self._is_moving = False
            if isinstance(reply, BrokerError):
                self._on_failed()
            else:
                self._on_moved(broker_id, reply)

        return on_moved

    def _on_moved(self, broker_id: int, elections: int) -> None:
        """The elections are committed. The next ones follow in the next turn of the event loop, after the requests that wait."""
        if elections:
            logger.info(
                "controller.leaders_balanced", node_id=self._controller.node_id, broker_id=broker_id, partitions=elections
            )
        if elections < ELECTIONS_MAX:
            if self._due:  # They were cleared if the settings changed meanwhile.
                self._due.popleft()
            self._balance.on_moved(broker_id, self._controller.now())
        self._timer = asyncio.get_running_loop().call_later(0, self._move_next)

    def _on_failed(self) -> None:
        """Start again with the next look. If this controller has resigned, the new active one has its own timer."""
        self._due.clear()
        if self._controller.active is not None:
            self._arm()
