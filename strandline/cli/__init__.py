"""The command line. This module knows the commands by name and one line of help each, and imports only the one that
is called: `strandline --help` shall be there before the finger has left the key.

Exit codes: 0 ok, 1 error, 2 wrong usage, 3 the cluster is not healthy (or the work was done and its verdict is bad).
Tables are for people; `--json` has stable keys for programs. Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, cast

import typer
from typer.core import TyperGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("up", "Run a local cluster of real processes until Ctrl-C."),
    "node": ("node", "List, kill, stop, pause, resume or start a node of a local cluster."),
    "demo": ("demo", "The main job: real lines, a killed leader, a killed controller, and a verdict."),
    "topic": ("topic", "Create, list, describe, alter and delete topics."),
    "produce": ("produce", "Send lines of standard input as records."),
    "consume": ("consume", "Print the records of a topic."),
    "cluster": ("cluster", "Describe the brokers and the active controller."),
    "quorum": ("quorum", "Describe the controllers' quorum."),
    "elect": ("elect", "Elect the preferred leader of a partition."),
    "log": ("log", "Look inside the files of a log."),
    "bench": ("bench", "Measure produce, consume, latency and fail-over."),
    "config": ("config", "List the configuration keys."),
    "broker": ("run", "Run one broker in this process."),
    "controller": ("run", "Run one controller in this process."),
}
"""command -> (its module in this package, one line of help)"""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called, and not for the list of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        app = import_module(f"strandline.cli.{COMMANDS[cmd_name][0]}").app
        command = typer.main.get_command(app)
        # A module with several top-level commands (`run`) is a group of them; one with a single command is that command.
        if isinstance(command, TyperGroup) and cmd_name in command.commands:
            return command.commands[cmd_name]
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(COMMANDS, cast(Any, None))  # names for "did you mean"
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=LazyGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("strandline"))
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", help="Print the version.", is_eager=True, callback=_print_version),
) -> None:
    """Strandline: a replicated log with Kafka's replication, in Python."""


def main() -> None:
    """The console script: runs the command and turns every failure into one sentence and an exit code."""
    try:
        app(prog_name="strandline")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has enough of it (`| head`). Python would complain once more while it shuts down.
        sys.stdout = None
        sys.exit(0)
    except Exception as e:
        from strandline.cli.common import explain

        sys.exit(explain(e))
