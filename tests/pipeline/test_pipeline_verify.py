"""`verify` on the directories of a real cluster: it finds nothing wrong however the cluster ended, and it finds each fault that a
test then makes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from waiting import until
from wire_cluster import WireCluster

from strandline.cli import pipeline
from strandline.client import NewTopic
from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.jobs.verify_log import Batch, read_index, read_log, segments
from strandline.pipeline.jobs.verify_page import page
from strandline.pipeline.jobs.verify_records import JobAtRest, chosen
from strandline.pipeline.jobs.verify_result import Finding, Verification
from strandline.protocol.errors import UsageError
from strandline.protocol.records.batch import compute_crc
from strandline.storage.checkpoints import LEADER_EPOCHS, LeaderEpochCheckpoint
from strandline.storage.files import RealFiles
from strandline.storage.log.epoch_cache import LeaderEpochCache
from strandline.testing import Cluster, caught_up, leader

TOPIC = "orders"
ROUNDS, PER_ROUND = 12, 20
SETTINGS = {"log_segment_bytes": 2500, "log_index_interval_bytes": 200}
"""Settings with which few records make several segments and index entries."""


async def send(cluster: Cluster, count: int = ROUNDS, acks: Any = "all") -> None:
    async with cluster.producer(acks=acks) as producer:
        for number in range(count):
            await producer.send_many(TOPIC, [b"%d-%d" % (number, n) for n in range(PER_ROUND)], partition=0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster that was shut down cleanly, with several segments and two leader epochs."""
    folder = tmp_path_factory.mktemp("stopped")

    async def live() -> None:
        async with Cluster(brokers=3, files="disk", folder=folder, **SETTINGS) as cluster:
            await cluster.create_topic(TOPIC, partitions=1)
            await send(cluster)
            await cluster.force_election(TOPIC)
            await send(cluster)
            await cluster.until(caught_up(TOPIC))
            await cluster.stop(*cluster.brokers)

    asyncio.run(live())
    return folder


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> ClusterCopy:
    folder = tmp_path / "cluster"
    shutil.copytree(stopped, folder)
    return ClusterCopy(folder)


class ClusterCopy:
    """A copy of the cluster's folder that a test may damage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def data(self, broker: int) -> Path:
        return next(path.parent for path in self.folder.rglob("meta.properties") if f"node.id={broker}\n" in path.read_text())

    def log(self, broker: int) -> Path:
        return self.data(broker) / f"{TOPIC}-0"

    def batches(self, broker: int) -> list[Batch]:
        return [item for item in read_log(self.log(broker)) if isinstance(item, Batch)]

    def change(self, broker: int, batch: Batch, change: Callable[[bytearray], None]) -> None:
        """Changes the bytes of one batch in its file."""
        path = self.log(broker) / f"{batch.segment:020}.log"
        data = bytearray(path.read_bytes())
        own = data[batch.position : batch.position + batch.size]
        change(own)
        data[batch.position : batch.position + batch.size] = own
        path.write_bytes(data)

    def edit(self, path: Path, change: Callable[[str], str]) -> None:
        path.write_text(change(path.read_text()))

    def high_watermark(self, broker: int) -> int:
        """The checkpointed high watermark. A follower gets its leader's value one fetch later."""
        return int((self.data(broker) / "replication-offset-checkpoint").read_text().split()[-1])

    def set_offset(self, broker: int, name: str, offset: int) -> None:
        (self.data(broker) / name).write_text(f"0\n1\n{TOPIC} 0 {offset}\n")

    def found(self) -> Verification:
        return verify([self.folder])


def of_kind(found: Verification, kind: str) -> Finding:
    bad = {finding.kind: finding for finding in found.all_findings}
    assert kind in bad, [finding.sentence for finding in found.all_findings]
    return bad[kind]


def renew_crc(batch: bytearray) -> None:
    batch[17:21] = struct.pack(">I", compute_crc(batch, 0, len(batch)))


# -- directories without a fault --------------------------------------------------------------------------------------


