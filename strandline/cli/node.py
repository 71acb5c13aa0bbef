"""`strandline node`: lists, kills, stops, pauses, resumes and starts the nodes of a cluster that `strandline up` runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from strandline.cli.common import new_app, note, short_path
from strandline.cli.output import Form, Output, Table, View, print_document
from strandline.cli.watch import Watch, present

app = new_app("List, kill, stop, pause, resume or start a node of a local cluster.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="For example broker-1 or controller-101.")]
Data = Annotated[str | None, typer.Option("--data", metavar="DIR", help="The cluster's folder; needed only if several run.")]

DONE = {
    "kill": "killed (SIGKILL)",
    "stop": "stopped (SIGTERM)",
    "pause": "paused (SIGSTOP)",
    "resume": "resumed (SIGCONT)",
    "start": "started",
}


@app.command("list")
def list_(data: Data = None, output: Output = Form.table, watch: Watch = None) -> None:
    """List the nodes with their state, process id, address and folder."""

    async def ask() -> View:
        return _view(_ask("list", "", data))

    present(ask, output, watch)


def _view(state: dict[str, Any]) -> View:
    columns = ("name", "state", "pid", "address", "http", "data", "kafka")
    rows = [
        (n["name"], n["state"], n["pid"] or None, f"{n['host']}:{n['port']}", n["http"], short_path(n["data"]), n.get("kafka"))
        for n in state["nodes"]
    ]
    summary = f"cluster in {short_path(state['folder'])}, bootstrap {state['bootstrap']}"
    keys = ("folder", "bootstrap", "kafka_bootstrap", "nodes")
    document = {key: state[key] for key in keys if key in state}
    return View(document, [Table(columns, rows, spare=("data", "http"), more=("kafka",)), summary])


@app.command()
def kill(name: Name, data: Data = None, output: Output = Form.table) -> None:
    """Kill a node with SIGKILL, as in a crash."""
    _act("kill", name, data, output)


@app.command()
def stop(name: Name, data: Data = None, output: Output = Form.table) -> None:
    """Stop a node cleanly with SIGTERM, and wait for its end."""
    _act("stop", name, data, output)


@app.command()
def pause(name: Name, data: Data = None, output: Output = Form.table) -> None:
    """Pause a node with SIGSTOP: its connections stay open, and it does not respond."""
    _act("pause", name, data, output)


@app.command()
def resume(name: Name, data: Data = None, output: Output = Form.table) -> None:
    """Resume a paused node with SIGCONT."""
    _act("resume", name, data, output)


@app.command()
def start(name: Name, data: Data = None, output: Output = Form.table) -> None:
    """Start a node that is down."""
    _act("start", name, data, output)


def _act(action: str, name: str, data: str | None, output: Form) -> None:
    state = _ask(action, name, data)
    node = next(n for n in state["nodes"] if n["name"] == name)
    if output.is_document:
        print_document({**node, "folder": state["folder"], "bootstrap": state["bootstrap"]}, output)
        return
    pid = f", pid {node['pid']}" if node["pid"] else ""
    note(f"{name} {DONE[action]}{pid}, in the cluster of {short_path(state['folder'])}")


def _ask(action: str, name: str, data: str | None) -> dict[str, Any]:
    from strandline.control import ask

    return ask(action, name, folder=data, bootstrap=os.environ.get("STRANDLINE_BOOTSTRAP"))
