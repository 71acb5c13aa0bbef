"""The cleaner against a model of transactions: random transactions, cleanings and crashes, as a reader of committed records sees
them.

Whatever the cleaner removes, a reader finds the newest committed value of each key and never an aborted one, and no transaction
is open that the model has ended: not in the log, not after a crash, and not in a replica that copies the cleaned log.
"""

from __future__ import annotations

from random import Random

import pytest
from cleaner_kit import clean
from storage_kit import DIR, NOW_MS, open_log, read_all
from test_cleaner_model import CountingFiles, PowerCut

from strandline.protocol.records.batch import TRANSACTIONAL_MASK, read_header
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker, is_marker, read_marker
from strandline.protocol.records.reader import iter_records
from strandline.storage.disk import make_dirs_durably
from strandline.storage.log.log import Log, LogConfig

CONFIG = LogConfig(segment_bytes=1_500, index_interval_bytes=100)
RETENTION_MS = 1_000
KEYS = [b"k%d" % n for n in range(6)]
PIDS = (7, 8, 9)


def committed(log: Log) -> dict[bytes, bytes]:
    """The newest committed value of each key, read as a consumer reads it: with the list of aborted transactions."""
    end = log.last_stable_offset
    aborted = log.aborted_transactions(log.log_start_offset, end)
    dropping: dict[int, None] = {}
    values: dict[bytes, bytes | None] = {}
    for data in read_all(log):
        header = read_header(data)
        if header.base_offset >= end:
            break
        while aborted and aborted[0].first_offset <= header.last_offset:
            dropping[aborted.pop(0).producer_id] = None
        if is_marker(header):
            marker = read_marker(data, 0, header)
            if marker is not None and not marker.is_commit:
                dropping.pop(header.producer_id, None)
        elif not (header.attributes & TRANSACTIONAL_MASK and header.producer_id in dropping):
            values |= {bytes(record.key or b""): record.value for record in iter_records(data)}
    return {key: bytes(value) for key, value in values.items() if value is not None}


class Model:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = CountingFiles(Random(seed))
        make_dirs_durably(self.files, DIR)
        self.log = open_log(self.files, config=CONFIG)
        self.now_ms = NOW_MS
        self.newest: dict[bytes, tuple[int, bytes | None]] = {}
        """Offset and value of the newest committed record, by key."""
        self.pending: dict[int, list[tuple[bytes, int, bytes | None]]] = {}
        """The records of open transactions, by producer id."""
        self.epochs = dict.fromkeys(PIDS, 0)
        self.sequences = dict.fromkeys(PIDS, 0)
        self.count = 0

    def write(self, pid: int) -> None:
        self.count += 1
        key = self.random.choice(KEYS)
        value = None if self.random.random() < 0.2 else b"%d" % self.count
        epoch, sequence = (self.epochs[pid], self.sequences[pid]) if pid >= 0 else (-1, -1)
        records = encode_batch(
            [(key, value, [], NOW_MS)],
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=pid >= 0,
        )
        offset = self.log.append_as_leader(bytearray(records), 0, self.now_ms, is_transactional=pid >= 0).first_offset
        if pid >= 0:
            self.sequences[pid] += 1
            self.pending.setdefault(pid, []).append((key, offset, value))
        else:
            self._apply([(key, offset, value)])

    def end(self, pid: int) -> None:
        """End the transaction of a producer, with the next epoch (version 2) or the same one."""
        is_commit, version = self.random.random() < 0.6, self.random.choice((1, 2))
        if version == 2:
            self.epochs[pid], self.sequences[pid] = self.epochs[pid] + 1, 0
        self.log.append_marker(EndTransactionMarker(is_commit, 0), pid, self.epochs[pid], 0, self.now_ms, version)
        written = self.pending.pop(pid, [])
        if is_commit:
            self._apply(written)

    def _apply(self, written: list[tuple[bytes, int, bytes | None]]) -> None:
        """A transaction that is committed late does not replace records that lie behind its own."""
        for key, offset, value in written:
            if offset > self.newest.get(key, (-1, None))[0]:
                self.newest[key] = (offset, value)

    def save(self) -> None:
        """Commit and flush everything, so that a crash takes nothing back."""
        self.log.update_high_watermark(self.log.log_end_offset)
        self.log.flush()

    def clean(self) -> None:
        clean(self.log, now_ms=self.now_ms, delete_retention_ms=RETENTION_MS)

    def crash_in_cleaning(self) -> None:
        self.files.left = self.random.randrange(60)
        try:
            self.clean()
        except PowerCut:
            pass
        log = self.log
        self.files.crash(lossy=self.random.random() < 0.5)
        self.log = open_log(self.files, config=CONFIG, recovery_point=log.recovery_point, high_watermark=log.high_watermark)

    def check(self) -> None:
        log = self.log
        assert log.corrupt_at is None
        assert {pid for _, pid in log.producers.transactions.ongoing()} == set(self.pending)
        stable = log.last_stable_offset
        if not self.pending:
            assert stable == log.high_watermark
            assert committed(log) == {key: value for key, (_, value) in self.newest.items() if value is not None}
        replica = open_log()
        for data in read_all(log):
            replica.append_as_follower(data, 0)
        replica.update_high_watermark(log.high_watermark)
        assert {pid for _, pid in replica.producers.transactions.ongoing()} == set(self.pending)
        assert committed(replica) == committed(log)

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.5:
            self.write(self.random.choice((-1, *PIDS)))
        elif choice < 0.7:
            if self.pending:
                self.end(self.random.choice(list(self.pending)))
        elif choice < 0.78:
            self.log.roll()
        elif choice < 0.82:
            self.now_ms += self.random.choice((1, RETENTION_MS))
        elif choice < 0.85:
            for times in (1, 2, 3):
                self.log.expire_producers(NOW_MS + times * 2 * CONFIG.producer_id_expiration_ms)
        else:
            self.save()
            if choice < 0.95:
                self.clean()
            else:
                self.crash_in_cleaning()
            self.check()


@pytest.mark.parametrize("seed", range(30))
def test_a_reader_of_committed_records_never_notices_the_cleaner(seed: int) -> None:
    """This holds also if the cleaner dies in the middle: the markers, their index and the records are removed together or in the
    right order."""
    model = Model(seed)
    for _ in range(250):
        model.step()
    for pid in list(model.pending):
        model.end(pid)
    model.save()
    model.log.roll()
    for _ in range(4):
        model.now_ms += RETENTION_MS
        model.clean()
        model.check()
