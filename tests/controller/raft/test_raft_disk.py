"""A voter's disk: `quorum-state` (F18), the metadata log compared with the one in memory, and crashes between their steps
(S49)."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raft_bench import batch
from raft_memory_log import MemoryRaftLog, Platter

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState, QuorumFile, decode_quorum_state, encode_quorum_state
from strandline.controller.raft.flushed_point import FlushedPoint
from strandline.controller.raft.metadata_log import DIRECTORY, DamagedMetadataLog, MetadataLog
from strandline.controller.raft.snapshots import SnapshotWriter, parse_snapshot_name, snapshot_name
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import SnapshotId
from strandline.storage.checkpoints import RECOVERY_POINTS
from strandline.storage.files import MemoryFiles
from strandline.storage.memory.memory_files import MemoryFile

VOTERS = (1, 2, 3)
STATE = encode_quorum_state("c", VOTERS, ElectionState(5, 2, 2), 7)


def decode(data: bytes) -> QuorumFile:
    return decode_quorum_state(data, "d/quorum-state", "c", VOTERS)


# -- quorum-state -------------------------------------------------------------------------------------------------------


def test_quorum_state_has_kafkas_keys() -> None:
    state = json.loads(STATE)
    assert state["data_version"] == 0
    assert state["currentVoters"] == [{"voterId": 1}, {"voterId": 2}, {"voterId": 3}]
    assert (state["clusterId"], state["leaderId"], state["leaderEpoch"], state["votedId"], state["appliedOffset"]) == (
        "c",
        2,
        5,
        2,
        7,
    )
    assert "learner" not in state, "a voter's file has nothing that Kafka's has not"


@given(
    st.integers(0, 2**31 - 1),
    st.sampled_from((-1, *VOTERS)),
    st.sampled_from((-1, *VOTERS)),
    st.booleans(),
    st.integers(0, 2**40),
)
def test_an_election_survives_the_file(epoch: int, leader: int, voted: int, recovering: bool, applied: int) -> None:
    election = ElectionState(epoch, leader, voted, recovering)
    assert decode(encode_quorum_state("c", VOTERS, election, applied)) == (election, applied)


@pytest.mark.parametrize("length", range(len(STATE)))
def test_a_torn_quorum_state_refuses_to_start(length: int) -> None:
    with pytest.raises(UsageError, match="quorum-state is damaged"):
        decode(STATE[:length])


@given(st.integers(0, len(STATE) * 8 - 1))
def test_a_flipped_bit_is_refused_or_harmless(bit: int) -> None:
    """A flipped digit of the epoch or the vote could make the voter vote twice. If the flipped bit is in the key of the checksum,
    the other values are unchanged."""
    flipped = bytearray(STATE)
    flipped[bit // 8] ^= 1 << bit % 8
    try:
        found = decode(bytes(flipped))
    except UsageError:
        return
    assert found == (ElectionState(5, 2, 2), 7)


def test_a_quorum_state_of_an_earlier_version_has_no_checksum() -> None:
    """Such a file is accepted."""
    state = json.loads(STATE)
    del state["crc32c"]
    assert decode(json.dumps(state).encode()) == (ElectionState(5, 2, 2), 7)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_version": 2}, "another version has written it"),
        ({"data_version": None}, "another version has written it"),
        ({"learner": 1}, "damaged: learner is 1"),
        ({"clusterId": "other"}, "belongs to cluster 'other'"),
        ({"currentVoters": [{"voterId": 1}]}, r"was written with the voters \[1\]"),
        ({"currentVoters": 3}, "currentVoters is not a list"),
        ({"leaderEpoch": "5"}, "leaderEpoch is '5'"),
        ({"leaderEpoch": -1}, "leaderEpoch is -1"),
        ({"votedId": 9}, "votedId 9 is not one of the voters"),
        ({"appliedOffset": True}, "appliedOffset is True"),
    ],
)
def test_a_quorum_state_that_is_not_ours_refuses_to_start(change: dict[str, object], sentence: str) -> None:
    """F18, KAFKA-15412: the voter never starts with a fresh file."""
    state = json.loads(STATE)
    del state["crc32c"]
    with pytest.raises(UsageError, match=sentence):
        decode(json.dumps({**state, **change}).encode())


def test_a_lost_vote_beside_a_log_refuses_to_start() -> None:
    store = QuorumStateStore(MemoryFiles(), "d", cluster_id="c", voter_ids=VOTERS)
    assert store.check(None, 0) == ElectionState(recovering=True)
    alone = QuorumStateStore(MemoryFiles(), "d", cluster_id="c", voter_ids=[1])
    assert alone.check(None, 0) == ElectionState(), "nobody else could know anything"
    with pytest.raises(UsageError, match="this voter's vote is lost"):
        store.check(None, 1)


def test_a_log_that_lost_committed_records_refuses_to_start() -> None:
    """Such a voter would also vote for a candidate without them."""
    store = QuorumStateStore(MemoryFiles(), "d", cluster_id="c", voter_ids=VOTERS)
    with pytest.raises(UsageError, match="ends at offset 6, but records up to 7 were committed"):
        store.check(QuorumFile(ElectionState(5), 7), 6)


# -- the log ------------------------------------------------------------------------------------------------------------


def open_log(files: MemoryFiles, committed_offset: int = 0) -> MetadataLog:
    """Open the log in a data directory that is already durable; the quorum does not create it."""
    files.make_dirs("d")
    files.fsync_dir("")
    return MetadataLog.open(files, "d", RaftConfig(segment_bytes=300), committed_offset=committed_offset, now_ms=0)


def write_snapshot(log: MetadataLog | MemoryRaftLog, snapshot_id: SnapshotId) -> None:
    writer = SnapshotWriter(log.create_snapshot(snapshot_id), snapshot_id.epoch, 0)
    writer.write([b"state at %d" % snapshot_id.end_offset])
    writer.finish()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["lead", "follow", "truncate", "snapshot", "install", "flush", "reopen"]), st.integers(0, 5)),
    max_size=25,
)


@settings(max_examples=60)
@given(ACTIONS)
def test_the_log_on_the_disk_is_the_log_in_memory(actions: list[tuple[str, int]]) -> None:
    """The simulation relies on the log in memory. Here both logs do the same steps and must look the same."""
    files, platter = MemoryFiles(), Platter()
    disk, memory = open_log(files), MemoryRaftLog(platter)
    epoch, committed = 1, 0
    for action, number in actions:
        end = memory.end_offset
        if action == "lead":
            epoch += number % 2
            for log in (disk, memory):
                log.append_as_leader(memoryview(bytearray(batch(0, 0, number + 1).data)), epoch)
        elif action == "follow":
            for log in (disk, memory):
                assert (
                    log.append_as_follower(memoryview(bytearray(batch(end, epoch, number + 1).data)), epoch) == end + number + 1
                )
        elif action == "truncate" and memory.batches:
            kept = memory.batches[-min(number + 1, len(memory.batches))].base
            if kept >= committed:
                disk.truncate_to(kept)
                memory.truncate_to(kept)
        elif action == "snapshot" and memory.batches:
            last = memory.batches[min(number, len(memory.batches) - 1)]
            snapshot_id = SnapshotId(last.end, last.epoch)
            if snapshot_id not in platter.snapshots and last.end > committed:
                committed = last.end
                for log in (disk, memory):
                    log.update_high_watermark(committed)
                    write_snapshot(log, snapshot_id)
                disk.clean(0)
                memory.clean()
        elif action == "install":
            epoch += 1
            snapshot_id = SnapshotId(end + number + 1, epoch)
            committed = snapshot_id.end_offset
            for log in (disk, memory):
                write_snapshot(log, snapshot_id)
                log.install_snapshot(snapshot_id)
        elif action == "flush":
            disk.flush()
            memory.flush()
            assert disk.flushed_offset == disk.end_offset
        elif action == "reopen":
            memory.flush()
            files.crash(lossy=False)
            disk, memory = open_log(files, committed), MemoryRaftLog(platter)
        assert_same(disk, memory, epoch)


def assert_same(disk: MetadataLog, memory: MemoryRaftLog, epoch: int) -> None:
    assert (disk.start_offset, disk.end_offset, disk.last_epoch) == (memory.start_offset, memory.end_offset, memory.last_epoch)
    assert (disk.first_snapshot_id, disk.latest_snapshot_id) == (memory.first_snapshot_id, memory.latest_snapshot_id)
    assert [disk.end_offset_for_epoch(e) for e in range(memory._base_epoch, epoch + 2)] == [
        memory.end_offset_for_epoch(e) for e in range(memory._base_epoch, epoch + 2)
    ]
    assert disk.flushed_offset <= disk.end_offset
    for b in memory.batches:
        assert b"".join(bytes(part) for part in disk.read(b.base, 1)[0]) == b.data


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("installed", [False, True])
def test_a_crash_between_snapshot_and_log_finds_the_complete_snapshot(seed: int, installed: bool) -> None:
    """S49: the rename of the snapshot and the restart of the log are two steps. The power may fail between them, or within the
    second."""
    files = MemoryFiles(Random(seed))
    log = open_log(files)
    log.append_as_follower(memoryview(bytearray(batch(0, 1, 3).data)), 1)
    log.flush()
    write_snapshot(log, SnapshotId(9, 4))
    if installed:
        log.install_snapshot(SnapshotId(9, 4))
    files.crash()
    again = open_log(files)
    assert (again.start_offset, again.end_offset, again.last_epoch) == (9, 9, 4)
    again.append_as_follower(memoryview(bytearray(batch(9, 4).data)), 4)
    assert again.end_offset == 10


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_before_the_snapshot_has_its_name_finds_the_old_log(seed: int) -> None:
    files = MemoryFiles(Random(seed))
    log = open_log(files)
    log.append_as_follower(memoryview(bytearray(batch(0, 1, 3).data)), 1)
    log.flush()
    sink = log.create_snapshot(SnapshotId(9, 4))
    SnapshotWriter(sink, 4, 0).write([b"half of it"])
    files.crash()
    again = open_log(files)
    assert (again.start_offset, again.end_offset, again.latest_snapshot_id) == (0, 3, None)
    assert not [name for name in files.list(f"d/{DIRECTORY}") if "part" in name]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_flushed_survives_a_lossy_crash(seed: int) -> None:
    """I18 on the real log: a fetch or a vote that was sent can rely on it."""
    files = MemoryFiles(Random(seed))
    log = open_log(files)
    for offset in range(0, 30, 3):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1 + offset // 10, 3).data)), 9)
        if offset < 20:
            log.flush()
    files.crash()
    again = open_log(files)
    assert again.end_offset >= 21
    assert again.end_offset_for_epoch(2).end_offset == 21


def test_damage_below_what_was_committed_refuses_to_start() -> None:
    """A cut there would lose committed records, and all records after them."""
    files = MemoryFiles()
    log = open_log(files)
    for offset in range(4):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1).data)), 1)
    log.close()
    files.flip_bit(f"d/{DIRECTORY}/{0:020}.log", 8 * 65)
    with pytest.raises(UsageError, match="damaged at offset 0"):
        open_log(files, committed_offset=4)


SEGMENT = f"d/{DIRECTORY}/{0:020}.log"


def ten_batches(files: MemoryFiles, *, flushed: int = 10) -> tuple[MetadataLog, int]:
    """Ten batches of one record each in one segment, the first ones flushed; and the size of a batch."""
    log = MetadataLog.open(files, "d", RaftConfig(), committed_offset=0, now_ms=0)
    for offset in range(10):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1).data)), 1)
        if offset + 1 == flushed:
            log.flush()
    return log, len(files.read(SEGMENT)) // 10


@pytest.mark.parametrize("damaged", [0, 3, 5])
def test_a_truncation_that_meets_damage_stops_the_voter_and_changes_nothing(damaged: int) -> None:
    """If the log were cut at the damage, the voter would go on voting without records that it has flushed and other voters have
    counted. It would also count the records that it fetches next as flushed."""
    files = MemoryFiles()
    log, size = ten_batches(files)
    log.update_high_watermark(6)
    files.flip_bit(SEGMENT, (damaged * size + 8) * 8 + 6)
    before = files.read(SEGMENT)
    with pytest.raises(DamagedMetadataLog, match=f"damaged at offset {damaged}: restore it, or"):
        log.truncate_to(7)
    assert (log.end_offset, log.flushed_offset, files.read(SEGMENT)) == (10, 10, before)


def test_what_is_appended_after_a_truncation_is_flushed_again() -> None:
    """A truncation may cut further back than requested, to the start of the batch that holds the offset. If the flushed offset
    stayed above the log's end, records appended there would count as flushed without an fsync."""
    files = MemoryFiles()
    log = open_log(files)
    log.append_as_follower(memoryview(bytearray(batch(0, 1, 4).data)), 1)
    log.append_as_follower(memoryview(bytearray(batch(4, 1, 4).data)), 1)
    log.flush()
    log.truncate_to(6)
    assert log.flushed_offset == log.end_offset == 4
    log.append_as_follower(memoryview(bytearray(batch(4, 2, 2).data)), 2)
    assert log.flushed_offset < log.end_offset
    log.flush()
    files.crash()
    assert open_log(files).end_offset == 6


