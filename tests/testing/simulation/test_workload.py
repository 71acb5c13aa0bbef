"""The clients of a run see what they should, and say so when they do not."""

from __future__ import annotations

import dataclasses

from test_nemesis import quiet

from strandline.testing.simulation.run import _Run, run_seed


def test_every_value_is_unique_and_every_record_is_read_in_the_end() -> None:
    """Without that the history could not tell a loss from a copy."""
    options = quiet(1)
    run = _Run(options.seed, options, None, False, "")
    assert run.run().verdict == "ok"
    history = run.phases.workload.history
    values = [send.value for send in history.sends]
    assert len(set(values)) == len(values) > 20
    acknowledged = {send.value for send in history.sends if send.outcome == "ok"}
    final = {value for poll in history.polls if poll.final for value in poll.values}
    assert acknowledged <= final


def test_a_client_that_dies_is_replaced_by_another_one() -> None:
    options = quiet(2)
    producer = dataclasses.replace(options.producers[0], crash_at_s=0.7)
    report = run_seed(options.seed, options=options.replaced(producers=(producer,)))
    assert report.verdict == "ok", str(report)
    assert report.history is not None
    assert report.acked > 0
    started = [event for event in report.trace.events(kinds="node.crashed") if event.node > 200]  # type: ignore[union-attr]
    assert started


def test_the_administrator_makes_topics_come_and_go() -> None:
    options = quiet(
        3,
    )
    report = run_seed(options.seed, options=options.replaced(admin=("churn", "min_isr", "elect", "describe"), faults_s=6.0))
    assert report.verdict == "ok", str(report)
    created = [e for e in report.trace.events(kinds="log.topic.created") if e.fields.get("topic") == "side"]  # type: ignore[union-attr]
    assert len(created) > 1


def test_retention_takes_old_records_and_nobody_calls_that_a_loss() -> None:
    options = quiet(4)
    topic = dataclasses.replace(
        options.topics[0], configs={**options.topics[0].configs, "retention.bytes": 1000, "segment.bytes": 1000}
    )
    consumers = tuple(
        dataclasses.replace(plan, options={**plan.options, "auto_offset_reset": "earliest"}) for plan in options.consumers
    )
    report = run_seed(options.seed, options=options.replaced(topics=(topic,), consumers=consumers, faults_s=4.0))
    assert report.verdict == "ok", str(report)
    assert report.trace is not None
    assert report.trace.events(kinds="log.start_moved")
