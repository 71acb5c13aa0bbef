"""Paths for Spark's own file readers, which take some characters of a path for a pattern."""

from __future__ import annotations

import re


def literal_path(path: str) -> str:
    """The path with its special characters escaped. Spark takes brackets, braces, stars and question marks for a pattern: it
    would not find the folder `lake[1]`, and for `lake*` it would read `lake-old`, too. It writes to such paths as they are."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path)
