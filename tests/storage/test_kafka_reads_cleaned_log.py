"""A real Kafka recovers and serves a log that our cleaner wrote, and its clients read exactly the records that are left.

The log has tombstones, all codecs, idempotent producers, emptied batches, fences (also as its last batch), and fillers: between
batches, at the end of segments, merged by later cleanings, and one of the largest span. Kafka is killed before it gets the log,
so it checks every batch when it starts again. A Kafka that starts twice takes half a minute, so most of these tests are `slow`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import pytest_asyncio
from cleaner_kit import DAY_MS, clean, keyed
from real_kafka import RealKafka, complaints, kafka_tools, run_tool
from storage_kit import NOW_MS, open_log

from strandline.protocol.records.batch import BatchHeader
from strandline.protocol.records.compression import Codec
from strandline.protocol.records.fence import FIRST_FENCE, is_fence
from strandline.protocol.records.filler import OFFSETS_MAX, is_filler, make_fillers
from strandline.storage.files import RealFiles
from strandline.storage.log.fences import FENCES_KEPT
from strandline.storage.log.log import Log, LogConfig

pytestmark = pytest.mark.kafka

TOPIC = "cleaned"
CONFIG = LogConfig(segment_bytes=6_000, index_interval_bytes=300)
TOPIC_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "index.interval.bytes": "300"}
READ_TIMEOUT_S = 60.0
KAFKAS_FILES = (".log", ".index", ".timeindex", ".snapshot")


class Read(NamedTuple):
    """A record as a client reads it."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


class Writer:
    """Writes a keyed topic, cleans it, and knows which records are left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: Log = open_log(RealFiles(), str(folder), config=CONFIG)
        self.random = Random(16)
        self.appended: dict[int, Read] = {}
        self.dirty = 0
        self.expired = 0
        """Tombstones below this offset have been removed."""
        self._sequences = dict.fromkeys(range(4), 0)
        self._token = 0

    def append(self, batches: int, *, producers: int) -> None:
        """Append batches of each codec; one of seven records is a tombstone. One of ten batches raises the fencing token."""
        for number in range(batches):
            rows = [(self._key(), self._value()) for _ in range(self.random.randint(1, 6))]
            producer_id, time_ms = number % (producers + 1) - 1, NOW_MS + 10 * number
            producer = (-1, -1, -1)
            if producer_id >= 0:
                producer = (producer_id, 0, self._sequences[producer_id])
                self._sequences[producer_id] += len(rows)
            made = keyed(rows, timestamp_ms=time_ms, codec=Codec(number % len(Codec)), producer=producer)
            self._token += 2**30 * (number % 10 == 9)
            first = self.log.append_as_leader(made, 0, time_ms, fencing_token=self._token).first_offset
            for n, (key, value) in enumerate(rows):
                self.appended[first + n] = Read(first + n, time_ms + n, key, value)

    def _key(self) -> bytes:
        return b"key-%d" % self.random.randrange(50)

    def _value(self) -> bytes | None:
        return None if not self.random.randrange(7) else b"value " * self.random.randint(1, 30)

    def append_removed_offsets(self) -> None:
        """Append the largest filler, as a follower gets it from its leader."""
        end = self.log.log_end_offset
        (made,) = make_fillers(end, end + OFFSETS_MAX, 0)
        self.log.append_as_follower(bytearray(made), 0)

    def append_fence(self) -> None:
        """Append a fence whose record is gone, as in a replica that got only the fence before its leader failed."""
        end = self.log.log_end_offset
        self.log.append_as_leader(keyed([(b"gone", b"gone")]), 0, NOW_MS, fencing_token=self._token + 1)
        self.log.truncate_to(end + 1)

    def clean(self, now_ms: int) -> None:
        """Clean the closed segments. This removes the tombstones that an earlier cleaning has seen, because their time has
        passed."""
        self.log.roll(NOW_MS)
        self.log.update_high_watermark(self.log.log_end_offset)
        seen = self.dirty
        self.dirty = clean(self.log, self.dirty, now_ms=now_ms).next_dirty
        self.expired = seen

    def expected(self) -> list[Read]:
        """All records that are not cleaned; of the rest the newest record of each key, unless it is an expired tombstone."""
        newest = {record.key: record.offset for record in self.appended.values() if record.offset < self.dirty}
        return [
            record
            for record in self.appended.values()
            if record.offset >= self.dirty
            or (newest[record.key] == record.offset and (record.value is not None or record.offset >= self.expired))
        ]

    def headers(self) -> list[list[BatchHeader]]:
        """The headers of the batches of each segment."""
        return [[header for _, header in segment.headers(0)] for segment in self.log.segments]


def written(folder: Path) -> Writer:
    """A topic that was cleaned three times, each time long after the one before."""
    writer = Writer(folder)
    writer.append(120, producers=3)
    writer.clean(NOW_MS)
    writer.append(80, producers=2)
    writer.append_removed_offsets()
    writer.append(60, producers=1)
    writer.clean(NOW_MS + 2 * DAY_MS)
    writer.append(60, producers=1)
    writer.clean(NOW_MS + 4 * DAY_MS)
    writer.append(12, producers=1)
    writer.append_fence()
    return writer


def test_written_log_has_every_kind_of_batch(tmp_path: Path) -> None:
    """The log has every kind of batch that a cleaning leaves; otherwise the other tests would prove less than they say."""
    writer = written(tmp_path / f"{TOPIC}-0")
    segments = writer.headers()
    batches = [header for segment in segments for header in segment]
    fillers = [header for header in batches if is_filler(header)]
    assert {header.compression for header in batches if header.record_count} == set(Codec)
    assert max(header.last_offset_delta for header in fillers) == OFFSETS_MAX - 1
    assert max(header.last_offset_delta for header in fillers if header.last_offset_delta < OFFSETS_MAX - 1) > 100
    assert any(is_filler(segment[-1]) for segment in segments)
    assert any(0 <= header.producer_id < FIRST_FENCE and not header.record_count for header in batches)
    assert len({header.producer_id for header in batches if not is_fence(header)}) == 4
    fences = [header.base_offset for header in batches if is_fence(header)]
    assert fences[-FENCES_KEPT:] == [fence.offset for fence in writer.log.producers.fences]
    assert batches[-1].base_offset == fences[-1]
    assert fences[0] < writer.dirty
    expected = writer.expected()
    kept = [record for record in expected if record.offset < writer.dirty]
    assert any(record.value is None for record in kept)
    gone = [record for record in writer.appended.values() if record.offset < writer.dirty and record not in kept]
    assert any(record.value is None for record in gone)
    assert len(kept) < len(gone) / 3
    writer.log.close()


def dumped(paths: list[Path]) -> str:
    given = ",".join(map(str, paths))
    return run_tool(kafka_tools(), "kafka-dump-log", "--deep-iteration", "--print-data-log", "--files", given)


def check_dump(text: str, writer: Writer) -> None:
    """Kafka's code reads exactly the records that are left, and accepts every batch."""
    lines = [line for line in text.splitlines() if line.startswith("| offset: ")]
    assert [int(line.split()[2]) for line in lines] == [record.offset for record in writer.expected()]
    assert text.count("isvalid: true") == sum(map(len, writer.headers()))