def test_damage_is_no_answer_that_a_voter_goes_on_after() -> None:
    """This holds wherever the log finds the damage, and whether it raises or only marks the offset. Otherwise a follower with a
    vote would retry its fetch forever, and a leader would reject every decision and keep leading."""
    operations: list[Callable[[MetadataLog], object]] = [
        lambda log: log.read(4, 1),
        lambda log: log.append_as_leader(memoryview(bytearray(batch(0, 0).data)), 2),
        lambda log: log.append_as_follower(memoryview(bytearray(batch(10, 1).data)), 1),
    ]
    for operation in operations:
        files = MemoryFiles()
        log, size = ten_batches(files)
        files.flip_bit(SEGMENT, (4 * size + size - 3) * 8)
        log.log.tail.clear()
        with pytest.raises(DamagedMetadataLog, match="damaged at offset 4"):
            log.read(0, 1 << 20)
        with pytest.raises(DamagedMetadataLog, match="damaged at offset 4"):
            operation(log)


@pytest.mark.parametrize("damaged", range(8))
@pytest.mark.parametrize("death", ["killed", "ended in order"])
def test_damage_in_what_was_flushed_refuses_to_start(damaged: int, death: str) -> None:
    """This includes records above the offset that this voter knows to be committed, because its leader may have counted them, and
    the last flushed batch, whose damage looks like a torn tail. Every further start fails as well."""
    files = MemoryFiles()
    log, size = ten_batches(files, flushed=8)
    if death == "killed":
        files.crash(lossy=False)
    else:
        log.close()
    files.flip_bit(SEGMENT, (damaged * size + size - 3) * 8)
    for _ in range(2):
        with pytest.raises(DamagedMetadataLog, match="empty this directory as a whole"):
            open_log(files, committed_offset=3)


