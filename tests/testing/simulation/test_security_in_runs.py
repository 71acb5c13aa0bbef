"""Users, rights and quotas in random runs: all log in, the intruder gets nothing, and the judges notice a missing guard."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from test_nemesis import quiet

from strandline.controller.metadata.security.acls import Acl
from strandline.protocol.messages.security import (
    ALL,
    ALLOW,
    DENY,
    DESCRIBE,
    LITERAL_PATTERN,
    PREFIXED_PATTERN,
    READ,
    TOPIC_RESOURCE,
    WRITE,
)
from strandline.protocol.security.principal import Principal
from strandline.testing.simulation.cluster.identities import ADMIN, Identities, grants, user_of
from strandline.testing.simulation.invariants.rights import is_allowed
from strandline.testing.simulation.options import Options, draw_options
from strandline.testing.simulation.runs.run import Report, run_seed
from strandline.testing.simulation.security_plans import CHANGES, RIGHTS, SECURITY_SHARE, SecurityPlan, draw_security

ALICE = Principal("User", "alice")
RUNS_MAX = 6


def secured(seed: int, *changes: str, attacks: int = 0, max_reauth_ms: int = 0) -> Options:
    """A run with security, and with faults as drawn."""
    return draw_options(seed).replaced(upgrades=False, security=SecurityPlan(max_reauth_ms, changes, attacks))


def first_found(mutation: str, *changes: str) -> Report:
    """The report of the first of a few runs that finds a problem."""
    for seed in range(RUNS_MAX):
        report = run_seed(seed, options=secured(seed, *changes, attacks=80), mutation=mutation)
        if not report.good:
            return report
    pytest.fail(f"{mutation} was not noticed in {RUNS_MAX} runs")


def test_all_users_log_in_and_do_their_work() -> None:
    """Otherwise a run with security would prove nothing."""
    plan = SecurityPlan(1500, (), 0)
    report = run_seed(1, options=quiet(1).replaced(security=plan))
    assert report.verdict == "ok", str(report)
    assert report.acked == report.sent > 20


def test_clients_go_on_when_their_rights_are_back() -> None:
    """The warden changes everything that it may, and the intruder attacks."""
    report = run_seed(3, options=secured(3, *CHANGES, attacks=60, max_reauth_ms=1500))
    assert report.verdict == "ok", str(report)
    assert report.acked > 100
    kinds = {event.kind for event in report.trace.events(kinds="log.")}  # type: ignore[union-attr]
    assert {"log.authorizer.denied", "log.acl.changed", "log.client_quota.changed"} <= kinds


@pytest.mark.slow
def test_run_with_security_is_the_same_every_time() -> None:
    """Nonces and salts come from the seed, too."""
    first, second = (run_seed(2, options=secured(2, *CHANGES, attacks=20, max_reauth_ms=1500)) for _ in range(2))
    assert first.trace_sha256 == second.trace_sha256


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["M94", "M97", "M98", "M107", "M110"])
def test_a_missing_guard_is_noticed_by_the_intruder(mutation: str) -> None:
    """Without the guard, any client could do what nodes and administrators do. A topic that the intruder has deleted is missing
    (I24)."""
    assert first_found(mutation).violations[0]["invariant"] in ("I47", "client", "I24")


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["M101", "M102"])
def test_a_right_that_outlives_its_withdrawal_is_noticed(mutation: str) -> None:
    assert first_found(mutation, RIGHTS).violations[0]["invariant"] == "I48"


def test_a_quarter_of_the_runs_has_security() -> None:
    drawn = [draw_security(Random(seed)) for seed in range(400)]
    assert 0.8 * SECURITY_SHARE < sum(plan is not None for plan in drawn) / 400 < 1.2 * SECURITY_SHARE


def test_each_client_has_the_rights_of_its_work_and_no_more() -> None:
    options = next(options for seed in range(99) if len((options := draw_options(seed)).topics) > 1)
    wanted = grants(options)
    for number, plan in enumerate(options.producers, 1):
        assert [(rule.operation, rule.resource_name) for rule in wanted[f"p{number}"]] == [("WRITE", plan.topic)]
    assert user_of("p1''") == "p1"
    assert user_of("upgrader") == ADMIN


def test_secrets_are_in_no_line_of_a_run() -> None:
    """Passwords of users and nodes are not logged, whatever fails."""
    report = run_seed(3, options=secured(3, *CHANGES, attacks=60, max_reauth_ms=1500))
    fields = str([event.fields for event in report.trace.events()])  # type: ignore[union-attr]
    assert "log.authorizer.denied" in {event.kind for event in report.trace.events(kinds="log.")}  # type: ignore[union-attr]
    assert "password of" not in fields


def test_a_node_has_its_files_without_its_disk() -> None:
    identities = Identities([1, 101])
    settings = identities.settings(1)
    assert set(identities.files(1)) == {settings["sasl.scram.users.file"], settings["sasl.node.password.file"]}


# -- the oracle -------------------------------------------------------------------------------------------------------


def rule(operation: int, name: str = "orders", **changes: Any) -> Acl:
    fields = {"pattern_type": LITERAL_PATTERN, "principal": "User:alice", "host": "*", "permission_type": ALLOW, **changes}
    return Acl(TOPIC_RESOURCE, name, operation=operation, **fields)


@pytest.mark.parametrize(
    ("rules", "operation", "expected"),
    [
        ([], READ, False),
        ([rule(READ)], READ, True),
        ([rule(READ)], DESCRIBE, True),
        ([rule(READ)], WRITE, False),
        ([rule(ALL)], WRITE, True),
        ([rule(READ), rule(READ, permission_type=DENY)], READ, False),
        ([rule(READ), rule(ALL, "*", permission_type=DENY)], READ, False),
        ([rule(READ), rule(READ, permission_type=DENY)], DESCRIBE, True),
        ([rule(READ, "ord", pattern_type=PREFIXED_PATTERN)], READ, True),
        ([rule(READ, "ord")], READ, False),
        ([rule(READ, principal="User:*")], READ, True),
        ([rule(READ, principal="User:bob")], READ, False),
        ([rule(READ, host="10.0.0.0/24")], READ, True),
        ([rule(READ, host="10.0.0.8")], READ, False),
    ],
)
def test_the_oracle_decides_as_kafka(rules: list[Acl], operation: int, expected: bool) -> None:
    assert is_allowed(rules, ALICE, "10.0.0.7", (operation, TOPIC_RESOURCE, "orders")) is expected
