"""Delta, as far as it needs neither Spark nor jars: what goes with what, and what is refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cli_world import one_sentence, run

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs import audit, compact, delta, offload
from strandline.pipeline.jobs.delta_offload import Reached, assign_json, check_ends, check_times, table_path
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.protocol.errors import UsageError

ORDERS = TopicPartition("orders", 0)
WANTED = "pyspark<=4.2.0,>=4.0.1"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """What a Delta table looks like from outside."""
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None, str], None]:
    """delta-spark (or none) and PySpark, in these versions."""

    def install(delta_spark: str | None, spark: str) -> None:
        def version(name: str) -> str:
            found = {"pyspark": spark, "delta-spark": delta_spark}[name]
            if found is None:
                raise metadata.PackageNotFoundError(name)
            return found

        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr(metadata, "requires", lambda name: ["importlib_metadata<=8.7.1", WANTED])

    return install


# -- jars -------------------------------------------------------------------------------------------------------------


def test_the_jar_is_the_one_for_this_minor_version_of_spark(installed: Callable[[str | None, str], None]) -> None:
    installed("4.4.0", "4.2.0")
    conf = delta.delta_conf()
    assert conf["spark.jars.packages"] == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert set(delta.IN_SESSION.items()) <= set(conf.items())


def test_nothing_is_fetched_where_the_jars_lie_beside_sparks(
    installed: Callable[[str | None, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it works on machines without a way to Maven Central, and a start takes no time for asking."""
    installed("4.4.0", "4.2.0")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    assert "spark.jars.packages" in delta.delta_conf()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert delta.delta_conf() == delta.IN_SESSION


@pytest.mark.parametrize(
    ("delta_spark", "spark", "told"),
    [
        (None, "4.2.0", r"Delta is not installed: in a clone of Strandline, pip install '\.\[spark,delta\]'"),
        ("4.4.0", "4.3.0", r"delta-spark 4.4.0 goes with pyspark<=4.2.0,>=4.0.1, and PySpark 4.3.0 is installed: .*pip install"),
        ("4.4.0", "4.2.1", "and PySpark 4.2.1 is installed"),
        ("4.4.0", "4.0.0", "and PySpark 4.0.0 is installed"),
    ],
)
def test_versions_that_do_not_go_together_are_told_before_spark_starts(
    installed: Callable[[str | None, str], None], delta_spark: str | None, spark: str, told: str
) -> None:
    """Spark itself would say that its Java has ended, or that a method of some class is not there."""
    installed(delta_spark, spark)
    with pytest.raises(UsageError, match=told):
        delta.delta_session("never started")


@pytest.mark.parametrize("spark", ["4.0.1", "4.1.4", "4.2", "4.2.0", "4.2.0.dev1"])
def test_versions_are_compared_as_numbers(spark: str) -> None:
    delta.check_versions("4.4.0", WANTED, spark)
    delta.check_versions("4.4.0", "pyspark (>=4.0.1, <4.10)", spark)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            "...SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find...",
            "this Spark session has no Delta: make it with",
        ),
        ("[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] This...", "does not use its extension and catalog"),
        ("java.lang.NoSuchMethodError: 'void org.apache.spark...'", "are made for another Spark"),
        ("[PATH_NOT_FOUND] Path does not exist: ...", None),
    ],
)
def test_a_session_without_the_right_delta_is_told_what_to_do(error: str, told: str | None) -> None:
    said = delta.sentence(error)
    assert said is None if told is None else said is not None and told in said


# -- what is what -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read", [read_manifest, compact.check, lambda root: offload.check("orders", None, root)], ids=["read", "compact", "offload"]
)
def test_what_is_for_lakes_of_parquet_files_refuses_a_delta_table(table: Path, read: Callable[[Path], Any]) -> None:
    """Its files look alike. Whoever took them for a lake would find an empty one, and offload everything beside them."""
    with pytest.raises(UsageError, match="is a Delta table: "):
        read(table)


def test_compaction_of_a_delta_table_is_deltas_own(table: Path) -> None:
    with pytest.raises(UsageError, match=f"OPTIMIZE delta.`{table}`"):
        compact.check(table)


def test_a_delta_table_does_not_go_into_a_lake(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    with pytest.raises(UsageError, match="is a lake of Parquet files: give a Delta table a folder of its own"):
        offload.check("orders", None, tmp_path, "delta")


def test_a_format_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of the format parquet or delta, not 'orc'"):
        offload.check("orders", None, tmp_path, "orc")


def test_an_audit_takes_a_delta_table_for_a_lake(table: Path) -> None:
    assert audit.check("orders", table, (), {}) == ["orders"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["lake", "{table}"], "is a Delta table: this reads lakes of Parquet files"),
        (["compact", "{table}"], "OPTIMIZE delta.`{table}`"),
        (["offload", "--topic", "orders", "--to", "{table}"], "or offload with the format delta"),
        (["offload", "--topic", "orders", "--to", "new", "--format", "orc"], "of the format parquet or delta, not 'orc'"),
    ],
)
def test_the_commands_say_so_in_one_sentence(table: Path, words: list[str], told: str) -> None:
    done = run("pipeline", *(word.format(table=table) for word in words))
    assert done.code != 0
    assert told.format(table=table) in one_sentence(done)


@pytest.mark.skipif(find_spec("delta") is not None, reason="Delta is installed, and test_spark_delta.py uses it")
@pytest.mark.parametrize("words", [["offload", "--to", "new", "--format", "delta"], ["audit", "--lake", "{table}"]])
def test_a_command_that_needs_delta_says_how_to_install_it(table: Path, words: list[str]) -> None:
    done = run("pipeline", words[0], "--topic", "orders", *(word.format(table=table) for word in words[1:]))
    assert done.code != 0
    assert one_sentence(done).endswith("pip install '.[spark,delta]'")


# -- a checkpoint that was lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ({ORDERS: 40}, "the table has orders-0 up to offset 41, and its log ends at 40: was the topic recreated"),
        ({ORDERS: 41}, "its log ends at 41"),
        ({}, "the table has records of orders-0, and the topic has no such partition"),
    ],
)
def test_a_log_that_is_shorter_than_the_table_is_another_one(ends: dict[TopicPartition, int], told: str) -> None:
    """To go on there would leave out its first records."""
    with pytest.raises(UsageError, match=told):
        check_ends({ORDERS: Reached(41, 0)}, ends)


def test_a_log_that_goes_on_behind_the_table_is_the_same() -> None:
    check_ends({ORDERS: Reached(41, 0)}, {ORDERS: 42})
    check_times({ORDERS: Reached(41, 7_000)}, {ORDERS: 7_000})
    check_times({ORDERS: Reached(41, 7_000)}, {})  # Retention took it: there is nothing to compare with.


def test_another_record_at_the_tables_last_offset_is_another_log() -> None:
    with pytest.raises(UsageError, match="offset 41 of orders-0 has the timestamp 7 in the table, and 8 in the log: was"):
        check_times({ORDERS: Reached(41, 7_000)}, {ORDERS: 8_000})


def test_partitions_are_named_as_the_source_wants_them() -> None:
    assert (
        assign_json({TopicPartition("b", 1): 5, TopicPartition("a", 0): 3, TopicPartition("b", 0): 4})
        == '{"a": [0], "b": [0, 1]}'
    )


def test_a_table_may_lie_wherever_spark_can_write() -> None:
    """What the Parquet lake rests on, a rename and a lock, Delta does not need."""
    assert table_path("s3a://bucket/orders/") == "s3a://bucket/orders"
    assert table_path("orders/") == str(Path.cwd() / "orders")
