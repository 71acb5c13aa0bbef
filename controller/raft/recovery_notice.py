"""Logs that a voter has no vote yet, and what it waits for: once soon after the start, then once a minute."""

from __future__ import annotations

import asyncio

from strandline.controller.raft.channel import NOTICE_S, PATIENCE_S
from strandline.controller.raft.raft_state import RaftState
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

_REASON = "this controller started without a metadata log, and an earlier log of it may have held votes and records"


class RecoveryNotice:
    def __init__(self, state: RaftState) -> None:
        self._state = state
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._state.recovery is not None:
            self._arm(PATIENCE_S)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._log)

    def _log(self) -> None:
        state, recovery = self._state, self._state.recovery
        if recovery is None:
            return
        self._arm(NOTICE_S)
        unanswered = [f"an answer from controller {voter_id}" for voter_id in sorted(recovery.unanswered)]
        awaited = ", ".join(unanswered) or "a leader's committed records"
        logger.warning(
            "quorum.voter_recovering", node_id=state.node_id, controller_epoch=state.epoch, reason=_REASON, awaited=awaited
        )
