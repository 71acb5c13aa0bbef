"""A controller dies in each of its steps on the disk, killed or without power: it starts again, keeps its vote, has every
record that it flushed and no other, and can load its newest snapshot (I18, S48, S49, F18)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import pytest
from crash_kit import FEW, Death, Seeds, deaths, failures, found_by, several, several_errors, steps, without_fsync
from structlog.testing import capture_logs

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.metadata_log import DIRECTORY, MetadataLog
from strandline.controller.raft.snapshots import SnapshotWriter, snapshot_values
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.protocol.errors import UsageError
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_values
from strandline.storage.disk import DiskError, Files
from strandline.testing.simulation.kernel.disk import Mount, ProcessDied, SimFiles

VOTERS = (101, 102, 103)
CONFIG = RaftConfig(segment_bytes=1500)
"""Three batches in a segment."""


def batch(base: int, epoch: int) -> bytes:
    """Two records, as the leader of that epoch writes them."""
    values = [f"{epoch}/{base + i}".encode().ljust(200, b".") for i in range(2)]
    return encode_values(values, 0, base_offset=base, leader_epoch=epoch)


def base_of(data: bytes) -> int:
    return next(iter_headers(data))[1].base_offset


class Witness:
    def __init__(self) -> None:
        self.elections = [ElectionState()]
        """The last election that was written to `quorum-state`, and the one that is being written, if any."""
        self.histories: list[list[bytes]] = [[]]
        """The batches of the log; a truncation begins a new history. The batches before a snapshot stay in it."""
        self.flushed_end = 0
        self.snapshots = {0: b""}
        """The state in every snapshot that was ever begun, by its end offset."""
        self.newest_snapshot = 0
        """End offset of the newest snapshot that was finished."""

    @property
    def now(self) -> list[bytes]:
        return self.histories[-1]

    def vote(self, store: QuorumStateStore, log: MetadataLog, election: ElectionState, committed: int) -> None:
        self.elections.append(election)
        store.write(election, min(committed, log.flushed_offset))
        self.elections = self.elections[-1:]

    def append(self, log: MetadataLog, epoch: int, batches: int) -> None:
        for _ in range(batches):
            data = batch(log.end_offset, epoch)
            self.now.append(data)
            log.append_as_follower(memoryview(data), epoch)

    def flush(self, log: MetadataLog) -> None:
        log.flush()
        self.flushed_end = log.end_offset

    def truncate(self, log: MetadataLog, offset: int) -> None:
        self.histories.append([data for data in self.now if base_of(data) < offset])
        self.flushed_end = min(self.flushed_end, offset)
        log.truncate_to(offset)

    def snapshot(self, log: MetadataLog, end_offset: int, epoch: int) -> SnapshotId:
        state = b"state at %d " % end_offset * 60
        self.snapshots[end_offset] = state
        writer = SnapshotWriter(log.create_snapshot(SnapshotId(end_offset, epoch)), epoch, 0)
        writer.write([state])
        writer.finish()
        self.newest_snapshot = end_offset
        return SnapshotId(end_offset, epoch)

    def take_snapshot(self, log: MetadataLog, end_offset: int, epoch: int) -> None:
        """Take a snapshot of the log's own records, after which the log deletes old ones."""
        log.update_high_watermark(end_offset)
        self.snapshot(log, end_offset, epoch)
        log.clean(0)

    def install(self, log: MetadataLog, end_offset: int, epoch: int) -> None:
        """Install a snapshot that the leader sent, because the log ends before the leader's log start."""
        snapshot_id = self.snapshot(log, end_offset, epoch)
        self.histories.append([])
        self.flushed_end = end_offset
        log.install_snapshot(snapshot_id)


def open_quorum(files: Files) -> tuple[MetadataLog, QuorumStateStore, ElectionState]:
    """Open the quorum's files, as `Quorum.start` does."""
    store = QuorumStateStore(files, f"/data/{DIRECTORY}", cluster_id="c", voter_ids=VOTERS)
    state = store.read()
    committed = state.applied_offset if state else 0
    log = MetadataLog.open(files, "/data", CONFIG, committed_offset=committed, now_ms=0)
    return log, store, store.check(state, log.end_offset)


