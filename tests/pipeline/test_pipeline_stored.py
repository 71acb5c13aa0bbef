"""The judge of sinks (stored.py): it finds the same records as the segments source, and it notices each fault that it checks
for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from stored import StoredRow, rows_of, stored_in_folders

from strandline.pipeline.segments.task import find_segments, read_records
from strandline.testing import Cluster


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """Data directories of two stopped brokers; `orders` has two partitions."""
    async with Cluster(brokers=2, files="disk", folder=tmp_path) as cluster:
        await cluster.create_topic("orders", partitions=2)
        async with cluster.producer(producer_name="task") as producer:
            for n in range(20):
                headers = [("trace", b"%d" % n), ("none", None)] if n % 3 else []
                await producer.send_and_wait("orders", b"%d" % n if n % 4 else None, b"k" if n % 5 else None, n % 2, headers)
        rows = await rows_of(cluster, "orders")
    assert stored_in_folders(tmp_path.iterdir(), "orders") == rows, "in memory as on the disk"
    return tmp_path


async def test_judge_and_segments_source_find_the_same_records(folder: Path) -> None:
    for broker in ("broker-1", "broker-2"):
        tables = [
            pa.Table.from_batches([batch]) for s in find_segments([str(folder / broker)], ["orders"]) for batch in read_records(s)
        ]
        found = [
            StoredRow(
                row["partition"],
                row["offset"],
                row["key"],
                row["value"],
                tuple((header["key"], header["value"]) for header in row["headers"] or ()),
                row["producerId"],
                row["sequence"],
            )
            for table in tables
            for row in table.to_pylist()
        ]
        assert len(found) == 20
        assert sorted(found) == stored_in_folders([folder / broker], "orders")


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def without_second_batch(data: bytes) -> bytes:
    sizes = [12 + int.from_bytes(data[8:12], "big")]
    sizes.append(12 + int.from_bytes(data[sizes[0] + 8 : sizes[0] + 12], "big"))
    return data[: sizes[0]] + data[sum(sizes) :]


@pytest.mark.parametrize(
    ("harm", "told"),
    [(flip, "its checksum is wrong"), (without_second_batch, "offset 1 is missing"), (lambda data: b"", "differ")],
)
async def test_judge_notices_damage_gaps_and_differing_replicas(folder: Path, harm: Callable[[bytes], bytes], told: str) -> None:
    """The same fault is put into both replicas, or into one."""
    logs = sorted(folder.glob("*/orders-0/*.log"))
    assert len(logs) == 2
    for log in logs[: 1 if told == "differ" else 2]:
        log.write_bytes(harm(log.read_bytes()))
    with pytest.raises(AssertionError, match=told):
        stored_in_folders(folder.iterdir(), "orders")
