"""`strandline up`: runs a local cluster in the foreground, prints the events of its nodes, and stops them at the end."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import interrupts
from strandline.cli.common import (
    Settings,
    new_app,
    note,
    parse_settings,
    short_path,
    temporary_folder,
)
from strandline.cli.output import Form, Output, print_document, print_table

if TYPE_CHECKING:
    from strandline.local_cluster import LocalCluster

app = new_app()

RIGHTS = {"admin": "do everything", "producer": "write and create topics", "consumer": "read topics, join groups"}
"""User of a secure local cluster -> what the user may do (`local_security.py`)."""


@app.command()
def up(
    brokers: Annotated[int, typer.Option(help="Number of brokers.", min=1)] = 3,
    controllers: Annotated[int, typer.Option(help="Number of controllers: 1, 3 or 5.", min=1)] = 3,
    data: Annotated[
        str | None, typer.Option(metavar="DIR", help="Keep the data in this folder; by default, a temporary one.")
    ] = None,
    base_port: Annotated[
        int, typer.Option(help="First port: of the brokers, then the controllers, then HTTP, then Kafka's clients.")
    ] = 9092,
    kafka: Annotated[bool, typer.Option("--kafka/--no-kafka", help="With a listener for Kafka's clients on each broker.")] = True,
    secure: Annotated[
        bool, typer.Option("--secure", help="With TLS, users and rights; each user gets a file for clients.")
    ] = False,
    settings: Settings = None,
    output: Output = Form.table,
) -> None:
    """Run a local cluster of real processes. Ctrl-C stops it cleanly."""
    from strandline.local_cluster import Event, LocalCluster

    def tell(event: Event) -> None:
        if output.is_document:
            print_document({"event": event.kind, "node": event.node, "text": event.text}, output)
        elif ready:  # before that, the error itself says what failed
            note(f"{event.node} {event.text}")

    ready: list[bool] = []
    with temporary_folder("strandline-") as temporary:
        cluster = LocalCluster(
            data or temporary,
            brokers=brokers,
            controllers=controllers,
            base_port=base_port,
            settings=parse_settings(settings),
            on_event=tell,
            secure=secure,
            kafka=kafka,
        )
        asyncio.run(_run(cluster, output=output, ready=ready))


async def _run(cluster: LocalCluster, *, output: Form, ready: list[bool]) -> None:
    from strandline.control import ControlServer

    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, asked)
    control = ControlServer(cluster)
    await control.start()
    try:
        start = asyncio.ensure_future(cluster.start())
        stop = asyncio.ensure_future(asked.wait())
        await asyncio.wait({start, stop}, return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait({start})
            raise typer.Exit(interrupts.EXIT_CODE)
        start.result()
        ready.append(True)
        _announce(cluster, output)
        await stop
        if not output.is_document:
            note("stopping (Ctrl-C again: at once)")
        asked.clear()
        orderly = asyncio.ensure_future(cluster.stop())
        hurry = asyncio.ensure_future(asked.wait())
        await asyncio.wait({orderly, hurry}, return_when=asyncio.FIRST_COMPLETED)
        if not orderly.done():
            await cluster.stop(abruptly=True)
        await orderly
        hurry.cancel()
    finally:
        await control.stop()


def _on_signal(asked: asyncio.Event) -> None:
    asked.set()


def _announce(cluster: LocalCluster, output: Form) -> None:
    nodes = [node.describe() for node in cluster.nodes.values()]
    if output.is_document:
        ready = {"event": "ready", **cluster.addresses, **cluster.client_config, "nodes": nodes}
        print_document(ready, output)
        return
    columns = ("name", "pid", "address", *(["kafka"] if cluster.kafka_bootstrap else []), "http")
    rows = [{**n, "address": f"{n['host']}:{n['port']}"} for n in nodes]
    print_table(columns, [tuple(row[column] for column in columns) for row in rows], output)
    print(f"data in {short_path(str(cluster.folder))}")
    _announce_users(cluster)
    if cluster.kafka_bootstrap:
        print(f"for Kafka's clients: bootstrap {cluster.kafka_bootstrap}")
    print(f"ready: bootstrap {cluster.bootstrap}", flush=True)
    hint = f"""Ctrl-C stops it. From another terminal:
  export STRANDLINE_BOOTSTRAP={cluster.bootstrap}
"""
    hint += _secure_hint(cluster)
    hint += f"  strandline node kill {cluster.brokers[-1].name}"
    if cluster.brokers[0].http:
        hint += f"\n  curl http://{cluster.brokers[0].http}/metrics"
    print(hint, file=sys.stderr, flush=True)


def _announce_users(cluster: LocalCluster) -> None:
    if cluster.security is not None:
        rows = [(user, RIGHTS[user], short_path(path)) for user, path in cluster.security.client_configs.items()]
        print_table(("user", "may", "file for clients"), rows, Form.table)


def _secure_hint(cluster: LocalCluster) -> str:
    """The next commands of a user of a secure cluster."""
    if cluster.security is None:
        return ""
    admin, producer, consumer = (short_path(path) for path in cluster.security.client_configs.values())
    return f"""  export STRANDLINE_CLIENT_CONFIG={admin}
  strandline topic create orders
  echo tea | strandline produce orders --client-config {producer}
  strandline consume orders --from beginning --client-config {consumer}
  strandline user add alice; strandline acl add User:alice --topic orders --consumer --group alice
"""
