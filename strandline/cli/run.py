"""`strandline controller`: one node in the foreground; `strandline broker` (`broker.py`) uses it too."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.common import Settings, new_app

app = new_app()

Config = Annotated[
    str | None,
    typer.Option("--config", envvar="STRANDLINE_CONFIG", metavar="FILE", help="TOML with Kafka's key names (`config keys`)."),
]


@app.command()
def controller(config: Config = None, settings: Settings = None) -> None:
    """Run one controller. Environment variables STRANDLINE_<KEY> override the file; --set overrides both."""
    run_node("controller", config, settings)


def run_node(role: str, config: str | None, settings: list[str] | None) -> None:
    """Run a broker or controller until it stops."""
    from strandline import node

    raise typer.Exit(node.run(role, config, settings or []))
