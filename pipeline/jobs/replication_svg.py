"""Draws SVG for the replication page: a time axis, bars, triangles, and labels. Pure.

Every picture is `WIDTH` units wide. On a narrow screen its card scrolls, so that the text stays readable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

WIDTH, LEFT, RIGHT = 1040, 150, 12
INK, FAINT, GRID, MISSING = "#1f2933", "#66727f", "#e4e7eb", "#f3e3df"
"""`MISSING` is the colour of the part of a lane that stands for replicas out of the ISR."""
STEPS_S = (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
           10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000, 7_776_000, 31_536_000)  # fmt: skip
"""Possible distances between ticks, and widths of bars, in seconds."""


_CLASSES = {INK: "ink", FAINT: "faint", GRID: "grid", MISSING: "missing"}
"""CSS classes of the colours that the page's style sheet replaces in dark mode."""


def _paint(colour: str, what: str = "fill") -> str:
    name = _CLASSES.get(colour)
    return f' {what}="{colour}"' + (f' class="{name}"' if name else "")


def step_us(range_us: int, pieces: int) -> int:
    """The smallest step of `STEPS_S`, in microseconds, that divides the range into at most `pieces` pieces."""
    wanted = max(range_us, 1) / pieces / 1_000_000
    return round(next((step for step in STEPS_S if step >= wanted), STEPS_S[-1]) * 1_000_000)


class Scale:
    """Maps times to x coordinates. Times outside of the range are drawn at its begin or end."""

    def __init__(self, begin_us: int, end_us: int, left: float = LEFT, right: float = RIGHT) -> None:
        self.begin, self.end = begin_us, max(end_us, begin_us + 1000)
        self.left, self.width = left, WIDTH - left - right

    def x(self, at_us: float) -> float:
        share = (min(max(at_us, self.begin), self.end) - self.begin) / (self.end - self.begin)
        return round(self.left + share * self.width, 2)

    def ticks(self) -> list[tuple[float, str]]:
        step = step_us(self.end - self.begin, 8)
        first = -(-self.begin // step) * step
        return [(self.x(at), clock(at, step)) for at in range(first, self.end + 1, step)]


def clock(at_us: int, step: int) -> str:
    """The label of a tick in UTC, as exact as the step between ticks requires."""
    at = datetime.fromtimestamp(at_us / 1_000_000, UTC)
    if step >= 86_400_000_000:
        return at.strftime("%Y-%m-%d")
    if step >= 60_000_000:
        is_midnight = (at.hour, at.minute) == (0, 0)
        return at.strftime("%b %d") if is_midnight else at.strftime("%H:%M")
    return at.strftime("%H:%M:%S") if step >= 1_000_000 else at.strftime("%H:%M:%S.%f")[:-3]


def rect(x: float, y: float, width: float, height: float, fill: str, title: str = "", more: str = "") -> str:
    box = f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.6):.2f}" height="{height:.2f}"{_paint(fill)}{more}'
    return f"{box}><title>{escape(title)}</title></rect>" if title else box + "/>"


def text(x: float, y: float, words: str, anchor: str = "start", fill: str = FAINT, size: float = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{_paint(fill)} font-size="{size}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str = GRID, width: float = 1) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"{_paint(stroke, "stroke")} stroke-width="{width}"/>'


def triangle(x: float, y: float, fill: str, title: str) -> str:
    """A small triangle whose lower tip is at (x, y)."""
    return f'<path d="M{x:.1f} {y:.1f}l-4 -7h8z"{_paint(fill)}><title>{escape(title)}</title></path>'


def axis(scale: Scale, top: float, bottom: float) -> str:
    parts = []
    for x, label in scale.ticks():
        near_end = x > WIDTH - RIGHT - 26
        parts += [line(x, top, x, bottom), text(x, bottom + 14, label, "end" if near_end else "middle")]
    return "".join(parts)


def svg(height: float, parts: Iterable[str], label: str) -> str:
    size = f'viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def legend(items: Sequence[tuple[str, str]]) -> str:
    """The HTML below a picture that explains its colours, given as (colour, meaning)."""
    boxes = "".join(f"<span><i style='background:{colour}'></i>{escape(words)}</span>" for colour, words in items)
    return f"<div class=legend>{boxes}</div>"
