"""Shared by the commands: options, running a client, and reporting errors."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from strandline.cli import interrupts, names
from strandline.cli.command import App
from strandline.cli.contexts import BOOTSTRAP_VARIABLE, chosen_bootstrap, origins
from strandline.cli.contexts import DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP
from strandline.cli.notes import note as note
from strandline.cli.notes import quiet_client as quiet_client
from strandline.protocol.errors import StrandlineError, UsageError

T = TypeVar("T")

ERROR, USAGE, UNHEALTHY = 1, 2, 3

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "-b",
        envvar=BOOTSTRAP_VARIABLE,
        metavar="HOST:PORT,...",
        callback=chosen_bootstrap,
        show_default="the context's, or 127.0.0.1:9092",
        help="Brokers to connect to first.",
    ),
]
CONNECT_TIMEOUT_MS = 2000
"""Short, because a person waits, even if no broker answers."""
PATIENCE_S = 4.0
"""After this long, the command notes what it waits for."""
TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", autocompletion=names.topics)]
Topic = Annotated[
    str | None, typer.Argument(metavar="TOPIC", show_default=False, help="The topic's name.", autocompletion=names.topics)
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="The topic's name, as an option.", autocompletion=names.topics),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; may be given several times.")
]


def new_app(help: str | None = None) -> App:
    """A typer application for one command. Its help is plain, because rich would take three times as long."""
    return App(
        help=help, no_args_is_help=help is not None, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )


def explain(error: Exception) -> int:
    """Print one sentence about an expected error and return its exit code. Any other exception is a bug: it is re-raised."""
    if isinstance(error, UsageError):
        note(str(error))
        return USAGE
    if isinstance(error, (StrandlineError, OSError)):
        from strandline.node import sentence

        note(sentence(error) + _advice(error))
        return ERROR
    raise error


def _advice(error: Exception) -> str:
    """The end of the sentence: what to do."""
    from strandline.client.errors import AuthorizationFailed, NoBrokersAvailable, UnknownTopic

    if isinstance(error, AuthorizationFailed):
        return "; an administrator grants it with `strandline acl add`, and `strandline acl check` says which rule decides"
    if isinstance(error, UnknownTopic) and error.partition is None:
        return "; `strandline topic list` lists the topics"
    if isinstance(error, NoBrokersAvailable):
        origin = next((origin for origin in origins.values() if origin), "")
        needs_config = "speaks TLS" in str(error)
        advice = "give the client properties with --client-config" if needs_config else "`strandline doctor` looks for the cause"
        return (f"; the address is that of {origin}" if origin else "") + f"; {advice}"
    return ""


def check_terminal(yes: bool, what: str) -> None:
    """UsageError if the command has to ask a person, and there is no terminal. `what`: the sentence that says why it asks."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(f"{what}: give --yes, or run it at a terminal")


def confirm(question: str, yes: bool, refused: str = "nothing was changed") -> None:
    """Ask the person at the terminal before something is destroyed, unless `yes`. A refusal ends the command with exit code 1."""
    if not yes and not typer.confirm(f"{question} Continue?", err=True):
        fail(refused)


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
