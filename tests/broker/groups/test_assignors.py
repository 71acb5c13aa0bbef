"""The server-side assignors, as tables (from Kafka's tests of its assignors) and as properties of random groups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.groups.consumer.assignors import ASSIGNORS
from strandline.broker.groups.consumer.assignors.spec import GroupSpec, MemberSpec
from strandline.broker.groups.records.types import Partitions

PART = re.compile(r"(\w)(\d+)(?:-(\d+))?")


def partitions(text: str) -> dict[bytes, frozenset[int]]:
    """`t0-2 u1` -> topic -> partitions."""
    found: dict[bytes, set[int]] = {}
    for topic, first, last in PART.findall(text):
        found.setdefault(topic.encode(), set()).update(range(int(first), int(last or first) + 1))
    return {topic: frozenset(numbers) for topic, numbers in found.items()}


def text_of(owned: Partitions) -> str:
    """Single partitions, in order."""
    return " ".join(f"{topic.decode()}{number}" for topic in sorted(owned) for number in sorted(owned[topic]))


def spec(topics: str, present: Mapping[str, str] | None = None, **members: str) -> GroupSpec:
    """`topics`: `t3 u2` for 3 partitions of t. `members`: name -> `tu`, or `tu/i` with the instance id."""
    specs = {}
    for name, text in members.items():
        subscribed, _, instance = text.partition("/")
        specs[name] = MemberSpec(instance or None, dict.fromkeys(topic.encode() for topic in sorted(subscribed)))
    counts = {topic.encode(): int(count) for topic, count, _ in PART.findall(topics)}
    return GroupSpec(specs, counts, {name: partitions(text) for name, text in (present or {}).items()})


def assign(assignor: str, group: GroupSpec) -> dict[str, str]:
    return {name: text_of(owned) for name, owned in ASSIGNORS[assignor](group).items()}


# -- range ------------------------------------------------------------------------------------------------------------

RANGES = {
    "no subscription": (spec("", A="", B=""), {"A": "", "B": ""}),
    "one member": (spec("t3", A="t"), {"A": "t0 t1 t2"}),
    "first members have one more": (spec("t5", A="t", B="t", C="t"), {"A": "t0 t1", "B": "t2 t3", "C": "t4"}),
    "too few partitions": (spec("t2", A="t", B="t", C="t"), {"A": "t0", "B": "t1", "C": ""}),
    "co-partitioned": (spec("t3 u3", A="tu", B="tu"), {"A": "t0 t1 u0 u1", "B": "t2 u2"}),
    "topics of different sizes": (spec("t3 u2", A="tu", B="tu"), {"A": "t0 t1 u0", "B": "t2 u1"}),
    "different subscriptions": (
        spec("t3 u3 v2", A="tu", B="v", C="uv"),
        {"A": "t0 t1 t2 u0 u1", "B": "v0", "C": "u2 v1"},
    ),
    "static members come first, by instance": (
        spec("t4", A="t", B="t/z", C="t/a", D="t"),
        {"C": "t0", "B": "t1", "A": "t2", "D": "t3"},
    ),
    "a member that joins moves ranges": (
        spec("t4", {"A": "t0-1", "C": "t2-3"}, A="t", B="t", C="t"),
        {"A": "t0 t1", "B": "t2", "C": "t3"},
    ),
    "gone members, topics and partitions do not count": (
        spec("t2", {"A": "t0-5 x0", "Z": "t1"}, A="t", B="t"),
        {"A": "t0", "B": "t1"},
    ),
}


@pytest.mark.parametrize("name", RANGES)
def test_range(name: str) -> None:
    group, expected = RANGES[name]
    assert assign("range", group) == expected


def test_static_members_keep_their_ranges_over_a_restart() -> None:
    """Their member ids are new, and sort the other way round."""
    before = assign("range", spec("t3 u3", M0="tu/a", M1="tu/b"))
    after = assign("range", spec("t3 u3", M3="tu/a", M2="tu/b"))
    assert (after["M3"], after["M2"]) == (before["M0"], before["M1"])


# -- uniform ----------------------------------------------------------------------------------------------------------

UNIFORM = {
    "no members": (spec("t3"), {}),
    "no subscription": (spec("", A="", B=""), {"A": "", "B": ""}),
    "first assignment": (spec("t3 u2", A="tu", B="tu"), {"A": "t0 t1 t2", "B": "u0 u1"}),
    "too few partitions": (spec("t1", A="t", B="t"), {"A": "t0", "B": ""}),
    "nothing moves if nothing must": (
        spec("t4", {"A": "t1 t3", "B": "t0 t2"}, A="t", B="t"),
        {"A": "t1 t3", "B": "t0 t2"},
    ),
    "the larger share stays where it is": (
        spec("t5", {"A": "t0 t1", "B": "t2 t3 t4"}, A="t", B="t"),
        {"A": "t0 t1", "B": "t2 t3 t4"},
    ),
    "a member joins": (
        spec("t6", {"A": "t0-2", "B": "t3-5"}, A="t", B="t", C="t"),
        {"A": "t0 t1", "B": "t3 t4", "C": "t2 t5"},
    ),
    "a member leaves": (
        spec("t6", {"A": "t0-1", "B": "t2-3", "C": "t4-5"}, A="t", C="t"),
        {"A": "t0 t1 t2", "C": "t3 t4 t5"},
    ),
    "a topic grows": (spec("t6", {"A": "t0 t2", "B": "t1 t3"}, A="t", B="t"), {"A": "t0 t2 t4", "B": "t1 t3 t5"}),
    "a topic goes": (spec("t4", {"A": "t0-1 u0-1", "B": "t2-3 u2"}, A="t", B="t"), {"A": "t0 t1", "B": "t2 t3"}),
    "a partition with two owners has one again": (
        spec("t4", {"A": "t0-1", "B": "t1-2"}, A="t", B="t"),
        {"A": "t0 t1", "B": "t2 t3"},
    ),
    "different subscriptions": (
        spec("t3 u3 v2", A="tu", B="v", C="uv"),
        {"A": "t0 t1 t2", "B": "v0 v1", "C": "u0 u1 u2"},
    ),
    "only one member may have a topic": (spec("t4 u2", A="tu", B="u"), {"A": "t0 t1 t2 t3", "B": "u0 u1"}),
    "a topic is given up after a changed subscription": (
        spec("t2 u2", {"A": "t0 u0", "B": "t1 u1"}, A="t", B="tu"),
        {"A": "t0 t1", "B": "u0 u1"},
    ),
    "a member with another subscription joins": (
        spec("t6 u2", {"A": "t0-2 u0", "B": "t3-5 u1"}, A="tu", B="tu", C="u"),
        {"A": "t0 t1 t2", "B": "t3 t4 t5", "C": "u0 u1"},
    ),
    "no single move helps": (
        spec("t18 u12", {"A": "t0-8", "B": "t9-17 u0", "C": "u1-11"}, A="t", B="tu", C="u"),
        {
            "A": text_of(partitions("t0-8")),
            "B": text_of(partitions("t9-17 u0")),
            "C": text_of(partitions("u1-11")),
        },
    ),
}


@pytest.mark.parametrize("name", UNIFORM)
def test_uniform(name: str) -> None:
    group, expected = UNIFORM[name]
    assert assign("uniform", group) == expected


# -- random groups ----------------------------------------------------------------------------------------------------

TOPICS = [b"t", b"u", b"v", b"w"]


@st.composite
def groups(draw: st.DrawFn, homogeneous: bool = False) -> GroupSpec:
    counts = {topic: draw(st.integers(1, 9)) for topic in TOPICS}
    members = draw(st.lists(st.sampled_from("ABCDEFGH"), min_size=1, unique=True))
    some = st.frozensets(st.sampled_from(TOPICS)).map(lambda topics: dict.fromkeys(sorted(topics)))
    same = draw(some)
    specs = {name: MemberSpec(draw(st.sampled_from([None, f"i{name}"])), same if homogeneous else draw(some)) for name in members}
    present: dict[str, dict[bytes, set[int]]] = {}
    for topic in [*TOPICS, b"gone"]:
        for number in range(counts.get(topic, 2) + 1):
            owner = draw(st.sampled_from([None, *members, "Z"]))
            if owner is not None:
                present.setdefault(owner, {}).setdefault(topic, set()).add(number)
    subscribed = sorted({topic for member in specs.values() for topic in member.subscribed})
    return GroupSpec(
        specs,
        {topic: counts[topic] for topic in subscribed},
        {name: {topic: frozenset(numbers) for topic, numbers in owned.items()} for name, owned in present.items()},
    )


def owned_count(owned: Partitions) -> int:
    return sum(map(len, owned.values()))


@pytest.mark.parametrize("assignor", ASSIGNORS)
@settings(max_examples=examples(400), deadline=None)
@given(group=groups())
def test_every_partition_has_one_owner_that_subscribes_to_it(assignor: str, group: GroupSpec) -> None:
    shares = ASSIGNORS[assignor](group)
    assert shares.keys() == group.members.keys()
    given = [(topic, number) for owned in shares.values() for topic, numbers in owned.items() for number in numbers]
    assert sorted(given) == sorted((topic, number) for topic, count in group.partition_counts.items() for number in range(count))
    for name, owned in shares.items():
        assert owned.keys() <= group.members[name].subscribed.keys()
        assert all(owned.values()), "no topic has an empty set"


@pytest.mark.parametrize("assignor", ASSIGNORS)
@settings(max_examples=examples(200), deadline=None)
@given(group=groups(), seed=st.integers(0, 1000))
def test_order_of_dicts_does_not_matter(assignor: str, group: GroupSpec, seed: int) -> None:
    """A coordinator that loads a compacted log has the members in another order."""
    random = Random(seed)

    def shuffled(mapping: Mapping[str, object]) -> dict[str, object]:
        items = list(mapping.items())
        random.shuffle(items)
        return dict(items)

    other = GroupSpec(shuffled(group.members), group.partition_counts, shuffled(group.present))  # type: ignore[arg-type]
    assert assign(assignor, other) == assign(assignor, group)


@pytest.mark.parametrize("assignor", ASSIGNORS)
@settings(max_examples=examples(200), deadline=None)
@given(group=groups())
def test_result_is_kept_as_it_is(assignor: str, group: GroupSpec) -> None:
    """A second computation moves nothing, and returns the same objects, so that no record is written."""
    first = ASSIGNORS[assignor](group)
    second = ASSIGNORS[assignor](GroupSpec(group.members, group.partition_counts, first))
    assert all(second[name] is first[name] for name in first)


@settings(max_examples=examples(400), deadline=None)
@given(group=groups(homogeneous=True))
def test_equal_shares_differ_by_one_and_move_as_little_as_they_can(group: GroupSpec) -> None:
    shares = ASSIGNORS["uniform"](group)
    sizes = [owned_count(owned) for owned in shares.values()]
    assert max(sizes) - min(sizes) <= 1

    share, larger = divmod(sum(sizes), len(sizes))
    valid = [
        sum(len([n for n in numbers if n < group.partition_counts.get(t, 0)]) for t, numbers in group.present.get(m, {}).items())
        for m in group.members
    ]
    best = sum(min(has, share) for has in valid) + min(larger, sum(has > share for has in valid))
    kept = sum(
        len(numbers & shares[m].get(t, frozenset())) for m in group.members for t, numbers in group.present.get(m, {}).items()
    )
    assert kept == best


@settings(max_examples=examples(400), deadline=None)
@given(group=groups())
def test_no_single_move_makes_a_uniform_assignment_more_equal(group: GroupSpec) -> None:
    shares = ASSIGNORS["uniform"](group)
    sizes = {name: owned_count(owned) for name, owned in shares.items()}
    for topic in group.partition_counts:
        owners = [sizes[name] for name, owned in shares.items() if topic in owned]
        subscribers = [sizes[name] for name, member in group.members.items() if topic in member.subscribed]
        assert max(owners) - min(subscribers) <= 1


@settings(max_examples=examples(200), deadline=None)
@given(group=groups())
def test_ranges_are_contiguous(group: GroupSpec) -> None:
    for owned in ASSIGNORS["range"](group).values():
        assert all(max(numbers) - min(numbers) == len(numbers) - 1 for numbers in owned.values())


@pytest.mark.parametrize("assignor", ASSIGNORS)
@pytest.mark.parametrize("topics_of", [lambda index: range(100), lambda index: range(index % 7, 100)])
def test_large_group_gets_an_assignment(assignor: str, topics_of: object) -> None:
    """1,000 members and 1,000 partitions: no method may need members x partitions steps. How long they take is a benchmark."""
    topics = [index.to_bytes(2, "big") for index in range(100)]
    members = {
        f"m{index}": MemberSpec(None, dict.fromkeys(topics[i] for i in topics_of(index)))  # type: ignore[operator]
        for index in range(1000)
    }
    shares = ASSIGNORS[assignor](GroupSpec(members, dict.fromkeys(topics, 10), {}))
    assert sum(map(owned_count, shares.values())) == 1000
    if assignor == "uniform":
        assert {owned_count(owned) for owned in shares.values()} == {1}
