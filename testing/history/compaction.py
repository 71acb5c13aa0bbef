"""Which records of a compacted partition the cleaner may have removed, and since when; and whether a deleted key has come back.

A cleaner may remove a record if a newer one of the same key is in the log at a higher offset, and a tombstone after a time. So a
missing record is excused if the clients know of such a newer record (it was acknowledged as a promise, or read), or if the record
is a tombstone itself. The last value of a key is never excused. A tombstone with an unknown outcome may have been in the log
though no client has seen it, because it may have been removed as well; so it excuses the older values of its key.

An excuse has a time: a reader that skipped the record before the newer one was sent broke its promise.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, Protocol

from strandline.testing.history.operations import FAIL, Send, Value


class Partition(Protocol):
    """The part of `View` that the rules of compaction need: the sends and reads of one partition."""

    sends: list[Send]
    unplaced: Sequence[Send]
    send_of: dict[Value, Send]
    read_at: dict[int, Value]
    place_of: dict[Value, int]
    final_at: dict[int, Value] | None

    @property
    def placed(self) -> list[Send]: ...
    def is_idempotent(self, send: Send) -> bool: ...


class Known(NamedTuple):
    """A record whose offset the clients know."""

    offset: int
    send: Send


@dataclass(slots=True)
class _Key:
    known: list[Known] = field(default_factory=list)
    """The records of the key with known offsets, by ascending offset."""
    hidden: list[Send] = field(default_factory=list)
    """Sends that may have superseded records of the key, although no client knows their offsets."""


class Removable:
    """The records of one partition that a cleaner may have removed."""

    def __init__(self, view: Partition) -> None:
        self._order = {send: number for number, send in enumerate(view.sends)}
        self._unplaced = {send.value: send for send in view.unplaced}
        """Value -> its send, for sends that may belong to this partition or to another one."""
        self._view = view
        self.keys: dict[Hashable, _Key] = {}
        self.since: dict[int, float] = {}
        """Offset -> the time since which the record may be missing. All other records must be there."""
        self._take()
        for key in self.keys.values():
            self._judge(key)

    def send_of(self, value: Value) -> Send | None:
        """The send of a value that was read in this partition. Without an acknowledgement its own partition may be unknown."""
        return self._view.send_of.get(value) or self._unplaced.get(value)

    def may_lack(self, offset: int, at: float = inf) -> bool:
        """Whether a reader may have found no record at this offset at this time."""
        return offset in self.since and self.since[offset] <= at

    def may_lack_unplaced(self, send: Send) -> bool:
        """Whether the record of a send without a known offset may have been removed."""
        key = self.keys.get(send.key)
        return send.tombstone or (key is not None and (bool(key.known) or any(other is not send for other in key.hidden)))

    def newest(self, key: Hashable) -> Known | None:
        """The record of the key with the highest known offset."""
        known = self.keys[key].known if key in self.keys else []
        return known[-1] if known else None

    def _take(self) -> None:
        view = self._view
        placed: dict[int, Send] = {}
        for offset, value in view.read_at.items():
            send = self.send_of(value)
            if send is not None and send.key is not None:
                placed[offset] = send
        for send in view.placed:
            if send.key is not None:
                placed.setdefault(send.offset, send)
        for offset in sorted(placed):
            self._key(placed[offset]).known.append(Known(offset, placed[offset]))
        promised = {send.value for send in view.placed}
        for send in (*view.sends, *view.unplaced):
            is_known = send.value in view.place_of or send.value in promised
            # A final read would have shown a value that no other record superseded.
            if send.key is not None and send.outcome != FAIL and not is_known and (send.tombstone or view.final_at is None):
                self._key(send).hidden.append(send)

    def _key(self, send: Send) -> _Key:
        return self.keys.setdefault(send.key, _Key())

    def _judge(self, key: _Key) -> None:
        newer = inf
        for offset, send in reversed(key.known):
            since = min([newer, *(other.invoked_at for other in key.hidden if not self._came_before(other, send))])
            if send.tombstone:
                since = min(since, send.invoked_at)
            if since < inf:
                self.since[offset] = since
            newer = min(newer, send.invoked_at)

    def _came_before(self, other: Send, send: Send) -> bool:
        """Whether `other` certainly has the lower offset of the two: one idempotent producer sent both, in this order."""
        view = self._view
        is_same = (other.process, other.session) == (send.process, send.session)
        return is_same and view.is_idempotent(other) and view.is_idempotent(send) and self._was_sent_before(other, send)

    def _was_sent_before(self, other: Send, send: Send) -> bool:
        order = self._order
        if other in order and send in order:
            return order[other] < order[send]
        return other.invoked_at < send.invoked_at