@pytest.mark.parametrize("damaged", range(10))
def test_a_start_that_reads_damage_leaves_the_log_as_it_is(damaged: int) -> None:
    """This includes the last flushed batch, where no valid batch follows and the damage looks like a torn tail. The disk may have
    returned old bytes only once: if the log were cut there, the next start could no longer read the record."""
    files = MemoryFiles()
    log, size = ten_batches(files)
    log.close()
    before, bit = files.read(SEGMENT), (damaged * size + size - 3) * 8
    files.flip_bit(SEGMENT, bit)
    with pytest.raises(DamagedMetadataLog, match=f"is damaged at offset {damaged}: restore it"):
        open_log(files, committed_offset=3)
    files.flip_bit(SEGMENT, bit)
    assert files.read(SEGMENT) == before
    assert open_log(files, committed_offset=3).end_offset == 10


@pytest.mark.parametrize("damaged", [8, 9])
def test_damage_in_what_was_never_flushed_is_a_torn_tail(damaged: int) -> None:
    """The voter has not promised these records. A power cut leaves such tails, possibly on all voters at once."""
    files = MemoryFiles()
    _, size = ten_batches(files, flushed=8)
    files.crash(lossy=False)
    files.flip_bit(SEGMENT, (damaged * size + size - 3) * 8)
    assert open_log(files, committed_offset=3).end_offset == damaged


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_is_never_taken_for_damage(seed: int) -> None:
    """The flushed point is lowered on the disk before a truncation goes below it, and is never above the log's end."""
    draw, files = Random(seed), MemoryFiles(Random(seed))
    log, epoch = open_log(files), 1
    for _ in range(30):
        step = draw.random()
        if step < 0.6:
            log.append_as_follower(memoryview(bytearray(batch(log.end_offset, epoch, draw.randint(1, 3)).data)), epoch)
        elif step < 0.8:
            log.flush()
        elif log.end_offset > log.start_offset:
            log.truncate_to(draw.randrange(log.start_offset, log.end_offset))
            epoch += 1
        else:
            epoch += 1
            snapshot_id = SnapshotId(log.end_offset + draw.randint(1, 3), epoch)
            write_snapshot(log, snapshot_id)
            log.install_snapshot(snapshot_id)
        assert log.flushed_offset <= log.end_offset
    flushed = log.flushed_offset
    files.crash()
    assert open_log(files).end_offset >= flushed


