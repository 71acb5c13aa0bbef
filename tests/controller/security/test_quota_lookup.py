"""Which quota counts for a client (`controller/metadata/security/quota_lookup.py`)."""

from __future__ import annotations

import itertools

import pytest

from strandline.controller.metadata.security.quota_lookup import (
    CONNECTION_CREATION_RATE,
    PRODUCER_BYTE_RATE,
    Found,
    Payer,
    has_quota,
    ip_quota_of,
    quota_of,
)
from strandline.controller.metadata.security.quotas import QuotaEntity

BY_RANK: list[tuple[QuotaEntity, Payer]] = [
    ((("client-id", "app"), ("user", "alice")), Payer("alice", "app")),
    ((("client-id", None), ("user", "alice")), Payer("alice", "app")),
    ((("user", "alice"),), Payer("alice", None)),
    ((("client-id", "app"), ("user", None)), Payer("alice", "app")),
    ((("client-id", None), ("user", None)), Payer("alice", "app")),
    ((("user", None),), Payer("alice", None)),
    ((("client-id", "app"),), Payer(None, "app")),
    ((("client-id", None),), Payer(None, "app")),
]
"""Kafka's order of precedence, and the payer whose budget is charged."""


@pytest.mark.parametrize(("better", "worse"), list(itertools.combinations(range(8), 2)))
def test_more_specific_entity_counts(better: int, worse: int) -> None:
    """Kafka documents this order; operators rely on it when they override a default."""
    quotas = {BY_RANK[rank][0]: {PRODUCER_BYTE_RATE: float(rank)} for rank in (worse, better)}
    assert quota_of(quotas, PRODUCER_BYTE_RATE, "alice", "app") == Found(BY_RANK[better][1], float(better))


def test_entity_without_the_key_is_passed_over() -> None:
    """A consumer quota of a user does not lift the default producer quota."""
    quotas: dict[QuotaEntity, dict[str, float]] = {
        (("user", "alice"),): {"consumer_byte_rate": 1.0},
        (("user", None),): {PRODUCER_BYTE_RATE: 2.0},
    }
    assert quota_of(quotas, PRODUCER_BYTE_RATE, "alice", "app") == Found(Payer("alice", None), 2.0)


def test_other_clients_have_no_limit() -> None:
    """A quota for one client must not reach another."""
    quotas: dict[QuotaEntity, dict[str, float]] = {(("client-id", "app"), ("user", "alice")): {PRODUCER_BYTE_RATE: 1.0}}
    assert quota_of(quotas, PRODUCER_BYTE_RATE, "alice", "other") is None
    assert quota_of(quotas, PRODUCER_BYTE_RATE, "bob", "app") is None


def test_client_without_id_does_not_escape_a_default() -> None:
    """Leaving the client id out would be the simplest way around a default quota."""
    assert quota_of({(("client-id", None),): {PRODUCER_BYTE_RATE: 1.0}}, PRODUCER_BYTE_RATE, "ANONYMOUS", "") is not None


def test_address_has_its_own_quota_or_the_default() -> None:
    """As in Kafka: the quota of the address, else the default of all addresses."""
    quotas: dict[QuotaEntity, dict[str, float]] = {
        (("ip", "10.0.0.1"),): {CONNECTION_CREATION_RATE: 1.0},
        (("ip", None),): {CONNECTION_CREATION_RATE: 2.0},
    }
    assert ip_quota_of(quotas, CONNECTION_CREATION_RATE, "10.0.0.1") == 1.0
    assert ip_quota_of(quotas, CONNECTION_CREATION_RATE, "10.0.0.2") == 2.0
    assert ip_quota_of({}, CONNECTION_CREATION_RATE, "10.0.0.1") is None
    assert has_quota(quotas, CONNECTION_CREATION_RATE)
    assert not has_quota(quotas, PRODUCER_BYTE_RATE)
