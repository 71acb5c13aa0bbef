"""A log, and a witness that records everything that the log ever held, and what must survive a crash."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from storage_kit import NOW_MS, check_order, forget_tail, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import BatchHeader, iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.storage.directory.log_dir import LogDir
from strandline.storage.disk import Files
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.producer_state import AppendedBatch, ProducerStates
from strandline.testing.simulation.kernel.disk import SimFiles

TOPIC_ID = b"topic-id-of-test"
CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=300, retention_bytes=3000)
"""Five batches in a segment, each of them in sectors of its own."""


def batch(base: int, epoch: int) -> bytes:
    """Two records from a producer whose sequences are the offsets: as the leader of that epoch writes them."""
    records = [(None, f"{epoch}/{base + i}".encode().ljust(150, b"."), [], NOW_MS + base + i) for i in range(2)]
    fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": base}
    return bytes(encode_batch(records, base_offset=base, leader_epoch=epoch, **fields))


def base_of(data: bytes) -> int:
    return next(iter_headers(data))[1].base_offset


class Witness:
    """Records every state that the log has had, and which of them must survive a crash."""

    def __init__(self) -> None:
        self.histories: list[list[bytes]] = [[]]
        """The batches of the log, in order; a truncation begins a new history. The last history is the present one."""
        self.flushed: list[bytes] = []
        self.start_max = 0
        """The highest offset to which the log start was ever moved on purpose."""

    @property
    def now(self) -> list[bytes]:
        return self.histories[-1]

    def append(self, log: Log, epoch: int, batches: int) -> None:
        for _ in range(batches):
            data = batch(log.log_end_offset, epoch)
            self.now.append(data)
            log.append_as_follower(bytearray(data), epoch)

    def resume(self, held: list[bytes]) -> None:
        """Continue with the content that a new process has found. Records that were deleted from the start of the log may
        return."""
        whole = next(history for history in self.histories if is_part(held, history))
        deleted = whole[: whole.index(held[0])] if held else []
        self.histories.append([*deleted, *held])

    def truncate(self, log: Log, offset: int) -> None:
        self.histories.append([data for data in self.now if base_of(data) < offset])
        self.flushed = [data for data in self.flushed if base_of(data) < offset]
        log.truncate_to(offset)

    def start_over(self, log: Log, offset: int) -> None:
        self.start_max = max(offset, log.log_end_offset)
        self.histories.append([])
        self.flushed = []
        log.truncate_fully_and_start_at(offset)

    def flush(self, log: Log) -> None:
        log.flush()
        self.flushed = list(self.now)

    def flush_closed_segments(self, log_dir: LogDir) -> None:
        """Flush them as the broker's log manager does."""
        for log, work in log_dir.flush_work():
            work.run()
            log.on_flushed(work)
            self.flushed = [data for data in self.now if base_of(data) < log.recovery_point]

    def delete_up_to(self, log: Log, offset: int) -> None:
        self.start_max = max(self.start_max, offset)
        log.increment_log_start_offset(offset)
        for path in log.delete_old_segments(NOW_MS):
            log.files.remove(path)

    def close(self, log_dir: LogDir) -> None:
        log_dir.close(broker_epoch=5)
        self.flushed = list(self.now)


def open_dir(files: Files) -> LogDir:
    log_dir = LogDir.open(files, "/data", node_id=1, cluster_id="c", random=Random(1))
    log_dir.on_registered()
    return log_dir


def open_log(log_dir: LogDir, topic_id: bytes = TOPIC_ID) -> Log:
    return log_dir.open_log("orders", 0, topic_id, CONFIG, NOW_MS)


def check_log(log: Log, witness: Witness) -> list[bytes]:
    """Check that the log may hold what it holds; returns its batches."""
    check_order(log)
    forget_tail(log)
    assert log.log_start_offset <= witness.start_max
    if log.corrupt_at is not None:
        # Sectors below the HW that were never flushed may be gone for good: that is damage, and reported as such.
        assert log.corrupt_at < log.high_watermark
        assert all(base_of(data) < log.corrupt_at for data in witness.flushed)
    found = read_all(log, end=log.corrupt_at)
    due = [data for data in witness.flushed if base_of(data) >= max(log.log_start_offset, witness.start_max)]
    assert not [data for data in due if data not in found], "what was flushed is gone"
    assert any(is_part(found, history) for history in witness.histories), f"invented: {shown(found)}"
    if log.corrupt_at is None:
        check_derived(log, found)
    return found


def is_part(found: list[bytes], history: list[bytes]) -> bool:
    """Whether the batches are one contiguous part of the history."""
    return not found or (found[0] in history and found == history[(at := history.index(found[0])) : at + len(found)])


def shown(found: Iterable[bytes]) -> str:
    return ", ".join(f"{h.base_offset}@e{h.leader_epoch}" for data in found for _, h in iter_headers(data))


def check_derived(log: Log, found: list[bytes]) -> None:
    """Check that epochs and producers are those of the batches."""
    headers = [header for data in found for _, header in iter_headers(data)]
    starts: dict[int, int] = {}
    producers = ProducerStates()
    for header in headers:
        starts.setdefault(header.leader_epoch, max(header.base_offset, log.log_start_offset))
        producers.update(header, header.last_offset)
    assert [entry for entry in log.epochs.entries if entry[1] < log.log_end_offset] == list(starts.items())
    assert kept(log.producers, headers) == kept(producers, headers)


def kept(producers: ProducerStates, headers: list[BatchHeader]) -> list[AppendedBatch]:
    """The producers' batches that the log still holds: a snapshot may remember some that retention has deleted."""
    first = headers[0].base_offset if headers else 0
    return [b for _, batches in producers.dump().values() for b in batches if b.first_offset >= first]


def served(log: Log) -> list[bytes]:
    """All batches up to the first one that the log refuses to return."""
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            read = log.read(offset, 1, log.log_end_offset)
        except BrokerError as e:
            if e.code != ErrorCode.CORRUPT_MESSAGE:
                raise
            break
        found += [bytes(data) for data in read.buffers]
        offset = next(iter_headers(found[-1]))[1].next_offset
    return found


def go_on(disk: SimFiles, log_dir: LogDir, log: Log, held: list[bytes]) -> None:
    """Use the log like any other one: it takes records, stops in order, and opens without a scan."""
    data = batch(log.log_end_offset, 9)
    log.append_as_follower(bytearray(data), 9)
    log.possible_data_loss = False  # as its leader has reported
    log_dir.close(broker_epoch=7)
    again = open_dir(disk.mount())
    assert again.was_clean
    log = open_log(again)
    forget_tail(log)
    assert read_all(log) == [*held, data]
