"""The observer of the metadata quorum: committed records only, divergence above them, snapshots, which voter to ask next."""

from __future__ import annotations

import asyncio

import pytest

from strandline.broker.process.metadata_loader import MetadataLoader
from strandline.broker.process.quorum_observer import QuorumObserver
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    METADATA_TOPIC_ID,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
    encode_record,
)
from strandline.controller.metadata.voters import Voter
from strandline.protocol.apis import FETCH, FETCH_SNAPSHOT
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError, StrandlineError
from strandline.protocol.messages.cluster import FetchSnapshotRequest, FetchSnapshotResponse
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.records.builder import encode_batch

LEADER = 102


def topic(number: int) -> TopicRecord:
    return TopicRecord(f"t{number}", bytes([number]) * 16)


def batch(base_offset: int, epoch: int, *records: MetadataRecord, control: bool = False) -> bytes:
    values = [(None, encode_record(r), [], 0) for r in records] or [(b"\0\0\0\2", b"\0\0", [], 0)]
    return encode_batch(values, base_offset=base_offset, leader_epoch=epoch, is_control=control)


def answer(data: bytes = b"", *, hw: int = -1, epoch: int = 1, **fields: object) -> FetchResponse:
    partition = FetchPartitionResponse(
        METADATA_TOPIC_ID, 0, high_watermark=hw, current_leader=CurrentLeader(LEADER, epoch), **fields
    )
    return FetchResponse(0, 0, 0, [partition], [memoryview(bytearray(data))])


def observer(broker_id: int = 0) -> QuorumObserver:
    return QuorumObserver(broker_id=broker_id, cluster_id="c1", voter_ids=[101, 102, 103])


def position(o: QuorumObserver) -> tuple[int, int, int]:
    api_key, request = o.request()
    assert api_key == FETCH
    assert isinstance(request, FetchRequest)
    partition = request.partitions[0]
    return partition.fetch_offset, partition.last_fetched_epoch, partition.current_leader_epoch


def names(image: MetadataImage) -> list[str]:
    return sorted(image.topics_by_name)


def test_records_are_applied_only_below_the_high_watermark() -> None:
    o = observer()
    data = batch(0, 1, control=True) + batch(1, 1, topic(1)) + batch(2, 1, topic(2), topic(3))
    delta = o.on_fetch(LEADER, answer(data, hw=2))
    assert delta is not None
    assert names(delta.image) == ["t1"]
    assert position(o) == (4, 1, 1), "waiting batches are not fetched again"
    assert o.on_fetch(LEADER, answer(hw=3)) is None, "a batch is atomic: it is not applied by halves"
    delta = o.on_fetch(LEADER, answer(hw=4))
    assert delta is not None
    assert names(delta.image) == ["t1", "t2", "t3"]
    assert (delta.image.offset, delta.image.epoch) == (3, 1)
    assert o.caught_up


def test_a_divergence_above_the_applied_records_drops_waiting_batches() -> None:
    """The old leader's last batch was never committed; the new leader has another batch at its offset."""
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1)) + batch(1, 1, topic(2)), hw=1))
    o.on_fetch(103, answer(epoch=2, hw=1, diverging_epoch=EpochEndOffset(1, 1)))
    assert position(o) == (1, 1, 2)
    delta = o.on_fetch(103, answer(batch(1, 2, topic(3)), hw=2, epoch=2))
    assert delta is not None
    assert names(delta.image) == ["t1", "t3"]


def test_a_divergence_below_the_applied_records_raises() -> None:
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1)), hw=1))
    with pytest.raises(InternalError):
        o.on_fetch(103, answer(epoch=2, diverging_epoch=EpochEndOffset(0, 0)))


def test_a_silent_leader_is_not_asked_again_on_the_word_of_others() -> None:
    """The others may not have elected a new leader yet. Asking the silent one again each time would cost a second each time."""
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1)), hw=1))
    o.on_failure(LEADER)
    assert o.target() == 103
    stale = FetchPartitionResponse(
        METADATA_TOPIC_ID, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(LEADER, 1)
    )
    o.on_fetch(103, FetchResponse(0, 0, 0, [stale], [memoryview(b"")]))
    assert o.leader_id is None
    assert o.target() == 101
    news = FetchPartitionResponse(METADATA_TOPIC_ID, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(103, 2))
    o.on_fetch(101, FetchResponse(0, 0, 0, [news], [memoryview(b"")]))
    assert o.target() == 103


def test_a_leader_that_was_silent_is_found_again_by_asking_it() -> None:
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1)), hw=1))
    asked = []
    for _ in range(3):
        asked.append(o.target())
        o.on_failure(o.target())
    assert sorted(asked) == [101, 102, 103]
    o.on_fetch(LEADER, answer(hw=1))
    assert o.leader_id == LEADER


def test_a_gap_in_the_log_is_the_peers_fault() -> None:
    with pytest.raises(PeerError):
        observer().on_fetch(LEADER, answer(batch(5, 1, topic(1)), hw=6))


def test_a_damaged_batch_is_not_applied_and_fetched_again() -> None:
    data = bytearray(batch(0, 1, topic(1)))
    data[-1] ^= 1
    o = observer()
    with pytest.raises(BrokerError) as e:
        o.on_fetch(LEADER, answer(bytes(data), hw=1))
    assert e.value.code == ErrorCode.CORRUPT_MESSAGE
    assert o.image is MetadataImage.EMPTY
    assert o.on_fetch(LEADER, answer(batch(0, 1, topic(1)), hw=1)) is not None, "fetched again, it is fine"


