"""The class of all commands: options that come with others, and words that are translated before the options are parsed.

--output     brings --json and --wide, short for two of its forms
--bootstrap  brings --context, which names a cluster of the configuration file, and --client-config (`contexts.py`)
--watch      needs no value: `topic offsets --watch orders`
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperOption

from strandline.cli import names
from strandline.cli.contexts import choose_client_config, choose_context
from strandline.cli.kafka_names import translated
from strandline.cli.output import Form, choose_short_form

Function = TypeVar("Function", bound=Callable[..., Any])

WATCH = ("--watch", "-w")
WATCH_DEFAULT_S = "2"


class Command(TyperCommand):
    """A command with the options that come with those of its function."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.params = [each for own in self.params for each in (own, *_companions(own))]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [parameter for parameter in self.params if parameter.param_type_name == "option"]
        own = {name for option in options for name in option.opts}
        taking = {name for option in options for name in option.opts if not getattr(option, "is_flag", False)}
        path = ctx.command_path.removeprefix("strandline ")
        if own & set(WATCH):
            args, taking = with_watch_value(args), taking - set(WATCH)
        return super().parse_args(ctx, translated(path, args, own, taking))


class App(typer.Typer):
    """A typer application whose commands are of the class `Command`."""

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        options.setdefault("cls", Command)
        return super().command(name, **options)


def with_watch_value(words: list[str]) -> list[str]:
    """The words, with `--watch=2` for a `--watch` that no number follows."""
    result: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word in WATCH:
            is_number = bool(left) and re.fullmatch(r"\d+(\.\d+)?|\.\d+", left[0]) is not None
            word = f"{WATCH[0]}={left.pop(0) if is_number else WATCH_DEFAULT_S}"
        result.append(word)
    return result


def _companions(own: Any) -> Iterator[TyperOption]:
    name = own.name if own.param_type_name == "option" else None
    if name == "output":
        yield _flag("--json", Form.json, "Short for -o json.")
        yield _flag("--wide", Form.wide, "Short for -o wide.")
    if name == "bootstrap":
        yield TyperOption(
            param_decls=["--context"],
            metavar="NAME",
            help="A cluster that `strandline context` knows.",
            expose_value=False,
            is_eager=True,
            autocompletion=lambda context, words, incomplete: names.contexts(context, incomplete),
            callback=lambda context, parameter, value: choose_context(context, value),
        )
        yield TyperOption(
            param_decls=["--client-config"],
            metavar="FILE",
            help="Kafka's client properties: how to authenticate.",
            expose_value=False,
            is_eager=True,
            callback=lambda context, parameter, value: choose_client_config(context, value),
        )


def _flag(option: str, form: Form, help: str) -> TyperOption:
    def chosen(context: typer.Context, parameter: Any, value: bool) -> None:
        if value:
            choose_short_form(context, form)

    return TyperOption(
        param_decls=[option], is_flag=True, default=False, expose_value=False, is_eager=True, help=help, callback=chosen
    )
