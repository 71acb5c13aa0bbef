"""The steps of one member towards its target, as a table. The cases are those of Kafka's CurrentAssignmentBuilderTest and more.

A member is written `STABLE 10: t 1-3` (state, epoch, partitions), with `; up u 4` for what it has to give up; `t 1-3@9` was
assigned in epoch 9, others in the member's own epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from strandline.broker.groups.consumer.reconciliation import Target, reconcile
from strandline.broker.groups.records.types import CurrentAssignmentValue, MemberState
from strandline.protocol.messages.groups import GroupTopicPartitions

STATES = {
    "STABLE": MemberState.STABLE,
    "UNREVOKED": MemberState.UNREVOKED_PARTITIONS,
    "UNRELEASED": MemberState.UNRELEASED_PARTITIONS,
}
PART = re.compile(r"(\w) ([\d,-]+)(?:@(\d+))?")


def partitions(text: str, epoch: int = 0) -> dict[bytes, dict[int, int]]:
    """`t 1-3,5@9 u 2` -> topic -> partition -> epoch."""
    found: dict[bytes, dict[int, int]] = {}
    for topic, numbers, own in PART.findall(text):
        for part in numbers.split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                found.setdefault(topic.encode(), {})[number] = int(own or epoch)
    return found


def member(text: str, previous: int | None = None) -> CurrentAssignmentValue:
    state, epoch, rest = re.fullmatch(r"(\w+) (-?\d+):(.*)", text).groups()  # type: ignore[union-attr]
    owned, _, up = rest.partition("; up")
    own = int(epoch)
    before = own if previous is None else previous
    return CurrentAssignmentValue(own, before, STATES[state], partitions(owned, own), partitions(up, own))


def numbers(owned: Mapping[bytes, Mapping[int, int]]) -> dict[bytes, frozenset[int]]:
    return {topic: frozenset(found) for topic, found in owned.items()}


def step(
    before: CurrentAssignmentValue, target: str, owned: str | None, taken: str, topics: str, *, changed: bool = False
) -> CurrentAssignmentValue:
    """`target`: `11: t 1-3`. `taken`: what other members own. `topics`: to which the member subscribes."""
    epoch, _, wanted = target.partition(":")
    others = partitions(taken)
    said = None if owned is None else [GroupTopicPartitions(t, sorted(found)) for t, found in partitions(owned).items()]
    return reconcile(
        before,
        Target(
            int(epoch),
            numbers(partitions(wanted)),
            {topic.encode() for topic in topics},
            lambda topic_id, number: number not in others.get(topic_id, {}),
        ),
        said,
        subscription_changed=changed,
    )


STEPS = {
    "a member without a change comes to the new epoch": (
        "STABLE 10: t 1-3 u 2", "11: t 1-3 u 2", None, "", "STABLE 11: t 1-3@10 u 2@10",
    ),
    "free partitions are given at once, in the new epoch": (
        "STABLE 10: t 1", "11: t 1-2 u 4", None, "", "STABLE 11: t 1@10 t 2 u 4",
    ),
    "what it has to give up comes first, in the old epoch": (
        "STABLE 10: t 1-3", "11: t 2-4", None, "", "UNREVOKED 10: t 2-3; up t 1",
    ),
    "a whole topic is given up": (
        "STABLE 10: t 1 u 1", "11: u 1", "t 1 u 1", "", "UNREVOKED 10: u 1; up t 1",
    ),
    "what it does not own any more need not be given up": (
        "STABLE 10: t 1-3", "11: t 2-4", "t 2-3", "", "STABLE 11: t 2-3@10 t 4",
    ),
    "it waits for what others own, in the new epoch": (
        "STABLE 10: t 1", "11: t 1-3", None, "t 2-3", "UNRELEASED 11: t 1@10",
    ),
    "it gets what is free and waits for the rest": (
        "STABLE 10: t 1", "11: t 1-3", None, "t 3", "UNRELEASED 11: t 1@10 t 2",
    ),
    "it gives up and waits in one step if it owns nothing more": (
        "STABLE 10: t 1-2", "11: t 3", "", "t 3", "UNRELEASED 11:",
    ),
    "a member that joins has nothing to give up": (
        "STABLE 0:", "11: t 1", "", "", "STABLE 11: t 1",
    ),
    "a heartbeat that does not say what it owns confirms nothing": (
        "UNREVOKED 10: t 2; up t 1", "11: t 2", None, "", "UNREVOKED 10: t 2; up t 1",
    ),
    "it has not given up everything": (
        "UNREVOKED 10: t 3; up t 1-2", "11: t 3", "t 2-3", "", "UNREVOKED 10: t 3; up t 1-2",
    ),
    "it has given up everything": (
        "UNREVOKED 10: t 2; up t 1", "11: t 2", "t 2", "", "STABLE 11: t 2@10",
    ),
    "it has given up everything, and gets what is free": (
        "UNREVOKED 10: t 2; up t 1", "11: t 2,4", "t 2", "", "STABLE 11: t 2@10 t 4",
    ),
    "it has given up everything, and waits": (
        "UNREVOKED 10: t 2; up t 1", "11: t 2,4", "t 2", "t 4", "UNRELEASED 11: t 2@10",
    ),
    "a newer target takes more": (
        "UNREVOKED 10: t 2-3; up t 1", "12: t 3", "t 2-3", "", "UNREVOKED 10: t 3; up t 2",
    ),
    "a newer target that takes more is seen after the old one": (
        "UNREVOKED 10: t 2-3; up t 1", "12: t 3", "t 1-3", "", "UNREVOKED 10: t 2-3; up t 1",
    ),
    "what it had to give up comes back only after it has": (
        "UNREVOKED 10: t 2; up t 1", "12: t 1-2", "t 1-2", "", "UNREVOKED 10: t 2; up t 1",
    ),
    "what it has given up is given anew": (
        "UNREVOKED 10: t 2; up t 1", "12: t 1-2", "t 2", "", "STABLE 12: t 2@10 t 1",
    ),
    "others still own what it waits for": (
        "UNRELEASED 11: t 1", "11: t 1-2", None, "t 2", "UNRELEASED 11: t 1",
    ),
    "some of what it waits for is free": (
        "UNRELEASED 11: t 1", "11: t 1-3", None, "t 3", "UNRELEASED 11: t 1-2",
    ),
    "all that it waits for is free": (
        "UNRELEASED 11: t 1@9", "11: t 1-2", None, "", "STABLE 11: t 1@9 t 2",
    ),
    "a newer target does not have what it waits for": (
        "UNRELEASED 11: t 1", "12: t 1", None, "t 2", "STABLE 12: t 1@11",
    ),
    "a newer target takes what it owns while it waits": (
        "UNRELEASED 11: t 1-2", "12: t 1,3", None, "t 3", "UNREVOKED 11: t 1; up t 2",
    ),
    "topics without its subscription do not count in an older target": (
        "STABLE 10: t 1 x 1", "11: t 1 x 1-2", None, "", "UNREVOKED 10: t 1; up x 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_member_takes_one_step(name: str) -> None:
    """`x` is a topic to which the member does not subscribe."""
    before, target, owned, taken, after = STEPS[name]
    was = member(before)
    now = step(was, target, owned, taken, "tu")
    assert now == member(after, was.member_epoch), name
    if before == after:
        assert now is was


SUBSCRIPTIONS = {
    "nothing is lost": ("STABLE 10: t 1 u 1", None, "tu", "STABLE 10: t 1 u 1"),
    "it loses a topic at once, in its epoch": ("STABLE 10: t 1 u 1", None, "t", "UNREVOKED 10: t 1; up u 1"),
    "it loses all": ("STABLE 10: t 1 u 1", "t 1 u 1", "", "UNREVOKED 10:; up t 1 u 1"),
    "it has given up the topic before it says so": ("STABLE 10: t 1 u 1", "t 1", "t", "STABLE 10: t 1"),
    "it loses more": ("UNREVOKED 10: t 1 u 1; up u 2", None, "t", "UNREVOKED 10: t 1; up u 1-2"),
    "it loses more than it has still to give up": (
        "UNREVOKED 10: t 1 u 1; up u 2", "t 1 u 2", "t", "UNREVOKED 10: t 1; up u 1-2",
    ),
    "a member that owns nothing loses nothing": ("STABLE 10:", None, "", "STABLE 10:"),
}  # fmt: skip


@pytest.mark.parametrize("name", SUBSCRIPTIONS)
def test_changed_subscription_takes_effect_before_the_next_target(name: str) -> None:
    """The target of epoch 10 has all that the member owns; the next one may be computed a second later."""
    before, owned, topics, after = SUBSCRIPTIONS[name]
    was = member(before)
    now = step(was, "10: t 1 u 1-2", owned, "", topics, changed=True)
    assert now == member(after), name


def test_unchanged_subscription_does_not_look_at_topics() -> None:
    """The next target leaves a deleted topic out, in the next epoch of the group."""
    was = member("STABLE 10: t 1")
    assert step(was, "10: t 1", None, "", "") is was


def test_waiting_writes_nothing() -> None:
    """A member that waits sends a heartbeat every half second. Kafka appends one more record, with another previous epoch."""
    was = member("UNRELEASED 11: t 1", previous=10)
    assert step(was, "11: t 1-2", None, "t 2", "t") is was
