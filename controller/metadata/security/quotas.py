"""The entities of client quotas (KIP-546): which clients a quota is for.

An entity has one part per type, sorted by type, so that equal entities are equal tuples:

    user                (("user", "alice"),)
    user and client id  (("client-id", "app"), ("user", "alice"))
    the default user    (("user", None),)
    address             (("ip", "10.0.0.1"),)
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

from strandline.protocol.messages.security import IP_ENTITY

QuotaEntity = tuple[tuple[str, str | None], ...]
"""(entity type, name) of each part; a name of None is the default of the type."""


def entity_order(entity: QuotaEntity) -> Any:
    """The sort key of an entity: the default of a type comes before its names."""
    return [(entity_type, name is not None, name or "") for entity_type, name in entity]


def entity_text(entity: QuotaEntity) -> str:
    """An entity in messages and logs: `user alice, client-id <default>`."""
    return ", ".join(f"{entity_type} {'<default>' if name is None else name}" for entity_type, name in reversed(entity))


def canonical_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity with these parts, in the form in which the metadata has it."""
    canonical = ((kind, canonical_address(name) or name if kind == IP_ENTITY and name else name) for kind, name in parts)
    return tuple(sorted(canonical))


def canonical_address(text: str) -> str | None:
    """The form in which an entity holds an address; None if the text is not an address. A host name is not looked up."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None
