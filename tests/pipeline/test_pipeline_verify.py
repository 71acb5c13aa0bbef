"""`verify` on the directories of a real cluster: nothing is found in what a cluster leaves behind, however it ended, and each
fault that is then put there is found and named."""

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

from strandline.cli import pipeline
from strandline.pipeline.jobs.verify import verify
from strandline.pipeline.jobs.verify_log import Batch, read_index, read_log, segments
from strandline.pipeline.jobs.verify_page import page
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
"""Several segments, and index entries, from few records."""


async def send(cluster: Cluster, count: int = ROUNDS, acks: Any = "all") -> None:
    async with cluster.producer(acks=acks) as producer:
        for number in range(count):
            await producer.send_many(TOPIC, [b"%d-%d" % (number, n) for n in range(PER_ROUND)], partition=0)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a cluster that was stopped in order: several segments, and two leader epochs."""
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
def world(stopped: Path, tmp_path: Path) -> World:
    folder = tmp_path / "cluster"
    shutil.copytree(stopped, folder)
    return World(folder)


class World:
    """A copy of the cluster's folder, to be damaged."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def data(self, broker: int) -> Path:
        return next(path.parent for path in self.folder.rglob("meta.properties") if f"node.id={broker}\n" in path.read_text())

    def log(self, broker: int) -> Path:
        return self.data(broker) / f"{TOPIC}-0"

    def batches(self, broker: int) -> list[Batch]:
        return [item for item in read_log(self.log(broker)) if isinstance(item, Batch)]

    def change(self, broker: int, batch: Batch, change: Callable[[bytearray], None]) -> None:
        """Change the bytes of one batch, in place."""
        path = self.log(broker) / f"{batch.segment:020}.log"
        data = bytearray(path.read_bytes())
        own = data[batch.position : batch.position + batch.size]
        change(own)
        data[batch.position : batch.position + batch.size] = own
        path.write_bytes(data)

    def edit(self, path: Path, change: Callable[[str], str]) -> None:
        path.write_text(change(path.read_text()))

    def high_watermark(self, broker: int) -> int:
        """As checkpointed; a follower's is a fetch behind its leader's."""
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


# -- nothing is found where nothing is wrong --------------------------------------------------------------------------


def test_stopped_cluster_is_sound(world: World) -> None:
    found = world.found()
    assert (found.is_ok, found.all_findings) == (True, ())
    (partition,) = found.partitions
    assert [replica.broker for replica in partition.replicas] == ["1", "2", "3"]
    assert {(replica.start, replica.end, replica.records) for replica in partition.replicas} == {(0, 480, 480)}
    assert partition.committed == 480
    assert len({replica.epochs for replica in partition.replicas}) == 1
    assert len(partition.replicas[0].epochs) == 2


def test_nothing_is_changed(world: World) -> None:
    """A tool that one runs after a disaster opens files for reading only, and leaves no lock file behind."""
    before = {path: path.read_bytes() for path in world.folder.rglob("*") if path.is_file()}
    world.found()
    assert {path: path.read_bytes() for path in world.folder.rglob("*") if path.is_file()} == before


def test_killed_brokers_are_sound(tmp_path: Path) -> None:
    """Processes that were killed while records were written leave old checkpoints, and no finding. One of them was killed first:
    it is behind, and that is a note."""

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


def test_diverged_replica_is_no_fault_before_and_after_it_truncates(tmp_path: Path) -> None:
    """A leader that is cut off keeps appending with acks=1. What it has then was never committed."""

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


def test_running_broker_is_named(world: World) -> None:
    lock = RealFiles().lock(str(world.data(2) / ".lock"))
    found = world.found()
    lock.release()
    assert found.is_ok
    assert of_kind(found, "running").brokers == ("2",)


