"""`strandline top`: a full-screen view of a cluster, which follows it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, new_app, quiet_client, run
from strandline.protocol.errors import UsageError

app = new_app()


@app.command()
def top(
    interval_s: Annotated[
        float, typer.Option("--interval", "-i", metavar="SECONDS", help="Time between two looks at the cluster.", min=0.2)
    ] = 2.0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Follow a cluster on the whole screen: brokers, topics, partitions and groups, with rates, ISR and lag. Keys: b, t, p and g
    choose the table, space pauses, q ends.

    It needs textual: pip install '.[tui]' in a clone of Strandline.
    """
    if not sys.stdout.isatty():
        raise UsageError(
            "top needs a terminal; for programs there is --watch, as in `strandline topic offsets orders --watch -o json`"
        )
    try:
        from strandline.cli.top_screen import Top
    except ImportError:
        raise UsageError("strandline top needs textual: in a clone of Strandline, pip install '.[tui]'") from None
    quiet_client()
    run(_top(bootstrap, interval_s, Top))


async def _top(bootstrap: str, interval_s: float, screen: type) -> None:
    from strandline.cli.top_look import Sampler

    sampler = Sampler(bootstrap)
    try:
        await screen(sampler.sample, interval_s).run_async()
    finally:
        await sampler.close()
