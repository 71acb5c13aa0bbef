"""A broker dies in each of its steps with its data directory: formatting it, creating, deleting and recreating topics of one
name, stopping in order. The next start accepts the directory as the same one, and never shows the records of one topic under the
id of another (I22, S35, F16, F18)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from crash_kit import FEW, Death, Seeds, deaths, failures, found_by, several, without_fsync
from log_witness import Witness, check_log, open_dir, open_log
from structlog.testing import capture_logs

from strandline.protocol.errors import UsageError
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import DiskError, Files
from strandline.testing.simulation.kernel.disk import Mount, SimFiles

X, Y, Z = b"x" * 16, b"y" * 16, b"z" * 16


class DirWitness:
    def __init__(self) -> None:
        self.directory_id: bytes | None = None
        """The id of the directory, once another node has received it."""
        self.topics: dict[bytes, Witness] = {}
        """All topics that were ever created, by topic id."""
        self.current: bytes | None = None
        """The topic that must be there if any record of it was flushed."""

    def open(self, files: Files) -> LogDir:
        log_dir = open_dir(files)
        self.directory_id = log_dir.directory_id
        return log_dir

    def make(self, log_dir: LogDir, topic_id: bytes, batches: int) -> Witness:
        self.current = topic_id
        witness = self.topics[topic_id] = Witness()
        witness.append(open_log(log_dir, topic_id), topic_id[0], batches)
        return witness

    def delete(self, log_dir: LogDir) -> str:
        """Rename the log's directory; a thread would remove it later."""
        topic_id, self.current = self.current, None
        assert topic_id is not None
        path = log_dir.delete_log("orders", 0, topic_id)
        assert path is not None
        return path


def life_of_a_name(files: Files, witness: DirWitness) -> None:
    """The life of a name: three topics, one after the other, have it."""
    log_dir = witness.open(files)
    topic = witness.make(log_dir, X, 7)
    log = open_log(log_dir, X)
    topic.flush(log)
    log.update_high_watermark(14)
    log_dir.checkpoint_all()
    path = witness.delete(log_dir)
    topic = witness.make(log_dir, Y, 3)
    files.remove_tree(path)
    log_dir.checkpoint_all()
    topic.flush(open_log(log_dir, Y))
    witness.delete(log_dir)
    topic = witness.make(log_dir, Z, 2)
    topic.close(log_dir)
    log_dir = witness.open(files)
    for path in log_dir.unfinished_deletions():
        files.remove_tree(path)
    topic.append(open_log(log_dir, Z), Z[0], 1)


def look_at_what_is_left(death: Death | str, disk: SimFiles, witness: DirWitness) -> None:
    try:
        log_dir = open_dir(disk.mount())
        assert witness.directory_id in (None, log_dir.directory_id)
        check_topics(log_dir, witness)
        use_the_name_again(log_dir)
        for log in log_dir.logs.values():
            log.possible_data_loss = False  # as its leader has reported
        log_dir.close(broker_epoch=3)
        again = open_dir(disk.mount())
        assert again.was_clean
        assert again.directory_id == log_dir.directory_id
    except Exception as e:
        e.add_note(str(death))
        raise


def check_topics(log_dir: LogDir, witness: DirWitness) -> None:
    existing = log_dir.existing_logs()
    current = witness.topics.get(witness.current) if witness.current else None
    if current is not None and current.flushed:
        assert [log.topic_id for log in existing] == [witness.current], "a topic that was flushed is not there"
    for _, _, topic_id in existing:
        log = open_log(log_dir, topic_id)
        check_log(log, witness.topics[topic_id])


def use_the_name_again(log_dir: LogDir) -> None:
    """The log with the deleted topic id is removed, so that a new topic can use the name."""
    for topic, partition, topic_id in log_dir.existing_logs():
        path = log_dir.delete_log(topic, partition, topic_id)
        assert path is not None
        log_dir.files.remove_tree(path)
    for path in log_dir.unfinished_deletions():
        log_dir.files.remove_tree(path)
    witness = Witness()
    log = open_log(log_dir, b"another" + bytes(9))
    assert (log.log_end_offset, log.high_watermark, log.recovery_point) == (0, 0, 0)
    witness.append(log, 1, 2)
    assert not [name for name in log_dir.files.list("/data") if name.endswith("-delete")]


@pytest.fixture(autouse=True)
def _quiet() -> Iterable[None]:
    with capture_logs():
        yield


def let_it_die(life: Callable[[Files, DirWitness], None], seeds: Seeds = FEW) -> None:
    for death, disk, witness in deaths(life, DirWitness, seeds):
        look_at_what_is_left(death, disk, witness)


@several
def test_log_dir_recovers_from_a_death_at_every_operation(seeds: Seeds) -> None:
    let_it_die(life_of_a_name, seeds)


def test_log_dir_recovers_from_every_disk_error() -> None:
    for death, disk, witness, raised in failures(life_of_a_name, DirWitness, range(2)):
        assert raised is not None or death.path == "/", death
        look_at_what_is_left(death, disk, witness)


@pytest.mark.parametrize("forgotten", ["*/meta.properties", "*/partition.metadata", "*.log"])
def test_a_forgotten_fsync_is_found(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This shows that the test above can fail."""
    monkeypatch.setattr(Mount, "sync_inode", without_fsync(forgotten))
    assert found_by(lambda: let_it_die(life_of_a_name))


def test_log_dir_that_loses_topic_ids_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """M19: as if names were durable by themselves."""
    monkeypatch.setattr(Mount, "sync_directory", lambda *_: None)
    assert found_by(lambda: let_it_die(life_of_a_name))


def test_a_full_disk_keeps_topics_apart_too() -> None:
    for room in range(0, 9000, 250):
        disk, witness = SimFiles(), DirWitness()
        disk.fill(room)
        try:
            life_of_a_name(disk.mount(), witness)
        except (DiskError, UsageError):
            pass
        disk.crash(lossy=False)
        disk.heal()
        look_at_what_is_left(f"room {room}", disk, witness)
