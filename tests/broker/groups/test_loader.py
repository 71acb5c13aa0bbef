"""A load gives the same shard as a replay of each record in order. It runs in slices, and in turns with other loads."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from cleaner_kit import DAY_MS, clean
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import examples

from strandline.broker.coordination import loader as shared_module
from strandline.broker.coordination.loader import LoadTurns
from strandline.broker.groups import loader as loader_module
from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.loader import GroupLoader
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import (
    ClassicGroupValue,
    CommittedOffset,
    GroupMetadataRecord,
    GroupRecord,
    OffsetCommitRecord,
)
from strandline.broker.groups.shard import GroupShard
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import PartitionRecord, TopicRecord
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import OffsetFetchGroup
from strandline.protocol.records.batch import NO_PRODUCER_ID
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.storage.files import ColdRead, MemoryFiles
from strandline.storage.log.log import Log, LogConfig

NOW_MS = 1_700_000_000_000
ORDERS = bytes(range(16))
IMAGE = MetadataImage.EMPTY.apply(
    [TopicRecord("orders", ORDERS), *(PartitionRecord(ORDERS, n, (1,), (1,), 1) for n in range(2))], 0, 0
).image
Step = Callable[[], None]


def commit(group_id: str, partition: int, offset: int | None, metadata: str = "") -> OffsetCommitRecord:
    value = None if offset is None else CommittedOffset(offset, 3, metadata, NOW_MS, topic_id=ORDERS)
    return OffsetCommitRecord(group_id, "orders", partition, value)


def group(group_id: str, generation: int) -> GroupMetadataRecord:
    return GroupMetadataRecord(group_id, ClassicGroupValue("consumer", generation, None, None, NOW_MS, ()))


class Marker(NamedTuple):
    producer_id: int
    is_commit: bool


Row = tuple[bytes | None, bytes | None]


class World:
    """A log of batches, and loads of it. Steps wait until `run`."""

    def __init__(self) -> None:
        self.log = Log.open(
            MemoryFiles(),
            "/data/__consumer_offsets-0",
            topic="__consumer_offsets",
            partition=0,
            topic_id=bytes(16),
            config=LogConfig(),
            clean_shutdown=True,
            now_ms=NOW_MS,
        )
        self.records: list[GroupRecord | Marker] = []
        self.in_transactions: dict[int, int] = {}
        """Log offset of a record -> the producer in whose transaction it is."""
        self.steps: list[Step] = []
        self.ends: list[Exception | None] = []
        self.is_current = True

    def append(self, *records: GroupRecord) -> None:
        """Append a batch."""
        self.append_rows(*map(encode_record, records))
        self.records += records

    def append_in_transaction(self, producer_id: int, *records: GroupRecord) -> None:
        """Append a batch of a producer's transaction."""
        sequence = self.log.producers.next_sequence(producer_id, 0)
        rows = [(*encode_record(record), [], NOW_MS) for record in records]
        batch = encode_batch(rows, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        first = self.log.append_as_leader(bytearray(batch), 1, NOW_MS, is_transactional=True).first_offset
        self.in_transactions.update({first + n: producer_id for n in range(len(records))})
        self.records += records

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        """Append a marker."""
        self.log.append_marker(EndTransactionMarker(is_commit), producer_id, 0, 1, NOW_MS, transaction_version=1)
        self.records.append(Marker(producer_id, is_commit))

    def run_step(self, step: tuple[object, ...]) -> None:
        match step:
            case "append", list(batch):
                self.append(*batch)
            case "in transaction", int(producer_id), list(batch):
                self.append_in_transaction(producer_id, *batch)
            case "end", int(producer_id), bool(is_commit):
                self.end(producer_id, is_commit=is_commit)

    def append_rows(self, *rows: Row) -> None:
        batch = encode_batch([(key, value, [], NOW_MS) for key, value in rows])
        self.log.append_as_leader(bytearray(batch), 1, NOW_MS)

    def commit_all(self) -> None:
        self.log.update_high_watermark(self.log.log_end_offset)

    def loader(self, log: object = None, call_soon: Callable[[Step], object] | None = None) -> GroupLoader:
        """A load that has begun."""
        shard = GroupShard(GroupConfig(), Random(0), MetadataImage.empty())
        loader = GroupLoader(
            SimpleNamespace(log=log or self.log),  # type: ignore[arg-type]
            shard,
            is_current=lambda: self.is_current,
            call_soon=call_soon or self.steps.append,
            run_blocking=self._run_blocking,
            on_end=self.ends.append,
        )
        loader.start()
        return loader

    def _run_blocking(self, work: Step, then: Step) -> None:
        work()
        self.steps.append(then)

    def run(self) -> None:
        while self.steps:
            self.steps.pop(0)()

    def load(self) -> GroupLoader:
        loader = self.loader()
        self.run()
        return loader

    def replayed(self) -> GroupShard:
        """The shard after a replay of all records, one by one."""
        shard = GroupShard(GroupConfig(), Random(0), MetadataImage.empty())
        shard.offsets.on_high_watermark(self.log.high_watermark)
        for offset, record in enumerate(self.records):
            if isinstance(record, Marker):
                shard.replay_marker(record.producer_id, record.is_commit, offset)
            else:
                shard.replay(record, offset, self.in_transactions.get(offset, NO_PRODUCER_ID))
        return shard


def state_of(shard: GroupShard, high_watermark: int) -> dict[str, object]:
    """The state of a shard: the newest offsets, and those that are committed now and when the high watermark has moved on."""
    store, found = shard.offsets, {}
    for moment in (high_watermark, high_watermark + 1, high_watermark + 100):
        store.on_high_watermark(moment)
        found[f"committed at {moment}"] = {group_id: store.offsets_of(group_id) for group_id in ("a", "b")}
    asked = {group_id: OffsetFetchGroup(group_id) for group_id in ("a", "b")}
    found["stable"] = {group_id: store.fetch_stable(asked[group_id], IMAGE) for group_id in asked}
    found["newest"] = {group_id: store.offsets_of(group_id) for group_id in sorted(store.groups_with_offsets())}
    found["groups"] = {found.group_id: found.generation for found in shard.groups}  # type: ignore[attr-defined]
    return found


commits = st.builds(commit, st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 9))
tombstones = st.builds(commit, st.sampled_from("ab"), st.integers(0, 1), st.none())
records = st.one_of(
    st.builds(commit, st.sampled_from("ab"), st.integers(0, 1), st.one_of(st.none(), st.integers(0, 9))),
    st.builds(commit, st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 9), st.sampled_from(("note", "n" * 200))),
    st.builds(group, st.sampled_from("ab"), st.integers(1, 9)),
)


