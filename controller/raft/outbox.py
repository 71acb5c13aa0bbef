"""What the node wants sent, in two boxes: what may leave at once, and what must wait for the disk.

The second box holds everything that makes a promise a crash must not break: a vote, a vote request (it carries a vote
for oneself and a new epoch), a fetch (its offset claims that the log is on the disk up to there), the word that an
epoch has begun. The shell writes `quorum-state` and flushes the log once for all that gathered in a turn of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.protocol.frames import Buffer
from strandline.protocol.messages.common import Message


class Send(NamedTuple):
    """A request to another voter. `role` is the role object that asks: its answer is for no other."""

    to_id: int
    api_key: int
    body: Message
    role: object


class Reply(NamedTuple):
    """The answer to a request; `ticket` is whatever the shell handed in with it."""

    ticket: object
    body: Message
    records: Sequence[Sequence[Buffer]] | None = None


@dataclass(slots=True)
class Outbox:
    at_once: list[Send | Reply] = field(default_factory=list)
    after_sync: list[Send | Reply] = field(default_factory=list)

    def take_at_once(self) -> list[Send | Reply]:
        taken, self.at_once = self.at_once, []
        return taken

    def take_after_sync(self) -> list[Send | Reply]:
        taken, self.after_sync = self.after_sync, []
        return taken