def test_a_snapshot_replaces_the_image_and_its_delta_shows_removals() -> None:
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1)), hw=1))
    o.on_fetch(LEADER, answer(snapshot_id=SnapshotId(50, 3)))
    data = batch(0, 3, control=True) + batch(1, 3, topic(2), topic(3)) + batch(3, 3, control=True)
    half = len(data) // 2
    deltas = []
    for start, piece in ((0, data[:half]), (half, data[half:])):
        api_key, request = o.request()
        assert api_key == FETCH_SNAPSHOT
        assert isinstance(request, FetchSnapshotRequest)
        assert request.position == start
        response = FetchSnapshotResponse(0, LEADER, 3, SnapshotId(50, 3), len(data), start, [memoryview(piece)])
        deltas.append(o.on_fetch_snapshot(LEADER, response))
    assert deltas[0] is None
    assert deltas[1] is not None
    assert names(deltas[1].image) == ["t2", "t3"]
    assert [t.name for t in deltas[1].removed_topics] == ["t1"]
    assert position(o)[:2] == (50, 3)


def test_a_snapshot_older_than_the_applied_metadata_ends_the_broker() -> None:
    """The quorum has lost committed metadata. A broker that loaded the snapshot would go back in time."""
    o = observer()
    o.on_fetch(LEADER, answer(batch(0, 1, topic(1), topic(2)), hw=2))
    known = position(o)
    with pytest.raises(InternalError, match="the quorum offers a snapshot that ends at"):
        o.on_fetch(LEADER, answer(snapshot_id=SnapshotId(1, 1)))
    assert position(o) == known


def test_a_missing_snapshot_is_fetched_again() -> None:
    o = observer()
    o.on_fetch(LEADER, answer(snapshot_id=SnapshotId(50, 3)))
    o.on_fetch_snapshot(LEADER, FetchSnapshotResponse(ErrorCode.SNAPSHOT_NOT_FOUND, LEADER, 3, SnapshotId(50, 3), 0, 0, []))
    assert position(o)[0] == 0


def test_a_voter_that_is_not_the_leader_names_it() -> None:
    o = observer()
    response = answer(epoch=4, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    o.on_fetch(101, response)
    assert (o.leader_id, o.epoch, o.target()) == (LEADER, 4, LEADER)


def test_news_from_the_past_is_ignored() -> None:
    o = observer()
    o.on_fetch(LEADER, answer(epoch=5, hw=0))
    stale = answer(epoch=4, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    stale.partitions[0].current_leader = CurrentLeader(103, 4)
    o.on_fetch(101, stale)
    assert (o.leader_id, o.epoch) == (LEADER, 5)


def test_a_silent_voter_is_left_for_the_next_one() -> None:
    asked = []
    o = observer(broker_id=1)
    for _ in range(4):
        asked.append(o.target())
        o.on_failure(o.target())
    assert asked == [102, 103, 101, 102]


def test_the_wrong_cluster_is_no_case_for_another_voter() -> None:
    """F16: INCONSISTENT_CLUSTER_ID is raised to the shell, which ends the broker with a clear error message."""
    with pytest.raises(BrokerError) as e:
        observer().on_fetch(101, FetchResponse(0, ErrorCode.INCONSISTENT_CLUSTER_ID, 0, [], []))
    assert e.value.code == ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize("as_snapshot", [False, True])
def test_an_unknown_committed_record_ends_the_broker(as_snapshot: bool) -> None:
    """Every voter would send the same record. The broker must end with the reason, not fetch in a loop with old metadata (I20,
    I24)."""
    unknown = b"\x92\xcc\xfa\x01"  # type 250
    data = encode_batch([(None, unknown, [], 0)], base_offset=0, leader_epoch=1)
    o = observer()
    if as_snapshot:
        o.on_fetch(LEADER, answer(snapshot_id=SnapshotId(50, 3)))
    piece = FetchSnapshotResponse(0, LEADER, 3, SnapshotId(50, 3), len(data), 0, [memoryview(data)])
    with pytest.raises(InternalError, match="type 250, which this version does not know"):
        o.on_fetch_snapshot(LEADER, piece) if as_snapshot else o.on_fetch(LEADER, answer(data, hw=1))


@pytest.mark.parametrize("as_snapshot", [False, True])
def test_a_partition_that_cannot_be_handled_ends_the_broker_first(as_snapshot: bool) -> None:
    """The ISR has a broker that is no replica, in the log or in a snapshot. The image stays as it was."""
    topic_id = b"t" * 16
    records = [TopicRecord("orders", topic_id), PartitionRecord(topic_id, 0, (1, 2), (1, 9), 1)]
    data = encode_batch([(None, encode_record(record), [], 0) for record in records], base_offset=0, leader_epoch=1)
    o = observer()
    if as_snapshot:
        o.on_fetch(LEADER, answer(snapshot_id=SnapshotId(50, 3)))
    piece = FetchSnapshotResponse(0, LEADER, 3, SnapshotId(50, 3), len(data), 0, [memoryview(data)])
    with pytest.raises(InternalError, match=r"partition orders-0 .* its ISR is \[1, 9\]"):
        o.on_fetch_snapshot(LEADER, piece) if as_snapshot else o.on_fetch(LEADER, answer(data, hw=2))
    assert o.image.topic("orders") is None


async def test_a_bug_in_following_the_metadata_is_reported_and_ends_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the task ended silently, the broker would send heartbeats, and act on old metadata, for ever."""
    fatal: list[StrandlineError] = []
    follower = MetadataLoader(broker_id=1, cluster_id="c1", voters=[Voter(101, "h", 1)], on_fatal=fatal.append)

    async def broken(voter_id: int) -> None:
        raise KeyError(voter_id)

    monkeypatch.setattr(follower, "_ask", broken)
    follower.start()
    async with asyncio.timeout(5):
        while not fatal:
            await asyncio.sleep(0)
    assert "KeyError(101)" in str(fatal[0])
    await follower.stop()