steps = st.one_of(
    st.tuples(st.just("append"), st.lists(records, min_size=1, max_size=10)),
    st.tuples(st.just("append"), st.lists(st.one_of(commits, commits, tombstones), min_size=1, max_size=3)),
    st.tuples(st.just("in transaction"), st.integers(1, 2), st.lists(commits, min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.integers(1, 2), st.booleans()),
)


@settings(max_examples=examples(600), deadline=None)
@given(st.lists(steps, max_size=12), st.integers(0, 80), st.sampled_from((1, 3, 20_000)))
def test_load_equals_the_replay_of_each_record(history: list[tuple[object, ...]], high_watermark: int, newest_max: int) -> None:
    """The high watermark, the slices and the transactions between the commits make no difference."""
    world = World()
    for step in history:
        world.run_step(step)
    world.log.update_high_watermark(min(high_watermark, world.log.log_end_offset))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_module, "NEWEST_MAX", newest_max)
        patch.setattr(loader_module, "SLICE_OFFSETS", 2)
        patch.setattr(shared_module, "SLICE_BYTES", 200)
        loader = world.load()
    assert world.ends == [None]
    assert loader.records == sum(not isinstance(record, Marker) for record in world.records)
    at = world.log.high_watermark
    assert state_of(loader.shard, at) == state_of(world.replayed(), at)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.one_of(steps, st.just(("clean",))), max_size=20))
def test_cleaned_log_loads_as_before(history: list[tuple[object, ...]]) -> None:
    """The cleaner removes the older records of a key, those of aborted transactions, and in the end the markers. The remaining
    records still tell which offset counts, and which ones are pending."""
    world = World()
    for step in [*history, ("clean",)]:
        if step != ("clean",):
            world.run_step(step)
            continue
        world.log.roll()
        world.commit_all()
        before = state_of(world.load().shard, world.log.high_watermark)
        for _ in range(3):
            clean(world.log, now_ms=NOW_MS + 2 * DAY_MS, delete_retention_ms=0)
        assert state_of(world.load().shard, world.log.high_watermark) == before


@pytest.mark.parametrize("offset", [None, 9])
def test_uncommitted_marker_comes_after_the_commits_before_it(offset: int | None) -> None:
    """The commit is decoded only at the end of the load, but it supersedes the offset of the transaction all the same."""
    world = World()
    world.append(commit("a", 0, 3))
    world.append_in_transaction(1, commit("a", 0, 5))
    world.append(commit("a", 0, offset))
    world.commit_all()
    high_watermark = world.log.high_watermark
    world.end(1, is_commit=True)
    state = state_of(world.load().shard, high_watermark)
    assert state == state_of(world.replayed(), high_watermark)
    found = [found.value.offset for found in state["newest"].get("a", [])]  # type: ignore[attr-defined]
    assert found == ([] if offset is None else [offset])


def test_high_watermark_moves_during_a_load() -> None:
    """A commit of one slice that was above the high watermark is older than a committed one of the next slice."""
    world = World()
    for offset in range(3000):
        world.append(commit("a", 0, offset))
    world.log.update_high_watermark(10)
    loader = world.loader()
    world.steps.pop(0)()
    assert not world.ends
    world.commit_all()
    world.run()
    assert [found.value.offset for found in loader.shard.offsets.offsets_of("a")] == [2999]


