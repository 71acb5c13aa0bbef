"""Conditions print as they are written, use three-valued logic, and report the values that were seen last."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest

from strandline.protocol.errors import UsageError
from strandline.testing import (
    Condition,
    NotInTime,
    PartitionView,
    caught_up,
    controller,
    epoch,
    fenced,
    hw,
    isr,
    leader,
    leaderless,
    log_end,
)
from strandline.testing.kit.waiting import until


@dataclass
class Seen:
    """A cluster as a test writes it down."""

    known: dict[tuple[str, int], PartitionView] = field(default_factory=dict)
    active: int | None = 101
    away: frozenset[int] | None = frozenset({3})

    def partition(self, topic: str, partition: int) -> PartitionView | None:
        return self.known.get((topic, partition))

    def partitions(self) -> Sequence[PartitionView]:
        return list(self.known.values())

    def controller(self) -> int | None:
        return self.active

    def fenced(self) -> frozenset[int] | None:
        return self.away


LED = PartitionView("t", 0, 2, 5, (1, 2, 3), frozenset({1, 2}), 10, False, {1: 10, 2: 12})
ALONE = PartitionView("t", 1, None, 6, (1, 2, 3), frozenset({3}), None, False)
VIEW = Seen({("t", 0): LED, ("t", 1): ALONE})


@pytest.mark.parametrize(
    ("condition", "text", "holds"),
    [
        (leader("t", 0) == 2, "leader('t', 0) == 2", True),
        (leader("t") != 2, "leader('t', 0) != 2", False),
        (leader("t").is_in({1, 2}), "leader('t', 0) in {1, 2}", True),
        (epoch("t") > 5, "epoch('t', 0) > 5", False),
        (epoch("t") <= 5, "epoch('t', 0) <= 5", True),
        (isr("t") == {1, 2}, "isr('t', 0) == {1, 2}", True),
        (isr("t") >= {1}, "isr('t', 0) >= {1}", True),
        (isr("t") < {1, 2}, "isr('t', 0) < {1, 2}", False),
        (isr("t").contains(3), "isr('t', 0) contains 3", False),
        (hw("t") >= 10, "hw('t', 0) >= 10", True),
        (log_end("t", 0, 2) == 12, "log_end('t', 0, 2) == 12", True),
        (caught_up("t"), "caught_up('t', 0)", False),
        (~caught_up("t"), "~caught_up('t', 0)", True),
        (leaderless("t", 0), "leaderless('t', 0)", False),
        (leaderless("t", 1), "leaderless('t', 1)", True),
        (controller() == 101, "controller() == 101", True),
        (fenced(3), "fenced(3)", True),
        (~fenced(1) & (epoch("t") == 5), "~fenced(1) & (epoch('t', 0) == 5)", True),
        ((hw("t") > 99) | fenced(3), "(hw('t', 0) > 99) | fenced(3)", True),
        (~(fenced(1) | fenced(3)), "~(fenced(1) | fenced(3))", False),
    ],
)
def test_condition_prints_as_written_and_evaluates(condition: Condition, text: str, holds: bool) -> None:
    assert repr(condition) == text
    assert condition.holds(VIEW) is holds


UNKNOWN = [
    leader("t", 1) != 2,
    leader("t", 1) == 2,
    leader("nowhere") != 2,
    hw("t", 1) >= 0,
    hw("t", 1) < 0,
    log_end("t", 0, 3) >= 0,
    caught_up("nowhere"),
    leaderless("nowhere"),
]


@pytest.mark.parametrize("condition", UNKNOWN, ids=repr)
def test_comparison_with_an_unknown_value_and_its_opposite_are_false(condition: Condition) -> None:
    """`leader != 1` waits until another broker leads; it does not hold while the partition has no leader."""
    assert condition.holds(VIEW) is None
    assert (~condition).holds(VIEW) is None


def test_known_side_decides_a_condition_with_an_unknown_side() -> None:
    unknown = UNKNOWN[0]
    assert (unknown & ~fenced(3)).holds(VIEW) is False
    assert (fenced(3) | unknown).holds(VIEW) is True
    assert (unknown & fenced(3)).holds(VIEW) is None
    assert (~fenced(3) | unknown).holds(VIEW) is None


def test_missing_controller_and_uncountable_brokers_are_unknown() -> None:
    view = Seen(active=None, away=None)
    assert (controller() != 101).holds(view) is None
    assert fenced(1).holds(view) is None


@pytest.mark.parametrize("expression", [leader("t"), leader("t") == 1, caught_up("t") & fenced(1)], ids=repr)
def test_condition_has_no_truth_value(expression: object) -> None:
    """`if leader("t") == 1`, `assert isr(...) == ...` and `a and b` would always be true."""
    with pytest.raises(TypeError, match=r"await cluster\.until"):
        bool(expression)


def test_values_are_compared_with_plain_values_alone() -> None:
    with pytest.raises(TypeError, match="with a plain value"):
        _ = leader("t", 0) == leader("t", 1)


# -- waiting ----------------------------------------------------------------------------------------------------------


async def test_until_looks_until_it_holds() -> None:
    looks = 0

    async def look(places: Collection[tuple[str, int]]) -> Seen:
        nonlocal looks
        looks += 1
        assert list(places) == [("t", 0)]
        return VIEW if looks == 3 else Seen()

    await until(leader("t") == 2, look, within_s=5, poll_s=0)
    assert looks == 3


async def test_failed_wait_names_its_condition_and_the_last_values() -> None:
    async def look(_: Collection[tuple[str, int]]) -> Seen:
        return VIEW

    with pytest.raises(NotInTime) as failed:
        await until((isr("t") == {1, 2, 3}) & (leader("t", 1) != 2) & (hw("none") > 0), look, within_s=0.01, poll_s=0)
    assert str(failed.value).splitlines() == [
        "condition not met within 0.01 s: ((isr('t', 0) == {1, 2, 3}) & (leader('t', 1) != 2)) & (hw('none', 0) > 0)",
        "  last seen: isr('t', 0) is {1, 2}",
        "  last seen: leader('t', 1) is unknown",
        "  last seen: hw('none', 0) is unknown",
        "  t-0: leader 2, epoch 5, ISR 1,2 of 1,2,3, HW 10, log ends {1: 10, 2: 12}",
        "  t-1: no leader, epoch 6, ISR 3 of 1,2,3, HW ?",
        "  none-0: the partition does not exist",
    ]


@pytest.mark.parametrize("wrong", [True, None, leader("t")], ids=repr)
async def test_until_takes_a_condition(wrong: object) -> None:
    async def look(_: Collection[tuple[str, int]]) -> Seen:
        return VIEW

    with pytest.raises(UsageError, match=r"until\(\) needs a condition"):
        await until(wrong, look, within_s=1, poll_s=0)
