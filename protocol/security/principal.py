"""The identity of a peer (Kafka's KafkaPrincipal): a type and a name, written as `User:alice`."""

from __future__ import annotations

from typing import NamedTuple

from strandline.protocol.errors import UsageError

USER = "User"


class Principal(NamedTuple):
    """An identity. Access rules, quotas and sessions belong to a principal."""

    principal_type: str
    name: str

    def __str__(self) -> str:
        return f"{self.principal_type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse `User:alice`. Raises UsageError if there is no type or no name."""
        principal_type, separator, name = text.partition(":")
        if not separator or not principal_type or not name:
            raise UsageError(f"{text!r} is not a principal: it is written as User:name")
        return cls(principal_type, name)


ANONYMOUS = Principal(USER, "ANONYMOUS")
"""The principal of a peer that its listener does not authenticate."""
