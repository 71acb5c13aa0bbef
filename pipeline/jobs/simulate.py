"""Simulate: a sweep of the simulator's seeds on a Spark cluster. Seeds in, a table of runs out, and what `make soak` would say.

    runs = simulate(spark, Seeds(1000, draw=42))            a DataFrame, a row for each run (simulate_task.SCHEMA)
    tally = summary(spark, Seeds(1000, draw=42), "sweep")   the same as Parquet, and a page to read: print(page(tally))

Which runs they are follows from the number that they are drawn from, and every failing one has the command that replays it on
any machine. The rows stay with the executors: the driver gets sums, and the first failures.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

from strandline.pipeline.jobs.lake_folder import local_path
from strandline.pipeline.jobs.simulate_task import SCHEMA, Seeds, SimulateTask
from strandline.pipeline.jobs.tasks import rows_of
from strandline.testing.simulation.campaign.sweep import Failure, Tally
from strandline.testing.simulation.campaign.sweep import page as page_of_tally
from strandline.testing.simulation.observation.marks import SCENARIO, SWEEP
from strandline.testing.simulation.runs.replay import Replay
from strandline.testing.simulation.runs.run import VIOLATION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TASKS_PER_SLOT, RUNS_PER_TASK, TASKS_MAX = 4, 25, 10_000
FAILURES_MAX = 100
"""That are told one by one."""
TELL_EVERY_S = 10.0
GROUP = "strandline-simulate"


@dataclass(frozen=True, slots=True)
class Summary:
    tally: Tally
    failures: int
    """All of them; the tally has the first `FAILURES_MAX`."""

    @property
    def good(self) -> bool:
        return self.tally.good

    def as_dict(self) -> dict[str, Any]:
        return {**self.tally.as_dict(), "failures_in_all": self.failures}


def page(summary: Summary) -> str:
    more = summary.failures - len(summary.tally.failures)
    return page_of_tally(summary.tally) + (f"\n  and {more} more, in the table" if more else "")


def simulate(spark: SparkSession, seeds: Seeds, *, runs_per_task: int | None = None) -> DataFrame:
    """A row for each run. Nothing is run before the frame is used, and all of it again whenever it is: `persist` it."""
    size = runs_per_task or task_size(seeds.count, slots(spark))
    tasks = [SimulateTask(seeds, first, min(first + size, seeds.count)) for first in range(0, seeds.count, size)]
    return rows_of(spark, tasks, SCHEMA)


def summary(
    spark: SparkSession,
    seeds: Seeds,
    to: str | os.PathLike[str] | None = None,
    *,
    runs_per_task: int | None = None,
    tell: Callable[[str], object] | None = None,
) -> Summary:
    """Run them all. The table is appended to what is in the folder `to`, with a column `draw`; without one it is thrown away."""
    from pyspark.sql.functions import lit

    began = time.monotonic()
    runs = simulate(spark, seeds, runs_per_task=runs_per_task).persist()
    try:
        with _progress(spark, seeds.count, tell):
            if to is not None:
                runs.withColumn("draw", lit(seeds.draw).cast("bigint")).write.mode("append").parquet(str(local_path(to)))
            else:
                runs.count()
        return _summed(runs, seeds.mutation, slots(spark), time.monotonic() - began)
    finally:
        runs.unpersist()


def slots(spark: SparkSession) -> int:
    """Tasks that run at a time."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except AttributeError:  # Spark Connect does not tell.
        return 8


def task_size(count: int, at_a_time: int) -> int:
    """Runs of a task: few enough to see them come, many enough to pay for a process, and no more tasks than Spark likes."""
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
    """Whatever has names, in one go: there are as many rows as names."""
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
def _progress(spark: SparkSession, runs: int, tell: Callable[[str], object] | None) -> Iterator[None]:
    """Meanwhile, tell how many of the tasks are done, in runs."""
    try:
        context = spark.sparkContext
    except AttributeError:
        context = None
    if tell is None or context is None:
        yield
        return
    over = threading.Event()
    tracker, began = context.statusTracker(), time.monotonic()
    known = set(tracker.getJobIdsForGroup(GROUP))

    def watch() -> None:
        while not over.wait(TELL_EVERY_S):
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(GROUP) if job not in known]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            done, tasks = (sum(getattr(s, n) for s in stages if s) for n in ("numCompletedTasks", "numTasks"))
            tell(f"{time.monotonic() - began:6.0f} s  about {runs * done // max(1, tasks)} of {runs} runs")

    context.setJobGroup(GROUP, "simulated runs")
    thread = threading.Thread(target=watch, name="simulate-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
