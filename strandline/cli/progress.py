"""A bar on standard error for work that takes long. Without a terminal there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

BAR_WIDTH = 30


def show_step(number: int, count: int, name: str) -> None:
    """Show on one line of the terminal which of `count` things is read; clear the line when the last one begins. For work that
    counts steps and not bytes."""
    sys.stderr.write("\r\033[K" + (f"reading {number} of {count}: {name}" if number < count else ""))
    sys.stderr.flush()


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how much of `total` is done, until the end of the block. Yields a function that adds to the amount done."""
    if total <= 0 or not sys.stderr.isatty():
        yield lambda done: None
        return
    with typer.progressbar(length=total, label=label, file=sys.stderr, width=BAR_WIDTH) as bar:
        yield bar.update
