"""`simulate` with a real Spark: a row for each run, a summary that agrees with the rows, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cli_world import run

from strandline.pipeline.jobs.simulate import page, simulate, summary
from strandline.pipeline.jobs.simulate_task import SCHEMA, Seeds

if TYPE_CHECKING:
    from click.testing import Result
    from pyspark.sql import SparkSession


def test_summary_agrees_with_the_table(spark: SparkSession, tmp_path: Path) -> None:
    seeds = Seeds(6, first=98, scenario="S03")
    found = summary(spark, seeds, tmp_path / "runs", runs_per_task=3)
    table = spark.read.parquet(str(tmp_path / "runs"))
    assert set(table.columns) == {*(each.split()[0] for each in SCHEMA.split(", ") if " " in each), "draw"}
    rows = sorted(table.collect(), key=lambda row: row.seed)
    assert [row.seed for row in rows] == list(range(98, 104))
    tally = found.tally
    assert (tally.performances, tally.seeds, tally.canaries, dict(tally.verdicts)) == (6, 0, 1, {"ok": 6})
    assert (tally.messages, tally.acked) == (sum(r.messages for r in rows), sum(r.acked for r in rows))
    assert sum(tally.marks["scenario"].values()) == sum(sum(r.marks.values()) for r in rows)
    assert (found.good, found.failures) == (True, 0)
    assert "6 performances of 1 scenarios" in page(found)


def test_violation_has_the_command_that_replays_it(spark: SparkSession) -> None:
    """The job exists to find violations. A removed guard causes one here."""
    rows = simulate(spark, Seeds(1, scenario="S03", mutation="M01")).collect()
    (row,) = rows
    assert row.verdict == "violation"
    assert row.command == "strandline simulate --seed 0 --scenario S03 --mutation M01"
    assert row.story


def test_command_exits_with_3_after_a_violation(command: Callable[..., Result]) -> None:
    words = ["simulate", "--scenario", "S03", "--mutation", "M01", "--seeds"]
    done = command(*words, "0..0")
    assert done.exit_code == 3, done.output
    assert "strandline simulate --seed 0 --scenario S03 --mutation M01" in done.stdout
    document = json.loads(command(*words, "0..1", "--json").stdout)
    assert (document["verdict"], document["failures_in_all"], len(document["failures"])) == ("violation", 2, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "many"], "takes a number, or a range such as 0..99; not 'many'"),
        (["--seeds", "0"], "takes a number, or a range"),
        (["--seeds", "0..9", "--draw", "1"], "--draw is for a number of seeds"),
        (["--seeds", "9", "--scenario", "S999"], "there is no scenario 'S999'"),
    ],
)
def test_wrong_seeds_are_rejected_before_spark_starts(words: list[str], message: str) -> None:
    done = run("pipeline", "simulate", *words)
    assert (done.code, message in done.err) == (2, True), done.err
