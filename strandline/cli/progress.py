"""A bar on standard error for work that takes long. Without a terminal there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

BAR_WIDTH = 30


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done, until the end of the block. The function that the block gets adds to what is done."""
    if total <= 0 or not sys.stderr.isatty():
        yield lambda done: None
        return
    with typer.progressbar(length=total, label=label, file=sys.stderr, width=BAR_WIDTH) as bar:
        yield bar.update
