"""Names that the shell completes: topics, groups and transactional ids of the cluster, contexts of the configuration file.

A person waits for the Tab key, so a cluster must accept a connection within half a second and answer within a second. After any
error of the cluster or a file, there are no names.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from strandline.cli.contexts import choose, chosen_client_config, chosen_context, load, path_of, use_client_config
from strandline.cli.notes import quiet_client
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin

CONNECT_TIMEOUT_MS = 500
TIMEOUT_MS = 1000


def contexts(ctx: typer.Context, incomplete: str) -> list[str]:
    """The contexts whose names begin like this."""
    try:
        return [name for name in load(path_of()).contexts if name.startswith(incomplete)]
    except (StrandlineError, OSError):
        return []


def topics(ctx: typer.Context, incomplete: str) -> list[str]:
    """The topics whose names begin like this."""

    async def ask(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.describe_topics(timeout_ms=TIMEOUT_MS)]

    return _of_cluster(ctx, incomplete, ask)


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """The groups whose ids begin like this."""

    async def ask(admin: Admin) -> list[str]:
        return [group.group_id for group in (await admin.list_groups(timeout_ms=TIMEOUT_MS)).groups]

    return _of_cluster(ctx, incomplete, ask)


def transactional_ids(ctx: typer.Context, incomplete: str) -> list[str]:
    """The transactional ids that begin like this."""

    async def ask(admin: Admin) -> list[str]:
        return [each.transactional_id for each in (await admin.list_transactions(timeout_ms=TIMEOUT_MS)).transactions]

    return _of_cluster(ctx, incomplete, ask)


def _of_cluster(ctx: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    import asyncio

    from strandline.client import Admin

    async def work() -> list[str]:
        given = (
            ctx.params.get("bootstrap") if getattr(ctx.get_parameter_source("bootstrap"), "name", "") == "COMMANDLINE" else None
        )
        config = chosen_client_config(ctx)
        choice = choose(given, chosen_context(ctx), os.environ, Path.cwd(), path_of(), config_option=config)
        use_client_config(choice, lambda text: None)
        async with Admin(**reach(choice.bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return await ask(admin)

    quiet_client()
    try:
        return [name for name in asyncio.run(work()) if name.startswith(incomplete)]
    except (StrandlineError, OSError):
        return []
