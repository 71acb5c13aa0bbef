"""The brokers' sessions: state of the active controller that is not in the metadata log.

A session starts with a registration, and each heartbeat of the same broker epoch renews it. It ends by timeout, by fencing
after a lost connection, or with a controlled shutdown. A new active controller starts a new session for every unfenced broker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BrokerSession:
    """The session of one process of a broker. Its heartbeats renew it."""

    __slots__ = ("broker_epoch", "broker_id", "deadline", "metadata_offset", "shutdown_offset")

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.deadline = 0.0
        """When the session ends, in loop time."""
        self.metadata_offset = -1
        """The highest metadata offset that the broker has reported as applied; never decreases."""
        self.shutdown_offset = -1
        """During a controlled shutdown, the last offset of the records that moved its leaders away; otherwise -1."""


class BrokerSessions:
    """The sessions in order of their deadlines. All have the same timeout, so a renewed one moves to the end."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._sessions: OrderedDict[int, BrokerSession] = OrderedDict()

    def get(self, broker_id: int, broker_epoch: int) -> BrokerSession | None:
        """The session of this broker epoch; None if there is none."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def is_live(self, broker_id: int, broker_epoch: int, now: float) -> bool:
        """Whether this broker epoch has a session that has not ended."""
        session = self.get(broker_id, broker_epoch)
        return session is not None and session.deadline > now

    def last_heard(self, broker_id: int, broker_epoch: int) -> float | None:
        """When the session of this broker epoch was last renewed, in loop time; None if there is none."""
        session = self.get(broker_id, broker_epoch)
        return None if session is None else session.deadline - self.timeout_s

    def touch(self, broker_id: int, broker_epoch: int, now: float) -> BrokerSession:
        """Renew the session, or start one; a session of another broker epoch is replaced."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            session = self._sessions[broker_id] = BrokerSession(broker_id, broker_epoch)
        session.deadline = now + self.timeout_s
        self._sessions.move_to_end(broker_id)
        return session

    def remove(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def restart(self, brokers: Iterable[tuple[int, int]], now: float) -> None:
        """Renew or start the session of each (broker id, broker epoch), because the controller could not receive their
        heartbeats."""
        for broker_id, broker_epoch in brokers:
            self.touch(broker_id, broker_epoch, now)

    def next_deadline(self) -> float | None:
        """When the first session ends; None if there is no session."""
        first = next(iter(self._sessions.values()), None)
        return None if first is None else first.deadline

    def expired(self, now: float) -> list[BrokerSession]:
        """The sessions whose deadline has passed, the earliest deadline first. They stay until `remove`."""
        over = []
        for session in self._sessions.values():
            if session.deadline > now:
                break
            over.append(session)
        return over

    def all(self) -> list[BrokerSession]:
        return list(self._sessions.values())
