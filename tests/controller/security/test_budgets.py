"""Budgets: which clients share one, and the effect of a changed quota on them (`controller/metadata/security/budgets.py`)."""

from __future__ import annotations

import pytest

from strandline.controller.metadata.security import budgets as module
from strandline.controller.metadata.security.budgets import IDLE_S, Budgets, Window
from strandline.controller.metadata.security.quota_lookup import PRODUCER_BYTE_RATE
from strandline.controller.metadata.security.quotas import QuotaEntity

Quotas = dict[QuotaEntity, dict[str, float]]
USER_ALICE: QuotaEntity = (("user", "alice"),)
ANY_CLIENT: QuotaEntity = (("client-id", None),)


def of(quotas: Quotas) -> Budgets:
    budgets = Budgets(PRODUCER_BYTE_RATE, Window())
    budgets.use(quotas, 0.0)
    return budgets


def test_clients_of_a_user_share_its_quota() -> None:
    """Otherwise two clients of a user would get twice its quota."""
    budgets = of({USER_ALICE: {PRODUCER_BYTE_RATE: 100.0}})
    first, second = budgets.budget_of(("alice", "a"), 0.0), budgets.budget_of(("alice", "b"), 0.0)
    assert first is not None
    assert first is second
    assert budgets.budget_of(("bob", "a"), 0.0) is None


def test_each_client_id_has_its_own_budget_under_a_default() -> None:
    """A default is a limit for each client id, not for all together."""
    budgets = of({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0}})
    first, second = budgets.budget_of(("alice", "a"), 0.0), budgets.budget_of(("alice", "b"), 0.0)
    assert first is not None
    assert second is not None
    assert first is not second


def test_changed_quota_keeps_what_was_used() -> None:
    """A raised quota must not forgive a debt entirely, and a quota that is set again to the same value must change nothing."""
    budgets = of({USER_ALICE: {PRODUCER_BYTE_RATE: 100.0}})
    budget = budgets.budget_of(("alice", "a"), 0.0)
    assert budget is not None
    budget.charge(600.0, 0.0)
    budgets.use({USER_ALICE: {PRODUCER_BYTE_RATE: 50.0}}, 0.0)
    again = budgets.budget_of(("alice", "a"), 0.0)
    assert again is budget
    assert budget.bucket.wait_s(0.0) == pytest.approx(10.0)


def test_removed_quota_ends_the_limit() -> None:
    """The next request of the client has no limit."""
    budgets = of({USER_ALICE: {PRODUCER_BYTE_RATE: 100.0}})
    assert budgets.budget_of(("alice", "a"), 0.0) is not None
    budgets.use({}, 0.0)
    assert budgets.budget_of(("alice", "a"), 0.0) is None
    assert not budgets.is_needed
    assert not len(budgets)


def test_more_specific_quota_takes_the_client_over() -> None:
    """An override of a default counts at once, also for clients that are already connected."""
    budgets = of({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0}})
    shared = budgets.budget_of(("alice", "a"), 0.0)
    budgets.use({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0}, USER_ALICE: {PRODUCER_BYTE_RATE: 7.0}}, 0.0)
    own = budgets.budget_of(("alice", "a"), 0.0)
    assert own is not None
    assert own is not shared
    assert own.bucket.rate == 7.0


def test_idle_budgets_are_dropped() -> None:
    """A broker runs for years, and its clients change."""
    budgets = of({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0}})
    for client_id in ("a", "b"):
        budgets.budget_of(("alice", client_id), 0.0)
    budget = budgets.budget_of(("alice", "a"), 0.0)
    assert budget is not None
    budget.charge(1.0, IDLE_S)
    budgets.drop_idle(IDLE_S + 1)
    assert len(budgets) == 1
    assert budgets.budget_of(("alice", "a"), IDLE_S + 1) is budget


def test_ever_new_client_ids_cost_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client id is free text from the peer."""
    monkeypatch.setattr(module, "BUDGETS_MAX", 100)
    budgets = of({ANY_CLIENT: {PRODUCER_BYTE_RATE: 100.0}})
    for number in range(1000):
        budgets.budget_of(("alice", str(number)), float(number))
    assert len(budgets) <= 100
    unlimited = of({USER_ALICE: {PRODUCER_BYTE_RATE: 1.0}})
    for number in range(1000):
        assert unlimited.budget_of(("bob", str(number)), 0.0) is None
    assert len(unlimited._by_client) <= 100