def life_of_a_voter(files: Files, witness: Witness) -> None:
    log, store, _ = open_quorum(files)
    witness.vote(store, log, ElectionState(1, voted_id=101), 0)
    witness.append(log, 1, 4)
    witness.flush(log)
    log.update_high_watermark(6)
    witness.vote(store, log, ElectionState(2, voted_id=102), 6)
    witness.append(log, 2, 2)
    witness.flush(log)
    witness.append(log, 2, 1)
    witness.truncate(log, 8)
    witness.append(log, 3, 4)
    witness.vote(store, log, ElectionState(3, leader_id=103), 8)
    witness.flush(log)
    log.close()
    log, store, _ = open_quorum(files)
    witness.append(log, 3, 1)
    witness.flush(log)


def life_with_snapshots(files: Files, witness: Witness) -> None:
    log, store, _ = open_quorum(files)
    witness.vote(store, log, ElectionState(1, leader_id=101), 0)
    for end_offset in (8, 16, 24):
        witness.append(log, 1, 4)
        witness.flush(log)
        witness.take_snapshot(log, end_offset, 1)
    witness.vote(store, log, ElectionState(2, leader_id=102), 24)
    witness.append(log, 2, 2)
    witness.flush(log)
    witness.install(log, 50, 2)
    witness.vote(store, log, ElectionState(3, voted_id=101), 50)
    witness.append(log, 3, 4)
    witness.flush(log)
    witness.take_snapshot(log, 58, 3)


def look_at_what_is_left(death: Death | str, disk: SimFiles, witness: Witness) -> None:
    try:
        log, store, election = open_quorum(disk.mount())
        check_election(election, witness)
        check_records(log, witness)
        check_snapshots(log, witness)
        # The voter continues, and starts once more.
        end = log.end_offset
        log.append_as_follower(memoryview(batch(end, 9)), 9)
        log.flush()
        store.write(ElectionState(9, leader_id=102), end)
        disk.crash()
        log, _, election = open_quorum(disk.mount())
        assert (election.epoch, log.end_offset, log.last_epoch) == (9, end + 2, 9)
    except Exception as e:
        e.add_note(str(death))
        raise


def check_election(election: ElectionState, witness: Witness) -> None:
    """Check that it is the last election that was written, or the one that was being written. A voter without any state is
    recovering."""
    assert election in witness.elections or (election == ElectionState(recovering=True) and ElectionState() in witness.elections)


def check_records(log: MetadataLog, witness: Witness) -> list[bytes]:
    found, offset = [], log.start_offset
    while offset < log.end_offset:
        buffers, _ = log.read(offset, 1)
        found += [bytes(buffer) for buffer in buffers]
        offset = next(iter_headers(found[-1]))[1].next_offset
    assert log.end_offset >= witness.flushed_end
    assert any(is_part(found, history) for history in witness.histories), f"invented: {[base_of(data) for data in found]}"
    return found


def is_part(found: list[bytes], history: list[bytes]) -> bool:
    return not found or (found[0] in history and found == history[(at := history.index(found[0])) : at + len(found)])


def check_snapshots(log: MetadataLog, witness: Witness) -> None:
    latest = log.latest_snapshot_id
    assert (latest.end_offset if latest else 0) >= witness.newest_snapshot
    assert log.start_offset == 0 or log.first_snapshot_id is not None, "records below the log start are in a snapshot"
    for snapshot_id in (log.first_snapshot_id, latest):
        if snapshot_id is not None:
            assert log.start_offset <= snapshot_id.end_offset <= log.end_offset
            (state,) = snapshot_values(log.load_snapshot(snapshot_id))
            assert state == witness.snapshots[snapshot_id.end_offset]


def data_directory(disk: SimFiles) -> None:
    disk.make_dirs("/data")
    disk.root.sync_all()


@pytest.fixture(autouse=True)
def _quiet() -> Iterable[None]:
    with capture_logs():
        yield


Life = Callable[[Files, Witness], None]


def let_it_die(life: Life, seeds: Seeds = FEW) -> None:
    for death, disk, witness in deaths(life, Witness, seeds, data_directory):
        look_at_what_is_left(death, disk, witness)


