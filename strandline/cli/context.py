"""`strandline context`: names for clusters, in the user's configuration file (`contexts.py`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli import names
from strandline.cli.common import new_app, note
from strandline.cli.contexts import CLIENT_CONFIG, Contexts, checked_name, choose, load, path_of, save
from strandline.cli.output import Form, Output, Table, View, show
from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_security import ClientSecurity

app = new_app("Name clusters, and choose the one that commands talk to.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of a context.", autocompletion=names.contexts)]


@app.command("list")
def list_(output: Output = Form.table) -> None:
    """List the contexts; the current one is marked."""
    found = load(path_of())
    documents = [{"name": name, "current": name == found.current, **keys} for name, keys in found.contexts.items()]
    rows = [("*" if name == found.current else "", name, keys["bootstrap"]) for name, keys in found.contexts.items()]
    document = {"file": str(path_of()), "current": found.current, "contexts": documents}
    if not rows:
        show(View(document, [], ["there are no contexts; `strandline context add NAME HOST:PORT,...` adds one"]), output)
        return
    plain = Table(("name", "bootstrap", "current"), [(name, address, mark) for mark, name, address in rows])
    show(View(document, [Table(("current", "name", "bootstrap"), rows)], plain=plain), output)


@app.command("show")
def show_(output: Output = Form.table) -> None:
    """Show which cluster commands talk to in this folder, and why: an environment variable, the current context, a cluster that
    runs here, or the default."""
    found = choose(None, None, os.environ, Path.cwd(), path_of())
    texts = [f"{found.bootstrap} ({found.origin})"]
    if found.client_config is not None:
        texts.append(f"client configuration: {found.client_config}")
    document = {"bootstrap": found.bootstrap, "origin": found.origin, "file": str(path_of())}
    show(View({**document, "client_config": found.client_config}, texts), output)


@app.command()
def add(
    name: Name,
    bootstrap: Annotated[str, typer.Argument(metavar="HOST:PORT,...", help="Brokers to connect to first.")],
    use: Annotated[bool, typer.Option("--use", help="Use it as the current context.")] = False,
    client_config: Annotated[
        str | None, typer.Option("--client-config", metavar="FILE", help="Kafka's client properties: how to authenticate.")
    ] = None,
) -> None:
    """Add a context, or change the address of one. The first one becomes the current context."""
    found = load(path_of())
    if any(not host or not port.isdecimal() for host, _, port in (part.rpartition(":") for part in bootstrap.split(","))):
        raise UsageError(f"brokers are named host:port, separated by commas, not {bootstrap!r}")
    keys = {**found.contexts.get(checked_name(name), {}), "bootstrap": bootstrap}
    if client_config is not None:
        ClientSecurity.from_file(client_config)
        keys[CLIENT_CONFIG] = str(Path(client_config).absolute())
    current = name if use or not found.contexts else found.current
    save(path_of(), Contexts({**found.contexts, name: keys}, current))
    note(f"{name} is {bootstrap}" + (", and the current context" if current == name else ""))


@app.command()
def use(name: Name) -> None:
    """Use a context as the current one."""
    found = load(path_of())
    address = found.bootstrap(name)
    save(path_of(), found._replace(current=name))
    note(f"commands talk to {name} now: {address}")


@app.command()
def remove(name: Name) -> None:
    """Remove a context. If it is the current one, there is none afterwards."""
    found = load(path_of())
    found.bootstrap(name)
    left = {other: keys for other, keys in found.contexts.items() if other != name}
    save(path_of(), Contexts(left, None if found.current == name else found.current))
    note(f"{name} is removed" + ("; there is no current context now" if found.current == name else ""))
