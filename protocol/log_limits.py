"""How often a line may repeat: what somebody else can cause as often as they like must not fill our log.

A subject (a peer's host, a leader that cannot be reached) has one line a minute; what it causes meanwhile is counted, and
the count goes into its next line. All subjects together have a bound, too: someone with ten thousand addresses must not
get ten thousand lines, and an entry is kept only for who had a line, so memory is bounded by the same number. Lines over
that bound are counted as those of `others`.

No clock: `now` is the loop's time. Time that went back (another loop, in tests) begins a new minute.
"""

from __future__ import annotations

from typing import NamedTuple

INTERVAL_S = 60.0
LINES_MAX = 100
"""Per interval, of all subjects together."""
TEXT_MAX = 300


class Suppressed(NamedTuple):
    """What was not printed since the last line; goes into the next one."""

    suppressed: int
    """Lines of this subject."""
    others: int
    """Lines of subjects for which there was no room."""

    @property
    def fields(self) -> dict[str, int]:
        """For the line: nothing when nothing was left out."""
        fields = {"suppressed": self.suppressed} if self.suppressed else {}
        return fields | {"suppressed_others": self.others} if self.others else fields


class LineLimits:
    """One line per subject and interval, `lines_max` in all."""

    def __init__(self, interval_s: float = INTERVAL_S, lines_max: int = LINES_MAX) -> None:
        self._interval_s = interval_s
        self._lines_max = lines_max
        self._since: dict[str, float] = {}
        """When a subject had its last line; oldest first. At most two intervals' worth of lines."""
        self._suppressed: dict[str, int] = {}
        """Counted since then; its keys are keys of `_since`."""
        self._began = float("-inf")
        self._lines = 0
        """Printed since `_began`, which is at most one interval ago."""
        self._others = 0

    def __len__(self) -> int:
        return len(self._since)

    def admit(self, subject: str, now: float) -> Suppressed | None:
        """The line may be printed, with what was left out before it; None: it was counted, say nothing."""
        since = self._since.get(subject)
        if since is not None and 0 <= now - since < self._interval_s:
            self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return None
        if not 0 <= now - self._began < self._interval_s:
            self._began, self._lines = now, 0
        if self._lines >= self._lines_max:
            self._others += 1
            return None
        return self._print(subject, now)

    def _print(self, subject: str, now: float) -> Suppressed:
        self._lines += 1
        self._since.pop(subject, None)
        told = Suppressed(self._suppressed.pop(subject, 0), self._others)
        self._others = 0
        while len(self._since) >= 2 * self._lines_max:
            self._forget(next(iter(self._since)))
        self._since[subject] = now
        return told

    def _forget(self, subject: str) -> None:
        del self._since[subject]
        self._others += self._suppressed.pop(subject, 0)

    def due(self, now: float) -> list[tuple[str, Suppressed]]:
        """Subjects that fell silent: whose interval is over, and of whom something was left out. Each is owed a line."""
        over = [subject for subject in self._suppressed if not 0 <= now - self._since[subject] < self._interval_s]
        admitted = ((subject, self.admit(subject, now)) for subject in over)
        return [(subject, told) for subject, told in admitted if told is not None]


def host_of(peer: str) -> str:
    """Of `host:port`: a peer that connects again comes from another port, and is the same peer."""
    return peer.rpartition(":")[0] or peer


def printable(text: object) -> str:
    """What a peer said, fit for a line: short, and without characters that act on a terminal."""
    raw = str(text)
    cut = raw if len(raw) <= TEXT_MAX else raw[:TEXT_MAX] + "..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
