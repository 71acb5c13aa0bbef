"""The ghosts of I50: the heartbeats that coordinators have accepted from members of groups, and the sessions that their answers
named."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

ENTRIES_MAX = 100
"""The number of answers to a member that are remembered, and of its heartbeats."""


class Settings(NamedTuple):
    session_ms: int
    interval_ms: int
    assignment_ms: int


@dataclass(slots=True)
class Session:
    """The session of one member, which its last heartbeat began."""

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
    """Group -> the settings that were in effect when it was loaded."""
    sessions: dict[tuple[str, str], Session] = field(default_factory=dict)
    in_effect: dict[tuple[str, str], deque[tuple[float, Settings]]] = field(default_factory=dict)
    """(group, member) -> the arrival times of its heartbeats, and the settings in effect at each."""
    cut: dict[tuple[str, str], None] = field(default_factory=dict)
    """(group, member) of each member whose connection was closed since its last heartbeat, so that only a short grace is left."""


class SessionsGhost:
    """The records of all coordinators. The key is a coordinator's `ConsumerProtocol`."""

    def __init__(self) -> None:
        self.coordinations: dict[Any, Coordination] = {}
        self.sent_sessions: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        """(group, member) -> the time of each answer to it, on the clock of the run, and the session in it (ms)."""
