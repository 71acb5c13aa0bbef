"""The tasks of `simulate` without Spark: which runs the numbers stand for, and a run that kills its process."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.pipeline.jobs.simulate import task_size
from strandline.pipeline.jobs.simulate_task import Seeds, SimulateTask
from strandline.testing.simulation.campaign.workers import Job, Workers
from strandline.testing.simulation.runs.replay import Replay


def rows(task: SimulateTask) -> list[dict[str, Any]]:
    (batch,) = task.run()
    return batch.to_pylist()


def test_number_always_gives_the_same_run() -> None:
    """Each task computes its own runs, so a run must not depend on the runs before it."""
    seeds = Seeds(200, draw=7, share=0.3)
    runs = [seeds.replay(number) for number in range(200)]
    assert [seeds.replay(number) for number in reversed(range(200))] == runs[::-1]
    assert runs != [Seeds(200, draw=8, share=0.3).replay(number) for number in range(200)]
    assert 30 < sum(replay.scenario is not None for replay in runs) < 90
    assert Seeds(3, first=5, mutation="M01").replay(2) == Replay(7, mutation="M01")
    assert {Seeds(9, draw=1, share=1.0, scenario="S03").replay(n).scenario for n in range(9)} == {"S03"}


def test_each_run_is_a_row_and_some_are_repeated() -> None:
    found = rows(SimulateTask(Seeds(3, first=99, scenario="S03"), 0, 3, canary_every=2))
    assert [(row["seed"], row["verdict"], row["tries"], row["again"]) for row in found] == [
        (99, "ok", 1, "same"),
        (100, "ok", 1, None),
        (101, "ok", 1, "same"),
    ]
    assert found[0]["command"] == "strandline simulate --seed 99 --scenario S03"
    assert found[0]["trace_sha256"] == Replay(99, "S03").run().trace_sha256


def test_run_that_kills_its_process_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 1 kills every process that runs it, seed 2 only the first one. The other seeds must keep their results."""
    give, met = Workers._give, []

    def give_and_kill(self: Workers, worker: Any, job: Job) -> None:
        met.append(job.replay.seed)
        if job.replay.seed == 1 or met.count(2) == 1 == met[-1] - 1:
            worker.process.kill()
            worker.process.wait()
        give(self, worker, job)

    monkeypatch.setattr(Workers, "_give", give_and_kill)
    found = rows(SimulateTask(Seeds(4, scenario="S03"), 0, 4, canary_every=100))
    assert [(row["seed"], row["verdict"], row["tries"]) for row in found] == [
        (0, "ok", 1),
        (1, "violation", 2),
        (2, "ok", 2),
        (3, "ok", 1),
    ]
    assert (found[1]["invariant"], found[1]["text"]) == ("simulator", "the process ended with -9")


@pytest.mark.parametrize(("runs", "at_a_time", "size"), [(1, 8, 1), (100, 8, 4), (10_000, 8, 25), (1_000_000, 8, 100)])
def test_tasks_are_small_but_not_too_many(runs: int, at_a_time: int, size: int) -> None:
    assert task_size(runs, at_a_time) == size
