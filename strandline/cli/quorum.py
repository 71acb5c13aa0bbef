"""`strandline quorum describe`: shows the controllers, their leader, and how far each follows the metadata log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    UNHEALTHY,
    Bootstrap,
    Json,
    Wide,
    new_app,
    print_json,
    print_table,
    run,
)

if TYPE_CHECKING:
    from strandline.client import QuorumDescription, QuorumReplica

app = new_app("Describe the controllers' quorum.")


@app.callback()
def _group() -> None:
    """Describe the controllers' quorum."""


@app.command()
def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, wide: Wide = False, json: Json = False) -> None:
    """Describe the quorum. Exit code 3 if it has no leader."""
    quorum = run(_ask(bootstrap))
    if json:
        print_json(asdict(quorum))
    else:
        rows = [*(_row(quorum, r, "voter") for r in quorum.voters), *(_row(quorum, r, "observer") for r in quorum.observers)]
        columns = ("node", "role", "address", "log end", "lag", "last fetch, ms ago", "last caught up, ms ago")
        print_table(columns, rows, wide=wide, spare=("last caught up, ms ago",))
        print(
            f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, high watermark {quorum.high_watermark}, "
            f"log start {quorum.log_start_offset}"
        )
    if quorum.leader_id < 0:
        raise typer.Exit(UNHEALTHY)


async def _ask(bootstrap: str) -> QuorumDescription:
    from strandline.client import Admin

    async with Admin(bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_quorum()


def _row(quorum: QuorumDescription, replica: QuorumReplica, kind: str) -> tuple[object, ...]:
    role = "leader" if replica.replica_id == quorum.leader_id else kind
    end = max((r.log_end_offset for r in quorum.voters), default=0)
    return (
        replica.replica_id,
        role,
        f"{replica.host}:{replica.port}" if replica.host else None,
        replica.log_end_offset,
        end - replica.log_end_offset if replica.log_end_offset >= 0 else None,
        replica.last_fetch_age_ms if replica.last_fetch_age_ms >= 0 else None,
        replica.last_caught_up_age_ms if replica.last_caught_up_age_ms >= 0 else None,
    )
