"""Parses and checks the options of `format("strandline.segments")`. The package's docstring has the table of them."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from strandline.pipeline.segments.columns import Rows, chosen
from strandline.protocol.errors import UsageError

_KNOWN = (
    "rows", "columns", "topics", "partitions", "startingOffset", "endingOffset", "splitBytes", "ignoreMissingFiles",
    "pushFilters", "rowsPerBatch", "isolation.level",
)  # fmt: skip
_PATHS = {"path", "paths"}
_SIZE = re.compile(r"\s*(\d+)\s*(k|m|g)?b?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    paths: tuple[str, ...]
    rows: Rows = "batch"
    columns: tuple[str, ...] = ()
    """The columns to return, in this order."""
    topics: frozenset[str] = frozenset()
    """Topics to read. Empty: all except the metadata log."""
    partitions: frozenset[int] = frozenset()
    """Partitions to read. Empty: all."""
    start_offset: int = 0
    end_offset: int | None = None
    split_bytes: int = 64 << 20
    ignore_missing_files: bool = False
    push_filters: bool = False
    rows_per_batch: int = 10_000
    reads_committed: bool = False
    """Whether control records and the records of open and aborted transactions are left out."""


def segment_options(written: Mapping[str, str], columns: Sequence[str] | None = None) -> SegmentOptions:
    """Parses the options as the user wrote them. `columns` are those of the user's schema, which take precedence over the option
    `columns`. Raises UsageError, with the option's name, for an unknown option or a wrong value."""
    given = _known(written)
    rows = given.get("rows", "batch").strip().lower()
    if rows not in ("batch", "record"):
        raise UsageError(f"option rows must be batch or record, not {rows!r}")
    start, end = _number(given, "startingOffset", 0, least=0), given.get("endingOffset")
    return SegmentOptions(
        paths=_paths(written),
        rows=cast(Rows, rows),
        columns=chosen(cast(Rows, rows), _list(given, "columns") if columns is None else columns),
        topics=frozenset(_list(given, "topics")),
        partitions=frozenset(_whole("partitions", each) for each in _list(given, "partitions")),
        start_offset=start,
        end_offset=None if end is None else _number(given, "endingOffset", 0, least=0),
        split_bytes=_size(given, "splitBytes", 64 << 20),
        ignore_missing_files=_flag(given, "ignoreMissingFiles"),
        push_filters=_flag(given, "pushFilters"),
        rows_per_batch=_number(given, "rowsPerBatch", 10_000, least=1),
        reads_committed=_reads_committed(given, rows),
    )


def _reads_committed(given: Mapping[str, str], rows: str) -> bool:
    level = given.get("isolation.level", "read_uncommitted").strip().lower()
    if level not in ("read_uncommitted", "read_committed"):
        raise UsageError(f"option isolation.level must be read_uncommitted or read_committed, not {level!r}")
    if level == "read_committed" and rows != "record":
        raise UsageError("option isolation.level=read_committed needs rows=record: rows of batches are all batches of the files")
    return level == "read_committed"


def _known(written: Mapping[str, str]) -> dict[str, str]:
    names = {name.lower(): name for name in _KNOWN}
    given = {}
    for name, value in written.items():
        if name.lower() in names:
            given[names[name.lower()]] = value
        elif name.lower() not in _PATHS:
            near = difflib.get_close_matches(name.lower(), sorted(names), n=1, cutoff=0.5)
            raise UsageError(f"unknown option {name!r}" + (f"; did you mean {names[near[0]]!r}?" if near else ""))
    return given


def _paths(written: Mapping[str, str]) -> tuple[str, ...]:
    """The paths that the user loads. Spark passes `load("/a,/b")` as the option `path`, and `load(["/a", "/b"])` as the option
    `paths` in JSON."""
    lower = {name.lower(): value for name, value in written.items()}
    paths = [each.strip() for each in lower.get("path", "").split(",")]
    if "paths" in lower:
        paths += json.loads(lower["paths"])
    paths = [path.removeprefix("file://") for path in paths if path]
    if not paths:
        raise UsageError('no path is given: pass a broker\'s data directory or a folder of several, .load("/var/lib/strandline")')
    for path in paths:
        if "://" in path:
            raise UsageError(f"{path} is a URL: segments are read from a local or mounted file system")
    return tuple(dict.fromkeys(paths))


def _list(given: Mapping[str, str], name: str) -> list[str]:
    return [each.strip() for each in given.get(name, "").split(",") if each.strip()]


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"option {name} must be a whole number, not {value!r}") from None


def _number(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    number = _whole(name, given[name]) if name in given else default
    if number < least:
        raise UsageError(f"option {name} must be at least {least}, not {number}")
    return number


def _size(given: Mapping[str, str], name: str, default: int) -> int:
    if name not in given:
        return default
    match = _SIZE.fullmatch(given[name])
    if match is None or not int(match[1]):
        raise UsageError(f"option {name} must be a number of bytes such as 67108864, 64m or 1g, not {given[name]!r}")
    return int(match[1]) << {"k": 10, "m": 20, "g": 30, None: 0}[match[2] and match[2].lower()]


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "false").strip().lower()
    if value not in ("true", "false"):
        raise UsageError(f"option {name} must be true or false, not {given[name]!r}")
    return value == "true"
