"""Random commits and deletions: the answers depend only on the records below the high watermark."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from offset_world import BILLS, ORDERS, OffsetWorld, at
from thorough import examples

from strandline.broker.groups.records.types import OffsetCommitRecord

GROUPS = ("a", "b")
TOPICS = {"orders": ORDERS, "bills": BILLS}

positions = st.one_of(st.tuples(st.just(ORDERS), st.integers(0, 2)), st.just((BILLS, 0)))
steps = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(GROUPS), st.lists(positions, min_size=1, max_size=3)),
    st.tuples(st.just("delete"), st.sampled_from(GROUPS), st.lists(positions, min_size=1, max_size=3)),
    st.tuples(st.just("advance"), st.integers(0, 4)),
    st.tuples(st.just("restart")),
)


def expected(world: OffsetWorld, group_id: str) -> dict[tuple[bytes, int], int]:
    """The offsets of a group by the committed records, replayed from the start of the log."""
    found: dict[tuple[bytes, int], int] = {}
    for record in world.log[: world.high_watermark]:
        assert isinstance(record, OffsetCommitRecord)
        if record.group_id == group_id:
            found.pop((TOPICS[record.topic], record.partition), None)
            if record.value is not None:
                found[(TOPICS[record.topic], record.partition)] = record.value.offset
    return found


def run(world: OffsetWorld, step: tuple[object, ...], number: int) -> None:
    match step:
        case "commit", str(group_id), list(places):
            world.store.on_high_watermark(world.high_watermark or 0)
            world.commit(*(at(number, partition, topic_id) for topic_id, partition in places), group_id=group_id)
        case "delete", str(group_id), list(places) if world.store.has_offsets(group_id):
            topics: dict[bytes, list[int]] = {}
            for topic_id, partition in places:
                topics.setdefault(topic_id, []).append(partition)
            world.delete(topics, group_id)
        case "advance", int(records):
            world.high_watermark = min((world.high_watermark or 0) + records, len(world.log))
        case ("restart",):
            world.restart()


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(steps, max_size=40))
def test_answers_follow_from_the_committed_records(history: list[tuple[object, ...]]) -> None:
    world = OffsetWorld()
    world.high_watermark = 0
    for number, step in enumerate(history):
        run(world, step, number)
        for group_id in GROUPS:
            wanted = expected(world, group_id)
            assert world.fetched(group_id) == wanted
            asked = world.fetch({ORDERS: [0, 1, 2], BILLS: [0]}, group_id).partitions
            assert {(p.topic_id, p.partition): p.committed_offset for p in asked if p.committed_offset >= 0} == wanted
    world.high_watermark = len(world.log)
    for group_id in GROUPS:
        assert world.fetched(group_id) == expected(world, group_id)
        assert world.store.has_offsets(group_id) == bool(expected(world, group_id))
