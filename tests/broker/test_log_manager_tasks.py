"""Logs between requests: recovery, strays, retention, checkpoints."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs
from waiting import until

from strandline.broker.log_manager_tasks import LOGS_PER_TURN, LogManagerTasks
from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    AnyRecord,
    PartitionRecord,
    ProducerNameRecord,
    RemoveProducerNameRecord,
    TopicRecord,
)
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.builder import encode_batch
from strandline.storage.checkpoints import PartitionMetadata
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.directory.log_dirs import LogDirs
from strandline.storage.files import DiskError, MemoryFiles
from strandline.storage.log.log import Log, LogConfig

NOW_MS = 1_700_000_000_000
KNOWN, GONE, MOVED = (bytes([n]) * 16 for n in range(3))


class Disk:
    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.errors: list[DiskError] = []
        self.now_ms = NOW_MS
        self.open()

    def open(self) -> None:
        self.log_dir = LogDir.open(self.files, "/data", node_id=1, cluster_id="c")
        self.log_manager_tasks = LogManagerTasks(
            LogDirs([self.log_dir]), self.files, wall_clock_ms=lambda: self.now_ms, on_disk_error=self.errors.append
        )

    def log(self, name: str, topic_id: bytes, config: LogConfig | None = None) -> Log:
        return self.log_dir.open_log(name, 0, topic_id, config or LogConfig(), NOW_MS)

    def names(self) -> list[str]:
        return sorted(name for name in self.files.list("/data") if "-0" in name)


def image() -> MetadataImage:
    records: list[AnyRecord] = [
        TopicRecord("known", KNOWN),
        PartitionRecord(KNOWN, 0, (1, 2), (1, 2), 1),
        TopicRecord("moved", MOVED),
        PartitionRecord(MOVED, 0, (2, 3), (2, 3), 2),
    ]
    return MetadataImage.from_records(records, 50, 1)


def append(log: Log, value: bytes = b"v") -> None:
    log.append_as_leader(memoryview(bytearray(encode_batch([(None, value, [], NOW_MS)]))), 1, NOW_MS)


@pytest.fixture
def disk() -> Disk:
    made = Disk()
    for name, topic_id in (("known", KNOWN), ("gone", GONE), ("moved", MOVED)):
        append(made.log(name, topic_id))
    return made


async def test_strays_are_deleted_if_the_metadata_log_provably_continues(disk: Disk) -> None:
    disk.log_dir.close(clean=True, broker_epoch=20)
    disk.open()
    await disk.log_manager_tasks.recover()
    disk.log_manager_tasks.clear_strays(image(), 1, 40)
    await until(lambda: disk.names() == ["known-0"])


@pytest.mark.parametrize(("clean", "broker_epoch"), [(False, 40), (True, 15)])
async def test_strays_are_set_aside_if_the_metadata_log_may_be_new(disk: Disk, clean: bool, broker_epoch: int) -> None:
    """A quorum that lost its log has no topics. Its metadata must not cause the deletion of data."""
    disk.log_dir.close(clean=clean, broker_epoch=20)
    disk.open()
    await disk.log_manager_tasks.recover()
    disk.log_manager_tasks.clear_strays(image(), 1, broker_epoch)
    names = disk.names()
    assert "known-0" in names
    assert [name.split("-")[0] for name in names if name.endswith("-stray")] == ["gone", "moved"]
    stray = next(name for name in names if name.startswith("gone"))
    assert disk.files.exists(f"/data/{stray}/00000000000000000000.log")


DAY_MS = 86_400_000


async def strays_after(disk: Disk, at_start: MetadataImage, *, days: float = 8, now: MetadataImage | None = None) -> list[str]:
    """The strays that are left after an unclean stop, a start with this metadata, and these days. The retention is 7 days."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    disk.log_dir.close(clean=False)
    disk.open()
    await disk.log_manager_tasks.recover()
    disk.log_manager_tasks.clear_strays(at_start, 1, 40)
    disk.now_ms += round(days * DAY_MS)
    disk.log_manager_tasks.remove_strays(now or at_start, 1, 7 * DAY_MS)
    settled = asyncio.Event()
    disk.log_manager_tasks._aside(lambda: None, settled.set)  # one thread, so this runs after the removal
    await asyncio.wait_for(settled.wait(), 5)
    return sorted(name for name in disk.names() if name.endswith("-stray"))


GONE_STRAY, MOVED_STRAY = f"gone-0.{GONE.hex()}-stray", f"moved-0.{MOVED.hex()}-stray"


