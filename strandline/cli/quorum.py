"""`strandline quorum describe`: shows the controllers, their leader, and how far each follows the metadata log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    UNHEALTHY,
    Bootstrap,
    new_app,
)
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import QuorumDescription, QuorumReplica

TIMEOUT_MS = 6000
"""Longer than an election of the quorum takes, and short, because a person waits."""

app = new_app("Describe the controllers' quorum.")


@app.callback()
def _group() -> None:
    """Describe the controllers' quorum."""


@app.command()
def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None) -> None:
    """Describe the quorum. Exit code 3 if it has no leader."""

    async def ask() -> View:
        return await _ask(bootstrap)

    present(ask, output, watch)


async def _ask(bootstrap: str) -> View:
    from strandline.client import Admin, AuthorizationFailed, NoBrokersAvailable

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        try:
            return _view(await admin.describe_quorum(timeout_ms=TIMEOUT_MS))
        except (AuthorizationFailed, NoBrokersAvailable):
            raise
        except StrandlineError as e:
            # The leader of the quorum describes it. Without one, no node knows how far the others are.
            document = {"leader_id": -1, "leader_epoch": -1, "voters": [], "observers": [], "error": str(e)}
            return View(document, [], [f"the quorum has no reachable leader: {e}"], UNHEALTHY)


def _view(quorum: QuorumDescription) -> View:
    rows = [*(_row(quorum, r, "voter") for r in quorum.voters), *(_row(quorum, r, "observer") for r in quorum.observers)]
    columns = ("node", "role", "address", "log end", "lag", "last fetch, ms ago", "last caught up, ms ago")
    summary = (
        f"leader {quorum.leader_id}, epoch {quorum.leader_epoch}, high watermark {quorum.high_watermark}, "
        f"log start {quorum.log_start_offset}"
    )
    table = Table(columns, rows, spare=("last caught up, ms ago",))
    return View(asdict(quorum), [table, summary], code=UNHEALTHY if quorum.leader_id < 0 else 0)


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
