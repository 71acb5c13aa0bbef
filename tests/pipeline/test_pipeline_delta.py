"""Delta without Spark and jars: which versions fit each other, and which arguments are refused."""

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
from strandline.pipeline.jobs.delta_offload import (
    Reached,
    assign_json,
    beginning_at,
    check_ends,
    check_times,
    client_of,
    table_path,
)
from strandline.pipeline.jobs.lake_folder import read_manifest
from strandline.protocol.errors import UsageError

ORDERS = TopicPartition("orders", 0)
WANTED = "pyspark<=4.2.0,>=4.0.1"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A folder that looks like a Delta table."""
    (tmp_path / "_delta_log").mkdir()
    return tmp_path


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None, str], None]:
    """Pretends that delta-spark (or none) and PySpark are installed in the given versions."""

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


def test_jar_fits_the_minor_version_of_spark(installed: Callable[[str | None, str], None]) -> None:
    installed("4.4.0", "4.2.0")
    conf = delta.delta_conf()
    assert conf["spark.jars.packages"] == "io.delta:delta-spark_4.2_2.13:4.4.0"
    assert set(delta.IN_SESSION.items()) <= set(conf.items())


def test_jars_in_sparks_folder_are_not_fetched(
    installed: Callable[[str | None, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines without access to Maven Central can use Delta, and Spark starts without a request."""
    installed("4.4.0", "4.2.0")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    assert "spark.jars.packages" in delta.delta_conf()
    (tmp_path / "jars" / "delta-spark_4.2_2.13-4.4.0.jar").touch()
    assert delta.delta_conf() == delta.IN_SESSION


@pytest.mark.parametrize(
    ("delta_spark", "spark", "message"),
    [
        (None, "4.2.0", r"Delta is not installed: in a clone of Strandline, pip install '\.\[spark,delta\]'"),
        ("4.4.0", "4.3.0", r"delta-spark 4.4.0 needs pyspark<=4.2.0,>=4.0.1, but PySpark 4.3.0 is installed: .*pip install"),
        ("4.4.0", "4.2.1", "but PySpark 4.2.1 is installed"),
        ("4.4.0", "4.0.0", "but PySpark 4.0.0 is installed"),
    ],
)
def test_versions_that_do_not_fit_are_rejected_before_spark_starts(
    installed: Callable[[str | None, str], None], delta_spark: str | None, spark: str, message: str
) -> None:
    """Spark itself would report that Java has exited, or that some class has no such method."""
    installed(delta_spark, spark)
    with pytest.raises(UsageError, match=message):
        delta.delta_session("never started")


@pytest.mark.parametrize("spark", ["4.0.1", "4.1.4", "4.2", "4.2.0", "4.2.0.dev1"])
def test_versions_are_compared_as_numbers(spark: str) -> None:
    delta.check_versions("4.4.0", WANTED, spark)
    delta.check_versions("4.4.0", "pyspark (>=4.0.1, <4.10)", spark)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            "...SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find...",
            "this Spark session has no Delta: create it with",
        ),
        ("[DELTA_CONFIGURE_SPARK_SESSION_WITH_EXTENSION_AND_CATALOG] This...", "does not use its extension and catalog"),
        ("java.lang.NoSuchMethodError: 'void org.apache.spark...'", "are made for another Spark"),
        ("[PATH_NOT_FOUND] Path does not exist: ...", None),
    ],
)
def test_session_without_the_right_delta_gets_advice(error: str, message: str | None) -> None:
    advice = delta.sentence(error)
    assert advice is None if message is None else advice is not None and message in advice


# -- lake or table ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "read", [read_manifest, compact.check, lambda root: offload.check("orders", None, root)], ids=["read", "compact", "offload"]
)
def test_functions_for_lakes_refuse_a_delta_table(table: Path, read: Callable[[Path], Any]) -> None:
    """Both consist of Parquet files. If the table's folder were taken for an empty lake, it would get all records a second
    time."""
    with pytest.raises(UsageError, match="is a Delta table: "):
        read(table)


def test_compaction_of_a_delta_table_names_optimize(table: Path) -> None:
    with pytest.raises(UsageError, match=f"OPTIMIZE delta.`{table}`"):
        compact.check(table)


