"""The quota that counts for a client (Kafka's precedence), and the clients that share it.

    1  (user, client id)             the client alone
    2  (user, default client id)     the client alone
    3  (user)                        all clients of the user
    4  (default user, client id)     the client alone
    5  (default user, default id)    the client alone
    6  (default user)                all clients of the user
    7  (client id)                   all clients with this id, whatever their user
    8  (default client id)           all clients with this id, whatever their user

The first entity of the list that has a value for the key counts. A client without a client id has the empty one, so that it
cannot escape a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from strandline.controller.metadata.security.quotas import QuotaEntity
from strandline.protocol.messages.security import CLIENT_ID_ENTITY, IP_ENTITY, USER_ENTITY

PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

ClientQuotas = Mapping[QuotaEntity, Mapping[str, float]]
"""`MetadataImage.client_quotas`."""


class Payer(NamedTuple):
    """The clients that share a budget: those of a user, those with a client id, or those of a user with a client id. None stands
    for any user or client id."""

    user: str | None
    client_id: str | None


class Found(NamedTuple):
    """The quota of a client."""

    payer: Payer
    value: float


def quota_of(quotas: ClientQuotas, key: str, user: str, client_id: str) -> Found | None:
    """The quota that counts for a client; None: it has no limit."""
    for entity, payer in _precedence(user, client_id):
        value = quotas.get(entity, _NONE).get(key)
        if value is not None:
            return Found(payer, value)
    return None


def ip_quota_of(quotas: ClientQuotas, key: str, host: str) -> float | None:
    """The quota of an address: its own, or the default of all addresses; None: it has no limit."""
    for name in (host, None):
        value = quotas.get(((IP_ENTITY, name),), _NONE).get(key)
        if value is not None:
            return value
    return None


def has_quota(quotas: ClientQuotas, key: str) -> bool:
    """Whether any entity has a value for this key."""
    return any(key in values for values in quotas.values())


_NONE: dict[str, float] = {}


def _precedence(user: str, client_id: str) -> tuple[tuple[QuotaEntity, Payer], ...]:
    """The entities that apply to a client, the one with the highest precedence first, each with the payer of its quota."""
    named, any_user = (USER_ENTITY, user), (USER_ENTITY, None)
    client, any_client = (CLIENT_ID_ENTITY, client_id), (CLIENT_ID_ENTITY, None)
    alone, of_user, of_client_id = Payer(user, client_id), Payer(user, None), Payer(None, client_id)
    return (
        ((client, named), alone),
        ((any_client, named), alone),
        ((named,), of_user),
        ((client, any_user), alone),
        ((any_client, any_user), alone),
        ((any_user,), of_user),
        ((client,), of_client_id),
        ((any_client,), of_client_id),
    )