def test_dump_log_reads_the_records(tmp_path: Path) -> None:
    """This needs no running Kafka, so every build can afford it. `test_dump_log_reads_every_file` explains the complaint."""
    writer = written(tmp_path / f"{TOPIC}-0")
    writer.log.close()
    text = dumped([path for suffix in KAFKAS_FILES for path in sorted(writer.folder.glob(f"*{suffix}"))])
    check_dump(text, writer)
    assert all("timestamp mismatch" in line for line in complaints(text))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RealKafka, Writer]]:
    """A Kafka that has recovered our log, and its writer."""
    script = kafka_tools()
    writer = written(tmp_path_factory.mktemp("ours") / f"{TOPIC}-0")
    writer.log.close()
    kafka = RealKafka(script, tmp_path_factory.mktemp("kafka"))
    kafka.format()
    try:
        await kafka.start()
        folder = await kafka.create_topic(TOPIC, TOPIC_SETTINGS)
        kafka.kill()
        put_log(writer.folder, folder)
        await kafka.start()
        yield kafka, writer
    finally:
        kafka.kill()


def put_log(source: Path, target: Path) -> None:
    """Replace the files of the log `target`, except those that name the topic."""
    for path in target.iterdir():
        if path.suffix in KAFKAS_FILES or "checkpoint" in path.name:
            path.unlink()
    for path in source.iterdir():
        if path.suffix in KAFKAS_FILES:
            shutil.copy(path, target)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_recovery_changes_no_segment(served: tuple[RealKafka, Writer]) -> None:
    """Kafka would cut a log before the first batch that it does not accept. It builds its indexes from the batches."""
    kafka, writer = served
    closed = [segment.base_offset for segment in writer.log.segments[:-1]]
    names = [f"{base:020d}{suffix}" for base in closed for suffix in (".log", ".index", ".timeindex")]
    for name in [*names, f"{writer.log.segments[-1].base_offset:020d}.log"]:
        assert (kafka.data / f"{TOPIC}-0" / name).read_bytes() == (writer.folder / name).read_bytes(), name
    assert len(closed) > 3


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_dump_log_reads_every_file(served: tuple[RealKafka, Writer]) -> None:
    """The tool expects that the newest timestamp of a batch is that of one of its records, so it complains about the time index
    of a segment whose newest batch was emptied. It complains about the index that Kafka itself makes of this segment, too."""
    kafka, writer = served
    paths = [path for suffix in KAFKAS_FILES for path in sorted(writer.folder.glob(f"*{suffix}"))]
    theirs = sorted((kafka.data / f"{TOPIC}-0").glob("*.timeindex"))
    text = dumped([*paths, *theirs])
    check_dump(text, writer)
    faults: dict[str, list[str]] = {str(writer.folder): [], str(kafka.data / f"{TOPIC}-0"): []}
    for line in complaints(text):
        (folder,) = [folder for folder in faults if folder in line]
        faults[folder].append(line.replace(folder, ""))
    of_ours, of_kafkas = faults.values()
    assert of_ours == of_kafkas
    assert all("timestamp mismatch" in line for line in of_ours)


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_console_consumer_reads_the_records(served: tuple[RealKafka, Writer]) -> None:
    kafka, writer = served
    expected = writer.expected()
    text = run_tool(
        kafka_tools(),
        "kafka-console-consumer",
        *("--bootstrap-server", kafka.bootstrap, "--topic", TOPIC, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(len(expected)), "--timeout-ms", "30000"),
        *(
            option
            for name in ("print.offset=true", "print.timestamp=true", "print.key=true", "null.literal=<null>")
            for option in ("--formatter-property", name)
        ),
    )
    lines = [line.split("\t") for line in text.splitlines() if line.startswith("CreateTime:")]
    assert lines == [
        [f"CreateTime:{r.timestamp_ms}", f"Offset:{r.offset}", r.key.decode(), (r.value or b"<null>").decode()] for r in expected
    ]


