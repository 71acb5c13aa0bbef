"""Measures the time per record to build record batches, to check them as the leader does, and to read them.

    python benchmarks/codecs.py

100-byte values in batches of about 64 KiB; the best of several rounds, in nanoseconds per record, checksum included.
"Columns" is the work of `Consumer.fetch_batches` on a batch; "into Arrow" starts with those columns and joins 16 batches into
one of 9,600 rows. Needs pyarrow (the dev extra).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from strandline.client.consumer.batches import FetchedBatch, arrow_batches, fetched_batch
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.records import batch as v2
from strandline.protocol.records.builder import BatchBuilder, RecordTuple, encode_batch, encode_values
from strandline.protocol.records.check import check_records
from strandline.protocol.records.reader import decode_batch, decode_values

COUNT = 600
TIME = 1_700_000_000_000
ROUNDS, REPEATS = 7, 100
PLACE = TopicPartition("orders", 0)
JOINED = 16


def ns_per_record(work: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(REPEATS):
            work()
        best = min(best, time.perf_counter() - started)
    return best / REPEATS / COUNT * 1e9


def build_one_by_one(values: list[bytes]) -> bytes:
    builder = BatchBuilder()
    builder.append(None, values[0], (), TIME)
    append_value = builder.append_value
    for value in values[1:]:
        append_value(value)
    return builder.build()


def report(what: str, ns: float) -> None:
    print(f"{what:<58} {ns:>7.0f} ns/record {1000 / ns:>7.2f} M/s")


def measure_values(name: str, values: list[bytes]) -> None:
    raw = encode_values(values, TIME)
    header = v2.read_header(raw)
    report(f"{name}: build from a list", ns_per_record(lambda: encode_values(values, TIME)))
    report(f"{name}: build one by one", ns_per_record(lambda: build_one_by_one(values)))
    report(f"{name}: read values", ns_per_record(lambda: decode_values(raw, 0, header)))
    measure_reading(name, raw)


def measure_reading(name: str, raw: bytes) -> None:
    header = v2.read_header(raw)

    def read_columns() -> FetchedBatch:
        return fetched_batch(PLACE, raw, 0, header, from_offset=0, check_crc=True)

    report(f"{name}: check, as the leader does", ns_per_record(lambda: check_records(raw, 0, header)))
    batches = [read_columns()] * JOINED
    include = batches[0].headers is not None
    report(f"{name}: read records", ns_per_record(lambda: decode_batch(raw, 0, header)))
    report(f"{name}: read columns", ns_per_record(read_columns))
    report(f"{name}: into Arrow", ns_per_record(lambda: list(arrow_batches(batches, include_headers=include))) / JOINED)


def measure_records(name: str, records: list[RecordTuple]) -> None:
    report(f"{name}: build one by one", ns_per_record(lambda: encode_batch(records)))
    measure_reading(name, encode_batch(records))


def main() -> None:
    rnd = random.Random(1)
    uniform = [rnd.randbytes(100) for _ in range(COUNT)]
    varied = [rnd.randbytes(rnd.randint(60, 140)) for _ in range(COUNT)]
    measure_values("values of one size", uniform)
    measure_values("values of 80 sizes", varied)
    measure_records("12-byte keys, one size", [(b"key-%08d" % i, value, (), TIME) for i, value in enumerate(uniform)])
    measure_records("keys, 80 sizes, a timestamp each", [(b"key-%d" % i, value, (), TIME + i) for i, value in enumerate(varied)])
    measure_records("two headers each", [(None, value, [("a", b"1"), ("trace", b"x" * 16)], TIME) for value in uniform])
    raw = encode_values(uniform, TIME)
    report("checksum of a 64 KiB batch", ns_per_record(lambda: v2.check_crc(raw, 0, len(raw))))


if __name__ == "__main__":
    main()