def test_stopped_cluster_is_sound(copy: ClusterCopy) -> None:
    found = copy.found()
    assert (found.is_ok, found.all_findings) == (True, ())
    (partition,) = found.partitions
    assert [replica.broker for replica in partition.replicas] == ["1", "2", "3"]
    assert {(replica.start, replica.end, replica.records) for replica in partition.replicas} == {(0, 480, 480)}
    assert partition.committed == 480
    assert len({replica.epochs for replica in partition.replicas}) == 1
    assert len(partition.replicas[0].epochs) == 2


def test_nothing_is_changed(copy: ClusterCopy) -> None:
    """After a disaster the directories are evidence: files are opened for reading only, and no lock file is created."""
    before = {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()}
    copy.found()
    assert {path: path.read_bytes() for path in copy.folder.rglob("*") if path.is_file()} == before


def test_killed_brokers_are_sound(tmp_path: Path) -> None:
    """Killed processes leave old checkpoints behind, which are no fault. The broker that was killed first ends earlier, which is
    only a note."""

    async def live() -> None:
        async with Cluster(brokers=3, processes=True, folder=tmp_path, **SETTINGS) as cluster:
            await cluster.create_topic(TOPIC, partitions=1)
            await send(cluster)
            await cluster.kill((await cluster.followers_of(TOPIC))[0])
            await send(cluster)
            await cluster.kill(*(node for node in cluster.brokers if cluster.node(node).is_up))

    asyncio.run(live())
    found = verify([tmp_path])
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert {"unclean"} <= {finding.kind for finding in found.all_findings}
    ends = sorted(replica.end for replica in found.partitions[0].replicas)
    assert ends[0] < ends[1] == ends[2]


def test_diverged_replica_is_not_a_fault(tmp_path: Path) -> None:
    """A leader that is cut off keeps appending records with acks=1. They were never committed, so no finding may call them
    lost."""

    async def diverge(cluster: Cluster) -> int:
        await cluster.create_topic(TOPIC, partitions=1)
        await send(cluster, 2)
        await cluster.until(caught_up(TOPIC))
        old = await cluster.leader_of(TOPIC)
        followers = await cluster.followers_of(TOPIC)
        async with cluster.producer(acks=1) as producer:
            await producer.send_and_wait(TOPIC, b"warm", partition=0)
            await cluster.until(caught_up(TOPIC))
            for node in followers:
                cluster.drop("Fetch", by=node)
            await producer.send_and_wait(TOPIC, b"never committed", partition=0)
        await cluster.kill(old)
        cluster.heal()
        await cluster.until(leader(TOPIC) != old)
        return old

    async def live() -> tuple[Verification, Verification]:
        async with Cluster(brokers=3, files="disk", folder=tmp_path, **SETTINGS) as cluster:
            old = await diverge(cluster)
            await send(cluster, 3)
            others = [node for node in cluster.brokers if node != old]
            await cluster.stop(*others)
            before = verify([tmp_path])
            await cluster.start(*others)
            await cluster.start(old)
            await cluster.until(caught_up(TOPIC))
            await cluster.stop(*cluster.brokers)
            return before, verify([tmp_path])

    before, after = asyncio.run(live())
    assert before.is_ok, [finding.sentence for finding in before.bad]
    assert "committed" in of_kind(before, "not_committed").sentence
    assert (after.is_ok, after.all_findings) == (True, ())


def test_running_broker_is_a_note(copy: ClusterCopy) -> None:
    lock = RealFiles().lock(str(copy.data(2) / ".lock"))
    found = copy.found()
    lock.release()
    assert found.is_ok
    assert of_kind(found, "running").brokers == ("2",)


@pytest.fixture
def running(copy: ClusterCopy, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterCopy]:
    """The copy, with locks held as by running brokers."""
    monkeypatch.setattr("strandline.pipeline.jobs.verify.RETRY_WAITS_S", (0.0, 0.0, 0.0, 0.0))
    locks = [RealFiles().lock(str(copy.data(broker) / ".lock")) for broker in (1, 2, 3)]
    yield copy
    for lock in locks:
        lock.release()


