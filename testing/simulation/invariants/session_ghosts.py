"""The ghosts of I50: the heartbeats that coordinators have accepted from members of groups, and the sessions that their answers
named."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TOLD_MAX = 100
"""So many answers to a member are remembered."""


class Settings(NamedTuple):
    session_ms: int
    interval_ms: int
    assignment_ms: int


@dataclass(slots=True)
class Session:
    """The session of one member, as its last heartbeat began it."""

    end: float
    last_end: float
    """The latest end of all its sessions."""
    overdue_since: float | None = None


@dataclass(slots=True)
class Coordination:
    """The record of one coordinator since it loaded the groups of a partition."""

    node: int
    began_at: float
    at_load: dict[str, Settings] = field(default_factory=dict)
    """What was in effect for a group when it was loaded."""
    sessions: dict[tuple[str, str], Session] = field(default_factory=dict)
    in_effect: dict[tuple[str, str], deque[tuple[float, Settings]]] = field(default_factory=dict)
    """(group, member) -> when its heartbeats arrived, and what was in effect then."""
    cut: dict[tuple[str, str], None] = field(default_factory=dict)
    """Members whose connections were closed since their last heartbeats, so that they have a short grace only."""


class SessionsGhost:
    """The records of all coordinators. The key is a coordinator's `ConsumerProtocol`."""

    def __init__(self) -> None:
        self.coordinations: dict[Any, Coordination] = {}
        self.told: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        """(group, member) -> when it was told a session, on the clock of the run, and the session."""
