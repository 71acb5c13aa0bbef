"""The gap between metadata refreshes that follow one another. Pure."""

from __future__ import annotations

REFRESH_GAP_MS = (20, 50, 250)
"""The gap between two refreshes that follow one another: for the first ten, for the next hundred, and for all later ones."""
STREAK_S = 0.5
"""A refresh that begins within this time (seconds) after the last one continues the streak of repeated refreshes."""


class RefreshGap:
    """Limits the load on the brokers while callers request refreshes again and again: the longer that lasts, the longer the
    gap."""

    def __init__(self) -> None:
        self._streak = 0
        """The number of refreshes that have followed one another within STREAK_S each."""
        self._refreshed_at = -1e9
        """When the last refresh ended, on the loop's clock; long ago if there was none."""

    def seconds_left(self, now: float) -> float:
        """Seconds to wait before the next refresh. Must be called once per refresh, because it counts the streak."""
        since = now - self._refreshed_at
        self._streak = self._streak + 1 if since < STREAK_S else 0
        gap_ms = REFRESH_GAP_MS[0 if self._streak < 10 else 1 if self._streak < 120 else 2]
        return max(0.0, gap_ms / 1000 - since)

    def on_refreshed(self, now: float) -> None:
        """A refresh has succeeded or failed."""
        self._refreshed_at = now

    def reset(self) -> None:
        """Let the next refresh begin at once."""
        self._streak, self._refreshed_at = 0, -1e9
