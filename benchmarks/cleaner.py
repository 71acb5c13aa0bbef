"""The cleaner's core against a log of its own, without a broker: MB/s of log processed, and the memory of the offset map.

    python benchmarks/cleaner.py [--size 100] [--keys 1000000] [--records 1500000]

The keys come in random order, and the values are random bytes. As in Kafka's own log lines, the rate is the number of bytes of
the cleaned segments per second of the whole cleaning (map and rewrite).
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time

from keyed_log import NOW_MS, batches

from strandline.storage.cleaner.batch_cleaning import Rules
from strandline.storage.cleaner.cleaning import CleaningPlan, build_map, groups, plan
from strandline.storage.cleaner.offset_map import SLOT_BYTES, OffsetMap
from strandline.storage.files import RealFiles
from strandline.storage.log.log import Log, LogConfig

SEGMENT_BYTES = 64 << 20
RETENTION_MS = 86_400_000


def fill(log: Log, size: int, keys: int, records: int, seed: int) -> None:
    """Append records of `size` bytes of key and value."""
    for batch in batches(size, keys, records, seed):
        log.append_as_leader(bytearray(batch), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.roll(NOW_MS)


def clean(log: Log, planned: CleaningPlan, offset_map: OffsetMap) -> tuple[float, float]:
    """Seconds of the map, and of the rewriting."""
    began = time.perf_counter()
    for _ in build_map(log.files, planned, offset_map):
        pass
    mapped = time.perf_counter()
    rules = Rules(offset_map, NOW_MS, RETENTION_MS, planned.last_batches)
    for group in groups(planned, offset_map.latest_offset):
        for _ in group.rewrite(log.files, rules):
            pass
        if group.cleaned is not None:
            for path in log.replace_segments(group.old, group.cleaned, planned.truncations):
                log.files.remove(path)
    return mapped - began, time.perf_counter() - mapped


def measure(size: int, keys: int, records: int, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as path:
        config = LogConfig(segment_bytes=SEGMENT_BYTES)
        log = Log.open(
            RealFiles(),
            os.path.join(path, "t-0"),
            topic="t",
            partition=0,
            topic_id=bytes(16),
            config=config,
            clean_shutdown=True,
            now_ms=NOW_MS,
        )
        fill(log, size, keys, records, seed)
        planned = plan(log, 0)
        before, map_bytes = log.size_bytes, int(keys / 0.9) * SLOT_BYTES + 24_000
        cpu = time.process_time()
        map_s, rewrite_s = clean(log, planned, OffsetMap(map_bytes))
        return {
            "log, MB": before / 1e6,
            "cleaned log, MB": log.size_bytes / 1e6,
            "map, s": map_s,
            "rewrite, s": rewrite_s,
            "CPU s": time.process_time() - cpu,
            "MB/s": before / 1e6 / (map_s + rewrite_s),
            "records/s": records / (map_s + rewrite_s),
            "map, MB": map_bytes / 1e6,
            "largest RSS, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=100, help="bytes of key and value of a record")
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--records", type=int, default=1_500_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    for name, value in measure(args.size, args.keys, args.records, args.seed).items():
        print(f"{name:<20} {value:>14,.2f}")


if __name__ == "__main__":
    main()
