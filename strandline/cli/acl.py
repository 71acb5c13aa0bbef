"""`strandline acl`: access rules (ACLs), as kafka-acls.sh has them; and which of them decides (`check`)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from strandline.cli import names
from strandline.cli.acl_rules import Grant, Resources, checked_operation, checked_principal, filters_of, parse_resource, rules_of
from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    UNHEALTHY,
    Bootstrap,
    Yes,
    check_terminal,
    confirm,
    new_app,
    run,
)
from strandline.cli.output import Form, Output, Table, View, show
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import ErrorCode, UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.cli.acl_check import Decided
    from strandline.client import Acl, AclFilter

TIMEOUT_MS = 10_000

app = new_app("List, add and remove access rules (ACLs), and check which of them decides.")

Operations = Annotated[
    list[str] | None, typer.Option("--operation", metavar="NAME", help="READ, WRITE, DESCRIBE, ALL, ...; several times.")
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="NAME", help="A topic; '*' for all. Several times.", autocompletion=names.topics),
]
Groups = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="NAME", help="A consumer group; several times.", autocompletion=names.groups),
]
TransactionalIds = Annotated[
    list[str] | None, typer.Option("--transactional-id", metavar="NAME", help="A transactional id or producer name.")
]
OfCluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="The names are prefixes.")]
Principal = Annotated[
    str | None, typer.Option("--principal", metavar="TYPE:NAME", help="Only rules for this principal, such as User:alice.")
]
Match = Annotated[bool, typer.Option("--match", help="All rules that apply to the named resources, also by prefix or '*'.")]
Deny = Annotated[bool, typer.Option("--deny", help="Rules that deny.")]


def _document(rule: Acl) -> dict[str, str]:
    return {
        "principal": rule.principal,
        "permission": rule.permission,
        "operation": rule.operation,
        "resource_type": rule.resource_type,
        "resource_name": rule.resource_name,
        "pattern_type": rule.pattern_type,
        "host": rule.host,
    }


def _table(rules: Sequence[Acl]) -> Table:
    columns = ("PRINCIPAL", "PERMISSION", "OPERATION", "RESOURCE", "NAME", "PATTERN", "HOST")
    rows = [
        (r.principal, r.permission, r.operation, r.resource_type, r.resource_name, r.pattern_type, r.host)
        for r in sorted(rules, key=lambda r: (r.resource_type, r.resource_name, r.pattern_type, r.principal, r.operation))
    ]
    return Table(columns, rows, spare=("HOST",))


@app.command("list")
def list_(
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    match: Match = False,
    principal: Principal = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """List the access rules: all, or those of some resources or of a principal."""
    resources = Resources(topic or (), group or (), transactional_id or (), cluster, prefixed)
    filters = filters_of(resources, principal, (), None, matches=match)

    async def ask() -> View:
        rules = await _described(bootstrap, filters)
        document = {"acls": [_document(rule) for rule in rules]}
        return View(document, [_table(rules)]) if rules else View(document, [], ["there are no such rules"])

    present(ask, output, watch)


async def _described(bootstrap: str, filters: Sequence[AclFilter]) -> list[Acl]:
    from strandline.client import Admin

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        found = [rule for each in filters for rule in await admin.describe_acls(each, timeout_ms=TIMEOUT_MS)]
    return list(dict.fromkeys(found))


@app.command()
def add(
    principal: Annotated[
        str, typer.Argument(metavar="PRINCIPAL", help="The principal, such as User:alice; User:'*' for everyone.")
    ],
    operation: Operations = None,
    producer: Annotated[bool, typer.Option("--producer", help="What a producer needs: WRITE, DESCRIBE, CREATE.")] = False,
    consumer: Annotated[
        bool, typer.Option("--consumer", help="What a consumer needs: READ, DESCRIBE; READ on the group.")
    ] = False,
    idempotent: Annotated[bool, typer.Option("--idempotent", help="With --producer: IDEMPOTENT_WRITE on the cluster.")] = False,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="ADDRESS", help="Only from this address or network; several times.")
    ] = None,
    deny: Deny = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Add access rules. A rule that exists already stays as it is. A rule that denies overrides all rules that allow."""
    resources = Resources(topic or (), group or (), transactional_id or (), cluster, prefixed)
    grant = Grant(principal, resources, operation or (), producer, consumer, idempotent, host or ("*",), deny)
    rules = rules_of(grant)

    async def work() -> None:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            await admin.create_acls(rules, timeout_ms=TIMEOUT_MS)

    run(work())
    show(View({"added": [_document(rule) for rule in rules]}, [f"added: {rule}" for rule in rules]), output)


