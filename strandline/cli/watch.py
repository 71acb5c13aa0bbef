"""`--watch`: a read that is repeated until Ctrl-C.

Each round opens new connections and asks again, as a call without the option would. So a failure of the cluster and its end both
become visible, and no round shows the state of an earlier one. At a terminal each round replaces the one before; elsewhere the
rounds follow each other, so that `-o json --watch` is a stream of documents."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import typer

from strandline.cli.common import run
from strandline.cli.output import Form, View, rendered, show, terminal_width
from strandline.protocol.errors import StrandlineError, UsageError

SECONDS_MIN = 0.1
_CLEAR = "\x1b[H\x1b[2J"

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", "-w", metavar="[SECONDS]", show_default=False, help="Repeat it until Ctrl-C, every 2 seconds by default."
    ),
]
Ask = Callable[[], Coroutine[Any, Any, View]]


def present(ask: Ask, output: Form, watch: float | None = None) -> None:
    """Ask for a view and show it: once, or every `watch` seconds."""
    if watch is None:
        show(run(ask()), output)
        return
    if watch < SECONDS_MIN:
        raise UsageError(f"--watch takes {SECONDS_MIN:g} seconds or more, not {watch:g}")
    while True:
        began = time.monotonic()
        _print(_round(ask), output, watch)
        time.sleep(max(0.0, watch - (time.monotonic() - began)))


def _round(ask: Ask) -> View:
    """The view of one round. An error of the cluster becomes a view, because the next round may succeed; a UsageError ends the
    command."""
    try:
        return run(ask())
    except UsageError:
        raise
    except (StrandlineError, OSError) as e:
        from strandline.node import sentence

        return View({"error": sentence(e)}, [], [sentence(e)])


def _print(view: View, output: Form, watch: float) -> None:
    if output.is_document or not sys.stdout.isatty():
        show_round(view, output)
        return
    size = shutil.get_terminal_size()
    head = f"every {watch:g} s, {time.strftime('%H:%M:%S')}, Ctrl-C ends"
    lines = [*rendered(view, output, terminal_width()).splitlines(), *view.remarks]
    sys.stdout.write(_CLEAR + "\n".join([head, *fitted(lines, size.lines - 2)]) + "\n")
    sys.stdout.flush()


def show_round(view: View, output: Form) -> None:
    """Print a view that is not the last one: its exit code does not end the command."""
    view.code = 0
    show(view, output)


def fitted(lines: list[str], height: int) -> list[str]:
    """The first lines, as many as the terminal has room for; the last one counts those that it has no room for."""
    if len(lines) <= height:
        return lines
    return [*lines[: height - 1], f"({len(lines) - height + 1} more lines)"]
