"""The access rules, arranged so that those of one resource are found at once.

A rule applies to a resource if its pattern is the resource's name (LITERAL), the wildcard `*` (LITERAL), or a prefix of the name
(PREFIXED). The prefixes are a dict, too: a look-up asks for the first n characters of the name, for each length n that any prefix
has. So no prefix can be overlooked. (Kafka walks through sorted patterns, where a rule for a short prefix is easily missed behind
one that does not match.)

Under each pattern the rules are arranged by principal, so that the rules of other principals cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from strandline.controller.metadata.security.acl_hosts import HostTest, host_test
from strandline.protocol.messages.security import DENY, LITERAL_PATTERN, PREFIXED_PATTERN

WILDCARD = "*"
"""The name of the LITERAL pattern that matches every resource of its type."""


class AclLike(Protocol):
    """The fields of a rule that count (`Acl` of the metadata, or `AclBinding` of the messages)."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


class IndexedAcl(NamedTuple):
    """A rule, and what is compared for each check."""

    operation: int
    is_deny: bool
    host_test: HostTest | None
    acl: AclLike


class Pattern:
    """The rules of one pattern."""

    __slots__ = ("by_principal", "name", "size")

    def __init__(self, name: str) -> None:
        self.name = name
        self.by_principal: dict[str, dict[bytes, IndexedAcl]] = {}
        """Principal, or `User:*` -> rule id -> rule."""
        self.size = 0

    def add(self, acl_id: bytes, acl: AclLike) -> None:
        indexed = IndexedAcl(acl.operation, acl.permission_type == DENY, host_test(acl.host), acl)
        self.by_principal.setdefault(acl.principal, {})[acl_id] = indexed
        self.size += 1

    def remove(self, acl_id: bytes, acl: AclLike) -> None:
        of_principal = self.by_principal[acl.principal]
        del of_principal[acl_id]
        if not of_principal:
            del self.by_principal[acl.principal]
        self.size -= 1


class PatternsOfType:
    """The patterns of one resource type. Each has at least one rule."""

    def __init__(self) -> None:
        self.literal: dict[str, Pattern] = {}
        self.prefixed: dict[str, Pattern] = {}
        self._prefixes_by_length: dict[int, int] = {}
        """Length -> the number of prefixes that have it."""
        self._lengths: list[int] = []
        """The keys of `_prefixes_by_length`, ascending."""

    def add(self, acl_id: bytes, acl: AclLike) -> None:
        patterns, name = self._of_kind(acl), acl.resource_name
        pattern = patterns.get(name)
        if pattern is None:
            pattern = patterns[name] = Pattern(name)
            if patterns is self.prefixed:
                self._count(len(name), 1)
        pattern.add(acl_id, acl)

    def remove(self, acl_id: bytes, acl: AclLike) -> None:
        patterns, name = self._of_kind(acl), acl.resource_name
        patterns[name].remove(acl_id, acl)
        if patterns[name].size:
            return
        del patterns[name]
        if patterns is self.prefixed:
            self._count(len(name), -1)

    def _count(self, length: int, change: int) -> None:
        known = self._prefixes_by_length.get(length, 0)
        if known + change:
            self._prefixes_by_length[length] = known + change
        else:
            del self._prefixes_by_length[length]
        if not known or not known + change:
            self._lengths = sorted(self._prefixes_by_length)

    def _of_kind(self, acl: AclLike) -> dict[str, Pattern]:
        assert acl.pattern_type in (LITERAL_PATTERN, PREFIXED_PATTERN)
        return self.literal if acl.pattern_type == LITERAL_PATTERN else self.prefixed

    @property
    def length_max(self) -> int:
        """The length of the longest pattern; 0 without any."""
        return max(map(len, (*self.literal, *self.prefixed)), default=0)

    def matching(self, name: str) -> Iterator[Pattern]:
        """The patterns that match a resource of this name, each once."""
        found = self.literal.get(name)
        if found is not None:
            yield found
        if name != WILDCARD and (found := self.literal.get(WILDCARD)) is not None:
            yield found
        for length in self._lengths:
            if length > len(name):
                return
            if (found := self.prefixed.get(name[:length])) is not None:
                yield found


class AclIndex:
    """All rules, by resource type."""

    def __init__(self) -> None:
        self._types: dict[int, PatternsOfType] = {}
        self.size = 0
        """The number of rules."""

    def add(self, acl_id: bytes, acl: AclLike) -> None:
        self._types.setdefault(acl.resource_type, PatternsOfType()).add(acl_id, acl)
        self.size += 1

    def remove(self, acl_id: bytes, acl: AclLike) -> None:
        self._types[acl.resource_type].remove(acl_id, acl)
        self.size -= 1

    def of_type(self, resource_type: int) -> PatternsOfType:
        return self._types.get(resource_type) or PatternsOfType()
