"""Members that use `Consumer.run` in random runs: they handle everything, and the judges notice a guard of it that is missing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from test_groups_in_runs import calm

from strandline.client.consumer.run.runner import Runner
from strandline.client.consumer.run.schedule import Call, Schedule
from strandline.client.consumer.run.settings import Fate, RunSettings
from strandline.testing.simulation.cluster.groups import handling
from strandline.testing.simulation.group_plans import DEAD_LETTERS, NEWER, RETRIES, with_handlers
from strandline.testing.simulation.options import Options, draw_options
from strandline.testing.simulation.runs.run import Report, run_seed

RUN = {"concurrency": "partition", "attempts": 2, "first_ms": 20, "retry_topic": False, "max_in_flight": 30}


def handled(seed: int, members: int = 2, work_ms: int = 0, **run: Any) -> Options:
    """A calm run whose members use `Consumer.run`."""
    options = calm(seed, *([NEWER] * members))
    plans = tuple(
        type(member)(
            member.group,
            NEWER,
            member.topics,
            member.options | {"enable_auto_commit": True, "auto_commit_interval_ms": 100},
            work_ms=work_ms,
            begins_at_s=member.begins_at_s,
            run=RUN | run,
        )
        for member in options.members
    )
    return options.replaced(members=plans)


def frequent_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handling, "FAILS_FOR_EVER", 10)
    monkeypatch.setattr(handling, "FAILS_ONCE", 30)


def texts(report: Report) -> str:
    return "\n".join(f"{violation['invariant']}: {violation['text']}" for violation in report.violations)


@pytest.mark.parametrize("concurrency", ["partition", "key"])
@pytest.mark.parametrize("retry_topic", [False, True])
def test_handlers_that_fail_handle_everything(monkeypatch: pytest.MonkeyPatch, concurrency: str, retry_topic: bool) -> None:
    frequent_failures(monkeypatch)
    report = run_seed(1, options=handled(1, concurrency=concurrency, retry_topic=retry_topic), full_trace=True)
    assert report.verdict == "ok", str(report)


def test_a_seed_without_handlers_is_what_it_was() -> None:
    """Handlers are drawn separately, and only for members that exist."""
    with_some = [options for options in map(draw_options, range(300)) if any(member.run for member in options.members)]
    assert 5 <= len(with_some) <= 40
    for options in with_some:
        assert all(member.options["enable_auto_commit"] for member in options.members if member.run)
    without = next(options for options in map(draw_options, range(300)) if not options.members)
    assert with_handlers(Random(1), without.members) == ()
    assert not {DEAD_LETTERS, RETRIES} & {topic.name for options in with_some for topic in options.topics}


def test_i39_a_failed_record_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is neither handled nor dead-lettered."""
    frequent_failures(monkeypatch)
    fate = RunSettings.fate

    def skip(settings: RunSettings, *args: Any, **kwargs: Any) -> Fate:
        found = fate(settings, *args, **kwargs)
        return Fate.SKIP if found is Fate.DEAD_LETTER else found

    monkeypatch.setattr(RunSettings, "fate", skip)
    report = run_seed(1, options=handled(1))
    assert "I39: group alpha has committed" in texts(report)
    assert "and never finished" in texts(report)


@pytest.mark.slow
def test_i39_a_record_is_dead_lettered_without_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    frequent_failures(monkeypatch)
    monkeypatch.setattr(handling, "failures_of", lambda group, origin: 1 << 30)  # every attempt of the handler fails
    report = run_seed(1, options=handled(1))
    assert "although no handler fails for it" in texts(report)


def test_i36_the_next_record_does_not_wait_for_an_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed record is put behind those of its lane that wait."""
    frequent_failures(monkeypatch)

    def put_back(schedule: Schedule, call: Call) -> None:
        call.lane.waiting.extend(call.deliveries)
        schedule._end(call)

    monkeypatch.setattr(Schedule, "put_back", put_back)
    report = run_seed(1, options=handled(1, members=1, attempts=3, first_ms=50))
    assert "which is not finished" in texts(report)


@pytest.mark.slow
def test_i36_a_revoked_partition_does_not_wait_for_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next owner handles records while a call of the previous one still runs."""
    monkeypatch.setattr(Runner, "has_unfinished", lambda runner, states: False)
    monkeypatch.setattr(Runner, "on_dropped", lambda runner, state: None)
    monkeypatch.setattr(handling, "LONG_SHARE", 1.0)
    report = run_seed(1, options=handled(1, members=3, work_ms=300))
    assert "I36: group alpha" in texts(report)
