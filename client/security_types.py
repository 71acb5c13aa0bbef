"""The arguments and results of the admin client's calls about access rules. Names are Kafka's: TOPIC, READ, LITERAL, ALLOW."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strandline.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class Acl:
    """An access rule (Kafka's AclBinding): whether a principal may perform an operation on the resources of a pattern.

    `principal`: `User:alice`, or `User:*` for everyone. `operation`: READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE,
    CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE or ALL. `resource_type`: TOPIC, GROUP, CLUSTER (whose only
    name is `kafka-cluster`) or TRANSACTIONAL_ID. `pattern_type`: LITERAL (the name, or `*` for all) or PREFIXED. `host`: an
    address, a network such as 10.0.0.0/8, or `*`. `permission`: ALLOW or DENY; DENY takes precedence."""

    principal: str
    operation: str
    resource_type: str
    resource_name: str
    pattern_type: str = "LITERAL"
    host: str = "*"
    permission: str = "ALLOW"

    def __str__(self) -> str:
        where = "" if self.host == "*" else f" from {self.host}"
        return f"{self.permission} {self.principal} {self.operation} on {self.resource}{where}"

    @property
    def resource(self) -> str:
        """The pattern of resources in a form for people: `TOPIC:orders`, or `TOPIC:orders*` for a prefix."""
        star = "*" if self.pattern_type == "PREFIXED" else ""
        return f"{self.resource_type}:{self.resource_name}{star}"

    @property
    def filter(self) -> AclFilter:
        """A filter that selects this rule alone."""
        return AclFilter(
            principal=self.principal,
            operation=self.operation,
            resource_type=self.resource_type,
            resource_name=self.resource_name,
            pattern_type=self.pattern_type,
            host=self.host,
            permission=self.permission,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AclFilter:
    """Selects access rules; None selects every value. `pattern_type` MATCH: every rule that applies to the resource of this name,
    also those of prefixes and for all names."""

    principal: str | None = None
    operation: str | None = None
    resource_type: str | None = None
    resource_name: str | None = None
    pattern_type: str | None = None
    host: str | None = None
    permission: str | None = None


def number_of(what: str, name: str, names: Mapping[int, str]) -> int:
    """The number of a name. UsageError for an unknown name; the message lists the known ones."""
    if isinstance(name, str):
        for number, known in names.items():
            if known == name.upper().replace("-", "_"):
                return number
    raise UsageError(f"unknown {what} {name!r}: there are {', '.join(names.values())}")