def test_a_start_writes_nothing_again_that_it_has_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk returns old bytes when the tail is read in order to be written again. If they were written, the log would hold
    them."""
    files = MemoryFiles()
    log, _ = ten_batches(files)
    log.close()
    before, pread, reads = files.read(SEGMENT), MemoryFile.pread, [0]

    def stale(file: MemoryFile, size: int, position: int, *, may_block: bool = True) -> memoryview:
        data = pread(file, size, position, may_block=may_block)
        reads[0] += size > 1 << 19
        return memoryview(bytes(len(data))) if reads[0] == 2 else data

    monkeypatch.setattr(MemoryFile, "pread", stale)
    with pytest.raises(DamagedMetadataLog):
        open_log(files)
    assert reads[0] == 2, "the second time that the segment was read"
    assert files.read(SEGMENT) == before
    assert open_log(files).end_offset == 10


def test_the_log_begins_at_the_older_of_two_snapshots() -> None:
    """So a follower that is behind by less than that need not fetch a snapshot. Older files are removed."""
    files = MemoryFiles()
    log = open_log(files)
    for offset in range(40):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1).data)), 1)
        log.flush()
        log.update_high_watermark(offset + 1)
        if offset % 10 == 9:
            write_snapshot(log, SnapshotId(offset + 1, 1))
            log.clean(0)
    names = files.list(f"d/{DIRECTORY}")
    assert [name for name in names if name.endswith(".checkpoint")] == [snapshot_name(SnapshotId(n, 1)) for n in (30, 40)]
    assert log.start_offset == 30
    assert all(int(name[:20]) > 20 for name in names if name.endswith(".log"))
    files.crash(lossy=False)
    assert open_log(files).start_offset == 30


@given(st.integers(0, 10**19), st.integers(0, 2**31 - 1))
def test_a_snapshots_name_is_its_id(end_offset: int, epoch: int) -> None:
    snapshot_id = SnapshotId(end_offset, epoch)
    assert parse_snapshot_name(snapshot_name(snapshot_id)) == snapshot_id
    assert len(snapshot_name(snapshot_id)) == 42
    assert parse_snapshot_name(snapshot_name(snapshot_id) + ".part") is None


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("removals", range(10))
def test_a_crash_while_the_log_is_cleaned_leaves_a_log_that_opens(removals: int, seed: int) -> None:
    """Segments and snapshots are removed one by one, and any of the removals may survive on the disk: the log must open in each
    case."""
    files = MemoryFiles(Random(seed))
    log = open_log(files)
    for offset in range(40):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1).data)), 1)
        log.flush()
        log.update_high_watermark(offset + 1)
        if offset % 10 == 9 and offset < 39:
            write_snapshot(log, SnapshotId(offset + 1, 1))
            log.clean(0)
    write_snapshot(log, SnapshotId(40, 1))
    files.fsync_dir(f"d/{DIRECTORY}")
    left = [removals]
    remove = files.remove

    def dies(path: str) -> None:
        if not left[0]:
            raise Died
        left[0] -= 1
        remove(path)

    files.remove = dies  # type: ignore[method-assign]
    try:
        log.clean(0)
    except Died:
        pass
    files.remove = remove  # type: ignore[method-assign]
    files.crash(lossy=seed > 0)
    again = open_log(files, 40)
    assert again.end_offset == 40
    assert again.first_snapshot_id is not None
    assert again.start_offset in (20, 30, 40)


class Died(Exception):
    pass


def test_a_start_leaves_nothing_behind_that_is_not_on_the_disk() -> None:
    """The flush after the start covers all that the start has written again, including segments that the next cleaning
    removes."""
    files = MemoryFiles()
    log = open_log(files)
    for offset in range(40):
        log.append_as_follower(memoryview(bytearray(batch(offset, 1).data)), 1)
    log.flush()
    log.update_high_watermark(40)
    for end in (20, 40):
        write_snapshot(log, SnapshotId(end, 1))
    files.fsync_dir(f"d/{DIRECTORY}")
    again = open_log(files, committed_offset=0)
    assert again.start_offset == 20
    names = [name for name in files.list(f"d/{DIRECTORY}") if name.endswith(".log")]
    assert f"{0:020}.log" in names, "the start has cleaned: nothing is left to show this with"
    assert not [name for name in names if files.open(f"d/{DIRECTORY}/{name}", create=False).inode.dirty]


def test_a_batch_that_is_larger_than_a_segment_gets_one_of_its_own() -> None:
    """A decision is one batch, whatever the segment size. If it were rejected, it would be retried forever."""
    files = MemoryFiles()
    log = open_log(files)
    for _ in range(2):
        log.append_as_leader(memoryview(bytearray(batch(0, 1, 100).data)), 1)
    log.close()
    assert len([name for name in files.list(f"d/{DIRECTORY}") if name.endswith(".log")]) == 2
    again = open_log(files, committed_offset=200)
    assert (again.start_offset, again.end_offset) == (0, 200)


@pytest.mark.parametrize("content", [b"", b"0\n1\n", b"0\n1\n__cluster_metadata 0 0000000000000000007\nsomething longer\n"])
def test_a_damaged_flushed_point_is_rewritten_at_the_next_flush(content: bytes) -> None:
    """The file is overwritten in place, so old bytes after the new text would make it unreadable at every start."""
    files = MemoryFiles()
    files.make_dirs("d")
    file = files.open(f"d/{RECOVERY_POINTS}", create=True)
    file.pwrite(content, 0)
    file.close()
    point = FlushedPoint(files, "d")
    assert point.offset == 0
    point.note(12)
    point.close()
    assert FlushedPoint(files, "d").offset == 12
