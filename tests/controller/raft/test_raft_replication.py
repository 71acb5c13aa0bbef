"""Fetch, divergence, commit and snapshots (KafkaRaftClientFetchTest, KafkaRaftClientSnapshotTest)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raft_bench import Bench, batch, fetch_request, fetch_response, log_of, sends
from raft_memory_log import LogState, MemoryRaftLog, Platter
from raft_simulation import Simulation

from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.metadata_log import DamagedMetadataLog
from strandline.controller.raft.outbox import Send
from strandline.controller.raft.raft_state import CommittedTruncation
from strandline.controller.raft.roles import Follower
from strandline.controller.raft.snapshots import SnapshotWriter, check_snapshot, snapshot_values
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import DescribeQuorumRequest, FetchSnapshotRequest, FetchSnapshotResponse
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, SnapshotId
from strandline.protocol.messages.data import FetchPartition
from strandline.protocol.records.builder import encode_values


class Sink(list[bytes]):
    """Collects a snapshot's bytes."""

    size = 0

    def freeze(self) -> None:
        check_snapshot(self.data)

    def discard(self) -> None: ...

    @property
    def data(self) -> bytes:
        return b"".join(self)


def snapshot_bytes(*values: bytes, epoch: int = 1) -> bytes:
    sink = Sink()
    writer = SnapshotWriter(sink, epoch, 0)
    writer.write(values)
    writer.finish()
    return sink.data


def leader(log: LogState | None = None, voters: int = 3, platter: Platter | None = None) -> Bench:
    bench = Bench(voters=voters, election=ElectionState(log.batches[-1].epoch if log else 0), log=log, platter=platter)
    bench.become_leader()
    return bench


def append(bench: Bench, *values: bytes) -> int:
    return bench.node.append(bytearray(encode_values(values, 0)), bench.node.state.epoch)


# -- the leader ---------------------------------------------------------------------------------------------------------


def test_a_record_commits_when_a_majority_has_flushed_it() -> None:
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    assert bench.node.state.high_watermark == 1
    append(bench, b"a")
    bench.node.on_request(apis.FETCH, fetch_request(2, 1, 2, 1), object(), 1, bench.now)
    assert bench.node.state.high_watermark == 1, "the leader's own disk does not have it yet"
    bench.settle()
    assert bench.node.state.high_watermark == 2


def test_the_high_watermark_never_goes_back() -> None:
    bench = leader()
    for offset in (1, 0, 1):
        bench.fetch(2, 1, offset, 1)
        assert bench.node.state.high_watermark == 1
        bench.fetch(3, 1, 1, 1)


def test_an_append_in_an_epoch_that_is_not_ours_is_refused() -> None:
    bench = leader()
    with pytest.raises(BrokerError) as refused:
        bench.node.append(bytearray(encode_values([b"x"], 0)), 0)
    assert refused.value.code == ErrorCode.NOT_CONTROLLER


def test_an_empty_fetch_waits_for_an_append_or_a_high_watermark() -> None:
    """A long poll: a broker receives a commit at once, without polling."""
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    assert bench.fetch(7, 1, 1, 1).partitions[0].high_watermark == 1
    ticket = object()
    bench.node.on_request(apis.FETCH, fetch_request(7, 1, 1, 1), ticket, 1, bench.now)
    assert bench.answer_to(ticket, bench.settle()) is None
    append(bench, b"a")
    answer = bench.answer_to(ticket, bench.settle())
    assert answer.partitions[0].high_watermark == 1, "an observer gets records up to the log's end, and is told what is committed"
    again = object()
    bench.node.on_request(apis.FETCH, fetch_request(7, 1, 2, 1), again, 1, bench.now)
    assert bench.answer_to(again, bench.settle()) is None
    bench.node.on_request(apis.FETCH, fetch_request(2, 1, 2, 1), object(), 1, bench.now)
    assert bench.answer_to(again, bench.settle()).partitions[0].high_watermark == 2


def test_a_parked_fetch_is_answered_when_its_time_is_over() -> None:
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    ticket = object()
    bench.node.on_request(apis.FETCH, fetch_request(2, 1, 1, 1, wait_ms=300), ticket, 1, bench.now)
    assert bench.answer_to(ticket, bench.advance(0.29)) is None
    assert bench.answer_to(ticket, bench.advance(0.02)) is not None


