"""Runs in worker processes: their results, and the reports of workers that die."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.campaign.workers import Job, Workers
from strandline.testing.simulation.runs.replay import Replay

STORIES = [Replay(seed, "S03") for seed in (0, 100, 101, 102)]


def test_a_run_in_another_process_is_the_same_run() -> None:
    """The processes have different hash seeds, so nothing in a run may depend on the order of a set."""
    with Workers(2) as workers:
        done = {d.job.replay: d for d in workers.run(map(Job, STORIES))}
    assert set(done) == set(STORIES)
    assert len({d.worker for d in done.values()}) == 2
    for replay, found in done.items():
        here = replay.run().as_dict()
        assert found.report["trace_sha256"] == here["trace_sha256"]
        assert found.report["messages"] == here["messages"]
        assert found.cpu_s > 0
        assert found.rss_bytes > 1 << 20


def test_a_job_that_avoids_a_process_is_done_by_another_one() -> None:
    with Workers(2) as workers:
        first = next(workers.run([Job(STORIES[0])]))
        workers.soon(Job(STORIES[0], "again", avoid=first.worker))
        (second,) = workers.run([])
    assert second.worker != first.worker
    assert second.job.tag == "again"
    assert second.report["trace_sha256"] == first.report["trace_sha256"]


def test_a_process_that_dies_is_replaced_and_its_run_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, the system killed it for its memory use. The other processes continue."""
    give = Workers._give

    def give_and_kill(self: Workers, worker: object, job: Job) -> None:
        if job.replay == STORIES[1]:
            worker.process.kill()  # type: ignore[attr-defined]
            worker.process.wait()  # type: ignore[attr-defined]  # so that the pipe is broken before the job is written
        give(self, worker, job)  # type: ignore[arg-type]

    monkeypatch.setattr(Workers, "_give", give_and_kill)
    with Workers(1) as workers:
        done = {d.job.replay: d for d in workers.run(map(Job, STORIES[:3]))}
        assert workers.replaced == 1
    assert [done[replay].violation is None for replay in STORIES[:3]] == [True, False, True]
    assert "ended with -9" in done[STORIES[1]].report["violations"][0]["text"]


def test_a_run_that_does_not_end_is_ended() -> None:
    with Workers(1, timeout_s=0.01) as workers:
        (done,) = workers.run([Job(STORIES[0])])
    assert done.violation is not None
    assert "did not end within 0.01 s" in done.violation["text"]


def test_a_process_that_has_grown_too_large_is_replaced_and_its_run_counts() -> None:
    with Workers(1, rss_bytes_max=1) as workers:
        done = list(workers.run(map(Job, STORIES[:2])))
        assert workers.replaced == 2
    assert [d.violation for d in done] == [None, None]


def test_error_in_the_simulator_is_a_failure_with_its_traceback() -> None:
    with Workers(1) as workers:
        (done,) = workers.run([Job(Replay(0, "S999"))])
    assert done.violation is not None
    assert "there is no scenario 'S999'" in done.violation["text"]
