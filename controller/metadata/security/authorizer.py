"""Decides whether a principal may perform an operation on a resource, by Kafka's rules (StandardAuthorizer).

The first of these that applies decides:

    1  the principal is a super user                                          allowed
    2  this node has not loaded the access rules yet                          a retriable error
    3  any DENY rule applies to principal, host, operation and resource       denied
    4  any ALLOW rule does                                                    allowed
    5  no rule at all exists for the resource, whoever it is for              allow.everyone.if.no.acl.found
    6                                                                         denied

A rule for `User:*` applies to every principal, a rule for the operation ALL to every operation. ALLOW READ, WRITE, DELETE and
ALTER imply DESCRIBE, and ALLOW ALTER_CONFIGS implies DESCRIBE_CONFIGS; a DENY implies nothing.

The rules come from the metadata image: `apply` with each delta, or `use` with an image. Decisions are remembered until a rule
changes, so a usual check is one look-up in a dict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from strandline.controller.metadata.security.acl_index import WILDCARD, AclIndex, AclLike, IndexedAcl, Pattern
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.security import (
    ALL,
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    WRITE,
)
from strandline.protocol.security.principal import Principal

REMEMBERED_MAX = 20_000
"""The most remembered decisions. When there are so many, all are dropped before the next one."""
REMEMBERED_NAME_MAX = 300
"""Decisions about longer names are not remembered: clients invent them, and 20,000 transactional ids may have a gigabyte."""
EVERYONE = "User:*"

_IMPLIED_BY: dict[int, frozenset[int]] = {
    DESCRIBE: frozenset({ALL, DESCRIBE, READ, WRITE, DELETE, ALTER}),
    DESCRIBE_CONFIGS: frozenset({ALL, DESCRIBE_CONFIGS, ALTER_CONFIGS}),
}
"""Operation -> the operations of ALLOW rules that permit it; for others, ALL and the operation itself."""


class Verdict(NamedTuple):
    """A decision, and its reason."""

    allowed: bool
    reason: str
    """A sentence for people, without a full stop."""
    acl: AclLike | None = None
    """The access rule that decided, if one did."""


class ImageWithAcls(Protocol):
    """The part of the metadata image that counts here."""

    @property
    def acls(self) -> Mapping[bytes, Any]: ...


class DeltaWithAcls(Protocol):
    """The part of a metadata delta that counts here."""

    @property
    def before(self) -> ImageWithAcls: ...
    @property
    def image(self) -> ImageWithAcls: ...
    @property
    def changed_acls(self) -> Collection[bytes]: ...


class Authorizer:
    """The access rules of a cluster, and the decisions that follow from them."""

    def __init__(self, super_users: Iterable[Principal] = (), allow_everyone_if_no_acl_found: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self.allow_everyone_if_no_acl_found = allow_everyone_if_no_acl_found
        self.is_loaded = False
        """False until the first image is used. Until then only super users are allowed anything; all others get an error."""
        self.allowed_total = self.denied_total = 0
        """The numbers of decisions, for the metrics."""
        self._acls: Mapping[bytes, AclLike] = {}
        """The rules in `_index`, by id."""
        self._index = AclIndex()
        self._remembered: dict[tuple[Any, ...], bool] = {}

    # -- the rules ----------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of rules."""
        return self._index.size

    def use(self, image: ImageWithAcls) -> None:
        """Use the rules of an image. This costs nothing if they are in use already."""
        self.is_loaded = True
        if image.acls is not self._acls:
            self._change({**self._acls, **image.acls}, image.acls)

    def apply(self, delta: DeltaWithAcls) -> None:
        """Use the rules after a delta."""
        if not self.is_loaded or delta.before.acls is not self._acls:
            self.use(delta.image)
        elif delta.image.acls is not self._acls:
            self._change(delta.changed_acls, delta.image.acls)

    def _change(self, ids: Iterable[bytes], acls: Mapping[bytes, AclLike]) -> None:
        for acl_id in ids:
            old, new = self._acls.get(acl_id), acls.get(acl_id)
            if old is not None and old != new:
                self._index.remove(acl_id, old)
            if new is not None and old != new:
                self._index.add(acl_id, new)
        self._acls = acls
        self._remembered.clear()

    # -- decisions ----------------------------------------------------------------------------------------------------

    def authorize(self, principal: Principal, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Whether the principal, at this address, may perform the operation. Raises BROKER_NOT_AVAILABLE before the rules are
        loaded."""
        key = (principal, host, operation, resource_type, name)
        allowed = self._remembered.get(key)
        if allowed is None:
            allowed = self.decide(principal, host, operation, resource_type, name).allowed
            if len(name) <= REMEMBERED_NAME_MAX:
                self._remember(key, allowed)
        if allowed:
            self.allowed_total += 1
        else:
            self.denied_total += 1
        return allowed

    def acts_for_cluster(self, principal: Principal, host: str) -> bool:
        """Whether the principal is a broker or a controller: it has CLUSTER_ACTION."""
        return self.authorize(principal, host, CLUSTER_ACTION, CLUSTER_RESOURCE, CLUSTER_NAME)

    def _remember(self, key: tuple[Any, ...], allowed: bool) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = allowed

    def decide(self, principal: Principal, host: str, operation: int, resource_type: int, name: str) -> Verdict:
        """The decision with its reason, as `strandline acl check` shows it."""
        if principal in self.super_users:
            return Verdict(True, f"{principal} is a super user (super.users)")
        if not self.is_loaded:
            raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, "the node is starting: it has not loaded the access rules yet")
        allowing: IndexedAcl | None = None
        has_rules = False
        for pattern in self._index.of_type(resource_type).matching(name):
            has_rules = True
            for who in (str(principal), EVERYONE):
                for rule in pattern.by_principal.get(who, _NONE).values():
                    if not _applies(rule, host, operation):
                        continue
                    if rule.is_deny:
                        return Verdict(False, "a DENY rule applies", rule.acl)
                    allowing = allowing or rule
        if allowing is not None:
            return Verdict(True, "an ALLOW rule applies, and no DENY rule", allowing.acl)
        if has_rules:
            return Verdict(False, "no ALLOW rule applies")
        if self.allow_everyone_if_no_acl_found:
            return Verdict(True, "the resource has no rule (allow.everyone.if.no.acl.found)")
        return Verdict(False, "the resource has no rule")

    def authorize_by_resource_type(self, principal: Principal, host: str, operation: int, resource_type: int) -> bool:
        """Whether there is any name of a resource of this type for which `authorize` is true: an idempotent producer needs WRITE
        on some topic (KIP-679)."""
        key = (principal, host, operation, resource_type)
        allowed = self._remembered.get(key)
        if allowed is None:
            allowed = self._has_any(principal, host, operation, resource_type)
            self._remember(key, allowed)
        if allowed:
            self.allowed_total += 1
        else:
            self.denied_total += 1
        return allowed

    def _has_any(self, principal: Principal, host: str, operation: int, resource_type: int) -> bool:
        """The decision for a name depends on the patterns that match it. So it is enough to look at one name of each kind: the
        literal ones, one that begins with each prefix, and one that matches no pattern but the wildcard."""
        patterns, who = self._index.of_type(resource_type), (str(principal), EVERYONE)
        tail = "\0" * (patterns.length_max + 1)
        names = [
            tail,
            *(name for name, pattern in patterns.literal.items() if _has_allow(pattern, who, host, operation)),
            *(name + tail for name, pattern in patterns.prefixed.items() if _has_allow(pattern, who, host, operation)),
        ]
        return any(self.decide(principal, host, operation, resource_type, name).allowed for name in names if name != WILDCARD)


_NONE: dict[bytes, IndexedAcl] = {}


def _applies(rule: IndexedAcl, host: str, operation: int) -> bool:
    if rule.operation not in (operation, ALL) and (rule.is_deny or rule.operation not in _IMPLIED_BY.get(operation, ())):
        return False
    return rule.host_test is None or rule.host_test(host)


def _has_allow(pattern: Pattern, who: tuple[str, str], host: str, operation: int) -> bool:
    return any(
        not rule.is_deny and _applies(rule, host, operation)
        for each in who
        if each in pattern.by_principal
        for rule in pattern.by_principal[each].values()
    )
