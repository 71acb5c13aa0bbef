"""Shared by the commands: options, running a client, printing, and reporting errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from strandline.cli import interrupts
from strandline.protocol.errors import StrandlineError, UsageError

T = TypeVar("T")

ERROR, USAGE, UNHEALTHY = 1, 2, 3

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="STRANDLINE_BOOTSTRAP", metavar="HOST:PORT,...", help="Brokers to connect to first."
    ),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECT_TIMEOUT_MS = 2000
"""Short, because a person waits, even if no broker answers."""
PATIENCE_S = 4.0
"""After this long, the command notes what it waits for."""
Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False, help="The topic's name.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The topic's name, as an option.")]
WIDTH_MIN = 20
Wide = Annotated[bool, typer.Option("--wide", help="Print all columns, even if the terminal is narrow.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of a table.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; may be given several times.")
]


def new_app(help: str | None = None) -> typer.Typer:
    """A typer application for one command. Its help is plain, because rich would take three times as long."""
    return typer.Typer(
        help=help, no_args_is_help=help is not None, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def explain(error: Exception) -> int:
    """Print one sentence about an expected error and return its exit code. Any other exception is a bug: it is re-raised."""
    if isinstance(error, UsageError):
        note(str(error))
        return USAGE
    if isinstance(error, (StrandlineError, OSError)):
        from strandline.client.errors import UnknownTopic
        from strandline.node import sentence

        is_missing = isinstance(error, UnknownTopic) and error.partition is None
        note(sentence(error) + ("; `strandline topic list` lists the topics" if is_missing else ""))
        return ERROR
    raise error


def note(text: str) -> None:
    """Print a line for people on stderr, apart from the results. If it cannot be written, the command continues."""
    with suppress(OSError):
        sys.stderr.write(f"strandline: {text}\n")  # one write: a terminal's echo cannot come between
        sys.stderr.flush()


def fail(text: str, code: int = ERROR) -> NoReturn:
    """Print an error on stderr and end the command with this exit code, by raising `typer.Exit`."""
    note(text)
    raise typer.Exit(code)


def run(main: Coroutine[Any, Any, T], *, grace_s: float = interrupts.GRACE_S, on_interrupt: str | None = None) -> T:
    """Run a coroutine on uvloop and return its result.

    Ctrl-C cancels it. It then has `grace_s` seconds to clean up; `on_interrupt` is printed if that takes a while. Raises
    KeyboardInterrupt after a cancellation.
    """

    async def cancellable() -> T:
        task = asyncio.current_task()
        assert task is not None
        with interrupts.cancelling(task, asyncio.get_running_loop(), grace_s, on_interrupt):
            return await main

    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(cancellable())
    except asyncio.CancelledError:
        if interrupts.was_interrupted():
            raise KeyboardInterrupt from None
        raise
    finally:
        main.close()  # if the loop never started it


@asynccontextmanager
async def while_waiting(what: str) -> AsyncIterator[None]:
    """Print a note if the block takes longer than PATIENCE_S. `what`: the thing that it waits for."""
    text = f"still waiting for {what} (Ctrl-C ends)"
    timer = asyncio.get_running_loop().call_later(PATIENCE_S, note, text)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A temporary folder. It is removed at the end of the block, also after Ctrl-C."""
    import tempfile

    with interrupts.unwinding(), tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def quiet_client() -> None:
    """Discard the client's log lines: the command itself reports to the person."""
    import logging

    logging.getLogger("strandline").addHandler(logging.NullHandler())


def print_json(document: Any) -> None:
    from strandline.cli.record_json import one_line

    print(one_line(document), flush=True)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str | None = None,
    wide: bool = False,
    spare: Sequence[str] = (),
) -> None:
    """Print a table for people, in the width of the terminal (`table.py`). `spare`: the columns that are omitted first if
    it is narrow; a command with such columns has the option `--wide`."""
    from strandline.cli.table import layout

    lines = layout(columns, rows, width=None if wide else _width(), spare=spare)
    print("\n".join([title, *lines] if title else lines), flush=True)


def _width() -> int | None:
    """COLUMNS, or the terminal's width; None if stdout is no terminal."""
    import os
    import shutil

    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, WIDTH_MIN)
    return None


def short_path(path: str) -> str:
    """The path relative to the current folder, if that is shorter."""
    import os

    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current folder was removed
        return path
    return min(path, relative if relative.startswith((".", os.sep)) else f".{os.sep}{relative}", key=len)


def topic_of(command: str, argument: str | None, option: str | None) -> str:
    """The topic, given either as an argument or by `-t`. Raises UsageError if both or neither is given."""
    if argument is not None and option is not None:
        raise UsageError(f"the topic is given twice: {argument} and --topic {option}")
    topic = argument if option is None else option
    if not topic:
        raise UsageError(f"the topic is missing: strandline {command} TOPIC")
    return topic


def parse_settings(settings: Iterable[str] | None, option: str = "--set") -> dict[str, str]:
    """The settings of a repeated `--set key=value`. Raises UsageError for a malformed or contradictory one."""
    parsed: dict[str, str] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} takes key=value, not {setting!r}")
        if parsed.get(key.strip(), value.strip()) != value.strip():
            raise UsageError(f"{option} gives {key.strip()} two values: {parsed[key.strip()]} and {value.strip()}")
        parsed[key.strip()] = value.strip()
    return parsed
