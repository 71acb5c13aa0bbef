"""The start of `consume`: the forms of `--from`, parsed.

beginning, end     (or start, earliest; latest)
1234               this offset, in each partition
-10                10 offsets before the end of each partition: -1 is the last one; a compacted topic may have fewer records
                   there. (In Kafka's protocol -1 means the end itself, and some tools accept it as that; here the end
                   is `end`.)
@2026-01-01T12:00  the first record at or after this time; UTC unless the time names a zone
@-5m               the first record of the last five minutes: ms, s, m, h, d, also combined as in @-1h30m
@1767268800000     the same as a time, in milliseconds since 1970
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from strandline.protocol.errors import UsageError

FORMS = "beginning, end, an offset, -N (N offsets before the end), @TIME such as @2026-01-01T12:00, or @-5m"
DURATION = re.compile(r"-((?:\d+(?:ms|s|m|h|d))+)")
UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
MILLISECONDS_DIGITS_MIN = 12
"""A number with fewer digits is a time before 1974, or a time in seconds by mistake."""


class Beginning(NamedTuple):
    """The log start offset."""


class End(NamedTuple):
    """The high watermark when reading starts."""


class Offset(NamedTuple):
    offset: int


class BeforeEnd(NamedTuple):
    records: int


class Time(NamedTuple):
    timestamp_ms: int


Start = Beginning | End | Offset | BeforeEnd | Time
_WORDS: dict[str, Start] = {
    "beginning": Beginning(),
    "start": Beginning(),
    "earliest": Beginning(),
    "end": End(),
    "latest": End(),
}


def parse_start(text: str, now_ms: int) -> Start:
    """Parse a value of `--from`. Raises UsageError if it has none of the forms in the module's docstring."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("@"):
        return Time(_time_ms(text[1:], now_ms))
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise UsageError(f"--from takes {FORMS}; not {text!r}")
    number = int(text)
    if text.startswith("-"):
        if number == 0:
            raise UsageError("--from -0 is not an offset: write end, or 0 for the first offset")
        return BeforeEnd(-number)
    return Offset(number)


def _time_ms(text: str, now_ms: int) -> int:
    duration = DURATION.fullmatch(text)
    if duration is not None:
        parts = re.findall(r"(\d+)(ms|s|m|h|d)", duration[1])
        return max(0, now_ms - sum(int(count) * UNITS_MS[unit] for count, unit in parts))
    if text.isascii() and text.isdigit():
        if len(text) < MILLISECONDS_DIGITS_MIN:
            raise UsageError(f"--from @{text}: a number is a time in milliseconds since 1970; in seconds it is @{text}000")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--from @{text}: a time is written as @2026-01-01T12:00 (UTC), @2026-01-01T12:00+02:00, or @-5m for five minutes ago"
        ) from None
    return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
