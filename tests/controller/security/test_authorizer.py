"""Decisions of the authorizer: against a brute-force oracle, and Kafka's traps one by one."""

from __future__ import annotations

import ipaddress
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import security as s
from strandline.protocol.messages.security import AclBinding
from strandline.protocol.security.principal import Principal

ALICE, BOB, MALLORY = (Principal("User", name) for name in ("alice", "bob", "mallory"))
ADMIN = Principal("User", "admin")


def acl(
    name: str = "orders",
    principal: str = "User:alice",
    operation: int = s.READ,
    *,
    pattern: int = s.LITERAL_PATTERN,
    host: str = "*",
    deny: bool = False,
    kind: int = s.TOPIC_RESOURCE,
) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, host, operation, s.DENY if deny else s.ALLOW)


def image(*acls: AclBinding) -> Any:
    return SimpleNamespace(acls={bytes([index]) * 16: each for index, each in enumerate(acls)})


def authorizer(*acls: AclBinding, allow_everyone: bool = False) -> Authorizer:
    made = Authorizer([ADMIN], allow_everyone)
    made.use(image(*acls))
    return made


def may(
    made: Authorizer, principal: Principal = ALICE, operation: int = s.READ, name: str = "orders", host: str = "10.0.0.1"
) -> bool:
    return made.authorize(principal, host, operation, s.TOPIC_RESOURCE, name)


# -- the oracle -------------------------------------------------------------------------------------------------------


def host_matches(pattern: str, host: str) -> bool:
    if "/" in pattern:
        return ipaddress.ip_address(host) in ipaddress.ip_network(pattern)
    return pattern in ("*", host)


def name_matches(rule: AclBinding, name: str) -> bool:
    if rule.pattern_type == s.PREFIXED_PATTERN:
        return name.startswith(rule.resource_name)
    return rule.resource_name in ("*", name)


def operation_matches(rule: AclBinding, operation: int) -> bool:
    if rule.operation in (operation, s.ALL):
        return True
    if rule.permission_type == s.DENY:
        return False
    if operation == s.DESCRIBE:
        return rule.operation in (s.READ, s.WRITE, s.DELETE, s.ALTER)
    return operation == s.DESCRIBE_CONFIGS and rule.operation == s.ALTER_CONFIGS


def oracle(acls: list[AclBinding], allow_everyone: bool, who: Principal, host: str, operation: int, kind: int, name: str) -> bool:
    if who == ADMIN:
        return True
    of_resource = [rule for rule in acls if rule.resource_type == kind and name_matches(rule, name)]
    applying = [
        rule
        for rule in of_resource
        if rule.principal in (str(who), "User:*") and host_matches(rule.host, host) and operation_matches(rule, operation)
    ]
    if any(rule.permission_type == s.DENY for rule in applying):
        return False
    return bool(applying) or (allow_everyone and not of_resource)


NAMES = ["a", "ab", "abc", "abd", "b", "ba", "*"]
HOSTS = ["10.0.0.1", "10.0.0.2", "::1"]
OPERATIONS = [s.READ, s.WRITE, s.DELETE, s.DESCRIBE, s.ALTER_CONFIGS, s.DESCRIBE_CONFIGS]
rules = st.lists(
    st.builds(
        AclBinding,
        st.sampled_from([s.TOPIC_RESOURCE, s.GROUP_RESOURCE]),
        st.sampled_from(NAMES),
        st.sampled_from([s.LITERAL_PATTERN, s.PREFIXED_PATTERN]),
        st.sampled_from(["User:alice", "User:bob", "User:*", "Role:alice"]),
        st.sampled_from(["*", "10.0.0.1", "10.0.0.0/30", "::/0"]),
        st.sampled_from([*OPERATIONS, s.ALL]),
        st.sampled_from([s.DENY, s.ALLOW, s.ALLOW]),
    ),
    max_size=6,
)
QUESTIONS = list(
    product([ALICE, MALLORY, ADMIN, Principal("Role", "alice")], HOSTS, OPERATIONS, [s.TOPIC_RESOURCE], [*NAMES, "abcd", "c"])
)


@settings(max_examples=200, deadline=None)
@given(acls=rules, more=rules, allow_everyone=st.booleans(), data=st.data())
def test_every_decision_is_the_oracles(acls: list[AclBinding], more: list[AclBinding], allow_everyone: bool, data: Any) -> None:
    """The oracle is asked with the rules of an image, and again after a delta: earlier decisions must not be remembered."""
    made = authorizer(*acls, allow_everyone=allow_everyone)
    asked = data.draw(st.lists(st.sampled_from(QUESTIONS), min_size=40, max_size=40))
    for question in asked:
        assert made.authorize(*question) == oracle(acls, allow_everyone, *question), (acls, question)
        assert made.decide(*question).allowed == oracle(acls, allow_everyone, *question)
    before, after = SimpleNamespace(acls=made._acls), image(*more)
    changed = [key for key in {**before.acls, **after.acls} if before.acls.get(key) != after.acls.get(key)]
    made.apply(SimpleNamespace(before=before, image=after, changed_acls=changed))
    for question in asked:
        assert made.authorize(*question) == oracle(more, allow_everyone, *question), (more, question)
    assert len(made) == len(more)


