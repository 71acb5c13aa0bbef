"""The command `strandline` itself: a group that imports a command's module when the command is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup

from strandline.cli.commands import COMMANDS


class PipeBroke(Exception):
    """Carries a BrokenPipeError through typer, which would handle it itself."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(error)
        self.error = error


@contextmanager
def _past_typer() -> Iterator[None]:
    """Typer exits with 1 for every broken pipe; `main` distinguishes which pipe it was."""
    try:
        yield
    except BrokenPipeError as e:
        raise PipeBroke(e) from e


def readable(path: str, command: Any) -> Any:
    """The command with its help completed: examples, and words such as NUMBER for values without a metavar."""
    from strandline.cli.examples import epilog

    for name, part in getattr(command, "commands", {}).items():
        readable(f"{path} {name}", part)
        part.short_help = part.short_help or first_sentence(part.help or "")
    command.epilog = command.epilog or epilog(path)
    for parameter in command.params:
        _name_numbers(parameter.type)
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # its name says it
        elif parameter.metavar is None and not getattr(parameter, "is_flag", False):
            choices = getattr(parameter.type, "choices", None)
            parameter.metavar = "|".join(choices) if choices else METAVARS[parameter.type.name.removesuffix(" range")]
    return command


def _name_numbers(type: Any) -> None:
    """Let the error for a word that is no number say so: typer's own would be "'x' is not a valid int range"."""
    if type.name.removesuffix(" range") in NUMBERS:
        type.name = "number"


def first_sentence(help: str) -> str:
    """The first sentence of a command's help, for the list of its group's commands. Typer would cut it off in the middle."""
    paragraph = " ".join(help.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s", paragraph)[0]


NUMBERS, NAMES = ("int", "integer", "float", "number"), ("str", "text")
METAVARS = {**dict.fromkeys(NUMBERS, "NUMBER"), **dict.fromkeys(NAMES, "NAME"), "path": "PATH"}
"""The name of a type, which depends on typer's version -> the word for its values in `--help`. Choices are shown as a|b."""


class LazyGroup(TyperGroup):
    """A group that imports a command's module when the command is called, and none to list the commands."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        app = import_module(f"strandline.cli.{COMMANDS[cmd_name][0]}").app
        command = readable(cmd_name, typer.main.get_command(app))
        # A module with several top-level commands (`run`) is a group of them; one with a single command is that command.
        if isinstance(command, TyperGroup) and cmd_name in command.commands:
            return readable(cmd_name, command.commands[cmd_name])
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _past_typer():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _past_typer():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(COMMANDS, cast(Any, None))  # names for "did you mean"
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("strandline"))
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    context: str | None = typer.Option(None, "--context", metavar="NAME", help="A cluster that `strandline context` knows."),
    client_config: str | None = typer.Option(
        None, "--client-config", metavar="FILE", help="Kafka's client properties: how to authenticate."
    ),
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_print_version),
) -> None:
    """Strandline: a replicated log with Kafka's replication, in Python."""
    if context is not None:
        from strandline.cli.contexts import choose_context

        choose_context(ctx, context)
    if client_config is not None:
        from strandline.cli.contexts import choose_client_config

        choose_client_config(ctx, client_config)
