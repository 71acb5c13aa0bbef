"""`strandline quota`: how much a user, a client id or an address may take, as kafka-configs.sh has it for its entity types users,
clients and ips."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from strandline.cli.amounts import parse_bytes, show_bytes
from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, new_app, note, run
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import QuotaEntity

TIMEOUT_MS = 10_000
DEFAULT = "<default>"


class Key(NamedTuple):
    """A quota: whether its value is a number of bytes, and its unit for people."""

    is_bytes: bool
    unit: str


KEYS = {
    "producer_byte_rate": Key(True, "/s per broker"),
    "consumer_byte_rate": Key(True, "/s per broker"),
    "request_percentage": Key(False, " % of each broker's time"),
    "controller_mutation_rate": Key(False, " partitions/s"),
    "connection_creation_rate": Key(False, " connections/s per broker"),
}

app = new_app("List, set and remove quotas of users, client ids and addresses.")

User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="The user, without User: before it.")]
UserDefault = Annotated[bool, typer.Option("--user-default", help="Every user that has no quota of its own.")]
ClientId = Annotated[
    str | None, typer.Option("--client-id", metavar="ID", help="The client id; with a user: of that user alone.")
]
ClientIdDefault = Annotated[bool, typer.Option("--client-id-default", help="Every client id that has no quota of its own.")]
Ip = Annotated[str | None, typer.Option("--ip", metavar="ADDRESS", help="The address, for connection_creation_rate.")]
IpDefault = Annotated[bool, typer.Option("--ip-default", help="Every address that has no quota of its own.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check the change, and make none.")]


@app.command("list")
def list_(
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """List the quotas: all, or those with this user, client id or address."""
    wanted = _entity(user, user_default, client_id, client_id_default, ip, ip_default)

    async def ask() -> View:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return _view(await admin.describe_client_quotas(wanted, timeout_ms=TIMEOUT_MS))

    present(ask, output, watch)


def _view(quotas: dict[QuotaEntity, dict[str, float]]) -> View:
    rows = [(str(entity), key, _shown(key, value)) for entity, values in quotas.items() for key, value in sorted(values.items())]
    document = {
        "quotas": [
            {"user": entity.user, "client_id": entity.client_id, "ip": entity.ip, "values": dict(sorted(values.items()))}
            for entity, values in quotas.items()
        ]
    }
    remarks = [] if rows else ["there are no quotas; `strandline quota set --user alice producer_byte_rate=10MB` sets one"]
    return View(document, [Table(("CLIENTS", "QUOTA", "VALUE"), rows)] if rows else [], remarks)


def _shown(name: str, value: float) -> str:
    key = KEYS.get(name, Key(False, ""))
    return f"{show_bytes(value) if key.is_bytes else f'{value:g}'}{key.unit}"


@app.command("set")
def set_(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help=f"{', '.join(KEYS)}; bytes as 500000 or 10MB.")],
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Set quotas. They count from the next request of each client. The most specific one counts for a client: that of its user
    and client id, of its user, of its client id; each before the default."""
    entity = _needed(_entity(user, user_default, client_id, client_id_default, ip, ip_default), "set")
    changes: dict[str, float | None] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        if not equals:
            raise UsageError(f"a quota is set by KEY=VALUE, not {setting!r}")
        if name in changes:
            raise UsageError(f"{name} is given twice")
        changes[name] = _value(_checked(name), value)
    _change(bootstrap, entity, changes, dry_run)
    note(f"{entity}: {', '.join(settings)}{' would be accepted' if dry_run else ''}")


@app.command()
def unset(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help=f"{', '.join(KEYS)}.")],
    user: User = None,
    user_default: UserDefault = False,
    client_id: ClientId = None,
    client_id_default: ClientIdDefault = False,
    ip: Ip = None,
    ip_default: IpDefault = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove quotas, so that a less specific one counts, or none."""
    entity = _needed(_entity(user, user_default, client_id, client_id_default, ip, ip_default), "unset")
    _change(bootstrap, entity, dict.fromkeys(_checked(key) for key in keys), dry_run)
    note(f"{entity}: {', '.join(keys)} {'can be unset' if dry_run else 'unset'}")


def _change(bootstrap: str, entity: QuotaEntity, changes: dict[str, float | None], dry_run: bool) -> None:
    async def work() -> None:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.alter_client_quotas(entity, changes, validate_only=dry_run, timeout_ms=TIMEOUT_MS)

    run(work())


# -- what was typed ---------------------------------------------------------------------------------------------------


def _entity(
    user: str | None, user_default: bool, client_id: str | None, client_id_default: bool, ip: str | None, ip_default: bool
) -> QuotaEntity | None:
    """The clients that the options name; None if they name none."""
    from strandline.client import QuotaEntity

    entity = QuotaEntity(
        _name("--user", user, user_default),
        _name("--client-id", client_id, client_id_default),
        _name("--ip", ip, ip_default),
    )
    return None if entity == QuotaEntity() else entity


def _name(option: str, name: str | None, is_default: bool) -> str | None:
    if name is not None and is_default:
        raise UsageError(f"{option} and {option}-default exclude each other")
    if name is not None and option == "--user" and name.startswith("User:"):
        raise UsageError(f"a user is named without its type: {name.removeprefix('User:')}, not {name}")
    return DEFAULT if is_default else name


def _needed(entity: QuotaEntity | None, verb: str) -> QuotaEntity:
    if entity is None:
        raise UsageError(
            f"the owner of the quota is missing: strandline quota {verb} --user NAME, --client-id ID, --ip ADDRESS, or a default"
        )
    return entity


def _checked(name: str) -> str:
    from strandline.controller.metadata.config_keys import nearest

    if name not in KEYS:
        guess = nearest(name, KEYS)
        raise UsageError(
            f"unknown quota {name!r}" + (f"; did you mean {guess!r}?" if guess else f": there are {', '.join(KEYS)}")
        )
    return name


def _value(name: str, text: str) -> float:
    if KEYS[name].is_bytes:
        return float(parse_bytes(text, name))
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise UsageError(f"{name} takes a number above 0, not {text!r}")
    return value
