"""Plans of moves: every plan is valid, even and small."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strandline.client import TopicPartition, UsageError
from strandline.client.admin.placement import Replicas, plan_drain, plan_even, plan_factor

Current = dict[TopicPartition, Replicas]


def topic(*replicas: Replicas, name: str = "t") -> Current:
    return {TopicPartition(name, index): each for index, each in enumerate(replicas)}


def on(*broker_ids: int) -> dict[int, str | None]:
    return dict.fromkeys(broker_ids)


def counts(current: Current, brokers: dict[int, str | None]) -> list[int]:
    counted = Counter(b for replicas in current.values() for b in replicas)
    return [counted[b] for b in brokers]


def copies(before: Current, after: Current) -> int:
    return sum(len(set(after[tp]) - set(before[tp])) for tp in before)


@st.composite
def clusters(draw: st.DrawFn, racks: int = 1) -> tuple[Current, dict[int, str | None]]:
    """Partitions on some of at most six brokers, and the brokers that are allowed."""
    brokers = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6, unique=True))
    names = st.sampled_from("abc"[:racks])
    allowed: dict[int, str | None] = {b: draw(names) if racks > 1 else None for b in sorted(brokers)}
    factor = draw(st.integers(1, min(3, len(brokers))))
    one = st.permutations(range(1, 7)).map(lambda order: tuple(order[:factor]))
    return topic(*draw(st.lists(one, min_size=1, max_size=12))), allowed


@given(clusters())
def test_a_plan_without_racks_is_even_and_makes_the_fewest_copies(cluster: tuple[Current, dict[int, str | None]]) -> None:
    current, brokers = cluster
    after = {**current, **plan_even(current, brokers)}
    assert all(len(set(after[tp])) == len(current[tp]) for tp in current)
    assert all(set(replicas) <= set(brokers) for replicas in after.values())
    found = counts(after, brokers)
    assert max(found) - min(found) <= 1
    # No plan can copy less than this: each broker keeps at most its share, and the brokers that have most get the larger shares.
    if not all(set(replicas) <= set(brokers) for replicas in current.values()):
        return
    share, larger = divmod(sum(found), len(brokers))
    had = sorted(counts(current, brokers), reverse=True)
    most_kept = sum(min(count, share + (place < larger)) for place, count in enumerate(had))
    assert copies(current, after) == sum(found) - most_kept
    assert plan_even(after, brokers) == {}


@given(clusters())
def test_preferred_leaders_are_spread(cluster: tuple[Current, dict[int, str | None]]) -> None:
    current, brokers = cluster
    after = {**current, **plan_even(current, brokers)}
    led = Counter(replicas[0] for replicas in after.values())
    for tp, replicas in after.items():
        assert all(led[replicas[0]] - led[other] < 2 for other in replicas[1:]), tp


@settings(max_examples=150)
@given(clusters(racks=3))
def test_a_plan_with_racks_uses_as_many_racks_as_there_can_be(cluster: tuple[Current, dict[int, str | None]]) -> None:
    current, brokers = cluster
    after = {**current, **plan_even(current, brokers)}
    racks = len(set(brokers.values()))
    for replicas in after.values():
        assert len({brokers[b] for b in replicas}) == min(racks, len(replicas))
    assert plan_even(after, brokers) == {}, "a second plan has nothing left to do"


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    current = topic((1, 2), (2, 3), (3, 1), (1, 2), (2, 3), (3, 1))
    after = {**current, **plan_even(current, on(1, 2, 3, 4))}
    assert counts(after, on(1, 2, 3, 4)) == [3, 3, 3, 3]
    assert copies(current, after) == 3


def test_a_new_rack_is_used_by_every_partition() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    assert plan_even(topic((1, 2)), racks) in ({TopicPartition("t", 0): (1, 3)}, {TopicPartition("t", 0): (3, 2)})


def test_topics_move_where_they_crowd() -> None:
    current = {**topic((1,), (1,), name="a"), **topic((1,), (2,), name="b")}
    moved = plan_even(current, on(1, 2))
    assert len(moved) == 1
    assert next(iter(moved)).topic == "a"


@pytest.mark.parametrize(("factor", "copied"), [(1, 0), (2, 0), (3, 4)])
def test_the_replication_factor_changes(factor: int, copied: int) -> None:
    current = topic((1, 2), (2, 3), (3, 4), (4, 1))
    after = {**current, **plan_factor(current, on(1, 2, 3, 4), list(current), factor)}
    assert {len(replicas) for replicas in after.values()} == {factor}
    assert counts(after, on(1, 2, 3, 4)) == [factor] * 4
    assert copies(current, after) == copied


def test_another_replication_factor_moves_no_replica_that_stays() -> None:
    """Broker 9 is fenced: it gets no replica and keeps the one that it has. Broker 3 stays empty rather than get an old one."""
    current = topic((1, 9), (1, 2), (1, 2), (1, 2))
    moved = plan_factor(current, on(1, 2, 3), [TopicPartition("t", 0)], 3)
    assert moved == {TopicPartition("t", 0): (1, 9, 3)}
    with pytest.raises(UsageError, match="t-0 needs 5 brokers for 5 replicas, and there are 4 brokers"):
        plan_factor(current, on(1, 2, 3), [TopicPartition("t", 0)], 5)


def test_fewer_replicas_keep_those_that_are_alive() -> None:
    """Broker 9 is fenced or drained. Its replica goes first, although the other brokers have more: otherwise the plan would
    delete the replica that serves clients, and keep one that no client can read."""
    current = topic((9, 1), (1, 2), (1, 2), (1, 2))
    assert plan_factor(current, on(1, 2, 3), [TopicPartition("t", 0)], 1) == {TopicPartition("t", 0): (1,)}


def test_only_chosen_partitions_move_and_the_others_count() -> None:
    current = {**topic((1,), (1,), name="a"), **topic((1,), (1,), name="b")}
    moved = plan_even(current, on(1, 2), chosen=[tp for tp in current if tp.topic == "b"])
    assert moved == {TopicPartition("b", 0): (2,), TopicPartition("b", 1): (2,)}


@given(clusters(racks=2), st.sets(st.integers(1, 6)))
def test_a_plan_adds_nothing_to_brokers_that_are_no_targets(
    cluster: tuple[Current, dict[int, str | None]], cordoned: set[int]
) -> None:
    """Their log directories are cordoned: replicas may stay there, and may leave."""
    current, brokers = cluster
    targets = set(brokers) - cordoned
    try:
        plan = plan_even(current, brokers, targets=targets)
    except UsageError:
        assert any(len((set(replicas) & set(brokers)) | targets) < len(replicas) for replicas in current.values())
        return
    for tp, replicas in plan.items():
        assert len(set(replicas)) == len(current[tp])
        assert set(replicas) <= set(brokers)
        assert set(replicas) - set(current[tp]) <= targets


def test_a_broker_that_is_no_target_keeps_its_replicas() -> None:
    current = topic((1, 2), (2, 3), (3, 1), (1, 2))
    assert plan_even(current, on(1, 2, 3), targets={1, 2}) == {}
    with pytest.raises(UsageError, match="t-0 needs 3 brokers for 3 replicas, and there are 2 brokers"):
        plan_even(current, on(1, 2, 3), replication_factor=3, targets={1, 2})


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(UsageError, match="t-0 needs 2 brokers for 2 replicas, and there is 1 broker"):
        plan_even(topic((1, 2)), on(1))


@given(clusters(racks=3), st.integers(1, 6))
def test_a_drain_moves_the_replicas_of_one_broker_and_nothing_else(
    cluster: tuple[Current, dict[int, str | None]], leaving: int
) -> None:
    current, brokers = cluster
    others = {b: rack for b, rack in brokers.items() if b != leaving}
    hosted = [tp for tp, replicas in current.items() if leaving in replicas]
    if any(not set(others) - set(current[tp]) for tp in hosted):
        with pytest.raises(UsageError, match=f"cannot leave broker {leaving}: every other broker that may get replicas has one"):
            plan_drain(current, others, leaving)
        return
    moved = plan_drain(current, others, leaving)
    assert list(moved) == sorted(hosted)
    for tp, replicas in moved.items():
        staying = [b for b in current[tp] if b != leaving]
        assert list(replicas[:-1]) == staying, "a replica that is there already leads"
        assert replicas[-1] in others
        assert replicas[-1] not in current[tp]
    assert plan_drain({**current, **moved}, others, leaving) == {}


def test_a_drain_spreads_its_replicas_over_the_emptiest_brokers_of_other_racks() -> None:
    current = topic((1, 2), (1, 2), (1, 3))
    racks: dict[int, str | None] = {2: "a", 3: "b", 4: "b", 5: "a"}
    moved = plan_drain(current, racks, 1)
    assert moved[TopicPartition("t", 0)] == (2, 4)
    assert moved[TopicPartition("t", 1)] in ((2, 3), (2, 4))
    assert moved[TopicPartition("t", 2)] == (3, 5)
