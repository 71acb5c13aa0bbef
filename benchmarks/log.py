"""Micro-benchmark of the log: the cost of an append and of a read, compared with the kernel's share.

    python benchmarks/log.py [--seconds 0.5]

Every figure is a median. `write` is a bare `os.pwrite` of the same number of bytes, so the difference is Strandline's cost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable

from strandline.protocol.records.builder import encode_batch
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig, TailBudget

NOW_MS = 1_700_000_000_000
ROUNDS = 5
MAX_BYTES_WRITTEN = 256 << 20


def batch_of(size: int) -> bytes:
    value = os.urandom(100 if size < 2048 else 1000)
    records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]] = []
    while 70 + len(records) * (len(value) + 12) < size:
        records.append((None, value, [], NOW_MS))
    return encode_batch(records)


def open_log(path: str, name: str, **config: int) -> Log:
    return Log.open(
        RealFiles(),
        os.path.join(path, name),
        topic=name,
        partition=0,
        topic_id=bytes(16),
        config=LogConfig(max_message_bytes=1 << 24, **config),
        clean_shutdown=False,
        now_ms=NOW_MS,
        budget=TailBudget(4 << 20),
    )


def microseconds(call: Callable[[], object], seconds: float, most: int) -> float:
    """Return the median of the rounds' time per call."""
    rounds = []
    for _ in range(ROUNDS):
        calls, start = 0, time.perf_counter()
        deadline = start + seconds / ROUNDS
        while calls < most // ROUNDS:
            call()
            calls += 1
            if time.perf_counter() > deadline:
                break
        rounds.append((time.perf_counter() - start) / calls)
    return statistics.median(rounds) * 1e6


def bench_append(path: str, size: int, calls: int) -> None:
    """Measure bare write and append alternately, so that both find the page cache in the same state."""
    batch = memoryview(bytearray(batch_of(size)))
    descriptor = os.open(os.path.join(path, f"bare-{size}"), os.O_RDWR | os.O_CREAT)
    leader, follower = open_log(path, f"leader-{size}"), open_log(path, f"follower-{size}")
    bare, append, replicate = [], [], []
    for i in range(min(calls, MAX_BYTES_WRITTEN // size)):
        start = time.perf_counter()
        os.pwrite(descriptor, batch, i * size)
        written = time.perf_counter()
        leader.append_as_leader(batch, 1, NOW_MS)
        appended = time.perf_counter()
        found = leader.read(follower.log_end_offset, 1, leader.log_end_offset)
        follower.append_as_follower(found.buffers[0], 1)
        bare.append(written - start)
        append.append(appended - written)
        replicate.append(time.perf_counter() - appended)
    write, append_us, hop = (statistics.median(times) * 1e6 for times in (bare, append, replicate))
    print(f"{size:>9,} B   write {write:8.2f}   append {append_us:8.2f}   tail read + follower append {hop:8.2f}   us")
    os.close(descriptor)
    leader.delete()
    follower.delete()


def bench_read(path: str, size: int, seconds: float) -> None:
    log = open_log(path, f"read-{size}")
    batch = batch_of(size)
    for _ in range(min(20_000, (64 << 20) // size)):
        log.append_as_leader(bytearray(batch), 1, NOW_MS)
    end = log.log_end_offset
    last = log.read(end - 1, 1, end).first_offset
    recent = microseconds(lambda: log.read(last, 1 << 20, end), seconds, 10**9)
    position = 0

    def sequential() -> None:
        nonlocal position
        found = log.read(position, 1 << 20, end)
        position = 0 if not found.size or position > end * 3 // 4 else _next(found.buffers[-1], found.first_offset)

    cold = microseconds(sequential, seconds, 10**9)
    print(f"{size:>9,} B   read from the tail {recent:8.2f}   1 MiB from the page cache, CRC checked {cold:8.2f}   us")
    log.delete()


def _next(data: bytes | bytearray | memoryview, first_offset: int) -> int:
    from strandline.protocol.records.batch import iter_headers

    offset = first_offset
    for _, header in iter_headers(data):
        offset = header.next_offset
    return offset


def bench_open(path: str, count: int) -> None:
    files = RealFiles()
    data = bytearray(batch_of(4096))

    def open_all(clean: bool) -> list[Log]:
        return [
            Log.open(
                files,
                f"{path}/many-{i}",
                topic="many",
                partition=i,
                topic_id=bytes(16),
                config=LogConfig(),
                clean_shutdown=clean,
                now_ms=NOW_MS,
            )
            for i in range(count)
        ]

    start = time.perf_counter()
    logs = open_all(False)
    created = time.perf_counter() - start
    for log in logs:
        for _ in range(5):
            log.append_as_leader(data, 1, NOW_MS)
        log.recovery_point = log.log_end_offset  # this benchmark does not measure fsync
        log.unsynced.clear()
        log.close()
    start = time.perf_counter()
    logs = open_all(True)
    opened = time.perf_counter() - start
    print(f"{count:,} logs: created in {created:.3f} s, opened after a clean shutdown in {opened:.3f} s")
    print(f"descriptors open: {files.open_descriptors}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0.5, help="per figure of the reads")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as path:
        for size in (512, 4096, 16384, 65536, 1 << 20):
            bench_append(path, size, 2000)
        for size in (512, 16384, 65536):
            bench_read(path, size, arguments.seconds)
        bench_open(path, 1000)


if __name__ == "__main__":
    main()
