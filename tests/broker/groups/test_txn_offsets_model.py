"""Random commits, transactions and deletions, against a plain model: it keeps the log offset of each record and compares them
when a marker is replayed, as Kafka's coordinator does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from offset_world import BILLS, ORDERS, at
from thorough import examples
from txn_offset_world import Marker, Pending, TxnOffsetWorld

from strandline.broker.groups.records.types import OffsetCommitRecord

GROUPS = ("a", "b")
TOPICS = {"orders": ORDERS, "bills": BILLS}
ALL = {ORDERS: [0, 1], BILLS: [0]}
Key = tuple[str, str, int]

positions = st.lists(st.one_of(st.tuples(st.just(ORDERS), st.integers(0, 1)), st.just((BILLS, 0))), min_size=1, max_size=3)
producers = st.integers(1, 3)
steps = st.one_of(
    st.tuples(st.just("commit"), st.sampled_from(GROUPS), positions),
    st.tuples(st.just("in transaction"), st.sampled_from(GROUPS), positions, producers),
    st.tuples(st.just("in transaction"), st.sampled_from(GROUPS), positions, producers),
    st.tuples(st.just("end"), producers, st.booleans()),
    st.tuples(st.just("end"), producers, st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(GROUPS), positions),
    st.tuples(st.just("advance"), st.integers(0, 4)),
    st.tuples(st.just("restart")),
)


class Model:
    """The state after the first records of the log."""

    def __init__(self, world: TxnOffsetWorld, end: int | None) -> None:
        self.offsets: dict[Key, tuple[int, int]] = {}
        """Position -> log offset of the record, committed offset."""
        self.pending: dict[int, dict[Key, tuple[int, int]]] = {}
        for log_offset, entry in enumerate(world.log[:end]):
            match entry:
                case Pending(producer_id, record):
                    assert record.value is not None
                    found = (log_offset, record.value.offset)
                    self.pending.setdefault(producer_id, {})[record.group_id, record.topic, record.partition] = found
                case Marker(producer_id, is_commit):
                    self._end(producer_id, is_commit)
                case OffsetCommitRecord(group_id, topic, partition, None):
                    for of_producer in (self.offsets, *self.pending.values()):
                        of_producer.pop((group_id, topic, partition), None)
                case OffsetCommitRecord(group_id, topic, partition, value):
                    assert value is not None
                    self.offsets[group_id, topic, partition] = (log_offset, value.offset)

    def _end(self, producer_id: int, is_commit: bool) -> None:
        for key, found in self.pending.pop(producer_id, {}).items():
            if is_commit and found[0] > self.offsets.get(key, (-1, 0))[0]:
                self.offsets[key] = found

    def of(self, group_id: str) -> dict[tuple[bytes, int], int]:
        return {(TOPICS[topic], n): offset for (group, topic, n), (_, offset) in self.offsets.items() if group == group_id}

    def stable(self, group_id: str) -> dict[tuple[bytes, int], int | str]:
        found: dict[tuple[bytes, int], int | str] = {**self.of(group_id)}
        for offsets in self.pending.values():
            for key, (log_offset, _) in offsets.items():
                if key[0] == group_id and log_offset > self.offsets.get(key, (-1, 0))[0]:
                    found[TOPICS[key[1]], key[2]] = "UNSTABLE_OFFSET_COMMIT"
        return found


def run(world: TxnOffsetWorld, step: tuple[object, ...], number: int) -> None:
    world.store.on_high_watermark(world.high_watermark or 0)
    match step:
        case "commit", str(group_id), list(places):
            world.commit(*(at(number, partition, topic_id) for topic_id, partition in places), group_id=group_id)
        case "in transaction", str(group_id), list(places), int(producer_id):
            asked = [at(number, partition, topic_id) for topic_id, partition in places]
            world.txn_commit(producer_id, *asked, group_id=group_id)
        case "end", int(producer_id), bool(is_commit):
            world.end(producer_id, is_commit=is_commit)
        case "delete", str(group_id), list(places) if world.store.has_offsets(group_id):
            topics: dict[bytes, list[int]] = {}
            for topic_id, partition in dict.fromkeys(places):
                topics.setdefault(topic_id, []).append(partition)
            world.delete(topics, group_id)
        case "advance", int(records):
            world.high_watermark = min((world.high_watermark or 0) + records, len(world.log))
        case ("restart",):
            world.restart()


@settings(max_examples=examples(1000), deadline=None)
@given(st.lists(steps, max_size=40))
def test_answers_are_those_of_the_model(history: list[tuple[object, ...]]) -> None:
    world = TxnOffsetWorld()
    world.high_watermark = 0
    for number, step in enumerate(history):
        run(world, step, number)
        committed, newest = Model(world, world.high_watermark), Model(world, None)
        for group_id in GROUPS:
            assert world.fetched(group_id) == committed.of(group_id)
            assert world.stable(None, group_id) == newest.stable(group_id)
            no_offset = {(topic_id, n): -1 for topic_id, of in ALL.items() for n in of}
            assert world.stable(ALL, group_id) == {**no_offset, **newest.stable(group_id)}
            assert world.store.has_offsets(group_id) == bool(newest.stable(group_id))
        assert set(world.store.groups_with_offsets()) == {group_id for group_id in GROUPS if newest.stable(group_id)}
    world.high_watermark = len(world.log)
    assert {group_id: world.fetched(group_id) for group_id in GROUPS} == {g: Model(world, None).of(g) for g in GROUPS}