@app.command()
def remove(
    principal: Principal = None,
    operation: Operations = None,
    topic: Topics = None,
    group: Groups = None,
    transactional_id: TransactionalIds = None,
    cluster: OfCluster = False,
    prefixed: Prefixed = False,
    host: Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="Only rules for this address.")] = None,
    deny: Deny = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Remove the access rules that fit all of the given options. Shows them and asks first, unless --yes is given."""
    resources = Resources(topic or (), group or (), transactional_id or (), cluster, prefixed)
    if principal is None and not list(resources.named()):
        raise UsageError("acl remove needs --principal or a resource (--topic, --group, --transactional-id, --cluster)")
    check_terminal(yes, "acl remove removes access rules")
    filters = filters_of(resources, principal, operation or (), host, is_denied=deny)
    rules = run(_described(bootstrap, filters))
    if not rules:
        show(View({"removed": []}, ["there are no such rules; nothing was removed"]), output)
        return
    if not yes:
        confirm("These rules are removed:\n" + "\n".join(f"  {rule}" for rule in rules), yes, "nothing was removed")

    async def work() -> list[Acl]:
        from strandline.client import Admin

        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            return await admin.delete_acls([rule.filter for rule in rules], timeout_ms=TIMEOUT_MS)

    gone = run(work())
    show(View({"removed": [_document(rule) for rule in gone]}, [f"removed: {rule}" for rule in gone]), output)


@app.command()
def check(
    principal: Annotated[str, typer.Argument(metavar="PRINCIPAL", help="The principal, such as User:alice.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, ...")],
    resource: Annotated[str, typer.Argument(metavar="RESOURCE", help="topic:NAME, group:NAME, transactional-id:NAME, cluster.")],
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address that the principal connects from.")
    ] = "127.0.0.1",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    output: Output = Form.table,
) -> None:
    """Say whether a principal may do something, and which rule decides. Exit code 0 if it may, 3 if not."""
    who, what = checked_principal(principal), checked_operation(operation)
    kind, name = parse_resource(resource)
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(f"--host takes an IP address, not {host!r}") from None
    decided = run(_decide(bootstrap, who, host, what, kind, name))
    show(_decision_view(decided, f"{who} may{{}} {what} {kind}:{name} from {host}"), output)


def _decision_view(decided: Decided, sentence: str) -> View:
    document = {
        "allowed": decided.is_allowed,
        "reason": decided.reason,
        "rule": None if decided.rule is None else _document(decided.rule),
        "complete": not decided.remarks,
    }
    lines = [f"{sentence.format('' if decided.is_allowed else ' not')}: {decided.reason}"]
    if decided.rule is not None:
        lines.append(f"  {decided.rule}")
    return View(document, lines, decided.remarks, 0 if decided.is_allowed else UNHEALTHY)


async def _decide(bootstrap: str, principal: str, host: str, operation: str, kind: str, name: str) -> Decided:
    from strandline.cli.acl_check import Decided, decide, rules_of_nodes
    from strandline.client import AclFilter, Admin, RequestFailed

    async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
        wanted = AclFilter(resource_type=kind, resource_name=name, pattern_type="MATCH")
        try:
            rules = await admin.describe_acls(wanted, timeout_ms=TIMEOUT_MS)
        except RequestFailed as e:
            if e.code != ErrorCode.SECURITY_DISABLED:
                raise
            return Decided(True, "the cluster has no authorizer (authorizer.class.name), so everyone may do everything")
        nodes = await rules_of_nodes(admin)
    return decide(rules, nodes, principal, host, operation, kind, name)