def test_the_high_watermark_is_sent_again_on_a_new_connection() -> None:
    """Otherwise a broker that restarts would receive the high watermark only after a whole fetch wait."""
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    assert bench.fetch(7, 1, 1, 1, session=1) is not None
    assert bench.fetch(7, 1, 1, 1, session=1) is None
    assert bench.fetch(7, 1, 1, 1, session=2).partitions[0].high_watermark == 1


def test_two_observers_with_one_id_do_not_complete_each_others_fetches() -> None:
    """A second process with a broker's id waits up to a minute for its registration. If the fetch of each completed that of the
    other, both would fetch as fast as they can, and the controller would do nothing else (found by the simulation, S51)."""
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    assert bench.fetch(7, 1, 1, 1, session=1) is not None
    assert bench.fetch(7, 1, 1, 1, session=2) is not None
    parked = []
    for session in (1, 2):
        parked.append(object())
        bench.node.on_request(apis.FETCH, fetch_request(7, 1, 1, 1, wait_ms=300), parked[-1], session, bench.now)
    assert not any(bench.answer_to(ticket, bench.advance(0.01)) for ticket in parked)
    assert len(bench.node.state.role.parked) == 2


@pytest.mark.parametrize(
    ("offset", "last_epoch", "diverging"),
    [
        (5, 2, None),
        (4, 3, EpochEndOffset(2, 5)),
        (9, 2, EpochEndOffset(2, 5)),
        (3, 1, EpochEndOffset(1, 2)),
        (2, 1, None),
        (0, 0, None),
    ],
)
def test_a_fetch_is_held_against_the_leaders_epochs(offset: int, last_epoch: int, diverging: EpochEndOffset | None) -> None:
    """KIP-595: the replica's last epoch and offset must be on the leader's history."""
    bench = leader(log_of(1, 1, 2, 2, 2))  # epoch 3 begins at 5
    if last_epoch == 3:
        bench = leader(log_of(1, 1, 2, 2, 2, 4))
    answer = bench.fetch(2, bench.node.state.epoch, offset, last_epoch)
    assert answer.partitions[0].diverging_epoch == (diverging or EpochEndOffset())


def test_stale_and_future_epochs_are_fenced() -> None:
    bench = leader()
    codes = [bench.fetch(2, epoch, 0, 0).partitions[0].error_code for epoch in (0, 2)]
    assert codes == [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH]
    assert bench.node.state.is_leader, "a fetch never deposes (KIP-996)"


def test_malformed_fetches_are_refused_and_change_nothing() -> None:
    bench = leader()
    bad_offset, no_epoch, other_topic, two = (fetch_request(2, 1, 0, 0) for _ in range(4))
    bad_offset.partitions[0].fetch_offset = -5
    no_epoch.partitions[0].current_leader_epoch = -1
    other_topic.partitions[0].topic_id = bytes(16)
    two.partitions.append(FetchPartition(bytes(16), 1, 1, 0, 0, 0, 1))
    codes = [bench.request(apis.FETCH, r).partitions[0].error_code for r in (bad_offset, no_epoch, other_topic, two)]
    invalid = ErrorCode.INVALID_REQUEST
    assert codes == [invalid, invalid, ErrorCode.UNKNOWN_TOPIC_ID, invalid]
    assert bench.node.state.high_watermark == 0


def test_a_node_that_does_not_lead_names_the_leader() -> None:
    bench = Bench()
    bench.follow(2, 4)
    part = bench.fetch(7, 4, 0, 0).partitions[0]
    assert (part.error_code, part.current_leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, CurrentLeader(2, 4))


def test_describe_quorum_tells_who_has_what_and_how_long_ago() -> None:
    bench = leader()
    bench.fetch(2, 1, 1, 1)
    bench.fetch(7, 1, 0, 0)
    bench.now += 0.2
    answer = bench.request(apis.DESCRIBE_QUORUM, DescribeQuorumRequest())
    voters = [(v.replica_id, v.log_end_offset, v.last_fetch_age_ms, v.last_caught_up_age_ms) for v in answer.current_voters]
    assert voters == [(1, 1, 0, 0), (2, 1, 200, 200), (3, -1, -1, -1)]
    assert [(o.replica_id, o.last_fetch_age_ms) for o in answer.observers] == [(7, 200)]
    assert (answer.high_watermark, answer.leader_id) == (1, 1)


