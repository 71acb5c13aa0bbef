"""`strandline user`: the users of SCRAM, as kafka-configs.sh --entity-type users has them.

A password comes from a prompt or from a file, never from the command line, where every user of the machine could read it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    fail,
    new_app,
    note,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import reach, security_of

TIMEOUT_MS = 10_000
DEFAULT_MECHANISM = "SCRAM-SHA-512"
STANDARD_INPUT = "-"

app = new_app("List users, add and remove them, and change their passwords (SCRAM).")

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name, without User: before it.")]
Mechanisms = Annotated[
    list[str] | None, typer.Option("--mechanism", metavar="NAME", help="SCRAM-SHA-512 or SCRAM-SHA-256; several times.")
]
PasswordFile = Annotated[
    str | None,
    typer.Option("--password-file", metavar="FILE", help="Read the password from the first line of a file; - is standard input."),
]


@app.command("list")
def list_(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, output: Output = Form.table, watch: Watch = None) -> None:
    """List the users that have a password, and for which mechanisms. Passwords cannot be shown."""

    async def ask() -> View:
        found = await _described(bootstrap, None)
        rows = [(user, name, iterations) for user, kinds in found.items() for name, iterations in kinds.items()]
        document = {
            "users": [
                {"user": user, "credentials": [{"mechanism": name, "iterations": n} for name, n in kinds.items()]}
                for user, kinds in found.items()
            ]
        }
        remarks = [] if rows else ["there are no users; `strandline user add NAME` adds one"]
        return View(document, [Table(("USER", "MECHANISM", "ITERATIONS"), rows)] if rows else [], remarks)

    present(ask, output, watch)


async def _described(bootstrap: str, users: Sequence[str] | None) -> dict[str, dict[str, int]]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        return await admin.describe_scram_credentials(users, timeout_ms=TIMEOUT_MS)


@app.command()
def add(
    name: Name,
    mechanism: Mechanisms = None,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Add a user. Asks for the password, unless a file has it. `strandline acl add` gives the user rights."""
    _check_name(name)
    if name in run(_described(bootstrap, [name])):
        fail(f"user {name} exists already; `strandline user passwd {name}` changes its password")
    _set(bootstrap, name, _password(name, password_file), mechanism or [DEFAULT_MECHANISM])
    show(View({"user": name, "mechanisms": mechanism or [DEFAULT_MECHANISM]}, [f"{name} added"]), output)


@app.command()
def passwd(
    name: Name,
    mechanism: Mechanisms = None,
    password_file: PasswordFile = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Change a user's password, for all mechanisms that it has, unless --mechanism names others. Connections that are open stay
    open."""
    _check_name(name)
    found = run(_described(bootstrap, [name])).get(name)
    if found is None:
        fail(f"there is no user {name}; `strandline user add {name}` adds it")
    mechanisms = mechanism or list(found)
    _set(bootstrap, name, _password(name, password_file), mechanisms)
    show(View({"user": name, "mechanisms": mechanisms}, [f"the password of {name} is changed"]), output)


@app.command()
def remove(
    name: Name,
    mechanism: Mechanisms = None,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Remove a user, or its passwords for some mechanisms. Its access rules stay (`strandline acl remove`), and its open
    connections until they have to authenticate again. Asks first, unless --yes is given."""
    _check_name(name)
    check_terminal(yes, "user remove takes away a user's password")
    confirm(f"User {name} will no longer be able to connect.", yes, "nothing was removed")

    async def work() -> None:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.delete_scram_credentials(name, mechanisms=mechanism, timeout_ms=TIMEOUT_MS)

    run(work())
    show(View({"user": name, "removed": True}, [f"{name} removed"]), output)


def _set(bootstrap: str, name: str, password: str, mechanisms: Sequence[str]) -> None:
    if not security_of(bootstrap).has_tls and not _is_loopback(bootstrap):
        note(f"the connection to {bootstrap} is not encrypted: an eavesdropper could log in as {name}; use TLS")

    async def work() -> None:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.upsert_scram_credentials(name, password, mechanisms=mechanisms, timeout_ms=TIMEOUT_MS)

    run(work())


def _is_loopback(bootstrap: str) -> bool:
    from strandline.protocol.security.listener_security import is_loopback

    return all(is_loopback(address.rpartition(":")[0].strip("[] ")) for address in bootstrap.split(","))


def _check_name(name: str) -> None:
    if not name or name.startswith("User:"):
        raise UsageError(f"a user is named without its type: {name.removeprefix('User:') or 'alice'}, not {name!r}")


def _password(name: str, file: str | None) -> str:
    """The password: from the file, or from the person at the terminal, who types it twice. UsageError if there is none."""
    if file is None and not sys.stdin.isatty():
        raise UsageError("there is no terminal to type a password: give --password-file FILE (- is standard input)")
    if file is None:
        return _typed(name)
    text = sys.stdin.readline() if file == STANDARD_INPUT else _first_line(file)
    password = text.removesuffix("\n").removesuffix("\r")
    if not password:
        raise UsageError(f"the password in {'standard input' if file == STANDARD_INPUT else file} is empty")
    return password


def _typed(name: str) -> str:
    try:
        return str(typer.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True, err=True))
    except UnicodeDecodeError:  # It repeats what was typed.
        raise UsageError("the password cannot be read: the terminal did not send it in UTF-8") from None


def _first_line(file: str) -> str:
    try:
        with Path(file).open(encoding="utf-8") as source:
            return source.readline()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read the password in {file}: {getattr(e, 'strerror', None) or 'it is no text'}") from None
