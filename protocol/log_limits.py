"""Rate limits for log lines that a peer can cause without limit.

A subject (a peer's host, or a leader that cannot be reached) gets one line per minute. Repetitions within that minute are
counted, and the subject's next line carries the count. The lines of all subjects together have a limit, too, because a peer
may use ten thousand addresses; lines over that limit are counted as `others`. Only subjects that had a line are remembered,
so the same limit bounds the memory.

This module reads no clock: `now` is the event loop's time. If `now` is smaller than before (tests use several loops), a new
minute begins.
"""

from __future__ import annotations

from typing import NamedTuple

INTERVAL_S = 60.0
LINES_MAX = 100
"""Lines per interval, of all subjects together."""
TEXT_MAX = 300


class Suppressed(NamedTuple):
    """The number of lines that were suppressed since the last printed line; the next printed line reports it."""

    suppressed: int
    """Lines of this subject."""
    others: int
    """Lines of other subjects, suppressed because all subjects together had reached their limit."""

    @property
    def fields(self) -> dict[str, int]:
        """Fields for the log line; empty if no line was suppressed."""
        fields = {"suppressed": self.suppressed} if self.suppressed else {}
        return fields | {"suppressed_others": self.others} if self.others else fields


class LineLimits:
    """Limits the log to one line per subject and interval, and to `lines_max` lines per interval in all."""

    def __init__(self, interval_s: float = INTERVAL_S, lines_max: int = LINES_MAX) -> None:
        self._interval_s = interval_s
        self._lines_max = lines_max
        self._last_line_at: dict[str, float] = {}
        """Time of each subject's last line, oldest first. At most `2 * lines_max` subjects."""
        self._suppressed: dict[str, int] = {}
        """Lines suppressed since that last line, by subject. The keys are a subset of `_last_line_at`."""
        self._interval_began_at = float("-inf")
        self._lines = 0
        """Lines printed since `_interval_began_at`."""
        self._others = 0

    def __len__(self) -> int:
        return len(self._last_line_at)

    def admit(self, subject: str, now: float) -> Suppressed | None:
        """Decide whether a line about `subject` may be printed at `now` (seconds).

        Returns the counts to print with the line, or None if the line must be suppressed; it is then counted."""
        last_line_at = self._last_line_at.get(subject)
        if last_line_at is not None and 0 <= now - last_line_at < self._interval_s:
            self._suppressed[subject] = self._suppressed.get(subject, 0) + 1
            return None
        if not 0 <= now - self._interval_began_at < self._interval_s:
            self._interval_began_at, self._lines = now, 0
        if self._lines >= self._lines_max:
            self._others += 1
            return None
        return self._count_line(subject, now)

    def _count_line(self, subject: str, now: float) -> Suppressed:
        self._lines += 1
        self._last_line_at.pop(subject, None)
        suppressed = Suppressed(self._suppressed.pop(subject, 0), self._others)
        self._others = 0
        while len(self._last_line_at) >= 2 * self._lines_max:
            self._forget(next(iter(self._last_line_at)))
        self._last_line_at[subject] = now
        return suppressed

    def _forget(self, subject: str) -> None:
        del self._last_line_at[subject]
        self._others += self._suppressed.pop(subject, 0)

    def due(self, now: float) -> list[tuple[str, Suppressed]]:
        """Subjects with suppressed lines whose interval is over. The caller logs one line for each, with the counts."""
        over = [subject for subject in self._suppressed if not 0 <= now - self._last_line_at[subject] < self._interval_s]
        admitted = ((subject, self.admit(subject, now)) for subject in over)
        return [(subject, suppressed) for subject, suppressed in admitted if suppressed is not None]


def host_of(peer: str) -> str:
    """The host of `host:port`. A peer that reconnects uses another port and still counts as the same subject."""
    return peer.rpartition(":")[0] or peer


def printable(text: object) -> str:
    """Text from a peer, safe to log: at most `TEXT_MAX` characters, with control characters escaped."""
    raw = str(text)
    cut = raw if len(raw) <= TEXT_MAX else raw[:TEXT_MAX] + "..."
    return cut if cut.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