@settings(max_examples=200, deadline=None)
@given(acls=rules, allow_everyone=st.booleans())
def test_a_right_on_any_resource_is_found(acls: list[AclBinding], allow_everyone: bool) -> None:
    """Compares `authorize_by_resource_type` with a search through all short names, and some that are longer than any pattern."""
    made = authorizer(*acls, allow_everyone=allow_everyone)
    names = ["".join(letters) for length in range(1, 4) for letters in product("abdz*", repeat=length)]
    names += ["abc", "abcz", "abdz"]
    for operation in (s.WRITE, s.DESCRIBE):
        found = any(oracle(acls, allow_everyone, ALICE, "10.0.0.1", operation, s.TOPIC_RESOURCE, name) for name in names)
        assert made.authorize_by_resource_type(ALICE, "10.0.0.1", operation, s.TOPIC_RESOURCE) == found, acls


# -- one by one -------------------------------------------------------------------------------------------------------


def test_deny_on_a_short_prefix_beats_allow_on_a_longer_pattern() -> None:
    """The trap of Kafka's sorted patterns: `f` is behind `fa` and `fb`, which match nothing."""
    made = authorizer(
        acl("f", deny=True, pattern=s.PREFIXED_PATTERN),
        acl("fa", pattern=s.PREFIXED_PATTERN),
        acl("fb", pattern=s.PREFIXED_PATTERN),
        acl("foobar"),
    )
    assert not may(made, name="foobar")


def test_deny_implies_nothing() -> None:
    made = authorizer(acl(operation=s.READ, deny=True), acl(operation=s.DESCRIBE))
    assert may(made, operation=s.DESCRIBE)
    assert not may(made)


def test_rules_of_others_close_a_resource() -> None:
    """`allow.everyone.if.no.acl.found` is about resources without any rule, not about principals without one."""
    made = authorizer(acl("orders", "User:bob"), allow_everyone=True)
    assert may(made, name="other")
    assert not may(made, name="orders")


def test_super_user_is_allowed_in_spite_of_a_deny() -> None:
    made = authorizer(acl("*", "User:*", s.ALL, deny=True))
    assert may(made, ADMIN)
    assert not may(made)


def test_only_super_users_before_the_rules_are_loaded() -> None:
    made = Authorizer([ADMIN], allow_everyone_if_no_acl_found=True)
    assert may(made, ADMIN)
    with pytest.raises(BrokerError) as e:
        may(made)
    assert e.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    assert e.value.retriable
    made.use(image())
    assert may(made)


def test_host_of_a_dual_stack_socket_is_the_ipv4_address() -> None:
    made = authorizer(acl(host="10.0.0.0/24"), acl("one", host="10.0.0.9"))
    assert may(made, host="::ffff:10.0.0.7")
    assert not may(made, host="10.0.1.7")
    assert not may(made, host="?")
    assert may(made, name="one", host="::ffff:10.0.0.9")


@pytest.mark.parametrize(
    ("rule", "host"),
    [
        ("::ffff:10.0.0.0/104", "10.1.2.3"),
        ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3"),
        ("fe80::1", "fe80::1%eth0"),
        ("fe80::/10", "fe80::1%eth0"),
    ],
)
def test_denial_holds_for_each_spelling_of_an_address(rule: str, host: str) -> None:
    """A DENY rule that never applies would let its client in."""
    made = authorizer(acl(), acl(host=rule, deny=True))
    assert not may(made, host=host)
    assert may(made, host="11.0.0.1")


def test_verdict_names_the_rule() -> None:
    """`strandline acl check` prints the rule that decided."""
    deny, allow = acl("ord", "User:*", s.ALL, deny=True, pattern=s.PREFIXED_PATTERN), acl("orders")
    verdict = authorizer(deny, allow).decide(ALICE, "10.0.0.1", s.READ, s.TOPIC_RESOURCE, "orders")
    assert not verdict.allowed
    assert verdict.acl == deny
    assert authorizer(allow).decide(ALICE, "10.0.0.1", s.DESCRIBE, s.TOPIC_RESOURCE, "orders").acl == allow
    assert "no ALLOW rule" in authorizer(allow).decide(BOB, "10.0.0.1", s.READ, s.TOPIC_RESOURCE, "orders").reason


def test_image_with_the_same_rules_changes_nothing() -> None:
    """Most metadata deltas have no rules: they must not cost the remembered decisions."""
    made, first = Authorizer([ADMIN]), image(acl())
    made.use(first)
    assert may(made)
    remembered = dict(made._remembered)
    made.apply(SimpleNamespace(before=first, image=first, changed_acls=[]))
    assert made._remembered == remembered


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strandline.controller.metadata.security.authorizer.REMEMBERED_MAX", 3)
    made = authorizer(acl())
    for number in range(10):
        assert not may(made, name=f"topic-{number}")
    assert len(made._remembered) <= 3


def test_decisions_about_long_names_are_not_remembered() -> None:
    """A client without any right could fill the memory of a node with invented transactional ids of 32,767 characters."""
    made = authorizer(acl())
    assert not may(made, name="x" * 10_000)
    assert not made._remembered


def test_decisions_are_counted() -> None:
    made = authorizer(acl())
    assert [may(made), may(made), may(made, BOB)] == [True, True, False]
    assert (made.allowed_total, made.denied_total) == (2, 1)
