"""Bytes, times and numbers of things as people write and read them: "10MB", "3.2 MB", "4 min", "2 records"."""

from __future__ import annotations

import re

from strandline.protocol.errors import UsageError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


_SIZE_MAX = 2**62
"""The largest throttle that a controller accepts."""


def parse_bytes(text: str, option: str) -> int:
    """A number of bytes: "500000", "10MB", "1.5 GiB", "10MB/s". UsageError that names the option."""
    found = re.fullmatch(r"(\d{1,20}(?:\.\d+)?)\s*([KMGT]?I?)B?(?:/S)?", text.strip().upper(), re.ASCII)
    size = round(float(found[1]) * _UNITS[found[2]]) if found is not None and found[2] in _UNITS else 0
    if not 1 <= size <= _SIZE_MAX:
        raise UsageError(f"{option} takes bytes per second, such as 500000, 10MB or 1.5GiB, not {text!r}")
    return size


def show_bytes(size: float) -> str:
    """A number of bytes with three digits: "812 B", "3.21 MB"."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}" if size < 1000 * unit else f"{size / unit:.0f} {name}"
    return f"{round(size)} B"


def show_time(seconds: float) -> str:
    """A duration in its two largest units at most: "12 s", "4 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def time_text(timestamp_ms: int) -> str:
    """A record's timestamp for people, in UTC; empty for a negative one, which is Kafka's code for none."""
    import datetime

    if timestamp_ms < 0:
        return ""
    return f"{datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC):%Y-%m-%d %H:%M:%S}"


def parse_duration_ms(text: str, option: str) -> int:
    """Parse a duration such as 500ms, 30s, 5m or 1h30m. UsageError, with the name of the option, for anything else."""
    from strandline.cli.start import DURATION, UNITS_MS

    if not DURATION.fullmatch("-" + text):
        raise UsageError(f"{option} takes a time such as 30s, 5m or 1h30m; not {text!r}")
    return sum(int(count) * UNITS_MS[unit] for count, unit in re.findall(r"(\d+)(ms|s|m|h|d)", text))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: "1 record", "2 records". `plural`: of a noun that takes more than an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"
