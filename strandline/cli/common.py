"""What the commands share: how to reach a cluster, how to print, how to fail."""

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
    typer.Option("--bootstrap", "-b", envvar="STRANDLINE_BOOTSTRAP", metavar="HOST:PORT,...", help="Brokers to ask first."),
]
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECT_TIMEOUT_MS = 2000
"""A person waits for the answer, also when it is that nobody is there."""
PATIENCE_S = 4.0
"""A person who waits longer wants to know what for."""
Topic = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False, help="The topic's name.")]
TopicOption = Annotated[str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="The same, as an option.")]
WIDTH_MIN = 20
Wide = Annotated[bool, typer.Option("--wide", help="All columns, however wide the terminal is.")]
Json = Annotated[bool, typer.Option("--json", help="JSON for programs instead of a table.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; may be given several times.")
]


def new_app(help: str | None = None) -> typer.Typer:
    """A command's own typer application, with plain help: rich would triple the time that it takes."""
    return typer.Typer(
        help=help, no_args_is_help=help is not None, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def explain(error: Exception) -> int:
    """Print one sentence about an error that is not our bug and return its exit code; raise it again when it is one."""
    if isinstance(error, UsageError):
        note(str(error))
        return USAGE
    if isinstance(error, (StrandlineError, OSError)):
        from strandline.client.errors import UnknownTopic
        from strandline.node import sentence

        is_missing = isinstance(error, UnknownTopic) and error.partition is None
        note(sentence(error) + ("; `strandline topic list` shows what there is" if is_missing else ""))
        return ERROR
    raise error


def note(text: str) -> None:
    """A word to the person, out of the way of the results. Where it cannot be written, the command goes on."""
    with suppress(OSError):
        sys.stderr.write(f"strandline: {text}\n")  # one write: a terminal's echo cannot come between
        sys.stderr.flush()


def fail(text: str, code: int = ERROR) -> NoReturn:
    note(text)
    raise typer.Exit(code)


def run(main: Coroutine[Any, Any, T], *, grace_s: float = interrupts.GRACE_S, on_interrupt: str | None = None) -> T:
    """Run a client's work on uvloop. Ctrl-C cancels it: it has `grace_s` to clean up, and `on_interrupt` is noted for a
    cleanup that takes a person's time. Raises KeyboardInterrupt when it has ended for that."""

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
        main.close()  # where the loop did not come to it


@asynccontextmanager
async def while_waiting(what: str) -> AsyncIterator[None]:
    """Note what the command waits for, if that takes longer than a person expects."""
    text = f"still waiting for {what} (Ctrl-C ends)"
    timer = asyncio.get_running_loop().call_later(PATIENCE_S, note, text)
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A folder that is removed at the end, also after Ctrl-C."""
    import tempfile

    with interrupts.unwinding(), tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield folder


def quiet_client() -> None:
    """The client's log lines are for programs; a person reads what the command says itself."""
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
    """A table for people, in the width of the terminal (`table.py`). `spare`: columns to leave out first; a command that
    has some offers `--wide`."""
    from strandline.cli.table import layout

    lines = layout(columns, rows, width=None if wide else _width(), spare=spare)
    print("\n".join([title, *lines] if title else lines), flush=True)


def _width() -> int | None:
    """COLUMNS, or the terminal's width; None where the output goes elsewhere."""
    import os
    import shutil

    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, WIDTH_MIN)
    return None


def short_path(path: str) -> str:
    """A path for a person: relative to the current folder where that is shorter."""
    import os

    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):  # the current folder is gone
        return path
    return min(path, relative if relative.startswith((".", os.sep)) else f".{os.sep}{relative}", key=len)


def topic_of(command: str, argument: str | None, option: str | None) -> str:
    """The topic, which is named once: as an argument, or by `-t`."""
    if argument is not None and option is not None:
        raise UsageError(f"the topic is named twice: {argument} and --topic {option}")
    topic = argument if option is None else option
    if not topic:
        raise UsageError(f"the topic is missing: strandline {command} TOPIC")
    return topic


def parse_settings(settings: Iterable[str] | None, option: str = "--set") -> dict[str, str]:
    """`--set key=value`, several times."""
    parsed: dict[str, str] = {}
    for setting in settings or ():
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} takes key=value, not {setting!r}")
        if parsed.get(key.strip(), value.strip()) != value.strip():
            raise UsageError(f"{option} gives {key.strip()} two values: {parsed[key.strip()]} and {value.strip()}")
        parsed[key.strip()] = value.strip()
    return parsed
