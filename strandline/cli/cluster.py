"""`strandline cluster`: shows the brokers and the active controller, and unregisters brokers that have stopped for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    UNHEALTHY,
    Bootstrap,
    new_app,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import BrokerDescription, ClusterDescription

app = new_app("Describe the brokers and the active controller; unregister a broker.")


@app.callback()
def _group() -> None:
    """Describe the brokers and the active controller; unregister a broker."""


@app.command()
def describe(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None) -> None:
    """Describe the cluster. Exit code 3 if no controller is active or a broker is fenced."""

    async def ask() -> View:
        return _view(await _ask(bootstrap))

    present(ask, output, watch)


def _view(cluster: ClusterDescription) -> View:
    columns = ("broker", "address", "rack", "epoch", "state")
    rows = [(b.broker_id, f"{b.host}:{b.port}", b.rack, b.broker_epoch, _state(b)) for b in cluster.brokers]
    controller = cluster.controller_id if cluster.controller_id >= 0 else "none"
    summary = f"cluster {cluster.cluster_id}, active controller {controller}"
    is_healthy = cluster.controller_id >= 0 and not any(b.is_fenced for b in cluster.brokers)
    return View(_to_json(cluster), [Table(columns, rows, spare=("epoch",)), summary], code=0 if is_healthy else UNHEALTHY)


@app.command()
def unregister(
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id.")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Unregister a broker that has stopped for good. Refused while it is alive, or has replicas. If it starts again, it registers
    again."""
    run(_unregister(bootstrap, broker_id))
    show(View({"broker_id": broker_id, "unregistered": True}, [f"broker {broker_id} is unregistered"]), output)


async def _unregister(bootstrap: str, broker_id: int) -> None:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        await admin.unregister_broker(broker_id)


async def _ask(bootstrap: str) -> ClusterDescription:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_cluster()


def _state(broker: BrokerDescription) -> str:
    if broker.is_fenced or broker.in_controlled_shutdown:
        return "fenced" if broker.is_fenced else "shutting down"
    if broker.is_draining:
        return "draining"
    return "cordoned" if broker.is_cordoned else "ok"


def _to_json(cluster: ClusterDescription) -> dict[str, object]:
    return {
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": [
            {
                "broker_id": b.broker_id,
                "host": b.host,
                "port": b.port,
                "rack": b.rack,
                "is_fenced": b.is_fenced,
                "broker_epoch": b.broker_epoch,
                "in_controlled_shutdown": b.in_controlled_shutdown,
                "is_draining": b.is_draining,
                "is_cordoned": b.is_cordoned,
            }
            for b in cluster.brokers
        ],
    }
