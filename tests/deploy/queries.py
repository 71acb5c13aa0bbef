"""Finds the metrics in a PromQL expression, and the series that nodes may print."""

from __future__ import annotations

import re

from strandline.observe.catalog import ROWS, Row

_NOT_CODE = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b\d+[smhd]\b')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_WORD = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OPERATORS = {"and", "or", "unless", "bool", "offset"}


def metrics_in(expr: str) -> set[str]:
    """Return the names of the metrics in an expression: the words that are no functions, operators or labels."""
    bare = _GROUPING.sub(" ", _NOT_CODE.sub(" ", expr))
    return {m[0] for m in _WORD.finditer(bare) if not bare[m.end() :].lstrip().startswith("(") and m[0] not in _OPERATORS}


def known_series() -> set[str]:
    """Return the names of all series that a node may print, from the catalogue."""
    return {row.name + suffix for row in ROWS.values() for suffix in _suffixes(row)}


def _suffixes(row: Row) -> tuple[str, ...]:
    if row.kind == "histogram":
        return ("_bucket", "_sum", "_count")
    return ("_sum", "_count") if row.kind == "summary" else ("",)