def once(change: Callable[[], object]) -> Callable[[int, int, str], None]:
    """A `progress` that makes a change before the first partition is read, after the logs were listed."""
    changes = [change]
    return lambda *_: changes.pop()() if changes else None  # type: ignore[func-returns-value]


def test_topic_deleted_during_the_run_is_not_a_fault(running: ClusterCopy) -> None:
    def delete() -> None:
        for broker in (1, 2, 3):
            shutil.rmtree(running.log(broker))

    found = verify([running.folder], progress=once(delete))
    assert (found.is_ok, found.partitions) == (True, ()), [finding.sentence for finding in found.bad]


def test_segment_deleted_during_the_run_is_not_a_fault(running: ClusterCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention may delete a segment after the segments were listed and before they are read."""
    listed: list[Path] = []

    def listing(folder: Path) -> list[tuple[int, Path]]:
        files = segments(folder)
        if folder not in listed:
            listed.append(folder)
            begin_epochs_at(folder, remove_first_segment(folder))
        return files

    monkeypatch.setattr("strandline.pipeline.jobs.verify.segments", listing)
    found = running.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert {replica.start for replica in found.partitions[0].replicas} != {0}
    assert len(listed) == 3


def test_damage_of_a_running_broker_is_a_fault(running: ClusterCopy) -> None:
    batch = running.batches(2)[5]
    running.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    assert [finding.kind for finding in running.found().bad] == ["damaged"]


def test_file_deleted_from_a_stopped_broker_is_a_fault(copy: ClusterCopy) -> None:
    found = verify([copy.folder], progress=once(lambda: shutil.rmtree(copy.log(2))))
    assert [(finding.kind, finding.brokers) for finding in found.bad] == [("vanished", ("2",))]


def test_torn_tail_after_a_kill_is_a_note(copy: ClusterCopy) -> None:
    for broker in (1, 2, 3):
        (copy.data(broker) / ".kafka_cleanshutdown").unlink()
        (copy.data(broker) / "recovery-point-offset-checkpoint").unlink()
        copy.set_offset(broker, "replication-offset-checkpoint", 400)
    last = copy.batches(2)[-1]
    path = copy.log(2) / f"{last.segment:020}.log"
    path.write_bytes(path.read_bytes()[:-10])
    found = copy.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert of_kind(found, "torn_tail").brokers == ("2",)


# -- directories with a fault -----------------------------------------------------------------------------------------


def test_flipped_byte_is_damage(copy: ClusterCopy) -> None:
    batch = copy.batches(2)[5]
    copy.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    finding = of_kind(copy.found(), "damaged")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert (finding.brokers, finding.others) == (("2",), ("1", "3"))
    assert "checksum" in finding.detail
    assert "stop broker 2" in finding.action
    assert [one.kind for one in copy.found().bad] == ["damaged"]


def test_flipped_size_does_not_hide_later_batches(copy: ClusterCopy) -> None:
    batch = copy.batches(3)[7]
    copy.change(3, batch, lambda data: data.__setitem__(9, 0x7F))
    finding = of_kind(copy.found(), "damaged")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)


def test_damage_in_all_replicas_is_loss(copy: ClusterCopy) -> None:
    for broker in (1, 2, 3):
        batch = copy.batches(broker)[5]
        copy.change(broker, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    finding = of_kind(copy.found(), "lost")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert "no replica given can repair this" in of_kind(copy.found(), "damaged").action


def test_different_bytes_with_valid_checksums_are_found(copy: ClusterCopy) -> None:
    """A valid checksum only proves that a batch is as it was written, not that all replicas wrote the same batch."""
    batch = copy.batches(2)[4]

    def other(data: bytearray) -> None:
        data[-2] ^= 1
        renew_crc(data)

    copy.change(2, batch, other)
    finding = of_kind(copy.found(), "replicas_differ")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert finding.detail == "brokers 1 and 3: leader epoch 0; broker 2: leader epoch 0"


def test_cut_tail_below_the_high_watermark_is_missing(copy: ClusterCopy) -> None:
    last = copy.batches(1)[-4]
    path = copy.log(1) / f"{last.segment:020}.log"
    path.write_bytes(path.read_bytes()[: last.position])
    finding = of_kind(copy.found(), "missing_below_hw")
    assert (finding.brokers, finding.first, finding.end) == (("1",), last.base_offset, copy.high_watermark(1))
    assert finding.others == ("2", "3")
    assert "start brokers 2 and 3 first" in finding.action


def test_dropped_batch_is_a_gap(copy: ClusterCopy) -> None:
    batch = copy.batches(3)[6]
    path = copy.log(3) / f"{batch.segment:020}.log"
    data = path.read_bytes()
    path.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    finding = of_kind(copy.found(), "offset_gap")
    assert (finding.brokers, finding.first, finding.end) == (("3",), batch.base_offset, batch.next_offset)


def test_lost_segment_is_a_gap(copy: ClusterCopy) -> None:
    base = copy.batches(1)[-1].segment
    (copy.log(1) / f"{sorted({batch.segment for batch in copy.batches(1)})[1]:020}.log").unlink()
    finding = of_kind(copy.found(), "offset_gap")
    assert finding.brokers == ("1",)
    assert (finding.end or 0) <= base


def test_changed_leader_epoch_is_found(copy: ClusterCopy) -> None:
    """The checksum does not cover the leader epoch."""
    batch = copy.batches(2)[3]
    copy.change(2, batch, lambda data: data.__setitem__(slice(12, 16), struct.pack(">i", 1)))
    kinds = {finding.kind for finding in copy.found().bad}
    assert kinds == {"replicas_differ", "epoch_backwards", "epoch_checkpoint"}


def test_duplicated_batch_is_doubled(copy: ClusterCopy) -> None:
    """Every replica has the same sequence numbers at two offsets, so a comparison of replicas cannot find it."""
    for broker in (1, 2, 3):
        last = copy.batches(broker)[-1]
        path = copy.log(broker) / f"{last.segment:020}.log"
        again = bytearray(path.read_bytes()[last.position :])
        again[:8] = struct.pack(">q", last.next_offset)
        path.write_bytes(path.read_bytes() + again)
    finding = of_kind(copy.found(), "doubled")
    assert (finding.brokers, finding.first, finding.end) == (("1", "2", "3"), 480, 500)


def test_missing_sequence_is_a_gap(copy: ClusterCopy) -> None:
    """Records are missing, but the offsets have no gap, so only the sequence numbers show it."""
    for broker in (1, 2, 3):
        one, two = copy.batches(broker)[-2:]
        path = copy.log(broker) / f"{two.segment:020}.log"
        data = bytearray(path.read_bytes())
        data[two.position + 53 : two.position + 57] = struct.pack(">i", two.base_sequence + 5)
        part = data[two.position :]
        renew_crc(part)
        path.write_bytes(data[: two.position] + part)
        assert one.producer_id == two.producer_id
    assert of_kind(copy.found(), "sequence_gap").first == two.base_offset


@pytest.mark.parametrize(
    ("name", "kind"),
    [("replication-offset-checkpoint", "missing_below_hw"), ("recovery-point-offset-checkpoint", "checkpoint_beyond_log")],
)
def test_checkpoint_above_the_log_is_found(copy: ClusterCopy, name: str, kind: str) -> None:
    copy.set_offset(2, name, 9480)
    finding = of_kind(copy.found(), kind)
    assert (finding.brokers, finding.first, finding.end) == (("2",), 480, 9480)


def test_unreadable_checkpoint_is_found(copy: ClusterCopy) -> None:
    copy.edit(copy.data(2) / "replication-offset-checkpoint", lambda text: text.replace("\n1\n", "\n2\n"))
    assert "replication-offset-checkpoint" in of_kind(copy.found(), "checkpoint_unreadable").sentence


def test_wrong_epoch_checkpoint_is_found(copy: ClusterCopy) -> None:
    copy.edit(copy.log(3) / "leader-epoch-checkpoint", lambda text: text.replace(" 240", " 200"))
    finding = of_kind(copy.found(), "epoch_checkpoint")
    assert finding.brokers == ("3",)
    assert finding.first == 200


def test_wrong_index_entry_is_found(copy: ClusterCopy) -> None:
    path = sorted(copy.log(1).glob("*.index"))[0]
    data = bytearray(path.read_bytes())
    assert len(data) >= 8
    data[7] ^= 1
    path.write_bytes(data)
    finding = of_kind(copy.found(), "index")
    assert finding.brokers == ("1",)
    assert path.name in finding.sentence


@pytest.mark.parametrize("at", [2, 6, 7, 10], ids=["far too new", "newer", "older or newer", "other offset"])
def test_wrong_time_index_entry_is_found(copy: ClusterCopy, at: int) -> None:
    """With a timestamp that is too late, retention keeps the segment; with one that is too early, a search by time misses
    records."""
    path = sorted(copy.log(1).glob("*.timeindex"))[0]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    finding = of_kind(copy.found(), "index")
    assert finding.brokers == ("1",)
    assert path.name in finding.sentence


def test_preallocated_index_is_a_note_after_a_kill(copy: ClusterCopy) -> None:
    """Apache Kafka allocates 10 MB of zeros for each index and cuts them at a clean shutdown. Zeros are not read as entries."""
    path = sorted(copy.log(1).glob("*.index"))[-1]
    path.write_bytes(path.read_bytes().ljust(10 << 20, b"\0"))
    index = read_index(path, 8)
    assert index is not None
    assert (len(index.entries) < 100, index.ends_in_zeros) == (True, True)
    assert path.name in of_kind(copy.found(), "index").sentence
    (copy.data(1) / ".kafka_cleanshutdown").unlink()
    found = copy.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert path.name in of_kind(found, "index_old").sentence


def test_different_topic_id_is_found(copy: ClusterCopy) -> None:
    copy.edit(copy.log(2) / "partition.metadata", lambda _: f"version: 0\ntopic_id: {'A' * 22}\n")
    finding = of_kind(copy.found(), "topic_id")
    assert finding.brokers == ("2",)
    assert "AAAA" in finding.detail


def test_different_cluster_is_found(copy: ClusterCopy) -> None:
    copy.edit(copy.data(2) / "meta.properties", lambda text: text.replace("cluster.id=", "cluster.id=x"))
    assert "different clusters" in of_kind(copy.found(), "cluster_id").sentence


def test_missing_replica_is_found(copy: ClusterCopy) -> None:
    end = copy.high_watermark(3)
    shutil.rmtree(copy.log(3))
    finding = of_kind(copy.found(), "replica_missing")
    assert (finding.brokers, finding.others, finding.end) == (("3",), ("1", "2"), end)


@pytest.mark.parametrize("kept", [(), ("meta.properties",)], ids=["empty", "new disk"])
def test_directory_without_logs_is_a_note(copy: ClusterCopy, kept: tuple[str, ...]) -> None:
    """A broker's disk was replaced. Without the note, two replicas would look like all replicas."""
    data = copy.data(2)
    for path in data.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = copy.found()
    note = of_kind(found, "no_logs")
    assert (note.brokers, note.path) == (("2",) if kept else (data.name,), str(data))
    assert str(data) in note.sentence
    assert "controller" not in " ".join(found.directories), "a controller has no logs of topics"


def test_log_missing_everywhere_is_found(copy: ClusterCopy) -> None:
    """After a clean shutdown a checkpoint names only logs that exist. After a kill it may still name a deleted topic."""
    for broker in (1, 2, 3):
        shutil.rmtree(copy.log(broker))
    finding = of_kind(copy.found(), "replica_missing")
    assert finding.others == ()
    for broker in (1, 2, 3):
        (copy.data(broker) / ".kafka_cleanshutdown").unlink()
    found = copy.found()
    assert found.is_ok
    assert of_kind(found, "log_missing").brokers


def test_stray_and_unknown_folders_are_notes(copy: ClusterCopy) -> None:
    shutil.copytree(copy.log(1), copy.data(1) / f"gone-0.{'0' * 32}-stray")
    (copy.data(1) / "notes.txt").write_text("x")
    found = copy.found()
    assert found.is_ok
    assert "gone-0" in of_kind(found, "stray").sentence
    assert "notes.txt" in of_kind(found, "unknown_entry").sentence


def remove_first_segment(log: Path) -> int:
    """Deletes the first segment. Returns the base offset of the segment that is the first one now."""
    first, second = sorted(log.glob("*.log"))[:2]
    for path in log.glob(f"{first.stem}.*"):
        path.unlink()
    return int(second.stem)


def begin_epochs_at(log: Path, start: int) -> None:
    """Changes `leader-epoch-checkpoint` as a broker does when its log start moves."""
    path = log / LEADER_EPOCHS
    entries = LeaderEpochCheckpoint.decode(path.read_bytes())
    assert entries
    cache = LeaderEpochCache(entries)
    assert cache.truncate_from_start(start)
    path.write_bytes(LeaderEpochCheckpoint.encode(cache.entries))


def test_retention_of_one_replica_is_a_note(copy: ClusterCopy) -> None:
    begin_epochs_at(copy.log(2), remove_first_segment(copy.log(2)))
    found = copy.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    note = of_kind(found, "later_start")
    assert (note.brokers, note.first) == (("2",), 0)


def test_first_segment_missing_everywhere_is_found(copy: ClusterCopy) -> None:
    """A comparison of replicas cannot find it. Retention changes leader-epoch-checkpoint before it deletes a segment, so the file
    shows that retention did not delete this one."""
    starts = {remove_first_segment(copy.log(broker)) for broker in (1, 2, 3)}
    finding = of_kind(copy.found(), "head_missing")
    assert (finding.brokers, finding.first, {finding.end}) == (("1", "2", "3"), 0, starts)
    assert (finding.others, finding.action[:38]) == ((), "no replica given can repair this: keep")
    for broker in (1, 2, 3):
        (copy.data(broker) / ".kafka_cleanshutdown").unlink()
    found = copy.found()
    assert found.is_ok, "after a power failure the checkpoint may be older than the log"
    assert of_kind(found, "head_gone").brokers == ("1", "2", "3")


def test_first_segment_missing_in_one_replica_is_found(copy: ClusterCopy) -> None:
    remove_first_segment(copy.log(2))
    finding = of_kind(copy.found(), "head_missing")
    assert (finding.brokers, finding.others) == (("2",), ("1", "3"))
    assert "stop broker 2" in finding.action


def test_moved_log_start_is_not_a_fault(copy: ClusterCopy) -> None:
    """DeleteRecords moves the log start of leader and followers before segments are deleted. Earlier epochs are removed at once;
    the checkpoint of log starts is written once a minute and at a clean shutdown."""
    for broker in (1, 2, 3):
        begin_epochs_at(copy.log(broker), 250)
        copy.set_offset(broker, "log-start-offset-checkpoint", 250)
    found = copy.found()
    assert (found.is_ok, found.all_findings) == (True, ())
    for broker in (1, 2, 3):
        (copy.data(broker) / "log-start-offset-checkpoint").unlink()
    assert of_kind(copy.found(), "epoch_checkpoint").brokers == ("1", "2", "3"), "stopped in order"
    for broker in (1, 2, 3):
        (copy.data(broker) / ".kafka_cleanshutdown").unlink()
    found = copy.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    note = of_kind(found, "log_start_moved")
    assert (note.brokers, note.first, note.end) == (("1", "2", "3"), 0, 250)


def test_first_batch_missing_everywhere_is_found(copy: ClusterCopy) -> None:
    """The segment's name shows the offset at which its first batch must begin."""
    for broker in (1, 2, 3):
        first = copy.batches(broker)[0]
        path = copy.log(broker) / f"{0:020}.log"
        path.write_bytes(path.read_bytes()[first.size :])
    found = copy.found()
    finding = of_kind(found, "offset_gap")
    assert (finding.brokers, finding.first, finding.end) == (("1", "2", "3"), 0, first.next_offset)
    assert of_kind(found, "lost").first == 0


def test_renamed_segment_is_found(copy: ClusterCopy) -> None:
    """Its batches follow those before, but a broker finds a segment by the offset in its name."""
    path = sorted(copy.log(2).glob("*.log"))[1]
    for file in copy.log(2).glob(f"{path.stem}.*"):
        file.rename(file.with_name(f"{int(path.stem) - 3:020}{file.suffix}"))
    finding = of_kind(copy.found(), "segment_name")
    assert (finding.brokers, finding.first) == (("2",), int(path.stem))


def test_folder_named_like_a_log_is_searched(copy: ClusterCopy) -> None:
    """`broker-1` could be partition 1 of a topic `broker`, and the folder may have other files that end with `.log`."""
    copied = copy.folder.parent / "copied"
    for broker in (1, 2, 3):
        shutil.copytree(copy.data(broker), copied / f"broker-{broker}" / "data")
        (copied / f"broker-{broker}" / "server.log").write_text("started")
    found = verify([copied])
    assert [len(partition.replicas) for partition in found.partitions] == [3]
    assert found.partitions[0].committed == 480


def test_linked_directory_is_read(copy: ClusterCopy, tmp_path: Path) -> None:
    """A broker's data may be on another disk. If the link were skipped, its damage would not be found."""
    elsewhere = tmp_path / "disk-2"
    source = copy.data(2)
    source.rename(elsewhere)
    source.symlink_to(elsewhere)
    (tmp_path / "round").symlink_to(tmp_path)
    found = copy.found()
    assert [len(partition.replicas) for partition in found.partitions] == [3]


def test_single_replica_is_checked(copy: ClusterCopy) -> None:
    """After a disaster, only one disk may be left."""
    batch = copy.batches(1)[5]
    copy.change(1, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    found = verify([copy.data(1)])
    assert {finding.kind for finding in found.bad} == {"damaged", "lost"}


# -- the page ---------------------------------------------------------------------------------------------------------


def test_page_has_findings_actions_and_pictures(copy: ClusterCopy) -> None:
    batch = copy.batches(2)[5]
    copy.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    shutil.copytree(copy.log(1), copy.data(1) / f"gone<b>-0.{'0' * 32}-stray")
    text = page(copy.found())
    assert "What to do: with the other replicas running, stop broker 2, move the folder orders-0 away" in text
    assert text.count("class=epoch") == 7, "two epochs a replica, one of them in two parts"
    assert f"left:{100 * batch.base_offset / 480:.3f}%" in text
    assert text.count("class=fault") == 1
    assert "<b>-0" not in text
    assert "http" not in text.split("</style>")[1], "it needs no network"


def test_page_of_sound_directories_says_so(copy: ClusterCopy) -> None:
    text = page(copy.found())
    assert "Sound: 1 partition, 3 replicas" in text
    assert "class=fault" not in text
    assert "<h2>Findings</h2>" not in text


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def call() -> Callable[..., Any]:
    return lambda *words: CliRunner().invoke(pipeline.app, ["verify", *map(str, words)])


def test_sound_directories_exit_with_0(call: Callable[..., Any], copy: ClusterCopy) -> None:
    result = call(copy.folder, "--html", copy.folder / "verify.html")
    assert result.exit_code == 0, result.output
    assert (copy.folder / "verify.html").read_text().startswith("<!doctype html>")
    assert "sound: 1 partition, 3 replicas" in result.output
    assert "480" in result.output


def test_damage_exits_with_3_and_says_what_to_do(call: Callable[..., Any], copy: ClusterCopy) -> None:
    batch = copy.batches(2)[5]
    copy.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    result = call(copy.folder)
    assert result.exit_code == 3, result.output
    assert "orders-0, broker 2, offsets 100 to 119: bytes that are not a sound batch; brokers 1 and 3 have them" in result.output
    assert "stop broker 2" in result.output


def test_json_has_findings_and_actions(call: Callable[..., Any], copy: ClusterCopy) -> None:
    shutil.rmtree(copy.log(3))
    result = call(copy.data(1), copy.data(2), copy.data(3), "--json")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    assert document["ok"] is False
    assert document["findings"][0]["kind"] == "replica_missing"
    assert document["findings"][0]["action"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["/nowhere"], "there is no folder /nowhere"),
        (["{empty}"], "has no logs"),
        (["{file}"], "is a file"),
        (["{folder}", "--topic", "nope"], "no directory has a log of topic nope; there are logs of orders"),
    ],
)
def test_wrong_arguments_get_one_sentence(words: list[str], sentence: str, copy: ClusterCopy, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = {"empty": tmp_path / "empty", "file": tmp_path / "file", "folder": copy.folder}
    filled = [word.format(**places) for word in words]
    with pytest.raises(UsageError, match="^.*" + sentence.replace("/", ".")):
        verify([filled[0]], filled[2:])
    assert os.path.exists(copy.folder)


# -- compacted topics -------------------------------------------------------------------------------------------------

COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "file.delete.delay.ms": "0"}


