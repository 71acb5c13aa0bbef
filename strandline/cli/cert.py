"""`strandline cert`: a certificate authority of one's own, and certificates for nodes and users (`certificates.py`)."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from strandline.cli.common import new_app, note
from strandline.cli.output import Form, Output, Table, View, show

app = new_app("Create an authority, and certificates for nodes and users, for TLS.")

Folder = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="The folder of the authority and its certificates.", file_okay=False)
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The name in the certificate, such as broker-1 or alice.")]
Days = Annotated[int, typer.Option("--days", metavar="DAYS", help="For how many days it is valid.", min=1, max=36_500)]
FOLDER = Path("certs")
YEAR, TEN_YEARS = 365, 3650
WARNED_DAYS = 30


@app.command()
def ca(
    name: Annotated[str, typer.Option("--name", help="The name of the authority, at most 64 characters.")] = "strandline",
    days: Days = TEN_YEARS,
    folder: Folder = FOLDER,
) -> None:
    """Create an authority: ca.pem, which every node and client trusts, and ca.key, which signs certificates and stays secret."""
    from strandline.certificates import make_authority

    path = make_authority(folder, name[:64], days)
    note(f"created {path}; keep {folder / 'ca.key'} off the nodes: its holder can create certificates for any node or user")


@app.command()
def node(
    name: Name,
    host: Annotated[
        list[str],
        typer.Option("--host", metavar="HOST", help="A host name or address under which others reach the node; several times."),
    ],
    days: Days = YEAR,
    folder: Folder = FOLDER,
) -> None:
    """Create the certificate of a node. NAME.pem has the key, too: it is the node's ssl.keystore.location."""
    from strandline.certificates import make_certificate

    note(f"created {make_certificate(folder, name, host, days)} for {', '.join(host)}")


@app.command()
def user(name: Name, days: Days = YEAR, folder: Folder = FOLDER) -> None:
    """Create the certificate of a user, and NAME.properties for its clients (--client-config)."""
    from strandline.certificates import make_certificate, write_properties

    path = make_certificate(folder, name, [], days)
    note(
        f"created {path} and {write_properties(folder, name)}; the principal is User:CN={name}, unless a mapping rule changes it"
    )


@app.command()
def password(name: Name, folder: Folder = FOLDER) -> None:
    """Create a password for a user that must exist before there is metadata: a node, or the first administrator. It is added to
    users.toml (sasl.scram.users.file). `strandline user add` adds other users."""
    from strandline.static_users import USERS, add_user

    note(f"created {add_user(folder, name)}, and added {name} to {folder / USERS}")


@app.command()
def renew(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The names of certificates in the folder.")],
    days: Days = YEAR,
    folder: Folder = FOLDER,
) -> None:
    """Replace certificates by new ones with the same names and hosts. Nodes notice it in seconds, and drop no connection."""
    from strandline.certificates import path_of, renew_certificate

    for name in names:
        renewed = renew_certificate(path_of(folder, name), days)
        note(f"renewed {renewed.path}, which is valid until {renewed.not_after:%Y-%m-%d}")


@app.command("list")
def list_(folder: Folder = FOLDER, output: Output = Form.table) -> None:
    """List the certificates of the folder, and for how long they are valid."""
    from strandline.certificates import list_certificates

    now = datetime.datetime.now(datetime.UTC)
    found = list_certificates(folder)
    rows = [
        (c.name, _kind(c.is_authority, c.hosts), ", ".join(c.hosts), f"{c.not_after:%Y-%m-%d}", c.days_left(now)) for c in found
    ]
    document = {
        "certificates": [
            {
                "name": c.name,
                "kind": _kind(c.is_authority, c.hosts),
                "hosts": list(c.hosts),
                "not_after": c.not_after.isoformat(),
                "days_left": c.days_left(now),
                "file": str(c.path),
            }
            for c in found
        ]
    }
    soon = [c.name for c in found if c.days_left(now) < WARNED_DAYS and not c.is_authority]
    remarks = [f"these end soon: `strandline cert renew {' '.join(soon)} --dir {folder}`"] if soon else []
    show(View(document, [Table(("name", "kind", "hosts", "valid until", "days left"), rows)], remarks), output)


def _kind(is_authority: bool, hosts: tuple[str, ...]) -> str:
    return "authority" if is_authority else "node" if hosts else "user"