@pytest.fixture
def running(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """The world with the locks of running brokers."""
    monkeypatch.setattr("strandline.pipeline.jobs.verify.LOOK_AGAIN_S", (0.0, 0.0, 0.0, 0.0))
    locks = [RealFiles().lock(str(world.data(broker) / ".lock")) for broker in (1, 2, 3)]
    yield world
    for lock in locks:
        lock.release()


def once(change: Callable[[], object]) -> Callable[[str], None]:
    """A `progress` that changes something between planning and reading, the first time only."""
    changes = [change]
    return lambda _: changes.pop()() if changes else None  # type: ignore[func-returns-value]


def test_topic_that_is_deleted_meanwhile_is_no_fault(running: World) -> None:
    def delete() -> None:
        for broker in (1, 2, 3):
            shutil.rmtree(running.log(broker))

    found = verify([running.folder], progress=once(delete))
    assert (found.is_ok, found.partitions) == (True, ()), [finding.sentence for finding in found.bad]


def test_segment_that_retention_removes_meanwhile_is_no_fault(running: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the segments were listed, before they are read."""
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


def test_damage_of_a_running_broker_stays_a_fault(running: World) -> None:
    batch = running.batches(2)[5]
    running.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    assert [finding.kind for finding in running.found().bad] == ["damaged"]


def test_file_that_vanishes_from_a_stopped_broker_is_a_fault(world: World) -> None:
    found = verify([world.folder], progress=once(lambda: shutil.rmtree(world.log(2))))
    assert [(finding.kind, finding.brokers) for finding in found.bad] == [("vanished", ("2",))]


def test_torn_tail_after_a_kill_is_a_note(world: World) -> None:
    for broker in (1, 2, 3):
        (world.data(broker) / ".kafka_cleanshutdown").unlink()
        (world.data(broker) / "recovery-point-offset-checkpoint").unlink()
        world.set_offset(broker, "replication-offset-checkpoint", 400)
    last = world.batches(2)[-1]
    path = world.log(2) / f"{last.segment:020}.log"
    path.write_bytes(path.read_bytes()[:-10])
    found = world.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert of_kind(found, "torn_tail").brokers == ("2",)


# -- each fault is found and named ------------------------------------------------------------------------------------


def test_flipped_byte_is_damage(world: World) -> None:
    batch = world.batches(2)[5]
    world.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    finding = of_kind(world.found(), "damaged")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert (finding.brokers, finding.others) == (("2",), ("1", "3"))
    assert "checksum" in finding.detail
    assert "stop broker 2" in finding.action
    assert [one.kind for one in world.found().bad] == ["damaged"]


def test_flipped_size_does_not_hide_what_follows(world: World) -> None:
    batch = world.batches(3)[7]
    world.change(3, batch, lambda data: data.__setitem__(9, 0x7F))
    finding = of_kind(world.found(), "damaged")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)


def test_damage_in_all_replicas_is_loss(world: World) -> None:
    for broker in (1, 2, 3):
        batch = world.batches(broker)[5]
        world.change(broker, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    finding = of_kind(world.found(), "lost")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert "no replica given can repair this" in of_kind(world.found(), "damaged").action


def test_other_bytes_under_a_right_checksum_differ(world: World) -> None:
    """A checksum says that a batch is what was written, not that the replicas wrote the same."""
    batch = world.batches(2)[4]

    def other(data: bytearray) -> None:
        data[-2] ^= 1
        renew_crc(data)

    world.change(2, batch, other)
    finding = of_kind(world.found(), "replicas_differ")
    assert (finding.first, finding.end) == (batch.base_offset, batch.next_offset)
    assert finding.detail == "brokers 1 and 3: leader epoch 0; broker 2: leader epoch 0"


def test_cut_tail_below_the_high_watermark_is_missing(world: World) -> None:
    last = world.batches(1)[-4]
    path = world.log(1) / f"{last.segment:020}.log"
    path.write_bytes(path.read_bytes()[: last.position])
    finding = of_kind(world.found(), "missing_below_hw")
    assert (finding.brokers, finding.first, finding.end) == (("1",), last.base_offset, world.high_watermark(1))
    assert finding.others == ("2", "3")
    assert "start brokers 2 and 3 first" in finding.action


def test_dropped_batch_is_a_gap(world: World) -> None:
    batch = world.batches(3)[6]
    path = world.log(3) / f"{batch.segment:020}.log"
    data = path.read_bytes()
    path.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    finding = of_kind(world.found(), "offset_gap")
    assert (finding.brokers, finding.first, finding.end) == (("3",), batch.base_offset, batch.next_offset)


def test_lost_segment_is_a_gap(world: World) -> None:
    base = world.batches(1)[-1].segment
    (world.log(1) / f"{sorted({batch.segment for batch in world.batches(1)})[1]:020}.log").unlink()
    finding = of_kind(world.found(), "offset_gap")
    assert finding.brokers == ("1",)
    assert (finding.end or 0) <= base


def test_swapped_epoch_differs(world: World) -> None:
    """The leader epoch lies outside of the checksum."""
    batch = world.batches(2)[3]
    world.change(2, batch, lambda data: data.__setitem__(slice(12, 16), struct.pack(">i", 1)))
    kinds = {finding.kind for finding in world.found().bad}
    assert kinds == {"replicas_differ", "epoch_backwards", "epoch_checkpoint"}


def test_duplicated_batch_is_doubled(world: World) -> None:
    """The same sequence numbers behind each other, at offsets of their own, in every replica: no comparison shows it."""
    for broker in (1, 2, 3):
        last = world.batches(broker)[-1]
        path = world.log(broker) / f"{last.segment:020}.log"
        again = bytearray(path.read_bytes()[last.position :])
        again[:8] = struct.pack(">q", last.next_offset)
        path.write_bytes(path.read_bytes() + again)
    finding = of_kind(world.found(), "doubled")
    assert (finding.brokers, finding.first, finding.end) == (("1", "2", "3"), 480, 500)


def test_missing_sequence_is_a_gap(world: World) -> None:
    """Records are gone, and the offsets were closed up behind them."""
    for broker in (1, 2, 3):
        one, two = world.batches(broker)[-2:]
        path = world.log(broker) / f"{two.segment:020}.log"
        data = bytearray(path.read_bytes())
        data[two.position + 53 : two.position + 57] = struct.pack(">i", two.base_sequence + 5)
        part = data[two.position :]
        renew_crc(part)
        path.write_bytes(data[: two.position] + part)
        assert one.producer_id == two.producer_id
    assert of_kind(world.found(), "sequence_gap").first == two.base_offset


@pytest.mark.parametrize(
    ("name", "kind"),
    [("replication-offset-checkpoint", "missing_below_hw"), ("recovery-point-offset-checkpoint", "checkpoint_beyond_log")],
)
def test_checkpoint_above_the_log_is_found(world: World, name: str, kind: str) -> None:
    world.set_offset(2, name, 9480)
    finding = of_kind(world.found(), kind)
    assert (finding.brokers, finding.first, finding.end) == (("2",), 480, 9480)


def test_unreadable_checkpoint_is_found(world: World) -> None:
    world.edit(world.data(2) / "replication-offset-checkpoint", lambda text: text.replace("\n1\n", "\n2\n"))
    assert "replication-offset-checkpoint" in of_kind(world.found(), "checkpoint_unreadable").sentence


def test_other_epoch_checkpoint_is_found(world: World) -> None:
    world.edit(world.log(3) / "leader-epoch-checkpoint", lambda text: text.replace(" 240", " 200"))
    finding = of_kind(world.found(), "epoch_checkpoint")
    assert finding.brokers == ("3",)
    assert finding.first == 200


def test_index_that_leads_astray_is_found(world: World) -> None:
    path = sorted(world.log(1).glob("*.index"))[0]
    data = bytearray(path.read_bytes())
    assert len(data) >= 8
    data[7] ^= 1
    path.write_bytes(data)
    finding = of_kind(world.found(), "index")
    assert finding.brokers == ("1",)
    assert path.name in finding.sentence


@pytest.mark.parametrize("at", [2, 6, 7, 10], ids=["far too new", "newer", "older or newer", "other offset"])
def test_time_index_that_leads_astray_is_found(world: World, at: int) -> None:
    """A timestamp that is too new keeps a segment from retention, one that is too old hides records from a search by time."""
    path = sorted(world.log(1).glob("*.timeindex"))[0]
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    finding = of_kind(world.found(), "index")
    assert finding.brokers == ("1",)
    assert path.name in finding.sentence


def test_index_that_was_allocated_ahead_is_a_note_after_a_kill(world: World) -> None:
    """Apache Kafka's are 10 MB of zeros each; they are not looked at entry by entry. An orderly stop cuts them."""
    path = sorted(world.log(1).glob("*.index"))[-1]
    path.write_bytes(path.read_bytes().ljust(10 << 20, b"\0"))
    index = read_index(path, 8)
    assert index is not None
    assert (len(index.entries) < 100, index.ends_in_zeros) == (True, True)
    assert path.name in of_kind(world.found(), "index").sentence
    (world.data(1) / ".kafka_cleanshutdown").unlink()
    found = world.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    assert path.name in of_kind(found, "index_old").sentence


def test_other_topic_id_is_found(world: World) -> None:
    world.edit(world.log(2) / "partition.metadata", lambda _: f"version: 0\ntopic_id: {'A' * 22}\n")
    finding = of_kind(world.found(), "topic_id")
    assert finding.brokers == ("2",)
    assert "AAAA" in finding.detail


def test_other_cluster_is_found(world: World) -> None:
    world.edit(world.data(2) / "meta.properties", lambda text: text.replace("cluster.id=", "cluster.id=x"))
    assert "different clusters" in of_kind(world.found(), "cluster_id").sentence


def test_missing_replica_is_found(world: World) -> None:
    end = world.high_watermark(3)
    shutil.rmtree(world.log(3))
    finding = of_kind(world.found(), "replica_missing")
    assert (finding.brokers, finding.others, finding.end) == (("3",), ("1", "2"), end)


@pytest.mark.parametrize("kept", [(), ("meta.properties",)], ids=["empty", "new disk"])
def test_directory_without_logs_is_named(world: World, kept: tuple[str, ...]) -> None:
    """A broker whose disk was replaced. Left out, two replicas would pass for all there are."""
    data = world.data(2)
    for path in data.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    found = world.found()
    note = of_kind(found, "no_logs")
    assert (note.brokers, note.path) == (("2",) if kept else (data.name,), str(data))
    assert str(data) in note.sentence
    assert "controller" not in " ".join(found.directories), "a controller has no logs of topics"


def test_log_that_no_directory_has_is_found(world: World) -> None:
    """After an orderly stop a checkpoint names only logs that exist. After a kill it may still name a topic that was deleted."""
    for broker in (1, 2, 3):
        shutil.rmtree(world.log(broker))
    finding = of_kind(world.found(), "replica_missing")
    assert finding.others == ()
    for broker in (1, 2, 3):
        (world.data(broker) / ".kafka_cleanshutdown").unlink()
    found = world.found()
    assert found.is_ok
    assert of_kind(found, "log_missing").brokers


def test_stray_and_unknown_folders_are_notes(world: World) -> None:
    shutil.copytree(world.log(1), world.data(1) / f"gone-0.{'0' * 32}-stray")
    (world.data(1) / "notes.txt").write_text("x")
    found = world.found()
    assert found.is_ok
    assert "gone-0" in of_kind(found, "stray").sentence
    assert "notes.txt" in of_kind(found, "unknown_entry").sentence


def remove_first_segment(log: Path) -> int:
    """The base offset of the segment that is the first one now."""
    first, second = sorted(log.glob("*.log"))[:2]
    for path in log.glob(f"{first.stem}.*"):
        path.unlink()
    return int(second.stem)


def begin_epochs_at(log: Path, start: int) -> None:
    """What a broker does to `leader-epoch-checkpoint` when its log start moves."""
    path = log / LEADER_EPOCHS
    entries = LeaderEpochCheckpoint.decode(path.read_bytes())
    assert entries
    cache = LeaderEpochCache(entries)
    assert cache.truncate_from_start(start)
    path.write_bytes(LeaderEpochCheckpoint.encode(cache.entries))


def test_retention_of_one_replica_is_a_note(world: World) -> None:
    begin_epochs_at(world.log(2), remove_first_segment(world.log(2)))
    found = world.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    note = of_kind(found, "later_start")
    assert (note.brokers, note.first) == (("2",), 0)


def test_first_segment_that_every_replica_lost_is_found(world: World) -> None:
    """No comparison shows it. Retention moves the start in leader-epoch-checkpoint before it deletes a segment."""
    starts = {remove_first_segment(world.log(broker)) for broker in (1, 2, 3)}
    finding = of_kind(world.found(), "head_missing")
    assert (finding.brokers, finding.first, {finding.end}) == (("1", "2", "3"), 0, starts)
    assert (finding.others, finding.action[:38]) == ((), "no replica given can repair this: keep")
    for broker in (1, 2, 3):
        (world.data(broker) / ".kafka_cleanshutdown").unlink()
    found = world.found()
    assert found.is_ok, "after a power failure the checkpoint may be older than the log"
    assert of_kind(found, "head_gone").brokers == ("1", "2", "3")


def test_first_segment_that_one_replica_lost_is_found(world: World) -> None:
    remove_first_segment(world.log(2))
    finding = of_kind(world.found(), "head_missing")
    assert (finding.brokers, finding.others) == (("2",), ("1", "3"))
    assert "stop broker 2" in finding.action


def test_moved_log_start_is_no_fault(world: World) -> None:
    """DeleteRecords, and a leader's log start at its followers, move the start before the segments below it are deleted: epochs
    below are forgotten at once, the checkpoint of log starts is written at a stop or once a minute."""
    for broker in (1, 2, 3):
        begin_epochs_at(world.log(broker), 250)
        world.set_offset(broker, "log-start-offset-checkpoint", 250)
    found = world.found()
    assert (found.is_ok, found.all_findings) == (True, ())
    for broker in (1, 2, 3):
        (world.data(broker) / "log-start-offset-checkpoint").unlink()
    assert of_kind(world.found(), "epoch_checkpoint").brokers == ("1", "2", "3"), "stopped in order"
    for broker in (1, 2, 3):
        (world.data(broker) / ".kafka_cleanshutdown").unlink()
    found = world.found()
    assert found.is_ok, [finding.sentence for finding in found.bad]
    note = of_kind(found, "log_start_moved")
    assert (note.brokers, note.first, note.end) == (("1", "2", "3"), 0, 250)


def test_first_batch_that_every_replica_lost_is_found(world: World) -> None:
    """A segment begins at the offset in its name."""
    for broker in (1, 2, 3):
        first = world.batches(broker)[0]
        path = world.log(broker) / f"{0:020}.log"
        path.write_bytes(path.read_bytes()[first.size :])
    found = world.found()
    finding = of_kind(found, "offset_gap")
    assert (finding.brokers, finding.first, finding.end) == (("1", "2", "3"), 0, first.next_offset)
    assert of_kind(found, "lost").first == 0


def test_renamed_segment_is_found(world: World) -> None:
    """Its batches follow each other, and a broker would not find them: it looks for the offset in the names."""
    path = sorted(world.log(2).glob("*.log"))[1]
    for file in world.log(2).glob(f"{path.stem}.*"):
        file.rename(file.with_name(f"{int(path.stem) - 3:020}{file.suffix}"))
    finding = of_kind(world.found(), "segment_name")
    assert (finding.brokers, finding.first) == (("2",), int(path.stem))


def test_folder_that_looks_like_a_log_by_its_name_hides_no_directory(world: World) -> None:
    """`broker-1` is the name of a log, too, and a folder may hold other files that end in `.log`."""
    copied = world.folder.parent / "copied"
    for broker in (1, 2, 3):
        shutil.copytree(world.data(broker), copied / f"broker-{broker}" / "data")
        (copied / f"broker-{broker}" / "server.log").write_text("started")
    found = verify([copied])
    assert [len(partition.replicas) for partition in found.partitions] == [3]
    assert found.partitions[0].committed == 480


def test_linked_directory_is_read(world: World, tmp_path: Path) -> None:
    """A broker's data may lie on another disk. Passed over, its damage would go unnoticed."""
    elsewhere = tmp_path / "disk-2"
    source = world.data(2)
    source.rename(elsewhere)
    source.symlink_to(elsewhere)
    (tmp_path / "round").symlink_to(tmp_path)
    found = world.found()
    assert [len(partition.replicas) for partition in found.partitions] == [3]


def test_one_replica_alone_is_checked(world: World) -> None:
    """Only one disk may be left."""
    batch = world.batches(1)[5]
    world.change(1, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    found = verify([world.data(1)])
    assert {finding.kind for finding in found.bad} == {"damaged", "lost"}


# -- the page ---------------------------------------------------------------------------------------------------------


def test_page_has_findings_actions_and_pictures(world: World) -> None:
    batch = world.batches(2)[5]
    world.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    shutil.copytree(world.log(1), world.data(1) / f"gone<b>-0.{'0' * 32}-stray")
    text = page(world.found())
    assert "What to do: with the other replicas running, stop broker 2, move the folder orders-0 away" in text
    assert text.count("class=epoch") == 7, "two epochs a replica, one of them in two parts"
    assert f"left:{100 * batch.base_offset / 480:.3f}%" in text
    assert text.count("class=fault") == 1
    assert "<b>-0" not in text
    assert "http" not in text.split("</style>")[1], "it needs no network"


def test_page_of_sound_directories_says_so(world: World) -> None:
    text = page(world.found())
    assert "Sound: 1 partition, 3 replicas" in text
    assert "class=fault" not in text
    assert "<h2>Findings</h2>" not in text


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def call() -> Callable[..., Any]:
    return lambda *words: CliRunner().invoke(pipeline.app, ["verify", *map(str, words)])


def test_sound_directories_exit_with_0(call: Callable[..., Any], world: World) -> None:
    result = call(world.folder, "--html", world.folder / "verify.html")
    assert result.exit_code == 0, result.output
    assert (world.folder / "verify.html").read_text().startswith("<!doctype html>")
    assert "sound: 1 partition, 3 replicas" in result.output
    assert "480" in result.output


def test_damage_exits_with_3_and_says_what_to_do(call: Callable[..., Any], world: World) -> None:
    batch = world.batches(2)[5]
    world.change(2, batch, lambda data: data.__setitem__(-1, data[-1] ^ 1))
    result = call(world.folder)
    assert result.exit_code == 3, result.output
    assert "orders-0, broker 2, offsets 100 to 119: bytes that are no sound batch; brokers 1 and 3 have them" in result.output
    assert "stop broker 2" in result.output


def test_json_has_findings_and_actions(call: Callable[..., Any], world: World) -> None:
    shutil.rmtree(world.log(3))
    result = call(world.data(1), world.data(2), world.data(3), "--json")
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
def test_mistakes_get_a_sentence(words: list[str], sentence: str, world: World, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = {"empty": tmp_path / "empty", "file": tmp_path / "file", "folder": world.folder}
    filled = [word.format(**places) for word in words]
    with pytest.raises(UsageError, match="^.*" + sentence.replace("/", ".")):
        verify([filled[0]], filled[2:])
    assert os.path.exists(world.folder)
