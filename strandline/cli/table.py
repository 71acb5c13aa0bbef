"""Tables for people, fitted to a width. No word, address or number is ever broken.

A table that is too wide is changed in this order until it fits: smaller gaps; text wrapped between words; spare columns
omitted, and named below the table; each row as a block of lines. A column without any value is omitted. If the width is
unknown (a pipe, a file) or the user asks for everything (`--wide`), the table is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

GAP, SMALL_GAP = 3, 2
TEXT_MIN = 24
"""A column of text is not made narrower than this while there is a spare column to omit."""
LONG_LIST = 16
"""A list without blanks that is longer than this may be broken after its commas."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?|")


def layout(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    width: int | None = None,
    spare: Sequence[str] = (),
) -> list[str]:
    """The lines of the table. `width`: in characters, None for no limit. `spare`: columns to omit first, in this order."""
    cells = [[_visible(cell(value)) for value in row] for row in rows]
    kept = [i for i, _ in enumerate(columns) if any(row[i] for row in cells)] or list(range(len(columns)))
    left_out: list[str] = []
    while True:
        shown = [[columns[i] for i in kept], *([row[i] for i in kept] for row in cells)]
        next_spare = next((name for name in spare if name in shown[0]), None)
        found = _fit(shown, width, TEXT_MIN if next_spare else 0)
        if found is not None:
            gap, widths = found
            return _draw(shown, widths, gap) + _footer(left_out)
        if next_spare is None:
            return _blocks(columns, cells, width or 0)
        left_out.append(next_spare)
        kept.remove(columns.index(next_spare))


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(v) for v in value)
    return str(value)


def _visible(text: str) -> str:
    """The text without control characters: client ids and names of groups come from anyone, and could rewrite the screen."""
    return text if text.isprintable() else "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _pieces(text: str) -> list[tuple[str, str]]:
    """The unbreakable pieces of a text, each with the separator before it (used if both are in one line)."""
    found = []
    for word in text.split():
        parts = re.findall(r"[^,]*,|[^,]+$", word) if len(word) > LONG_LIST else [word]
        found += [(" ", parts[0]), *(("", part) for part in parts[1:])]
    return found


def _fit(lines: list[list[str]], width: int | None, text_min: int) -> tuple[int, list[int]] | None:
    """The gap and the columns' widths; None if the table does not fit."""
    natural = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width is None:
        return GAP, natural
    for gap in (GAP, SMALL_GAP):
        if 1 + sum(natural) + gap * (len(natural) - 1) <= width:
            return gap, natural
    least = [_least(column, text_min) for column in zip(*lines, strict=True)]
    room = width - 1 - SMALL_GAP * (len(natural) - 1)
    if sum(least) > room:
        return None
    widths = list(natural)
    while sum(widths) > room:
        widest = max((i for i in range(len(widths)) if widths[i] > least[i]), key=lambda i: widths[i])
        widths[widest] -= 1
    return SMALL_GAP, widths


def _least(column: Sequence[str], text_min: int) -> int:
    longest = max(len(text) for text in column[1:]) if len(column) > 1 else 0
    words = max((len(piece) for text in column for _, piece in _pieces(text)), default=0)
    is_text = any(" " in text for text in column[1:])
    return max(words, min(longest, text_min)) if is_text else max(words, 1)


def _draw(lines: list[list[str]], widths: list[int], gap: int) -> list[str]:
    numbers = [len(column) > 1 and all(_NUMBER.fullmatch(text) for text in column[1:]) for column in zip(*lines, strict=True)]
    drawn = [line for row in lines[:1] for line in _draw_row(row, widths, numbers, gap)]
    rule = " " + "─" * (sum(widths) + gap * (len(widths) - 1))
    drawn.append(rule)
    for row in lines[1:]:
        drawn += _draw_row(row, widths, numbers, gap)
    return ["", *drawn, ""]


def _draw_row(row: list[str], widths: list[int], numbers: list[bool], gap: int) -> list[str]:
    wrapped = [_wrap(text, width) for text, width in zip(row, widths, strict=True)]
    lines = []
    for i in range(max(map(len, wrapped))):
        parts = [
            (part[i] if i < len(part) else "").rjust(width) if is_number else (part[i] if i < len(part) else "").ljust(width)
            for part, width, is_number in zip(wrapped, widths, numbers, strict=True)
        ]
        lines.append((" " + (" " * gap).join(parts)).rstrip())
    return lines


def _wrap(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    lines = [""]
    for blank, piece in _pieces(text):
        longer = lines[-1] + blank + piece if lines[-1] else piece
        if len(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(piece)
    return lines


def _blocks(columns: Sequence[str], cells: list[list[str]], width: int) -> list[str]:
    name_width = max(map(len, columns))
    lines = [""]
    for row in cells:
        for name, text in zip(columns, row, strict=True):
            parts = _wrap(text, width - name_width - 3) if text else []
            lines += [f" {(name if i == 0 else '').ljust(name_width)}  {part}" for i, part in enumerate(parts)]
        lines.append("")
    return lines


def _footer(left_out: Sequence[str]) -> list[str]:
    return [f"(not shown: {', '.join(left_out)}; --wide shows all columns)"] if left_out else []