async def test_a_stray_keeps_its_topic_id_and_is_removed_after_its_retention(disk: Disk) -> None:
    """The stop was unclean. Unneeded logs used to stay for ever after that, although their topic ids are known."""
    assert await strays_after(disk, image(), days=6.9) == [GONE_STRAY, MOVED_STRAY]
    with capture_logs() as logs:
        assert await strays_after(disk, image(), days=0.2) == []
    removed = [entry for entry in logs if entry["event"] == "logs.stray_removed"]
    assert [entry["topic_id"] for entry in removed] == [GONE.hex(), MOVED.hex()]
    assert disk.names() == ["known-0"]


async def test_no_stray_is_removed_by_the_word_of_a_quorum_that_began_again(disk: Disk) -> None:
    """Its metadata has none of the earlier topics. Later it has the topics created since, which prove nothing about the earlier
    ones."""
    empty = MetadataImage.from_records([], 50, 1)
    new_topic = b"n" * 16
    later = MetadataImage.from_records([TopicRecord("new", new_topic), PartitionRecord(new_topic, 0, (1,), (1,), 1)], 60, 1)
    assert len(await strays_after(disk, empty, now=later)) == 3
    append(disk.log("new", new_topic))
    assert len(await strays_after(disk, later, days=400)) == 3


async def test_a_stray_that_is_given_back_to_this_broker_is_not_removed(disk: Disk) -> None:
    records = [TopicRecord("moved", MOVED), PartitionRecord(MOVED, 0, (1, 2), (2,), 2)]
    assert await strays_after(disk, image(), now=MetadataImage.from_records(records, 60, 1)) == [MOVED_STRAY]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("partition.metadata", None),
        ("partition.metadata", PartitionMetadata.encode(b"x" * 16)),
        ("stray.metadata", None),
        ("stray.metadata", b"version: 1\nsince_ms: 1\n"),
    ],
)
async def test_a_directory_that_is_not_proven_to_be_our_stray_is_left_alone(disk: Disk, file: str, content: bytes | None) -> None:
    """F23: a directory of another process, a person's copy, or one written by a newer version."""
    await strays_after(disk, image(), days=0)
    path = f"/data/{GONE_STRAY}/{file}"
    disk.files.remove(path)
    if content is not None:
        disk.files.write(path, content)
    disk.files.make_dirs("/data/backup-0-stray")
    assert await strays_after(disk, image()) == ["backup-0-stray", GONE_STRAY]


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("rename", GONE_STRAY),
        ("stat", GONE_STRAY),
        ("stat", GONE_STRAY.removesuffix("-stray") + "-delete"),
        ("read", f"{GONE_STRAY}/partition.metadata"),
    ],
)
async def test_a_stray_that_cannot_be_removed_does_not_hold_up_the_others(disk: Disk, operation: str, path: str) -> None:
    """For example because an operator has made it immutable, or a block of its metadata is damaged. It fails at each attempt, and
    names are visited in order. The served logs of the directory are not affected, so it stays online."""
    await strays_after(disk, image(), days=0)
    disk.files.fail_next(operation, f"/data/{path}", errno.EIO)
    with capture_logs() as logs:
        assert await strays_after(disk, image()) == [GONE_STRAY]
    (line,) = (entry for entry in logs if entry["event"] == "logs.not_removed")
    assert line["path"] == f"/data/{GONE_STRAY}"
    assert disk.errors == []


async def test_an_interrupted_removal_of_a_stray_continues_at_the_next_start(disk: Disk) -> None:
    await strays_after(disk, image(), days=0)
    disk.files.fail_next("unlink", "*.log", errno.EIO)
    assert await strays_after(disk, image()) == []
    assert any(name.endswith("-delete") for name in disk.names())
    disk.log_dir.close(clean=False)
    disk.open()
    disk.log_manager_tasks.remove_deleted()
    await until(lambda: disk.names() == ["known-0"])


async def test_recovery_opens_every_log_and_they_are_the_ones_that_are_used_later(disk: Disk) -> None:
    disk.log_dir.close(clean=False)
    disk.open()
    await disk.log_manager_tasks.recover()
    recovered = dict(disk.log_dir.logs)
    assert {name for name, _ in recovered} == {"known", "gone", "moved"}
    assert disk.log("known", KNOWN) is recovered["known", 0]


async def test_the_checkpoint_names_flushed_segments(disk: Disk) -> None:
    log = disk.log("rolled", b"r" * 16)
    append(log)
    log.roll(NOW_MS)
    append(log)
    assert log.recovery_point == 0
    disk.log_manager_tasks.checkpoint()
    path = "/data/recovery-point-offset-checkpoint"
    await until(lambda: disk.files.exists(path) and b"rolled 0 1" in disk.files.read(path))
    assert log.recovery_point == 1


async def test_a_disk_error_on_the_thread_is_reported(disk: Disk) -> None:
    log = disk.log("rolled", b"r" * 16)
    append(log)
    log.roll(NOW_MS)
    disk.files.fail_next("fsync", "*", errno.EIO)
    disk.log_manager_tasks.checkpoint()
    await until(lambda: disk.errors)
    assert disk.errors[0].errno == errno.EIO
    assert log.recovery_point == 0


