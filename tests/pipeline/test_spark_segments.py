"""`format("strandline.segments")` in a real Spark: Spark finds it by name, selects its columns and pushes filters to it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException
from segment_files import positions, segment, write_log

from strandline.protocol.records.builder import encode_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of 90 records in batches of three; the second has one damaged batch and a torn tail."""
    folder = tmp_path_factory.mktemp("data")
    write_log(folder / "orders-0", [(n, segment(10, base_offset=n)) for n in (0, 30, 60)])
    damaged = bytearray(segment(30))
    damaged[positions(bytes(damaged))[4] + 100] ^= 1
    write_log(folder / "orders-1", [(0, bytes(damaged) + b"torn")])
    return folder


def frame(spark: SparkSession, path: Path, **written: str) -> DataFrame:
    return spark.read.format("strandline.segments").options(**written).load(str(path))


def test_batches_and_damage_are_rows(spark: SparkSession, logs: Path) -> None:
    df = frame(spark, logs, splitBytes="2k", columns="partition,sizeBytes,damage")
    found = df.collect()
    assert Counter((row.partition, row.damage and row.damage.split(":")[0]) for row in found) == {
        (0, None): 30,
        (1, None): 29,
        (1, "checksum"): 1,
        (1, "torn tail"): 1,
    }
    assert sum(row.sizeBytes for row in found) == sum(path.stat().st_size for path in logs.rglob("*.log"))
    assert df.rdd.getNumPartitions() > 3


def test_schema_or_option_selects_the_columns(spark: SparkSession, logs: Path) -> None:
    reader = spark.read.format("strandline.segments")
    assert reader.schema("lastOffset long, topic string").load(str(logs)).first().asDict() == {"lastOffset": 2, "topic": "orders"}
    assert frame(spark, logs, rows="record", columns="offset,value").columns == ["offset", "value"]
    with pytest.raises(PySparkException, match="column topic has the type string, not bigint as in the schema"):
        reader.schema("topic long").load(str(logs)).count()
    with pytest.raises(PySparkException, match="the schema names a column TOPIC, which is spelled topic"):
        reader.schema("TOPIC string").load(str(logs)).count()


def test_filters_prune_files_and_change_no_row(spark: SparkSession, logs: Path) -> None:
    """The number of tasks shows which files are read."""
    where = "topic = 'orders' and partition = 0 and offset >= 35 and offset < 40"
    pushed = frame(spark, logs, rows="record", splitBytes="1", pushFilters="true").where(where)
    assert sorted(row.offset for row in pushed.select("offset").collect()) == list(range(35, 40))
    assert pushed.rdd.getNumPartitions() == 3
    batches = frame(spark, logs, splitBytes="1", pushFilters="true").where("partition = 1 and baseOffset < 6")
    assert [row.baseOffset for row in batches.select("baseOffset").collect()] == [0, 3]
    assert batches.rdd.getNumPartitions() == 2


def test_wrong_path_is_reported_in_one_sentence(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="holds no log: a broker's data directory has folders such as orders-0"):
        frame(spark, tmp_path).count()


def test_queries_in_the_docs_run_and_find_the_gap(spark: SparkSession, tmp_path: Path) -> None:
    """The log holds batches of one producer under two leader epochs; one batch in between is missing."""

    def produced(base_offset: int, sequence: int, leader_epoch: int) -> bytes:
        records = [(None, b"value", (), 3_600_000)] * 5
        return encode_batch(
            records, base_offset=base_offset, leader_epoch=leader_epoch, producer_id=7, producer_epoch=0, base_sequence=sequence
        )

    data = produced(0, 0, 0) + produced(5, 5, 0) + produced(10, 15, 2)
    write_log(tmp_path / "orders-0", [(0, data)])
    spark.read.format("strandline.segments").load(str(tmp_path)).createOrReplaceTempView("segments")
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    by_hour, by_epoch, gaps = (
        spark.sql(query).collect() for query in re.findall(r"```sql\n(.*?)```", page, re.DOTALL) if "FROM segments" in query
    )
    assert [(row.topic, row.bytes, row.records) for row in by_hour] == [("orders", len(data), 15)]
    assert [(row.leaderEpoch, row["first"], row["last"], row.batches) for row in by_epoch] == [(0, 0, 9, 2), (2, 10, 14, 1)]
    assert [(row.baseOffset, row.expected, row.baseSequence) for row in gaps] == [(10, 10, 15)]
