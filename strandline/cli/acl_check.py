"""Decides as the brokers do: with their own authorizer, over the rules that the cluster describes and the super users of its
configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from strandline.client import Acl, Admin, AuthorizationFailed
from strandline.client.admin.acls import acl_of, binding_of
from strandline.client.security_types import number_of
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.controller.metadata.security_keys import parse_super_users
from strandline.protocol.errors import StrandlineError
from strandline.protocol.messages.security import AclBinding
from strandline.protocol.security.acl_names import OPERATION_NAMES, RESOURCE_TYPE_NAMES
from strandline.protocol.security.principal import Principal

TIMEOUT_MS = 5_000


class Decided(NamedTuple):
    """A decision. `remarks`: sentences about facts that it could not take into account."""

    is_allowed: bool
    reason: str
    rule: Acl | None = None
    remarks: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NodeRules:
    """The access settings in a broker's configuration. `is_known` is False if no broker reported them."""

    super_users: str | None
    allow_everyone_if_no_acl_found: bool = False
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class _Image:
    """The part of the metadata image that an authorizer uses."""

    acls: Mapping[bytes, AclBinding]


async def rules_of_nodes(admin: Admin) -> NodeRules:
    """The access settings of the first unfenced broker that answers; not known if none answers, or if they may not be read."""
    with suppress(StrandlineError):
        for broker in (await admin.describe_cluster(timeout_ms=TIMEOUT_MS)).brokers:
            rules = None if broker.is_fenced else await _rules_of(admin, broker.broker_id)
            if rules is not None:
                return rules
    return NodeRules(None, is_known=False)


async def _rules_of(admin: Admin, broker_id: int) -> NodeRules | None:
    """The access settings of a broker; None if it does not answer. AuthorizationFailed, which every broker would raise."""
    keys = ["super.users", "allow.everyone.if.no.acl.found"]
    try:
        entries = await admin.describe_configs("broker", broker_id, keys, timeout_ms=TIMEOUT_MS)
    except AuthorizationFailed:
        raise
    except StrandlineError:
        return None
    values = {entry.name: entry.value for entry in entries}
    return NodeRules(values.get("super.users"), values.get("allow.everyone.if.no.acl.found") == "true")


def decide(
    rules: Sequence[Acl], nodes: NodeRules, principal: str, host: str, operation: str, resource_type: str, name: str
) -> Decided:
    """The decision about one operation. `rules`: at least those that apply to the resource."""
    authorizer = Authorizer(parse_super_users(nodes.super_users), nodes.allow_everyone_if_no_acl_found)
    authorizer.use(_Image({index.to_bytes(8): binding_of(rule) for index, rule in enumerate(rules)}))
    verdict = authorizer.decide(
        Principal.parse(principal),
        host,
        number_of("operation", operation, OPERATION_NAMES),
        number_of("resource type", resource_type, RESOURCE_TYPE_NAMES),
        name,
    )
    remarks = [] if nodes.is_known else ["the super users are not known: the brokers' configuration could not be read"]
    rule = acl_of(verdict.acl) if isinstance(verdict.acl, AclBinding) else None
    return Decided(verdict.allowed, verdict.reason, rule, remarks)
