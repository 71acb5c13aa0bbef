"""An access rule (Kafka's StandardAcl), and the filters that select rules.

A rule is its content: two rules with equal fields are the same rule. The id only names it in the metadata log.

    pattern type   of the rule        of a filter
    LITERAL        the name, or `*`   rules whose pattern has exactly this name and type
    PREFIXED       a name's prefix    the same
    MATCH          -                  rules that apply to the named resource: its literal name, `*`, and the prefixes of the name
    ANY            -                  rules whose pattern has exactly this name, of both types
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

import msgspec

from strandline.controller.metadata.records import AccessControlEntryRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.security import (
    ALLOW,
    ANY_TYPE,
    LITERAL_PATTERN,
    MATCH_PATTERN,
    PREFIXED_PATTERN,
    USER_RESOURCE,
    AclBinding,
    AclFilter,
)

OPERATION_MAX = 15
"""The highest number of an operation in Kafka (TWO_PHASE_COMMIT); a filter may name operations that no rule here has."""

WILDCARD = "*"
"""As a name: every resource of the type. As a host: every address."""


class Acl(msgspec.Struct, frozen=True, order=True, gc=False):
    """One access rule. The order is that of the descriptions."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int

    @staticmethod
    def of(binding: AclBinding | AccessControlEntryRecord) -> Acl:
        return Acl(
            binding.resource_type,
            binding.resource_name,
            binding.pattern_type,
            binding.principal,
            binding.host,
            binding.operation,
            binding.permission_type,
        )

    @property
    def binding(self) -> AclBinding:
        return AclBinding(*msgspec.structs.astuple(self))

    def record(self, acl_id: bytes) -> AccessControlEntryRecord:
        return AccessControlEntryRecord(acl_id, *msgspec.structs.astuple(self))


def canonical_acl(binding: AclBinding) -> Acl:
    """The rule in the form in which the metadata holds it: with a canonical host (`canonical_host`), which the caller has
    checked."""
    return msgspec.structs.replace(Acl.of(binding), host=canonical_host(binding.host) or binding.host)


def checked_filter(wanted: AclFilter) -> AclFilter:
    """The filter in its canonical form. Raises BrokerError INVALID_REQUEST if it has a number that Kafka does not know."""
    for name, value, highest in (
        ("resource type", wanted.resource_type, USER_RESOURCE),
        ("pattern type", wanted.pattern_type, PREFIXED_PATTERN),
        ("operation", wanted.operation, OPERATION_MAX),
        ("permission type", wanted.permission_type, ALLOW),
    ):
        if not ANY_TYPE <= value <= highest:
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name} {value} of the filter is unknown: {ANY_TYPE} selects all")
    host = wanted.host if wanted.host is None else canonical_host(wanted.host) or wanted.host
    return msgspec.structs.replace(wanted, host=host)


def matching(acls: Mapping[Acl, object], wanted: AclFilter) -> list[Acl]:
    """The rules that the filter selects, in order. The filter is canonical (`checked_filter`)."""
    if is_exact(wanted):
        acl = Acl(*msgspec.structs.astuple(wanted))
        return [acl] if acl in acls else []
    return sorted(acl for acl in acls if matches(acl, wanted))


def is_exact(wanted: AclFilter) -> bool:
    """Whether the filter selects one rule at most, which is found without a look at the others."""
    numbers = (wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission_type)
    texts = (wanted.resource_name, wanted.principal, wanted.host)
    return ANY_TYPE not in numbers and wanted.pattern_type != MATCH_PATTERN and None not in texts


def matches(acl: Acl, wanted: AclFilter) -> bool:
    """Whether the filter selects the rule."""
    return (
        wanted.resource_type in (ANY_TYPE, acl.resource_type)
        and wanted.operation in (ANY_TYPE, acl.operation)
        and wanted.permission_type in (ANY_TYPE, acl.permission_type)
        and wanted.principal in (None, acl.principal)
        and wanted.host in (None, acl.host)
        and _matches_pattern(acl, wanted)
    )


def _matches_pattern(acl: Acl, wanted: AclFilter) -> bool:
    if wanted.pattern_type not in (ANY_TYPE, MATCH_PATTERN, acl.pattern_type):
        return False
    if wanted.resource_name in (None, acl.resource_name):
        return True
    if wanted.resource_name is None or wanted.pattern_type != MATCH_PATTERN:
        return False
    if acl.pattern_type == LITERAL_PATTERN:
        return acl.resource_name == WILDCARD
    return wanted.resource_name.startswith(acl.resource_name)


def canonical_host(host: str) -> str | None:
    """The form in which rules hold a host: `*`, an address, or a network in CIDR notation (KIP-1276); None if it is none of them.

    So `0:0:0:0:0:0:0:1` and `::1` are one host, and `10.1.2.3/8` is the network `10.0.0.0/8`."""
    if host == WILDCARD:
        return host
    try:
        if "/" in host:
            return str(ipaddress.ip_network(host, strict=False))
        return str(ipaddress.ip_address(host))
    except ValueError:
        return None
