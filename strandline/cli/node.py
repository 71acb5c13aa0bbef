"""`strandline node`: acts on a node of a cluster that `strandline up` runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.cli.common import Json, new_app, note, print_json, print_table

app = new_app("List, kill, stop, pause, resume or start a node of a local cluster.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="For example broker-1 or controller-101.")]
Data = Annotated[
    str | None, typer.Option("--data", metavar="DIR", help="The folder of the cluster; without it, the newest one that runs.")
]

DONE = {
    "kill": "killed (SIGKILL)",
    "stop": "stopped (SIGTERM)",
    "pause": "paused (SIGSTOP)",
    "resume": "resumed (SIGCONT)",
    "start": "started",
}


@app.command("list")
def list_(data: Data = None, json: Json = False) -> None:
    """List the nodes with their state, process id, address and folder."""
    from strandline.control import ask

    nodes = ask("list", folder=data)["nodes"]
    if json:
        print_json({"nodes": nodes})
        return
    columns = ("name", "state", "pid", "address", "http", "data")
    rows = [(n["name"], n["state"], n["pid"] or None, f"{n['host']}:{n['port']}", n["http"], n["data"]) for n in nodes]
    print_table(columns, rows)


@app.command()
def kill(name: Name, data: Data = None, json: Json = False) -> None:
    """Kill a node with SIGKILL: no last word, as in a crash."""
    _act("kill", name, data, json)


@app.command()
def stop(name: Name, data: Data = None, json: Json = False) -> None:
    """Stop a node in order with SIGTERM and wait for its end."""
    _act("stop", name, data, json)


@app.command()
def pause(name: Name, data: Data = None, json: Json = False) -> None:
    """Pause a node with SIGSTOP: it is there, and does nothing."""
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
    from strandline.control import ask

    state: dict[str, Any] = ask(action, name, folder=data)
    node = next(n for n in state["nodes"] if n["name"] == name)
    if json:
        print_json(node)
    else:
        note(f"{name} {DONE[action]}" + (f", pid {node['pid']}" if node["pid"] else ""))
