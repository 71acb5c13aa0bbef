"""What the active controller knows of brokers without writing it down: sessions, how far they have read, shutdowns.

A session begins with a registration and is renewed by each heartbeat of the same broker epoch; it ends by timeout, by
fencing on a lost connection, or with an orderly shutdown. Nothing of this is in the log: a new active controller gives
every broker a fresh session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable


class BrokerSession:
    __slots__ = ("broker_epoch", "broker_id", "deadline", "metadata_offset", "shutdown_offset")

    def __init__(self, broker_id: int, broker_epoch: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.deadline = 0.0
        """In loop time; the session is over when it has passed."""
        self.metadata_offset = -1
        """The last metadata offset that the broker said it had applied; never goes back."""
        self.shutdown_offset = -1
        """Set during a controlled shutdown: the last offset of the records that moved its leaders away."""


class BrokerSessions:
    """Sessions, ordered by deadline: all have the same timeout, so that a renewed one goes to the end."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._sessions: OrderedDict[int, BrokerSession] = OrderedDict()

    def get(self, broker_id: int, broker_epoch: int) -> BrokerSession | None:
        """The session of this incarnation."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def is_live(self, broker_id: int, broker_epoch: int, now: float) -> bool:
        session = self.get(broker_id, broker_epoch)
        return session is not None and session.deadline > now

    def last_heard(self, broker_id: int, broker_epoch: int) -> float | None:
        """When this incarnation's session was last renewed, in loop time; None if it has no session."""
        session = self.get(broker_id, broker_epoch)
        return None if session is None else session.deadline - self.timeout_s

    def touch(self, broker_id: int, broker_epoch: int, now: float) -> BrokerSession:
        """Renew the session, or begin it; one of another broker epoch is replaced."""
        session = self.get(broker_id, broker_epoch)
        if session is None:
            session = self._sessions[broker_id] = BrokerSession(broker_id, broker_epoch)
        session.deadline = now + self.timeout_s
        self._sessions.move_to_end(broker_id)
        return session

    def remove(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def restart(self, brokers: Iterable[tuple[int, int]], now: float) -> None:
        """A fresh session for each (broker id, broker epoch): the controller was away, not they."""
        for broker_id, broker_epoch in brokers:
            self.touch(broker_id, broker_epoch, now)

    def next_deadline(self) -> float | None:
        first = next(iter(self._sessions.values()), None)
        return None if first is None else first.deadline

    def expired(self, now: float) -> list[BrokerSession]:
        """Sessions that are over, the longest silent first; they stay until removed."""
        over = []
        for session in self._sessions.values():
            if session.deadline > now:
                break
            over.append(session)
        return over

    def all(self) -> list[BrokerSession]:
        return list(self._sessions.values())