def test_a_replica_that_is_one_fetch_behind_was_caught_up_at_its_previous_fetch() -> None:
    """As in Kafka: the replica now has what the leader had at the time of that fetch. With the time of its newest fetch, a
    replica that never has the last record would always seem to have it."""
    bench = leader()
    for offset in (1, 1, 2):
        bench.fetch(2, 1, offset, 1)
        append(bench, b"x")
        bench.now += 0.3
    voter = bench.request(apis.DESCRIBE_QUORUM, DescribeQuorumRequest()).current_voters[1]
    assert (voter.last_fetch_age_ms, voter.last_caught_up_age_ms) == (300, 600)


@pytest.mark.parametrize("voters", [1, 3])
def test_an_observer_that_is_gone_is_forgotten_after_a_while(voters: int) -> None:
    """Otherwise a removed broker would count as lagging forever. The only voter of a quorum has no majority to check, but must
    check its observers all the same."""
    bench = Bench(voters=voters)
    bench.settle() if voters == 1 else bench.become_leader()
    bench.fetch(7, 1, 0, 0)
    for _ in range(310):
        bench.advance(1)
        if voters > 1:
            bench.fetch(2, 1, bench.log.end_offset, 1, wait_ms=0)
    assert bench.node.state.is_leader
    assert bench.request(apis.DESCRIBE_QUORUM, DescribeQuorumRequest()).observers == []


# -- the follower -------------------------------------------------------------------------------------------------------


def test_a_follower_fetches_only_what_its_disk_has() -> None:
    """I18: the fetch that claims new records waits for the flush."""
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.node.on_response(fetch, fetch_response(2, 4, batch(0, 4), batch(1, 4), high_watermark=1), bench.now)
    assert not sends(bench.at_once(), apis.FETCH)
    assert bench.log.flushed_offset == 0
    claimed = sends(bench.sync(), apis.FETCH)[0].body.partitions[0]  # type: ignore[attr-defined]
    assert (claimed.fetch_offset, claimed.last_fetched_epoch, bench.log.flushed_offset) == (2, 4, 2)
    assert bench.node.state.high_watermark == 1


def test_a_follower_truncates_to_the_divergence_and_asks_again() -> None:
    bench = Bench(log=log_of(1, 1, 3, 3), election=ElectionState(3))
    fetch = bench.follow(2, 4)
    out = bench.respond(fetch, fetch_response(2, 4, diverging_epoch=EpochEndOffset(2, 3)))
    assert bench.log.end_offset == 2, "epoch 2 is unknown here: cut to the end of epoch 1"
    assert sends(out, apis.FETCH)[0].body.partitions[0].fetch_offset == 2  # type: ignore[attr-defined]


def test_truncation_below_the_high_watermark_fails_loudly() -> None:
    """S49: the voter stops rather than drop committed records."""
    bench = Bench(log=log_of(1, 1), election=ElectionState(1))
    fetch = bench.follow(2, 4)
    fetch = sends(bench.respond(fetch, fetch_response(2, 4, batch(2, 4), high_watermark=3)), apis.FETCH)[0]
    assert bench.node.state.high_watermark == 3
    with pytest.raises(CommittedTruncation, match="below its high watermark 3"):
        bench.node.on_response(fetch, fetch_response(2, 4, diverging_epoch=EpochEndOffset(1, 1)), bench.now)
    assert bench.log.end_offset == 3


