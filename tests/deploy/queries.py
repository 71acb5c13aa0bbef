"""What a PromQL expression asks for, and what the nodes have to answer with."""

from __future__ import annotations

import re

from strandline.observe.catalog import ROWS, Row

_NOT_CODE = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b\d+[smhd]\b')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


def metrics_in(expr: str) -> set[str]:
    """The names of the metrics: the words that are neither functions, nor operators, nor labels."""
    bare = _GROUPING.sub(" ", _NOT_CODE.sub(" ", expr))
    return {m[0] for m in _WORD.finditer(bare) if not bare[m.end() :].lstrip().startswith("(") and m[0] not in _OPERATORS}


def known_series() -> set[str]:
    """The names of all series that a node may print, by the catalogue."""
    return {row.name + suffix for row in ROWS.values() for suffix in _suffixes(row)}


def _suffixes(row: Row) -> tuple[str, ...]:
    if row.kind == "histogram":
        return ("_bucket", "_sum", "_count")
    return ("_sum", "_count") if row.kind == "summary" else ("",)