@several
@pytest.mark.parametrize("life", [life_of_a_voter, life_with_snapshots])
def test_controller_keeps_its_promises_after_a_death_at_every_operation(life: Life, seeds: Seeds) -> None:
    let_it_die(life, seeds)


@pytest.mark.parametrize("life", [life_of_a_voter, life_with_snapshots])
def test_start_assumes_only_durable_data(life: Life) -> None:
    """A process that died, killed or by a power cut, leaves data in the cache that no fsync has covered. The next process votes
    and fetches with the data that it finds, so that must survive the next power cut. Starts die, too."""
    total = len(steps(life, Witness, data_directory))
    for seed in range(150):
        random = Random(seed)
        disk, witness = SimFiles(random), Witness()
        data_directory(disk)
        disk.crash_at(random.randint(1, total))
        with pytest.raises(ProcessDied):
            life(disk.mount(), witness)
        for _ in range(3):
            disk.crash(lossy=random.random() < 0.5)
            disk.crash_at(random.randint(1, 20))
            try:
                log, store, election = open_quorum(disk.mount())
                check_election(election, witness)
                witness.histories.append(check_records(log, witness))
                witness.elections, witness.flushed_end = [election], log.end_offset
                epoch = max(election.epoch, log.last_epoch) + 1
                witness.vote(store, log, ElectionState(epoch, voted_id=101), 0)
                witness.append(log, epoch, 2)
                witness.flush(log)
            except ProcessDied:
                pass
        disk.crash()
        disk.heal()
        look_at_what_is_left(f"seed {seed}", disk, witness)


@pytest.mark.parametrize("forgotten", ["*.log", "*/quorum-state", "*.checkpoint.part"])
def test_a_forgotten_fsync_is_found(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the test above can fail."""
    monkeypatch.setattr(Mount, "sync_inode", without_fsync(forgotten))
    assert found_by(lambda: let_it_die(life_with_snapshots))


def test_a_rename_without_an_fsync_of_the_directory_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """M19."""
    monkeypatch.setattr(Mount, "sync_directory", lambda *_: None)
    assert found_by(lambda: let_it_die(life_of_a_voter))


def test_a_vote_that_is_written_in_place_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mount, "write_atomic", Mount.write)
    assert "quorum-state" in found_by(lambda: let_it_die(life_of_a_voter))


@several_errors
@pytest.mark.parametrize("life", [life_of_a_voter, life_with_snapshots])
def test_controller_keeps_its_promises_after_every_disk_error(life: Life, seeds: Seeds) -> None:
    """F19, F20: each operation, reads included, fails once; then the process ends, perhaps by a power cut."""
    for death, disk, witness, raised in failures(life, Witness, seeds, data_directory):
        assert isinstance(raised, DiskError), death
        look_at_what_is_left(death, disk, witness)


def test_restart_does_not_rely_on_pages_of_a_failed_fsync() -> None:
    """S46: the fsync fails, the node stops, and its supervisor starts it again: all records are there, in the page cache, and
    another fsync succeeds without writing them. A voter that relies on them then may have promised records that are lost."""
    disk, witness = SimFiles(Random(0)), Witness()
    data_directory(disk)
    log, store, _ = open_quorum(disk.mount())
    witness.vote(store, log, ElectionState(1, voted_id=101), 0)
    witness.append(log, 1, 4)
    disk.fail("fsync", "*.log", times=1, reads_back_old=False)
    with pytest.raises(DiskError):
        log.flush()
    disk.crash(lossy=False)
    log, _, _ = open_quorum(disk.mount())
    assert (log.end_offset, log.flushed_offset) == (8, 8)
    disk.crash()
    log, _, _ = open_quorum(disk.mount())
    assert log.end_offset == 8


def test_a_full_disk_costs_no_vote_and_no_record() -> None:
    """F19."""
    for room in range(0, 24_000, 500):
        disk, witness = SimFiles(Random(room)), Witness()
        data_directory(disk)
        disk.fill(room)
        try:
            life_with_snapshots(disk.mount(), witness)
        except (DiskError, UsageError):
            pass
        disk.crash(lossy=False)
        disk.heal()
        look_at_what_is_left(f"room {room}", disk, witness)