@pytest.mark.parametrize("step", ["truncate", "append"])
def test_a_voter_with_a_damaged_log_stops(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The log raises an error instead of a cut at the damage. The error leaves the core, and the shell stops the node. The core
    does not treat it as bad records of the leader, which it would fetch again."""
    bench = Bench(log=log_of(1, 1, 3, 3), election=ElectionState(3))
    fetch = bench.follow(2, 4)

    def damaged(*_: object) -> int:
        raise DamagedMetadataLog("the metadata log is damaged at offset 1")

    monkeypatch.setattr(MemoryRaftLog, "truncate_to" if step == "truncate" else "append_as_follower", damaged)
    answer = (
        fetch_response(2, 4, diverging_epoch=EpochEndOffset(2, 3)) if step == "truncate" else fetch_response(2, 4, batch(4, 4))
    )
    with pytest.raises(DamagedMetadataLog):
        bench.node.on_response(fetch, answer, bench.now)
    assert bench.log.end_offset == 4
    assert not bench.node.state.outbox.take_at_once() + bench.node.state.outbox.take_after_sync()


@pytest.mark.parametrize(("cut_at", "flushed"), [(2, None), (3, 4)])
def test_a_log_that_truncates_too_much_stops_the_voter(monkeypatch: pytest.MonkeyPatch, cut_at: int, flushed: int | None) -> None:
    """A log that ends below the high watermark has lost committed records. A log that counts removed records as flushed would
    count the next records as flushed before they are on the disk."""
    bench = Bench(log=log_of(1, 1), election=ElectionState(1))
    fetch = bench.follow(2, 4)
    fetch = sends(bench.respond(fetch, fetch_response(2, 4, batch(2, 4), high_watermark=3)), apis.FETCH)[0]
    fetch = sends(bench.respond(fetch, fetch_response(2, 4, batch(3, 4), high_watermark=3)), apis.FETCH)[0]
    cut = MemoryRaftLog.truncate_to
    monkeypatch.setattr(MemoryRaftLog, "truncate_to", lambda log, offset: cut(log, cut_at))
    if flushed is not None:
        monkeypatch.setattr(MemoryRaftLog, "flushed_offset", flushed)
    with pytest.raises(CommittedTruncation, match="truncated the metadata log to 3"):
        bench.node.on_response(fetch, fetch_response(2, 4, diverging_epoch=EpochEndOffset(4, 3)), bench.now)


def test_records_that_do_not_continue_the_log_are_refused() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.respond(fetch, fetch_response(2, 4, batch(5, 4), high_watermark=6))
    assert (bench.log.end_offset, bench.node.state.high_watermark) == (0, 0)
    assert isinstance(bench.node.state.role, Follower)
    assert sends(bench.advance(0.2), apis.FETCH), "and asks again"


def test_a_fetch_answer_of_an_older_role_is_not_appended() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.begin_epoch(3, 5)
    bench.respond(fetch, fetch_response(2, 4, batch(0, 4), high_watermark=1))
    assert bench.log.end_offset == 0


SUFFIXES = st.lists(st.integers(1, 3), max_size=6)


@given(common=st.lists(st.integers(1, 2), max_size=5), ours=SUFFIXES, theirs=SUFFIXES, third=SUFFIXES, seed=st.integers(0, 99))
def test_diverged_logs_converge(common: list[int], ours: list[int], theirs: list[int], third: list[int], seed: int) -> None:
    """Whatever three voters have written in their own epochs, all end with the log of the elected one."""
    simulation = Simulation(seed, 3)
    for node_id, own in enumerate((ours, theirs, third), start=1):
        epochs = sorted(common) + [3 + 3 * epoch + node_id for epoch in sorted(own)]
        simulation.nodes[node_id].platter.log = log_of(*epochs)
        simulation.nodes[node_id].platter.election = ElectionState(15)
    simulation.recover()
    logs = [sim.log.batches for sim in simulation.nodes.values()]
    assert logs[0] == logs[1] == logs[2]
    assert logs[0][: len(common)] == log_of(*sorted(common)).batches


# -- snapshots ----------------------------------------------------------------------------------------------------------


def cleaned_leader() -> Bench:
    """A leader whose log begins at 3, behind a snapshot of epoch 2."""
    platter = Platter(log=LogState(3, (batch(3, 2), batch(4, 2))), snapshots={SnapshotId(3, 2): snapshot_bytes(b"s", epoch=2)})
    bench = Bench(election=ElectionState(2), platter=platter)
    bench.become_leader()
    return bench


@pytest.mark.parametrize(
    ("offset", "last_epoch", "needs_snapshot"),
    [(0, 0, True), (2, 2, True), (3, 1, True), (3, 2, False), (4, 1, True), (4, 2, False)],
)
def test_a_fetch_before_the_log_start_gets_the_snapshot_id(offset: int, last_epoch: int, needs_snapshot: bool) -> None:
    part = cleaned_leader().fetch(2, 3, offset, last_epoch).partitions[0]
    assert part.snapshot_id == (SnapshotId(3, 2) if needs_snapshot else SnapshotId())


def test_a_snapshot_is_fetched_in_chunks_within_its_bounds() -> None:
    bench = cleaned_leader()
    snapshot_id, data, epoch = SnapshotId(3, 2), snapshot_bytes(b"s", epoch=2), bench.node.state.epoch

    def fetch(position: int, asked: SnapshotId = snapshot_id) -> FetchSnapshotResponse:
        answer = bench.request(apis.FETCH_SNAPSHOT, FetchSnapshotRequest(2, "c", 50, epoch, asked, position))
        assert isinstance(answer, FetchSnapshotResponse)
        return answer

    assert (fetch(0).size, fetch(50).position) == (len(data), 50)
    assert fetch(len(data)).error_code == ErrorCode.POSITION_OUT_OF_RANGE
    assert fetch(0, SnapshotId(4, 2)).error_code == ErrorCode.SNAPSHOT_NOT_FOUND


def downloading(data: bytes, chunk: int) -> tuple[Bench, list[Send]]:
    """A follower that has received the first chunk of a snapshot, and its next requests."""
    bench = Bench(log=log_of(1), election=ElectionState(1))
    fetch = bench.follow(2, 4)
    out = bench.respond(fetch, fetch_response(2, 4, snapshot_id=SnapshotId(3, 2)))
    asked = sends(out, apis.FETCH_SNAPSHOT)[0]
    first = FetchSnapshotResponse(0, 2, 4, SnapshotId(3, 2), len(data), 0, [memoryview(data[:chunk])])
    return bench, sends(bench.respond(asked, first), apis.FETCH_SNAPSHOT)


def test_a_fetched_snapshot_replaces_the_log_and_moves_the_high_watermark() -> None:
    data = snapshot_bytes(b"s", epoch=2)
    bench, (send,) = downloading(data, 60)
    assert send.body.position == 60
    rest = FetchSnapshotResponse(0, 2, 4, SnapshotId(3, 2), len(data), 60, [memoryview(data[60:])])
    out = bench.respond(send, rest)
    assert (bench.log.start_offset, bench.log.end_offset, bench.node.state.high_watermark) == (3, 3, 3)
    claimed = sends(out, apis.FETCH)[0].body.partitions[0]  # type: ignore[attr-defined]
    assert (claimed.fetch_offset, claimed.last_fetched_epoch) == (3, 2)


def test_the_log_is_kept_when_the_fetched_snapshot_is_deleted() -> None:
    bench, (send,) = downloading(snapshot_bytes(b"s", epoch=2), 60)
    gone = FetchSnapshotResponse(ErrorCode.SNAPSHOT_NOT_FOUND, 2, 4, SnapshotId(3, 2), 0, 60, [])
    bench.respond(send, gone)
    assert (bench.log.end_offset, bench.log.latest_snapshot_id) == (1, None)
    assert sends(bench.advance(0.2), apis.FETCH)


def test_a_half_fetched_snapshot_is_discarded_when_the_leader_dies() -> None:
    bench, _ = downloading(snapshot_bytes(b"s", epoch=2), 60)
    bench.begin_epoch(3, 5)
    assert (bench.log.end_offset, bench.log.latest_snapshot_id) == (1, None)


def test_a_damaged_snapshot_is_not_installed() -> None:
    data = bytearray(snapshot_bytes(b"s" * 50, epoch=2))
    data[-80] ^= 1
    bench, _ = downloading(bytes(data), len(data))
    assert (bench.log.end_offset, bench.log.latest_snapshot_id) == (1, None)
    assert sends(bench.advance(0.2), apis.FETCH)


def test_a_snapshot_older_than_what_is_committed_is_not_taken() -> None:
    bench = Bench(log=log_of(1, 1, 1), election=ElectionState(1))
    fetch = bench.follow(2, 4)
    fetch = sends(bench.respond(fetch, fetch_response(2, 4, high_watermark=3)), apis.FETCH)[0]
    out = bench.respond(fetch, fetch_response(2, 4, snapshot_id=SnapshotId(3, 1)))
    assert not sends(out, apis.FETCH_SNAPSHOT)
    assert bench.log.end_offset == 3


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30), st.data())
def test_a_snapshot_is_whole_or_refused(values: list[bytes], data: st.DataObject) -> None:
    whole = snapshot_bytes(*values)
    check_snapshot(whole)
    assert list(snapshot_values(whole)) == values
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BrokerError):
        check_snapshot(whole[:cut])
