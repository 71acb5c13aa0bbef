"""The access rules that the options of `strandline acl` describe. Pure.

`--producer`, `--consumer` and `--idempotent` stand for the rules that kafka-acls.sh creates for them:

    --producer     WRITE, DESCRIBE, CREATE on the topics; WRITE, DESCRIBE on the transactional ids
    --consumer     READ, DESCRIBE on the topics; READ on the groups
    --idempotent   IDEMPOTENT_WRITE on the cluster
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from strandline.client.security_types import Acl, AclFilter, number_of
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.security import CLUSTER_NAME
from strandline.protocol.security.acl_names import OPERATION_NAMES
from strandline.protocol.security.principal import Principal

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"
_OF_PRODUCER = {TOPIC: ("WRITE", "DESCRIBE", "CREATE"), TRANSACTIONAL_ID: ("WRITE", "DESCRIBE")}
_OF_CONSUMER = {TOPIC: ("READ", "DESCRIBE"), GROUP: ("READ",)}
_FORMS = "topic:NAME, group:NAME, transactional-id:NAME or cluster"


@dataclass(frozen=True, slots=True)
class Resources:
    """The resources that the options name, and how."""

    topics: Sequence[str] = ()
    groups: Sequence[str] = ()
    transactional_ids: Sequence[str] = ()
    cluster: bool = False
    is_prefixed: bool = False

    def named(self) -> Iterator[tuple[str, str]]:
        """Type and name of each resource."""
        yield from ((TOPIC, name) for name in self.topics)
        yield from ((GROUP, name) for name in self.groups)
        yield from ((TRANSACTIONAL_ID, name) for name in self.transactional_ids)
        if self.cluster:
            yield CLUSTER, CLUSTER_NAME

    def pattern_type(self, resource_type: str) -> str:
        return "PREFIXED" if self.is_prefixed and resource_type != CLUSTER else "LITERAL"


@dataclass(frozen=True, slots=True)
class Grant:
    """The options of `acl add`."""

    principal: str
    resources: Resources
    operations: Sequence[str] = ()
    producer: bool = False
    consumer: bool = False
    idempotent: bool = False
    hosts: Sequence[str] = field(default=("*",))
    is_denied: bool = False


def rules_of(grant: Grant) -> list[Acl]:
    """The rules to add, each once. UsageError if the options do not say which."""
    principal = checked_principal(grant.principal)
    wanted = list(dict.fromkeys(_wanted(grant)))
    if not wanted:
        raise UsageError("acl add needs an operation (--operation READ), or --producer, --consumer or --idempotent")
    permission = "DENY" if grant.is_denied else "ALLOW"
    pattern = grant.resources.pattern_type
    return [
        Acl(principal, operation, kind, name, pattern(kind), host, permission)
        for kind, name, operation in wanted
        for host in grant.hosts or ("*",)
    ]


def _wanted(grant: Grant) -> Iterator[tuple[str, str, str]]:
    """Resource type, name and operation of each rule."""
    named = list(grant.resources.named())
    operations = [checked_operation(name) for name in grant.operations]
    if operations and not named:
        raise UsageError("acl add needs a resource: --topic, --group, --transactional-id or --cluster")
    _check_roles(grant)
    for kind, name in named:
        yield from ((kind, name, operation) for operation in operations)
        for is_asked, role in ((grant.producer, _OF_PRODUCER), (grant.consumer, _OF_CONSUMER)):
            yield from ((kind, name, operation) for operation in (role.get(kind, ()) if is_asked else ()))
    if grant.idempotent:
        yield CLUSTER, CLUSTER_NAME, "IDEMPOTENT_WRITE"


def _check_roles(grant: Grant) -> None:
    resources = grant.resources
    if grant.producer and not resources.topics:
        raise UsageError("--producer needs a --topic to write to")
    if grant.consumer and not (resources.topics and resources.groups):
        raise UsageError("--consumer needs a --topic and a --group to read with ('*' for any)")
    if grant.idempotent and not grant.producer:
        raise UsageError("--idempotent belongs to --producer")
    if grant.is_denied and (grant.producer or grant.consumer):
        raise UsageError("--deny takes an --operation: --producer and --consumer only allow")


def filters_of(
    resources: Resources,
    principal: str | None,
    operations: Iterable[str],
    host: str | None,
    *,
    is_denied: bool = False,
    matches: bool = False,
) -> list[AclFilter]:
    """The filters of `acl list` and `acl remove`. If no resource is named, they select the rules of all resources. `matches`:
    they also select the rules of prefixes and of `*` that apply to the named resources."""
    who = None if principal is None else checked_principal(principal)
    named: list[tuple[str | None, str | None]] = [*resources.named()] or [(None, None)]
    wanted: list[str | None] = [checked_operation(name) for name in operations] or [None]
    permission = "DENY" if is_denied else None
    return [
        AclFilter(
            principal=who,
            operation=operation,
            resource_type=kind,
            resource_name=name,
            pattern_type=None if kind is None else "MATCH" if matches else resources.pattern_type(kind),
            host=host,
            permission=permission,
        )
        for kind, name in named
        for operation in wanted
    ]


def checked_principal(text: str) -> str:
    """A principal. UsageError shows the form."""
    return str(Principal.parse(text))


def checked_operation(name: str) -> str:
    """The name of an operation in Kafka's form; upper and lower case are the same. UsageError lists the known ones."""
    return OPERATION_NAMES[number_of("operation", name, OPERATION_NAMES)]


def parse_resource(text: str) -> tuple[str, str]:
    """Type and name of `topic:orders`, `group:billing`, `transactional-id:x` or `cluster`. UsageError shows the forms."""
    kind, colon, name = text.partition(":")
    kind = kind.upper().replace("-", "_")
    if kind == CLUSTER and name in ("", CLUSTER_NAME):
        return CLUSTER, CLUSTER_NAME
    if kind not in (TOPIC, GROUP, TRANSACTIONAL_ID) or not colon or not name:
        raise UsageError(f"a resource is written {_FORMS}, not {text!r}")
    return kind, name
