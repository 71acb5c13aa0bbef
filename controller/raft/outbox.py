"""The messages that a node sends, in two boxes: those that may leave at once, and those that wait for the disk.

The second box holds each message with a promise that a crash must not break: a vote; a vote request, because it implies a vote
for the sender in a new epoch; a fetch, because its offset claims that the log is on the disk up to there; BeginQuorumEpoch. The
shell writes `quorum-state` and flushes the log once for all messages of one event-loop iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.protocol.frames import Buffer
from strandline.protocol.messages.common import Message


class Send(NamedTuple):
    """A request to another voter. `role` is the role object that sends it; no other role handles the response."""

    to_id: int
    api_key: int
    body: Message
    role: object


class Reply(NamedTuple):
    """The response to a request; `ticket` is the object that the shell handed in with the request."""

    ticket: object
    body: Message
    records: Sequence[Sequence[Buffer]] | None = None


@dataclass(slots=True)
class Outbox:
    """The messages that the node sends: at once, or after the log and the election are on the disk."""

    at_once: list[Send | Reply] = field(default_factory=list)
    after_sync: list[Send | Reply] = field(default_factory=list)

    def take_at_once(self) -> list[Send | Reply]:
        taken, self.at_once = self.at_once, []
        return taken

    def take_after_sync(self) -> list[Send | Reply]:
        taken, self.after_sync = self.after_sync, []
        return taken
