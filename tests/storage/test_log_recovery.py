"""Recovery of a log from what a crash, a bad sector or a half-written file left on the disk (S41-S44, F17, F18, F20)."""

from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storage_kit import DIR, NOW_MS, batch, check_order, fill, forget_tail, open_log, read_all

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import LEADER_EPOCH_POS, MAGIC_POS
from strandline.storage.disk import DiskError
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.log.segment import DamagedBatch
from strandline.storage.memory.memory_files import MemoryFile, MemoryFiles

SEGMENT = f"{DIR}/{0:020d}.log"
SMALL = LogConfig(segment_bytes=400, index_interval_bytes=100)


def disk_with(
    batches: int, *, records: int = 2, config: LogConfig | None = None, epochs: int = 1
) -> tuple[MemoryFiles, list[bytes]]:
    """The disk with the log of a killed process: written, but not closed; and its batches."""
    files = MemoryFiles(Random(7))
    log = open_log(files, config=config)
    for epoch in range(epochs):
        fill(log, batches // epochs, records=records, epoch=epoch)
    held = read_all(log)
    log.abandon()
    return files, held


@pytest.mark.parametrize("seed", range(40))
def test_a_truncated_log_knows_its_newest_timestamp(seed: int) -> None:
    """Producers set timestamps, so they go up and down. If the newest timestamp is too low, a search by time misses records,
    and retention deletes them too early."""
    draw = Random(seed)
    config = LogConfig(segment_bytes=2000, index_interval_bytes=draw.choice([100, 200, 400]))
    log = open_log(config=config)
    for _ in range(draw.randint(2, 40)):
        log.append_as_leader(batch(*[b"value"] * draw.randint(1, 3), timestamp_ms=NOW_MS + draw.randint(0, 100)), 0, NOW_MS)
    log.truncate_to(draw.randint(1, log.log_end_offset))
    newest = [max([header.max_timestamp for _, header in segment.headers(0)], default=-1) for segment in log.segments]
    assert [segment.max_timestamp for segment in log.segments] == newest
    found = log.offset_for_timestamp(max(newest))
    assert found is None if max(newest) < 0 else found is not None and found[0] == max(newest)


def without_epoch(data: bytes) -> bytes:
    """The batch without its leader epoch, the one field that neither the CRC nor the order of the offsets protects."""
    return data[:LEADER_EPOCH_POS] + data[MAGIC_POS:]


def test_every_truncation_length_recovers_to_the_last_whole_batch() -> None:
    """F17, S41: for a cut at every byte, all whole batches survive, and nothing else."""
    files, held = disk_with(4)
    whole = files.read(SEGMENT)
    for length in range(len(whole) + 1):
        files.write(SEGMENT, whole[:length])
        log = open_log(files)
        kept, end = [], 0
        for data in held:
            end += len(data)
            if end <= length:
                kept.append(data)
        assert read_all(log) == kept
        assert log.log_end_offset == 2 * len(kept)
        assert log.segments[-1].size == sum(map(len, kept))


@pytest.mark.parametrize("filling", ["zeros", "garbage"])
def test_a_torn_tail_is_cut_for_any_filling(filling: str) -> None:
    """S41, for every length of the last batch: garbage and zeros are cut, and appends continue."""
    files, held = disk_with(3)
    whole = files.read(SEGMENT)
    last = len(held[-1])
    random = Random(5)
    for kept in range(last):
        rest = bytes(last - kept) if filling == "zeros" else random.randbytes(last - kept)
        files.write(SEGMENT, whole[: len(whole) - last + kept] + rest)
        log = open_log(files)
        if log.log_end_offset == 6:  # the garbage happens to equal the original bytes
            assert read_all(log) == held
            continue
        assert read_all(log) == held[:-1]
        check_order(log)
        info = log.append_as_leader(batch(b"next"), 0, NOW_MS)
        assert info.first_offset == 4
        assert len(open_log(files).segments) == 1


@pytest.mark.parametrize("high_watermark", [0, 8])
def test_every_single_bit_flip_is_survived_and_no_record_is_invented(high_watermark: int) -> None:
    """F17: recovery never raises; the records that can be read are a part of those that were written, at their offsets.

    If no record is committed, the log ends before the damage. If all are committed, the damage is reported by `corrupt_at` unless
    nothing valid follows it.
    """
    files, held = disk_with(4, epochs=2)
    whole = files.read(SEGMENT)
    starts = [sum(map(len, held[:i])) for i in range(4)]
    for bit in range(len(whole) * 8):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << (bit % 8)
        files.write(SEGMENT, data)
        files.write(f"{DIR}/leader-epoch-checkpoint", b"0\n2\n0 0\n1 4\n")
        log = open_log(files, high_watermark=high_watermark)
        check_order(log)
        hit = sum(start <= bit // 8 for start in starts) - 1
        readable = read_all(log, end=log.log_end_offset if log.corrupt_at is None else log.corrupt_at)
        assert [without_epoch(b) for b in readable] == [without_epoch(b) for b in held[: len(readable)]]
        assert len(readable) >= hit
        if len(readable) > hit:
            assert bit // 8 - starts[hit] in range(LEADER_EPOCH_POS, MAGIC_POS), "only a flipped epoch may be missed"
            assert hit == 3, "and only at the very end of the log"
        elif high_watermark and hit < 3:
            assert log.corrupt_at == 2 * hit
            assert log.log_end_offset == 8, "the batches after the damage are kept"
        else:
            assert log.corrupt_at is None


def test_a_flipped_epoch_is_found_without_the_epoch_checkpoint() -> None:
    """The batches show it: after the batch with the newer epoch come batches with older ones."""
    files, _held = disk_with(6)
    data = bytearray(files.read(SEGMENT))
    data[LEADER_EPOCH_POS + len(data) // 6 * 2 + 3] ^= 4
    files.write(SEGMENT, data)
    files.remove(f"{DIR}/leader-epoch-checkpoint")
    log = open_log(files)
    assert log.log_end_offset == 4
    assert log.epochs.entries == [(0, 0)]


def corrupt_middle(files: MemoryFiles, held: list[bytes], index: int) -> None:
    position = sum(map(len, held[:index])) + len(held[index]) - 3
    files.flip_bit(SEGMENT, position * 8)


def test_a_damaged_committed_batch_is_reported_not_cut() -> None:
    """S42 (b): a restart with one flipped bit at offset 10 of 20 committed ones."""
    files, held = disk_with(10)
    corrupt_middle(files, held, 5)
    log = open_log(files, high_watermark=20)
    assert (log.corrupt_at, log.log_end_offset, log.high_watermark) == (10, 20, 20)
    assert read_all(log, 0, 10) == held[:5]
    assert sum(map(len, read_all(log, end=10))) == log.read(0, 1 << 20, 20).size, "a read stops before the damage"
    for offset in (10, 11, 12, 19, 20):
        with pytest.raises(BrokerError) as caught:
            log.read(offset, 1 << 20, 20)
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    with pytest.raises(BrokerError) as caught:
        log.append_as_leader(batch(b"x"), 5, NOW_MS)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_a_damaged_flushed_batch_is_reported_not_cut() -> None:
    files, held = disk_with(10)
    corrupt_middle(files, held, 5)
    assert open_log(files, recovery_point=20).corrupt_at == 10
    assert open_log(files, recovery_point=20).log_end_offset == 20


def test_a_damaged_log_is_repaired_from_a_peer() -> None:
    """S42 (c): truncate at the damage and fetch again; the log is as before."""
    files, held = disk_with(10)
    corrupt_middle(files, held, 5)
    log = open_log(files, high_watermark=20)
    assert log.truncate_to(10)
    assert (log.corrupt_at, log.log_end_offset, log.high_watermark) == (None, 10, 10)
    for data in held[5:]:
        log.append_as_follower(bytearray(data), 0)
    assert read_all(log) == held
    forget_tail(log)
    assert read_all(log) == held
    assert read_all(open_log(files, high_watermark=20)) == held


def test_a_hole_of_a_lost_page_cache_is_cut() -> None:
    """The hole was neither flushed nor committed: unsynced sectors after a power cut."""
    files, held = disk_with(10)
    corrupt_middle(files, held, 5)
    log = open_log(files, high_watermark=8, recovery_point=6)
    assert (log.corrupt_at, log.log_end_offset, log.high_watermark) == (None, 10, 8)
    assert read_all(log) == held[:5]


@pytest.mark.parametrize("index", range(10))
def test_damage_that_appears_while_running_is_never_served(index: int) -> None:
    """S42 (a): every cold read checks the CRC. The batches before the damage are still served."""
    files, held = disk_with(10)
    log = open_log(files, high_watermark=20)
    corrupt_middle(files, held, index)
    served: list[bytes] = []
    for offset in range(0, 2 * index, 2):
        served += [bytes(b) for b in log.read(offset, 1, 20).buffers]
    with pytest.raises(BrokerError) as caught:
        log.read(2 * index, 1, 20)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert served == held[:index]
    assert log.corrupt_at == 2 * index
    with pytest.raises(BrokerError):
        log.read(2 * index, 1 << 20, 20)


@pytest.mark.parametrize("field", [0, 7, 8, 11, 16])
def test_damage_in_a_header_is_found_at_its_offset(field: int) -> None:
    """A wrong length hides the position of the next batch. A read of a later offset must still report the damaged batch."""
    files, held = disk_with(10)
    log = open_log(files, high_watermark=20)
    files.flip_bit(SEGMENT, (sum(map(len, held[:4])) + field) * 8 + 6)
    with pytest.raises(BrokerError):
        log.read(14, 1 << 20, 20)
    assert log.corrupt_at == 8
    assert log.truncate_to(log.corrupt_at)
    assert read_all(log) == held[:4]


def test_a_damaged_epoch_is_never_served() -> None:
    """The CRC does not cover the epoch, and a consumer would continue with an epoch that never existed."""
    files, held = disk_with(10)
    log = open_log(files, high_watermark=20)
    files.flip_bit(SEGMENT, (sum(map(len, held[:4])) + 13) * 8 + 6)
    assert b"".join(log.read(0, 1 << 20, 20).buffers) == b"".join(held[:4])
    assert log.corrupt_at == 8
    with pytest.raises(BrokerError):
        log.read(8, 1 << 20, 20)


HEADER_BITS = range(61 * 8)
"""All bits of the header. A wrong length or last offset delta misleads a reader about the next batch; a wrong value of another
field concerns one batch only."""


@pytest.mark.parametrize("index", [0, 4, 7])
@pytest.mark.parametrize("config", [None, LogConfig(index_interval_bytes=100)])
def test_a_truncation_with_damage_below_its_target_changes_nothing(index: int, config: LogConfig | None) -> None:
    """The batches between the damage and the target may be committed, and the ISR counts on this follower to have them. For
    any flipped bit of the header, the log is either cut at the target, or left as it was with the damage marked."""
    damaged = 0
    for bit in HEADER_BITS:
        files, held = disk_with(10, config=config)
        log = open_log(files, high_watermark=14, config=config)
        start = sum(map(len, held[:index]))
        files.flip_bit(SEGMENT, start * 8 + bit)
        before, fields = files.read(SEGMENT), dict(log.fields)
        with contextlib.suppress(DamagedBatch):
            log.truncate_to(16)
        if log.corrupt_at is None:
            assert (log.log_end_offset, log.high_watermark) == (16, 14), bit
            assert files.read(SEGMENT) == before[: sum(map(len, held[:8]))], bit
            continue
        damaged += 1
        assert log.corrupt_at == 2 * index, bit
        assert (log.fields, files.read(SEGMENT)) == (fields, before), bit
        assert log.metrics.truncations == 0, bit
    assert damaged > 100 or config is not None, "an index entry may lead past the damage"


def test_damage_at_the_target_of_a_truncation_is_removed() -> None:
    """The leader does not have the batches after the target, so nothing is lost."""
    for bit in HEADER_BITS:
        files, held = disk_with(10)
        log = open_log(files, high_watermark=14)
        files.flip_bit(SEGMENT, sum(map(len, held[:8])) * 8 + bit)
        assert log.truncate_to(16), bit
        assert (log.log_end_offset, log.high_watermark, log.corrupt_at) == (16, 14, None), bit
        assert files.read(SEGMENT) == b"".join(held[:8]), bit
        assert log.epochs.entries == [(0, 0)], bit
        fill(log, 2)
        forget_tail(log)
        assert read_all(log)[:8] == held[:8], bit


def test_a_truncation_into_a_segment_that_ends_too_early_changes_nothing() -> None:
    """Part of a closed segment is missing. A truncation would move the log end to an offset without batches before it."""
    files = MemoryFiles(Random(7))
    log = open_log(files, config=SMALL)
    held = fill(log, 20)
    log.update_high_watermark(40)
    first, second = log.segments[:2]
    target = second.base_offset - 2
    first.file.truncate(len(held[0]))
    with pytest.raises(DamagedBatch):
        log.truncate_to(target)
    assert (log.corrupt_at, log.log_end_offset, log.high_watermark) == (2, 40, 40)
    assert len(log.segments) > 2
    assert log.truncate_to(2)
    assert read_all(log) == held[:1]


def test_a_stale_read_during_a_truncation_costs_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk returns old bytes once. The second attempt reads the log correctly and truncates it."""
    files, held = disk_with(10)
    log = open_log(files, high_watermark=14)
    pread, answers = MemoryFile.pread, [bytes(4096)]

    def stale(file: MemoryFile, size: int, position: int, *, may_block: bool = True) -> memoryview:
        return memoryview(answers.pop()) if answers and size > 61 else pread(file, size, position, may_block=may_block)

    monkeypatch.setattr(MemoryFile, "pread", stale)
    with pytest.raises(DamagedBatch):
        log.truncate_to(16)
    assert (log.log_end_offset, log.high_watermark) == (20, 14)
    assert log.truncate_to(16)
    assert (log.log_end_offset, log.high_watermark) == (16, 14)
    assert files.read(SEGMENT) == b"".join(held[:8])


@pytest.mark.parametrize(("field", "bit"), [(11, 0), (26, 1)], ids=["length", "last offset delta"])
def test_a_wrong_length_or_last_offset_is_located(field: int, bit: int) -> None:
    """The damage is noticed only at the next batch. A repair from there would leave it, or ask the leader forever for an offset
    inside a batch."""
    files, held = disk_with(10)
    log = open_log(files, high_watermark=20)
    files.flip_bit(SEGMENT, (sum(map(len, held[:4])) + field) * 8 + bit)
    with pytest.raises(BrokerError):
        log.read(14, 1 << 20, 20)
    assert log.corrupt_at == 8


@pytest.mark.parametrize("index", [9, 4])
def test_a_read_below_the_log_end_is_never_empty(index: int) -> None:
    """The last batch claims to end one offset early, and the segment ends after it. With an empty response below the high
    watermark, a reader would ask again forever, and nothing would be logged."""
    files, held = disk_with(index + 1)
    log = open_log(files, high_watermark=2 * index + 2)
    forget_tail(log)
    start = sum(map(len, held[:index]))
    files.flip_bit(SEGMENT, (start + 26) * 8)  # the last offset delta: 1 becomes 0
    files.flip_bit(SEGMENT, (start + 60) * 8 + 1)  # the number of records: 2 becomes 0
    with pytest.raises(BrokerError):
        log.read(2 * index + 1, 1 << 20, 2 * index + 2)
    assert log.corrupt_at == 2 * index


def test_a_damaged_segment_is_not_deleted_for_its_age() -> None:
    """Its indexes are lost and were rebuilt up to the damage, so their newest timestamp is too old. If the leader deleted the
    segment, newer records after the damage would be deleted on all replicas too early."""
    files = MemoryFiles(Random(7))
    config = LogConfig(segment_bytes=1000, retention_ms=1000)
    log = open_log(files, config=config)
    for index in range(30):
        log.append_as_leader(batch(b"x" * 20, timestamp_ms=NOW_MS + 1000 * index), 0, NOW_MS)
    log.update_high_watermark(30)
    first = log.segments[0]
    count = log.segments[1].base_offset
    assert count > 5
    first.drop_indexes()
    for suffix in (".index", ".timeindex"):
        files.remove(first.path(suffix))
    size = first.size // count
    files.flip_bit(first.file.path, (2 * size + 8) * 8 + 6)
    first.max_timestamp = -1
    now_ms = NOW_MS + 1000 * count
    assert log.delete_old_segments(now_ms) == []
    assert log.log_start_offset == 0
    log.increment_log_start_offset(count)
    assert log.delete_old_segments(now_ms), "a raised log start permits it"


def test_indexes_end_before_a_batch_that_belongs_elsewhere() -> None:
    """A disk wrote a whole batch to the wrong place. Its offset is one of an earlier segment, which no index entry can hold: each
    attempt to save the indexes failed, so the broker could not replace this log by its leader's."""
    files = MemoryFiles()
    log = open_log(files, config=SMALL)
    held = fill(log, 20)
    segment = log.segments[1]
    misplaced = batch(*[b"other".ljust(20, b".")] * 2, timestamp_ms=NOW_MS + 1000)
    assert len(misplaced) == len(held[0])
    log.drop_indexes()
    for suffix in (".index", ".timeindex"):
        files.remove(segment.path(suffix))
    segment.file.pwrite(misplaced, len(held[0]))
    forget_tail(log)
    first = segment.base_offset
    assert [bytes(b) for b in log.read(first, 1, 40).buffers] == [held[first // 2]]
    with pytest.raises(BrokerError) as caught:
        log.read(first + 2, 1, 40)
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert segment.is_indexed_in_part
    log.drop_indexes()


def test_log_does_not_end_by_a_batch_that_belongs_elsewhere() -> None:
    """The last segment is too short for an index entry. Its only batch was overwritten by that of another log."""
    files = MemoryFiles()
    log = open_log(files)
    held = fill(log, 1)
    log.close()
    elsewhere = bytearray(held[0])
    elsewhere[:8] = (500).to_bytes(8, "big")
    files.open(SEGMENT, create=False).pwrite(elsewhere, 0)
    log = open_log(files, clean=True, high_watermark=2)
    assert (log.log_end_offset, log.possible_data_loss) == (0, True)


INDEX_FILES = [f"{DIR}/{0:020d}.index", f"{DIR}/{0:020d}.timeindex"]


@pytest.mark.parametrize("path", INDEX_FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "zeroed", "cut", "odd", "garbage", "older", "beyond"])
@pytest.mark.parametrize("clean", [True, False])
def test_index_files_are_rebuilt(path: str, damage: str, clean: bool) -> None:
    """S43, F18: for any content of an index file, every offset and timestamp is found."""
    files = MemoryFiles()
    config = LogConfig(index_interval_bytes=100)
    log = open_log(files, config=config)
    held = fill(log, 30)
    log.close()
    data = files.read(path)
    assert len(data) > 40
    older = {
        "missing": None,
        "empty": b"",
        "zeroed": bytes(len(data)),
        "cut": data[: len(data) // 24 * 12 // 8 * 8],
        "odd": data[:-3],
        "garbage": Random(1).randbytes(len(data)),
        "older": _of_another_log(path),
        "beyond": data + (b"\x00\x00\x27\x10" * (2 if path.endswith(".index") else 3)),
    }[damage]
    if older is None:
        files.remove(path)
    else:
        files.write(path, older)
    log = open_log(files, clean=clean, config=config, high_watermark=60)
    assert log.log_end_offset == 60
    forget_tail(log)
    for offset in range(60):
        read = log.read(offset, 1, 60)
        assert [bytes(b) for b in read.buffers] == [held[offset // 2]]
    for i in range(30):
        assert log.offset_for_timestamp(NOW_MS + i) == (NOW_MS + i, 2 * i, 0)
    assert log.offset_for_timestamp(NOW_MS + 30) is None
    assert log.corrupt_at is None


def _of_another_log(path: str) -> bytes:
    """The index of a log with other batch sizes: every entry is plausible, none is correct."""
    files = MemoryFiles()
    log = open_log(files, config=LogConfig(index_interval_bytes=100))
    fill(log, 12, records=3, size=33)
    log.close()
    return files.read(path)


@pytest.mark.parametrize("text", [
    b"", b"0\n", b"0\n5\n0 0\n", b"0\n1\n0 0", b"7\n0\n", b"0\n2\n5 0\n3 9\n", b"\xff\x00", None,
    b"0\n3\n1 0\n4 5\n5 8\n", b"0\n3\n1 0\n4 4\n5 9\n",  # one bit of a digit: an epoch that begins inside a batch
])  # fmt: skip
@pytest.mark.parametrize("clean", [True, False])
def test_the_epoch_cache_is_rebuilt_from_the_batches(text: bytes | None, clean: bool) -> None:
    """S44 (KAFKA-16541)."""
    files = MemoryFiles()
    log = open_log(files)
    for epoch in (1, 4, 5):
        fill(log, 2, epoch=epoch)
    log.close()
    path = f"{DIR}/leader-epoch-checkpoint"
    files.remove(path) if text is None else files.write(path, text)
    log = open_log(files, clean=clean, recovery_point=12)
    assert log.epochs.entries == [(1, 0), (4, 4), (5, 8)]
    assert files.read(path) == b"0\n3\n1 0\n4 4\n5 8\n"


def test_a_rotten_epoch_is_found_in_an_unscanned_segment() -> None:
    files, config = MemoryFiles(), LogConfig(segment_bytes=300)
    log = open_log(files, config=config)
    for epoch in (1, 4, 5):
        fill(log, 6, epoch=epoch)
    assert log.segments[-1].base_offset > 14
    log.close()
    files.write(f"{DIR}/leader-epoch-checkpoint", b"0\n3\n1 0\n4 13\n5 24\n")
    log = open_log(files, config=config, recovery_point=36)
    assert log.epochs.entries == [(1, 0), (4, 12), (5, 24)]


def test_epochs_beyond_the_log_end_are_dropped() -> None:
    """The checkpoint survived a power cut, the records of its last epoch did not."""
    files, held = disk_with(4, epochs=2)
    files.write(SEGMENT, b"".join(held[:2]))
    log = open_log(files)
    assert log.log_end_offset == 4
    assert log.epochs.entries == [(0, 0)]


def test_checkpoints_beyond_the_log_end_are_clamped() -> None:
    """S44: HW checkpoint 100, LEO 6."""
    files, _ = disk_with(3)
    for clean in (True, False):
        log = open_log(files, clean=clean, high_watermark=100, recovery_point=90)
        assert (log.high_watermark, log.recovery_point, log.log_end_offset) == (6, 6, 6)


def test_a_log_that_ends_below_its_start_continues_at_its_start() -> None:
    files, _ = disk_with(3)
    log = open_log(files, log_start_offset=50, high_watermark=50)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (50, 50, 50)
    assert log.append_as_leader(batch(b"a"), 1, NOW_MS).first_offset == 50
    assert open_log(files, log_start_offset=50).log_end_offset == 51


def test_a_missing_segment_in_the_middle_is_damage() -> None:
    files, held = disk_with(12, config=SMALL)
    log = open_log(files, config=SMALL)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    log.abandon()
    files.remove(f"{DIR}/{bases[1]:020d}.log")
    committed = open_log(files, config=SMALL, high_watermark=24)
    assert (committed.corrupt_at, committed.log_end_offset) == (bases[1], 24)
    uncommitted = open_log(files, config=SMALL)
    assert (uncommitted.corrupt_at, uncommitted.log_end_offset) == (None, bases[1])
    assert read_all(uncommitted) == held[: bases[1] // 2]


def test_foreign_files_are_left_alone() -> None:
    """F23."""
    files, held = disk_with(2)
    for name in ("notes.txt", "123.log", "00000000000000000000.log.bak", "é.index"):
        files.write(f"{DIR}/{name}", b"not ours")
    files.write(f"{DIR}/{5:020d}.log.deleted", b"old")
    files.write(f"{DIR}/{77:020d}.index", b"an orphan")
    assert read_all(open_log(files)) == held
    names = files.list(DIR)
    assert {"notes.txt", "123.log", "00000000000000000000.log.bak", "é.index"} < set(names)
    assert not any("deleted" in name or "77" in name for name in names)


def test_an_unreadable_sector_is_a_disk_error_not_a_short_log() -> None:
    """F20: a cut at the unreadable sector would drop the batches after it."""
    files, held = disk_with(3)
    files.fail_next("read", "*.log", errno.EIO)
    with pytest.raises(DiskError):
        open_log(files)
    assert read_all(open_log(files)) == held


crash_plans = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("crash"), st.integers(0, 1)),
    ),
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(crash_plans, st.integers(0, 2**32))
def test_what_was_flushed_survives_every_power_cut(plan: list[tuple[str, int]], seed: int) -> None:
    """The disk keeps any subset of unsynced sectors, names and lengths. All flushed batches survive, and the log is a prefix
    of what was written."""
    files = MemoryFiles(Random(seed))
    files.make_dirs("data")
    files.fsync_dir("")
    log = open_log(files, config=SMALL)
    epoch, durable, recovery_point = 0, 0, 0
    expected: list[bytes] = []
    for kind, amount in plan:
        if kind == "append":
            epoch += amount == 1
            expected += fill(log, amount, epoch=epoch, records=1)
        elif kind == "truncate":
            log.truncate_to(max(0, log.log_end_offset - amount))
            del expected[log.log_end_offset :]
            recovery_point = min(recovery_point, log.recovery_point)
            durable = min(durable, len(expected))
        elif kind == "flush":
            log.flush()
            durable = recovery_point = log.log_end_offset
        else:
            files.crash(lossy=bool(amount))
            log = open_log(files, config=SMALL, recovery_point=recovery_point)
            check_order(log)
            found = read_all(log)
            assert log.corrupt_at is None
            assert [without_epoch(b) for b in found[:durable]] == [without_epoch(b) for b in expected[:durable]]
            if not amount:
                assert found == expected
            expected = found
            recovery_point = min(recovery_point, log.recovery_point)
            epoch = max(epoch, log.latest_epoch) + 1
    check_order(log)


def test_recovery_is_the_same_on_a_real_disk(tmp_path) -> None:
    from strandline.storage.files import RealFiles

    files = RealFiles()
    directory = f"{tmp_path}/orders-0"
    log = open_log(files, directory, config=SMALL)
    held = fill(log, 20)
    log.abandon()
    last = sorted(tmp_path.glob("orders-0/*.log"))[-1]
    last.write_bytes(last.read_bytes()[:-5])
    log = open_log(files, directory, config=SMALL)
    assert read_all(log) == held[:-1]
    log.close()
    again: Log = open_log(files, directory, clean=True, config=SMALL, recovery_point=38)
    assert read_all(again) == held[:-1]


@pytest.mark.parametrize("flushed", [True, False])
def test_an_undone_truncation_brings_no_stale_record_back(flushed: bool) -> None:
    """A log is truncated to a leader's history and rolls at once. The truncated segment lies below the next recovery point,
    so its new length must be durable before that; otherwise recovery would take its old tail for a part of the log."""
    for seed in range(60):
        files = MemoryFiles(Random(seed))
        files.make_dirs(DIR)
        files.fsync_dir("/")
        log = open_log(files)
        old = fill(log, 12, size=200)
        log.flush()
        cut = 14
        log.truncate_to(cut)
        log.roll(NOW_MS)
        new = fill(log, 4, epoch=2, size=200)
        if flushed:
            log.flush()
        log.update_high_watermark(cut if seed % 2 else log.log_end_offset)
        point, hw = log.recovery_point, log.high_watermark
        files.crash()
        again = open_log(files, recovery_point=point, high_watermark=hw)
        found = read_all(again, end=again.log_end_offset if again.corrupt_at is None else again.corrupt_at)
        kept = old[: cut // 2]
        assert found[: len(kept)] == kept, f"seed {seed}"
        rest, stale = found[len(kept) :], old[len(kept) :]
        assert rest in (new[: len(rest)], stale[: len(rest)]), f"seed {seed}"
        if flushed:
            assert found == kept + new, f"seed {seed}"
            assert again.corrupt_at is None, f"seed {seed}"
        again.roll(NOW_MS)
        assert again.segment_for(again.log_end_offset) == len(again.segments) - 1
        check_order(again)