async def test_a_disk_error_in_a_later_turn_is_reported(disk: Disk) -> None:
    """With many logs, only the first ones are flushed in the timer's own iteration. If the disk failed at a later one and no
    error was reported, the broker would refuse every write and still stay the leader."""
    partitions = {n: SimpleNamespace(log=disk.log(f"t{n}", bytes([n]) * 16)) for n in range(100, 100 + LOGS_PER_TURN + 1)}
    partitions[100 + LOGS_PER_TURN].log.config = LogConfig(flush_ms=0)
    append(partitions[100 + LOGS_PER_TURN].log)
    disk.files.fail_next("fsync", "*", errno.EIO)
    disk.log_manager_tasks.flush_due(cast(ReplicaManager, SimpleNamespace(partitions=partitions)))
    await until(lambda: disk.errors)


@pytest.mark.parametrize("proven", [True, False])
async def test_metadata_that_knows_none_of_our_topics_deletes_nothing(disk: Disk, proven: bool) -> None:
    """A quorum that lost its disks may have written more records since than it had at our last registration."""
    disk.log_dir.close(clean=True, broker_epoch=3)
    disk.open()
    await disk.log_manager_tasks.recover()
    disk.log_manager_tasks.clear_strays(image() if proven else MetadataImage.from_records([], 50, 1), 1, 5)
    await until(lambda: len(disk.names()) == (1 if proven else 3))
    assert all(name.endswith("-stray") for name in disk.names()) or proven


async def test_directories_that_an_earlier_process_had_begun_to_remove_are_removed(disk: Disk) -> None:
    disk.log_dir.delete_log("gone", 0, GONE)
    disk.log_dir.close(clean=False)
    disk.open()
    assert any(name.endswith("-delete") for name in disk.names())
    disk.log_manager_tasks.remove_deleted()
    await until(lambda: not any(name.endswith("-delete") for name in disk.names()))


def test_silent_producers_expire_and_named_ones_with_their_name(disk: Disk) -> None:
    log, number = disk.log("known", KNOWN), 3
    log.config = LogConfig(producer_id_expiration_ms=1)
    for producer_id in (9, named_producer_id(number, 5)):
        data = encode_batch([(None, b"v", [], 0)], producer_id=producer_id, producer_epoch=0, base_sequence=0)
        log.append_as_leader(memoryview(bytearray(data)), 1, NOW_MS)
    there = MetadataImage.EMPTY.apply([ProducerNameRecord("sink", number, 5, 0, 0)], 0, 1).image
    gone = there.apply([RemoveProducerNameRecord("sink")], 1, 1).image

    def look(image: MetadataImage) -> int:
        disk.now_ms += 2
        replicas = SimpleNamespace(partitions={(KNOWN, 0): SimpleNamespace(log=log)}, image=image)
        disk.log_manager_tasks.delete_old_segments(cast(ReplicaManager, replicas))
        return len(log.producers)

    assert [look(image) for image in (there, there, MetadataImage.EMPTY, gone, gone)] == [2, 1, 1, 1, 0]


def test_retention_leaves_a_log_that_is_being_cleaned(disk: Disk) -> None:
    log = disk.log("known", KNOWN, LogConfig(retention_ms=1000, file_delete_delay_ms=10**8))
    append(log)
    log.update_high_watermark(1)
    disk.now_ms += 5000
    replicas = cast(ReplicaManager, SimpleNamespace(partitions={(KNOWN, 0): SimpleNamespace(log=log)}, image=image()))
    log.is_being_cleaned = True
    disk.log_manager_tasks.delete_old_segments(replicas)
    assert log.log_start_offset == 0


async def test_the_files_of_a_deleted_segment_are_kept_for_a_while(disk: Disk) -> None:
    """They are renamed for `file.delete.delay.ms`, so that a backup can still read them. The next start removes the rest."""
    logs = [
        disk.log(name, KNOWN, LogConfig(retention_ms=1000, file_delete_delay_ms=delay))
        for name, delay in (("now", 0), ("later", 10**8))
    ]
    partitions = {(KNOWN, index): SimpleNamespace(log=log) for index, log in enumerate(logs)}
    for log in logs:
        append(log)
        log.update_high_watermark(1)
    disk.now_ms += 5000
    disk.log_manager_tasks.delete_old_segments(cast(ReplicaManager, SimpleNamespace(partitions=partitions, image=image())))

    def deleted(name: str) -> list[str]:
        return [file for file in disk.files.list(f"/data/{name}-0") if file.endswith(".deleted")]

    assert deleted("later")
    await until(lambda: not deleted("now"))
    assert deleted("later")
    disk.log_dir.close(clean=True)
    disk.open()
    await disk.log_manager_tasks.recover()
    assert not deleted("later")