def starts(writer: Writer) -> list[int]:
    """The begin of the log, and an offset inside of several fillers, the largest among them."""
    fillers = [header for segment in writer.headers() for header in segment if is_filler(header) and header.last_offset_delta]
    return [0, *((header.base_offset + header.last_offset) // 2 for header in sorted(fillers, key=len_of)[-4:])]


def len_of(header: BatchHeader) -> int:
    return header.last_offset_delta


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_confluent_kafka_reads_the_records(served: tuple[RealKafka, Writer]) -> None:
    kafka, writer = served
    for start in starts(writer):
        found, end = await asyncio.to_thread(read_by_confluent, kafka.bootstrap, start)
        assert found == [record for record in writer.expected() if record.offset >= start]
        assert end == writer.log.log_end_offset


def read_by_confluent(bootstrap: str, start: int) -> tuple[list[Read], int]:
    """The records from `start` on, and the offset of the end."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, start)])
    found = []
    try:
        while (message := consumer.poll(READ_TIMEOUT_S)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found, message.offset()
            found.append(Read(message.offset(), message.timestamp()[1], message.key(), message.value()))
        raise AssertionError(f"the end was not reached within {READ_TIMEOUT_S} s after {len(found)} records")
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.asyncio(loop_scope="module")
async def test_aiokafka_reads_the_records(served: tuple[RealKafka, Writer]) -> None:
    kafka, writer = served
    for start in starts(writer):
        found = await read_by_aiokafka(kafka.bootstrap, start, writer.log.log_end_offset)
        assert found == [record for record in writer.expected() if record.offset >= start]


async def read_by_aiokafka(bootstrap: str, start: int, end: int) -> list[Read]:
    """The records from `start` to `end`."""
    from aiokafka import AIOKafkaConsumer
    from aiokafka import TopicPartition as Partition

    partition = Partition(TOPIC, 0)
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, auto_offset_reset="none")
    await consumer.start()
    found = []
    try:
        consumer.assign([partition])
        consumer.seek(partition, start)
        async with asyncio.timeout(READ_TIMEOUT_S):
            while await consumer.position(partition) < end:
                for messages in (await consumer.getmany(timeout_ms=500)).values():
                    found += [Read(m.offset, m.timestamp, m.key, m.value) for m in messages]
    finally:
        await consumer.stop()
    return found
