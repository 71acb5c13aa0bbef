"""`strandline node`: lists, kills, stops, pauses, resumes and starts the nodes of a cluster that `strandline up` runs."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from strandline.cli.common import Json, Wide, new_app, note, print_json, print_table, short_path

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
def list_(data: Data = None, wide: Wide = False, json: Json = False) -> None:
    """List the nodes with their state, process id, address and folder."""
    state = _ask("list", "", data)
    nodes = state["nodes"]
    if json:
        print_json({"folder": state["folder"], "bootstrap": state["bootstrap"], "nodes": nodes})
        return
    columns = ("name", "state", "pid", "address", "http", "data")
    rows = [
        (n["name"], n["state"], n["pid"] or None, f"{n['host']}:{n['port']}", n["http"], short_path(n["data"])) for n in nodes
    ]
    print_table(columns, rows, wide=wide, spare=("data", "http"))
    print(f"cluster in {short_path(state['folder'])}, bootstrap {state['bootstrap']}")


@app.command()
def kill(name: Name, data: Data = None, json: Json = False) -> None:
    """Kill a node with SIGKILL, as in a crash."""
    _act("kill", name, data, json)


@app.command()
def stop(name: Name, data: Data = None, json: Json = False) -> None:
    """Stop a node cleanly with SIGTERM, and wait for its end."""
    _act("stop", name, data, json)


@app.command()
def pause(name: Name, data: Data = None, json: Json = False) -> None:
    """Pause a node with SIGSTOP: its connections stay open, and it does not respond."""
    _act("pause", name, data, json)


@app.command()
def resume(name: Name, data: Data = None, json: Json = False) -> None:
    """Resume a paused node with SIGCONT."""
    _act("resume", name, data, json)


@app.command()
def start(name: Name, data: Data = None, json: Json = False) -> None:
    """Start a node that is down."""
    _act("start", name, data, json)


def _act(action: str, name: str, data: str | None, json: bool) -> None:
    state = _ask(action, name, data)
    node = next(n for n in state["nodes"] if n["name"] == name)
    if json:
        print_json({**node, "folder": state["folder"], "bootstrap": state["bootstrap"]})
        return
    pid = f", pid {node['pid']}" if node["pid"] else ""
    note(f"{name} {DONE[action]}{pid}, in the cluster of {short_path(state['folder'])}")


def _ask(action: str, name: str, data: str | None) -> dict[str, Any]:
    from strandline.control import ask

    return ask(action, name, folder=data, bootstrap=os.environ.get("STRANDLINE_BOOTSTRAP"))