async def write_keys(cluster: Cluster, rounds: range) -> None:
    """Writes ten keys in each round, and deletes one of them."""
    async with cluster.producer() as producer:
        for number in rounds:
            for key in range(10):
                value = None if key == number % 10 else b"%d" % number * 20
                await producer.send(TOPIC, value, key=b"k%d" % key, partition=0)
            await producer.flush()


async def compacted_by(cluster: WireCluster, *brokers: int) -> None:
    """Waits until these brokers have compacted all closed segments."""

    def is_done() -> bool:
        found = [p.log for n in brokers for p in cluster.server(n).replicas.partitions.values() if p.topic == TOPIC]
        return all(len(log.segments) > 1 and log.first_dirty_offset == log.segments[-1].base_offset for log in found)

    await until(is_done, "the closed segments are compacted", within_s=20)


@pytest.fixture(scope="module")
def stopped_compacted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster with a compacted topic. Broker 3 was stopped early: the others have removed more since."""
    folder = tmp_path_factory.mktemp("compacted")

    async def live() -> None:
        async with WireCluster(brokers=3, files="disk", folder=folder, log_cleaner_backoff_ms=50, **SETTINGS) as cluster:
            async with cluster.admin() as admin:
                await admin.create_topics([NewTopic(TOPIC, 1, 3, configs=COMPACTED)])
            await write_keys(cluster, range(20))
            await cluster.until(caught_up(TOPIC))
            await compacted_by(cluster, 1, 2, 3)
            await cluster.stop(3)
            await write_keys(cluster, range(20, 60))
            await compacted_by(cluster, 1, 2)
            await cluster.stop(1, 2)

    asyncio.run(live())
    return folder


@pytest.fixture
def compacted(stopped_compacted: Path, tmp_path: Path) -> ClusterCopy:
    folder = tmp_path / "cluster"
    shutil.copytree(stopped_compacted, folder)
    return ClusterCopy(folder)


def test_replicas_that_were_compacted_at_different_times_are_sound(compacted: ClusterCopy) -> None:
    found = compacted.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    finding = of_kind(found, "compacted_differently")
    assert "records that they share are equal" in finding.sentence
    (partition,) = found.partitions
    assert len({replica.records for replica in partition.replicas}) > 1


@pytest.mark.parametrize(("fixture", "expected"), [("compacted", {TOPIC}), ("copy", set())])
def test_audit_at_rest_knows_the_compacted_topics(request: pytest.FixtureRequest, fixture: str, expected: set[str]) -> None:
    cluster: ClusterCopy = request.getfixturevalue(fixture)
    job = JobAtRest(None, "", {}, [TOPIC], 3600, chosen(cluster.found().partitions))  # type: ignore[arg-type]
    assert job.compacted([TOPIC]) == expected


def test_another_record_in_a_compacted_batch_is_found(compacted: ClusterCopy) -> None:
    """The record is one that broker 3 and another broker still have. Its batch differs on each of them anyway."""
    shared = {batch.base_offset for batch in compacted.batches(1) if batch.record_count} & {
        batch.base_offset for batch in compacted.batches(2) if batch.record_count
    }
    batch = next(each for each in compacted.batches(2) if each.base_offset in shared and each.record_count)

    def other(data: bytearray) -> None:
        data[-2] ^= 1
        renew_crc(data)

    compacted.change(2, batch, other)
    finding = of_kind(compacted.found(), "replicas_differ")
    assert batch.base_offset <= (finding.first or 0) < batch.next_offset
