"""Measures how long a new group coordinator loads one partition of `__consumer_offsets`, and each slice blocks the event loop.

    python benchmarks/group_load.py [--commits 1400000]

Each row is a log of another shape. "keys" is the number of different groups and partitions: few in a segment that is not
compacted yet, all different in a compacted one. "a batch" is the number of offsets that a request commits at a time. The files
are in the page cache. A slice is one call on the event loop, which other requests wait for. All times are the processor's.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.loader import GroupLoader
from strandline.broker.groups.records.codec import encode_record
from strandline.broker.groups.records.types import CommittedOffset, OffsetCommitRecord
from strandline.broker.groups.shard import GroupShard
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.records.builder import encode_batch
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig, TailBudget

NOW_MS = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
PARTITIONS = 10
SHAPES = ((1_000, 1), (1_000, 10), (1_000, 100), (None, 10), (None, 100))
"""Keys (None: as many as commits) and offsets of a batch."""


def open_log(folder: str, name: str) -> Log:
    return Log.open(
        RealFiles(),
        str(Path(folder, name)),
        topic="__consumer_offsets",
        partition=0,
        topic_id=bytes(16),
        config=LogConfig(max_message_bytes=1 << 20),
        clean_shutdown=False,
        now_ms=NOW_MS,
        budget=TailBudget(0),
    )


def fill(log: Log, commits: int, keys: int, batch: int) -> None:
    """Append commits of the keys in turn; after the last key the first one follows again."""
    value_of = random.Random(7)
    for first in range(0, commits, batch):
        rows = []
        for number in range(first, min(commits, first + batch)):
            group, partition = divmod(number % keys, PARTITIONS)
            value = CommittedOffset(value_of.randrange(1 << 40), 3, "", NOW_MS + number, topic_id=TOPIC_ID)
            key, data = encode_record(OffsetCommitRecord(f"group-of-readers-{group}", "orders-of-customers", partition, value))
            rows.append((key, data, [], NOW_MS + first))
        log.append_as_leader(bytearray(encode_batch(rows)), 1, NOW_MS)
    log.update_high_watermark(log.log_end_offset)


def load(log: Log) -> tuple[float, list[float], GroupLoader]:
    """Seconds, seconds of each slice, and the loader."""
    steps: deque[Callable[[], None]] = deque()
    ends: list[Any] = []
    shard = GroupShard(GroupConfig(), random.Random(1), MetadataImage.empty())
    loader = GroupLoader(
        SimpleNamespace(log=log),  # type: ignore[arg-type]
        shard,
        is_current=lambda: True,
        call_soon=steps.append,
        run_blocking=None,
        on_end=ends.append,
    )
    loader.start()
    slices = []
    while steps:
        began = time.thread_time()
        steps.popleft()()
        slices.append(time.thread_time() - began)
    assert ends == [None], ends
    return sum(slices), sorted(slices), loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=1_400_000)
    commits = parser.parse_args().commits
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)  # as in a node
    print("   keys  a batch        MB         s   us a record   slices   median ms   p99 ms   longest ms")
    with tempfile.TemporaryDirectory(prefix="strandline-bench-") as folder:
        for keys, batch in SHAPES:
            log = open_log(folder, f"{keys}-{batch}")
            fill(log, commits, keys or commits, batch)
            total, slices, loader = load(log)
            median, p99, longest = (1000 * slices[int(share * (len(slices) - 1))] for share in (0.5, 0.99, 1))
            print(
                f"{keys or commits:>9,} {batch:>8} {log.size_bytes / 1e6:9.1f} {total:9.2f} {total / loader.records * 1e6:13.2f}"
                f" {len(slices):>8,} {median:11.2f} {p99:8.2f} {longest:12.2f}",
                flush=True,
            )
            log.delete()


if __name__ == "__main__":
    main()
