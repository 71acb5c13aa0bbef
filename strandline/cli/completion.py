"""`strandline completion`: prints a shell's completion script."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from strandline.cli.common import new_app

app = new_app()

VARIABLE = "_STRANDLINE_COMPLETE"
"""The shell's completion function sets this variable when it asks for completions."""


class Shell(StrEnum):
    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@app.command()
def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell that runs the script.")]) -> None:
    """Print the completion script of a shell. Evaluate it in the shell's start-up file."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # not in its __all__

    print(get_completion_script(prog_name="strandline", complete_var=VARIABLE, shell=shell.value))


def listen() -> None:
    """Register typer's completion, which answers the shell."""
    from typer.completion import completion_init  # type: ignore[attr-defined]  # not in its __all__

    completion_init()
