"""`strandline broker`: runs one broker; and drains brokers that an administrator wants to take away, or unregisters them."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli import cluster
from strandline.cli.amounts import counted
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, Settings, new_app, run
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.run import Config, run_node
from strandline.reach import reach

DRAIN_RATE = "50MB"

app = new_app()

Id = Annotated[int, typer.Argument(metavar="ID", min=0, help="The broker's id.")]


@app.callback(invoke_without_command=True)
def broker(context: typer.Context, config: Config = None, settings: Settings = None) -> None:
    """Run one broker. Environment variables STRANDLINE_<KEY> override the file; --set overrides both."""
    if context.invoked_subcommand is None:
        run_node("broker", config, settings)


@app.command()
def drain(
    broker_id: Id,
    throttle: Annotated[
        str, typer.Option("--throttle", metavar="RATE", help='Bytes per second that each broker may send and receive; "none".')
    ] = DRAIN_RATE,
    plan: Annotated[bool, typer.Option("--plan", help="Print what would move, and change nothing.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Move all leaders and replicas away from a broker. From then on it gets no new ones. `broker undrain` undoes it."""
    from strandline.cli.amounts import parse_bytes

    rate = None if throttle == "none" else parse_bytes(throttle, "--throttle")
    show(run(_drain(bootstrap, broker_id, rate, plan)), output)


async def _drain(bootstrap: str, broker_id: int, rate: int | None, only_plan: bool) -> View:
    from strandline.cli.moves import look, moves_of, moves_table, start, summary
    from strandline.client import Admin
    from strandline.client.admin.placement import plan_drain

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        situation.check_broker(broker_id)
        plan = plan_drain(situation.replicas, situation.others(broker_id), broker_id)
        if not only_plan:
            await admin.alter_configs("broker", broker_id, {"broker.draining": True})
            situation = await look(admin)  # again, because a topic may have been created before the broker was marked as draining
            plan = plan_drain(situation.replicas, situation.others(broker_id), broker_id)
        moves = await moves_of(admin, situation, plan)
        led = [tp for tp in plan if situation.leaders[tp] == broker_id]
        if plan and not only_plan:
            started = await start(admin, plan, rate)
            moves = [move for move in moves if move.tp not in started.skipped]
            led = [tp for tp in led if tp not in started.skipped]
            if led:
                await admin.elect_leaders(led)  # the leaders move now; the replicas move when the new ones have caught up
            started.check()
    document = {
        "broker_id": broker_id,
        "draining": not only_plan,
        "leaders": len(led),
        "throttle_rate": rate,
        "moves": [move.document for move in moves],
    }
    parts: list[Table | str] = []
    if moves:
        parts = [moves_table(moves), summary(moves) + f", {counted(len(led), 'leader')} to move first"]
    if only_plan:
        parts.append(f"broker {broker_id} has no replica" if not moves else "without --plan it begins")
    else:
        parts.append(
            f"broker {broker_id} gets no new replicas"
            + ("; `strandline reassign --progress` follows the moves" if moves else ", and has none")
            + f"; `strandline broker undrain {broker_id}` undoes it"
        )
    return View(document, parts)


@app.command()
def undrain(broker_id: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table) -> None:
    """Cancel the moves of a drain that are not complete, and let the broker get replicas again."""
    cancelled, left = run(_undrain(bootstrap, broker_id))
    document = {"broker_id": broker_id, "draining": False, "cancelled": cancelled, "replicas": left}
    moves = f"{counted(cancelled, 'move')} cancelled, {counted(left, 'replica')} on it"
    text = f"broker {broker_id} may get replicas again: {moves}; `strandline reassign --balance` gives it its share"
    show(View(document, [text]), output)


async def _undrain(bootstrap: str, broker_id: int) -> tuple[int, int]:
    """Returns the number of cancelled moves, and the number of replicas that the broker has now."""
    from strandline.cli.moves import look, start
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        situation = await look(admin)
        situation.check_broker(broker_id)
        await admin.alter_configs("broker", broker_id, {"broker.draining": None})
        leaving = [tp for tp, each in situation.running.items() if broker_id in each.removing_replicas]
        if leaving:
            started = await start(admin, dict.fromkeys(leaving), None)
            started.check()
            leaving = [tp for tp in leaving if tp not in started.skipped]
            situation = await look(admin)
        return len(leaving), sum(broker_id in replicas for replicas in situation.replicas.values())


@app.command()
def unregister(broker_id: Id, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table) -> None:
    """Unregister a broker that has stopped for good. Refused while it is alive, or has replicas. If it starts again, it registers
    again."""
    cluster.unregister(broker_id, bootstrap, output)