def test_delta_table_in_the_folder_of_a_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "_manifest").mkdir()
    with pytest.raises(UsageError, match="is a lake of Parquet files: give a Delta table a folder of its own"):
        offload.check("orders", None, tmp_path, "delta")


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the format must be parquet or delta, not 'orc'"):
        offload.check("orders", None, tmp_path, "orc")


def test_audit_accepts_a_delta_table(table: Path) -> None:
    assert audit.check("orders", table, (), {}) == ["orders"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lake", "{table}"], "is a Delta table: this reads lakes of Parquet files"),
        (["compact", "{table}"], "OPTIMIZE delta.`{table}`"),
        (["offload", "--topic", "orders", "--to", "{table}"], "or offload with the format delta"),
        (["offload", "--topic", "orders", "--to", "new", "--format", "orc"], "the format must be parquet or delta, not 'orc'"),
    ],
)
def test_commands_refuse_a_delta_table_in_one_sentence(table: Path, words: list[str], message: str) -> None:
    done = run("pipeline", *(word.format(table=table) for word in words))
    assert done.code != 0
    assert message.format(table=table) in one_sentence(done)


@pytest.mark.skipif(find_spec("delta") is not None, reason="Delta is installed, and test_spark_delta.py uses it")
@pytest.mark.parametrize("words", [["offload", "--to", "new", "--format", "delta"], ["audit", "--lake", "{table}"]])
def test_command_without_delta_says_how_to_install_it(table: Path, words: list[str]) -> None:
    done = run("pipeline", words[0], "--topic", "orders", *(word.format(table=table) for word in words[1:]))
    assert done.code != 0
    assert one_sentence(done).endswith("pip install '.[spark,delta]'")


# -- a checkpoint that was lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        ({ORDERS: 40}, "the table has orders-0 up to offset 41, but its log ends at 40: was the topic recreated"),
        ({ORDERS: 41}, "its log ends at 41"),
        ({}, "the table has records of orders-0, but the topic has no such partition"),
    ],
)
def test_log_shorter_than_the_table_is_refused(ends: dict[TopicPartition, int], message: str) -> None:
    """The topic was recreated: a stream that continued after the table's last offset would skip its first records."""
    with pytest.raises(UsageError, match=message):
        check_ends({ORDERS: Reached(41, 0)}, ends)


def test_log_that_continues_the_table_is_accepted() -> None:
    check_ends({ORDERS: Reached(41, 0)}, {ORDERS: 42})
    check_times({ORDERS: Reached(41, 7_000)}, {ORDERS: 7_000})
    check_times({ORDERS: Reached(41, 7_000)}, {})  # Retention deleted the record, so there is nothing to compare with.


def test_different_last_record_is_refused() -> None:
    with pytest.raises(UsageError, match="offset 41 of orders-0 has the timestamp 7 in the table, but 8 in the log: was"):
        check_times({ORDERS: Reached(41, 7_000)}, {ORDERS: 8_000})


def test_new_checkpoint_begins_only_after_the_table() -> None:
    """Spark accepts options in any case. A timestamp takes precedence over offsets, so records would be doubled or skipped."""
    written = {"STARTINGTIMESTAMP": "0", "startingoffsets": "earliest", "startingOffsetsByTimestamp": "{}", "subscribe": "orders"}
    assert beginning_at(written, {ORDERS: 42}) == {"subscribe": "orders", "startingOffsets": '{"orders": {"0": 42}}'}


def test_log_is_compared_with_the_security_of_the_source() -> None:
    """In a closed cluster, an offload whose checkpoint was lost could not continue without it."""
    client = {"Bootstrap.Servers": "h:1", "clientConfig": "client.properties", "kafka.sasl.mechanism": "PLAIN"}
    assert client_of({**client, "subscribe": "orders", "startingOffsets": "earliest"}) == client


def test_partitions_are_json_for_the_option_assign() -> None:
    assert (
        assign_json({TopicPartition("b", 1): 5, TopicPartition("a", 0): 3, TopicPartition("b", 0): 4})
        == '{"a": [0], "b": [0, 1]}'
    )


def test_table_may_be_in_any_file_system() -> None:
    """A lake of Parquet files needs atomic renames and file locks; Delta does not."""
    assert table_path("s3a://bucket/orders/") == "s3a://bucket/orders"
    assert table_path("orders/") == str(Path.cwd() / "orders")