def test_slices_are_bounded() -> None:
    world = World()
    for number in range(5000):
        world.append(commit(f"group {number}", 0, 1))
    world.commit_all()
    loader, slices = world.loader(), 0
    while world.steps:
        before = loader.records
        world.steps.pop(0)()
        slices += 1
        assert loader.records - before < 1000
    assert slices > 10
    assert len(list(loader.shard.offsets.groups_with_offsets())) == 5000


def test_superseded_commit_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most commits are superseded, and decoding is what a load costs."""
    decoded = []

    def counting(key: bytes, value: bytes | None) -> OffsetCommitRecord:
        decoded.append(value)
        return decode(key, value)

    decode = loader_module.decode_offset_commit
    monkeypatch.setattr(loader_module, "decode_offset_commit", counting)
    world = World()
    for offset in range(100):
        world.append(*(commit("a", partition, offset) for partition in range(9)))
        world.append(commit("b", 0, offset))
    world.commit_all()
    world.load()
    assert len(decoded) == 10


def test_record_of_an_unknown_type_is_skipped() -> None:
    world = World()
    world.append_rows((b"\0\x0bshare group", b"\0\0"))
    world.append_rows((b"\0\x0bshare group", None), encode_record(commit("a", 0, 5)))
    world.commit_all()
    loader = world.load()
    assert (world.ends, loader.skipped, loader.records) == ([None], 2, 1)


@pytest.mark.parametrize("row", [(None, b"no key"), (b"\0\1short", b"x"), (b"\0\2\0\1a", b"\0\x09")])
def test_load_fails_at_a_malformed_record(row: Row) -> None:
    """A coordinator that left the record out would answer from an older state of the group."""
    world = World()
    world.append(commit("a", 0, 5))
    world.append_rows(row)
    world.commit_all()
    world.load()
    assert isinstance(world.ends[0], ValueError)


def test_load_reads_cold_parts_on_a_thread() -> None:
    class Cold:
        """A log whose first read of each offset is cold."""

        def __init__(self, log: Log) -> None:
            self._log = log
            self.warmed: set[int] = set()

        def __getattr__(self, name: str) -> object:
            return getattr(self._log, name)

        def warm(self, path: str, size: int, position: int) -> None:
            self.warmed.add(position)

        def read(self, offset: int, *arguments: int, may_block: bool) -> object:
            if not may_block and offset not in self.warmed:
                raise ColdRead(self, "log", 1, offset)  # type: ignore[arg-type]
            return self._log.read(offset, *arguments, may_block=may_block)

    world = World()
    world.append(commit("a", 0, 5))
    world.commit_all()
    cold = Cold(world.log)
    loader = world.loader(cold)
    world.run()
    assert cold.warmed == {0}
    assert (world.ends, loader.records) == ([None], 1)


def test_load_ends_with_the_leadership() -> None:
    world = World()
    world.append(commit("a", 0, 5))
    world.loader()
    world.is_current = False
    world.run()
    assert [end.code for end in world.ends if isinstance(end, BrokerError)] == [ErrorCode.NOT_COORDINATOR]


def test_cancelled_load_does_nothing_more() -> None:
    world = World()
    world.append(commit("a", 0, 5))
    loader = world.loader()
    loader.cancel()
    world.run()
    assert world.ends == []
    assert loader.records == 0


def test_loads_take_turns() -> None:
    """When a broker dies, another one loads many partitions at once. If all their slices ran in one iteration, they would block
    the event loop. The first load ends first."""
    turns: list[Step] = []
    queue = LoadTurns(lambda delay, step: turns.append(step), lambda: False)  # type: ignore[arg-type, return-value]
    world = World()
    for number in range(3000):
        world.append(commit(f"group {number}", 0, 1))
    world.commit_all()
    first = world.loader(call_soon=queue.add)
    second = world.loader(call_soon=queue.add)
    while not world.ends:
        assert len(turns) == 1
        turns.pop(0)()
        assert second.records == 0
    assert first.records == 3000
    while turns:
        assert len(turns) == 1
        turns.pop(0)()
    assert second.records == 3000


def test_next_load_goes_on_after_a_failure() -> None:
    """A bug in one slice must not stop the loads of all other partitions."""
    turns: list[Step] = []
    queue, called = LoadTurns(lambda delay, step: turns.append(step), lambda: False), []  # type: ignore[arg-type, return-value]

    def broken() -> None:
        raise ZeroDivisionError

    queue.add(broken)
    queue.add(lambda: called.append(1))
    with pytest.raises(ZeroDivisionError):
        turns.pop(0)()
    turns.pop(0)()
    assert called == [1]
    assert turns == []


def test_load_pauses_for_requests() -> None:
    """A produce request takes several iterations of the loop; without pauses it would wait for a slice in each."""
    delays: list[float] = []
    turns: list[Step] = []
    busy = [False]

    def call_later(delay: float, step: Step) -> None:
        delays.append(delay)
        turns.append(step)

    queue = LoadTurns(call_later, lambda: busy[0])  # type: ignore[arg-type]
    queue.add(lambda: queue.add(lambda: None))
    busy[0] = True
    turns.pop(0)()
    assert delays == [0.0, shared_module.PAUSE_S]
