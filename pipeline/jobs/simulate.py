"""Simulate: runs many seeds of the simulator on a Spark cluster, and sums up the runs like `make soak`.

    runs = simulate(spark, Seeds(1000, draw=42))            a DataFrame with a row for each run (simulate_task.SCHEMA)
    found = summary(spark, Seeds(1000, draw=42), "sweep")   writes these rows as Parquet files; print(page(found)) shows the sums

The number `draw` decides which runs there are. Each failed run has the command that replays it on any machine. The rows stay on
the executors: the driver gets only sums and the first failures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from strandline.pipeline.jobs.lake_folder import local_path
from strandline.pipeline.jobs.progress import repeated
from strandline.pipeline.jobs.simulate_task import SCHEMA, Seeds, SimulateTask
from strandline.pipeline.jobs.tasks import rows_of, slots
from strandline.testing.simulation.campaign.sweep import Failure, Tally
from strandline.testing.simulation.campaign.sweep import page as page_of_tally
from strandline.testing.simulation.observation.marks import SCENARIO, SWEEP
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.runs.run import VIOLATION

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession

TASKS_PER_SLOT, RUNS_PER_TASK, TASKS_MAX = 4, 25, 10_000
FAILURES_MAX = 100
"""The largest number of failures that a summary lists."""
REPORT_EVERY_S = 10.0
GROUP = "strandline-simulate"


@dataclass(frozen=True, slots=True)
class Summary:
    tally: Tally
    failures: int
    """Number of failed runs; the tally lists the first `FAILURES_MAX` of them."""

    @property
    def good(self) -> bool:
        return self.tally.good

    def as_dict(self) -> dict[str, Any]:
        return {**self.tally.as_dict(), "failures_in_all": self.failures}


def page(summary: Summary) -> str:
    """The sums and failures as text for people."""
    more = summary.failures - len(summary.tally.failures)
    return page_of_tally(summary.tally) + (f"\n  and {more} more, in the table" if more else "")


def simulate(spark: SparkSession, seeds: Seeds, *, runs_per_task: int | None = None) -> DataFrame:
    """A row for each run. Spark simulates when the frame is used, and again at each further use: call `persist` first."""
    size = runs_per_task or task_size(seeds.count, slots(spark))
    tasks = [SimulateTask(seeds, first, min(first + size, seeds.count)) for first in range(0, seeds.count, size)]
    return rows_of(spark, tasks, SCHEMA)


def summary(
    spark: SparkSession,
    seeds: Seeds,
    to: str | os.PathLike[str] | None = None,
    *,
    runs_per_task: int | None = None,
    progress: Callable[[str], object] | None = None,
) -> Summary:
    """Runs all seeds and sums up the results. The rows are appended to the Parquet table in the folder `to`, with a column
    `draw`, or discarded without `to`. `progress` is called every few seconds with a line of text."""
    from pyspark.sql.functions import lit

    began = time.monotonic()
    runs = simulate(spark, seeds, runs_per_task=runs_per_task).persist()
    try:
        with _reported(spark, seeds.count, progress):
            if to is not None:
                runs.withColumn("draw", lit(seeds.draw).cast("bigint")).write.mode("append").parquet(str(local_path(to)))
            else:
                runs.count()
        return _summed(runs, seeds.mutation, slots(spark), time.monotonic() - began)
    finally:
        runs.unpersist()


def task_size(count: int, at_a_time: int) -> int:
    """The number of runs per task: small enough for visible progress, large enough to be worth a process, and so that there are
    at most `TASKS_MAX` tasks."""
    return max(1, min(RUNS_PER_TASK, ceil(count / (at_a_time * TASKS_PER_SLOT))), ceil(count / TASKS_MAX))


# -- sums -------------------------------------------------------------------------------------------------------------


def _summed(runs: DataFrame, mutation: str | None, cores: int, wall_s: float) -> Summary:
    from pyspark.sql.functions import col, count, when
    from pyspark.sql.functions import sum as sum_

    is_seed, is_bad = col("scenario").isNull(), (col("verdict") == VIOLATION) | (col("again") == "differs")
    sums = {name: sum_(name) for name in ("messages", "events", "acked", "virtual_s", "cpu_s", "tries")}
    counts = {
        "runs": count("*"),
        "seeds": count(when(is_seed, 1)),
        "failures": count(when(is_bad, 1)),
        "canaries": count("again"),
    }
    of_seeds = {"messages_of_seeds": sum_(when(is_seed, col("messages")))}
    (row,) = runs.agg(*(each.alias(name) for name, each in {**sums, **counts, **of_seeds}.items())).collect()
    total = {name: value or 0 for name, value in row.asDict().items()}
    tally = Tally(cores, wall_s=wall_s)
    for name in ("seeds", "messages", "messages_of_seeds", "events", "acked", "virtual_s", "cpu_s", "canaries"):
        setattr(tally, name, total[name])
    tally.performances, tally.replaced = total["runs"] - total["seeds"], total["tries"] - total["runs"]
    _count(tally, runs)
    bad = runs.where(is_bad).select("seed", "scenario", "command", "invariant", "text", "story", "again")
    tally.failures = [_failure(each, mutation) for each in bad.orderBy("seed").limit(FAILURES_MAX).collect()]
    return Summary(tally, total["failures"])


def _count(tally: Tally, runs: DataFrame) -> None:
    """Counts faults, marks, verdicts and scenarios by name, in one query that returns a row for each name."""
    from pyspark.sql.functions import array, col, concat, explode, lit, map_entries, struct, transform
    from pyspark.sql.functions import sum as sum_

    def of_map(kind: str) -> Column:
        return transform(
            map_entries(kind), lambda e: struct(lit(kind).alias("kind"), e["key"].alias("name"), e["value"].alias("n"))
        )

    def of_column(kind: str) -> Column:
        return array(struct(lit(kind).alias("kind"), col(kind).alias("name"), lit(1).cast("bigint").alias("n")))

    facts = concat(*map(of_map, ("faults", "skipped", "marks")), *map(of_column, ("verdict", "scenario")))
    each = runs.select(col("scenario").isNull().alias("is_seed"), explode(facts).alias("fact"))
    counted = each.where("fact.name is not null").groupBy("is_seed", "fact.kind", "fact.name").agg(sum_("fact.n").alias("n"))
    of_seeds = {"faults": tally.faults, "skipped": tally.skipped, "marks": tally.marks[SWEEP]}
    of_scenarios = {"scenario": tally.scenarios, "marks": tally.marks[SCENARIO]}
    for row in counted.where("n > 0").collect():
        counter = tally.verdicts if row.kind == "verdict" else (of_seeds if row.is_seed else of_scenarios).get(row.kind)
        if counter is not None:
            counter[row.name] += row.n


def _failure(row: Any, mutation: str | None) -> Failure:
    replay = Replay(row.seed, row.scenario, mutation=mutation)
    if row.invariant is None:
        return Failure(replay, "determinism", "two runs in two processes have different traces")
    return Failure(replay, row.invariant, row.text, row.story or "")


# -- progress ---------------------------------------------------------------------------------------------------------


@contextmanager
def _reported(spark: SparkSession, runs: int, progress: Callable[[str], object] | None) -> Iterator[None]:
    """While the block runs, calls `progress` with about how many runs are done, by the share of tasks that are done."""
    context = _context(spark)
    if progress is None or context is None:
        yield
        return
    tracker, began = context.statusTracker(), time.monotonic()
    earlier = set(tracker.getJobIdsForGroup(GROUP))

    def report() -> None:
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(GROUP) if job not in earlier]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        done, tasks = (sum(getattr(s, n) for s in stages if s) for n in ("numCompletedTasks", "numTasks"))
        progress(f"{time.monotonic() - began:6.0f} s  about {runs * done // max(1, tasks)} of {runs} runs")

    context.setJobGroup(GROUP, "simulated runs")
    try:
        with repeated(report, REPORT_EVERY_S, "simulate-progress"):
            yield
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _context(spark: SparkSession) -> SparkContext | None:
    """None with Spark Connect, which has no SparkContext."""
    try:
        return spark.sparkContext
    except AttributeError:
        return None
