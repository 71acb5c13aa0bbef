"""The clients of a run report every result that differs from the expected one."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from test_nemesis import quiet

from strandline.client.admin_types import NewTopic, TopicDescription
from strandline.client.consumer.records import TopicPartition
from strandline.controller.metadata.config_keys import Update
from strandline.controller.metadata.node_keys import DYNAMIC_BROKER_CONFIGS
from strandline.controller.metadata.records import LEVEL_MAX
from strandline.protocol.records.check import RecordTimes
from strandline.testing.simulation.cluster.config_changes import VALUES
from strandline.testing.simulation.cluster.workload import SideTopic, Workload
from strandline.testing.simulation.options import draw_options
from strandline.testing.simulation.runs.run import Report, _Run, run_seed


def test_values_are_unique_and_all_records_are_read() -> None:
    """Otherwise the history could not distinguish a loss from a copy."""
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


def test_administrator_creates_and_deletes_topics() -> None:
    options = quiet(
        3,
    )
    report = run_seed(options.seed, options=options.replaced(admin=("churn", "min_isr", "elect", "describe"), faults_s=6.0))
    assert report.verdict == "ok", str(report)
    created = [e for e in report.trace.events(kinds="log.topic.created") if e.fields.get("topic") == "side"]  # type: ignore[union-attr]
    assert len(created) > 1


def test_records_deleted_by_retention_are_no_loss() -> None:
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


def test_records_deleted_by_a_client_are_no_loss() -> None:
    options = quiet(4)
    consumers = tuple(
        dataclasses.replace(plan, options={**plan.options, "auto_offset_reset": "earliest"}) for plan in options.consumers
    )
    report = run_seed(options.seed, options=options.replaced(trims=True, consumers=consumers, faults_s=4.0))
    assert report.verdict == "ok", str(report)
    assert report.trace is not None
    assert report.trace.events(kinds="log.partition.records_deleted")


@pytest.mark.parametrize("seed", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_the_metadata_is_upgraded_in_the_middle_of_faults(seed: int) -> None:
    """The level is raised once, from 0 to the newest one: every node has the new level at the end, and no acknowledged record is
    lost."""
    report = run_seed(seed, options=draw_options(seed).replaced(upgrades=True, security=None))
    assert report.verdict == "ok", str(report)
    assert report.trace is not None
    raised = [
        (e.fields["previous_feature_level"], e.fields["feature_level"])
        for e in report.trace.events(kinds="log.metadata.level_raised")
    ]
    assert set(raised) == {(0, LEVEL_MAX)}


@pytest.mark.parametrize("seed", [4, pytest.param(7, marks=pytest.mark.slow)])
def test_brokers_are_reconfigured_in_the_middle_of_faults(seed: int) -> None:
    report = run_seed(seed, options=draw_options(seed).replaced(reconfigures=True))
    assert report.verdict == "ok", str(report)
    assert report.trace is not None
    changed = {e.fields["key"] for e in report.trace.events(kinds="log.config.changed")}
    assert len(changed) > 2, changed
    assert not report.trace.events(kinds="log.config.value_ignored")


def events_of(report: Report, *kinds: str) -> list[str]:
    assert report.trace is not None
    return [event.kind for kind in kinds for event in report.trace.events(kinds=kind)]


def test_partitions_are_reassigned() -> None:
    """Whether they reach their targets is judged at the end of the run."""
    options = quiet(4)
    report = run_seed(options.seed, options=options.replaced(reassigns=True, drains=True, faults_s=6.0))
    assert report.verdict == "ok", str(report)
    assert len(events_of(report, "log.reassignment.completed")) > 2


def test_logs_move_between_directories() -> None:
    options = quiet(4)
    several = options.settings | {"log.dirs": "/d1,/d2,/d3"}
    report = run_seed(options.seed, options=options.replaced(settings=several, moves_logs=True, faults_s=6.0))
    assert report.verdict == "ok", str(report)
    assert events_of(report, "log.log_move.promoted")


def test_every_drawn_change_is_valid() -> None:
    for name, values in VALUES.items():
        key = DYNAMIC_BROKER_CONFIGS[name]
        assert key.update is Update.CLUSTER_OR_BROKER
        assert [key.parse(value) for value in values] == list(values)


def test_client_with_a_bug_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be missing from the rest of the run, which would pass."""

    async def fail(*_: Any) -> None:
        raise TypeError("no such thing")

    monkeypatch.setattr(Workload, "_trim_once", fail)
    report = run_seed(4, options=quiet(4).replaced(trims=True))
    assert "trimmer ended with a bug: TypeError: no such thing" in str(report)


# -- the topic that is deleted and recreated


class Brokers:
    """Brokers that keep a topic's records and give it an id. A test may hide the topic, or keep records that should be
    deleted."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.id = 0
        """0: there is no topic."""
        self.last_id = 0
        self.is_hidden = False
        """The broker that is asked for the topics does not know this one."""
        self.keeps_records = False
        """The next topic has the records of a deleted one, which must not happen."""
        self.behind: tuple[int, bytes] | None = None
        """The response of a broker that does not know of the deletion: the id and the first record of the topic before."""
        self.named = 0
        """The id that such a broker returns to a producer; 0: the present one."""
        self.old_records: list[bytes] = []
        """The records of the topic before, if a producer writes to it."""

    async def list_topics(self, *, timeout_ms: float) -> list[str]:
        return [SideTopic.NAME] if self.id and not self.is_hidden else []

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float) -> None:
        self.id = 0

    async def create_topics(self, topics: Iterable[NewTopic], *, timeout_ms: float) -> list[TopicDescription]:
        """Succeeds if the topic exists: the answer to the first attempt may have been lost."""
        if not self.id:
            self.last_id += 1
            self.id = self.last_id
            self.records = self.records if self.keeps_records else []
        return [TopicDescription(SideTopic.NAME, self.id.to_bytes(16), [])]

    @asynccontextmanager
    async def producer(self, **_: Any) -> AsyncIterator[Any]:
        known = (self.named or self.id).to_bytes(16)

        async def send_and_wait(topic: str, value: bytes, *, partition: int) -> Any:
            records = self.old_records if self.named else self.records
            records.append(value)
            return SimpleNamespace(offset=len(records) - 1)

        async def partitions_for(topic: str) -> None: ...

        def topic_id(topic: str) -> bytes:
            return known

        yield SimpleNamespace(send_and_wait=send_and_wait, partitions_for=partitions_for, topic_id=topic_id)

    @asynccontextmanager
    async def consumer(self, **_: Any) -> AsyncIterator[Any]:
        async def assign(places: Any) -> None: ...

        async def getone(*, timeout_ms: float) -> Any:
            return SimpleNamespace(value=first)

        def topic_id(place: TopicPartition) -> bytes:
            return served.to_bytes(16)

        served, first = self.behind or (self.id, self.records[0])
        yield SimpleNamespace(assign=assign, getone=getone, topic_id=topic_id)


def side_topic(brokers: Brokers) -> tuple[SideTopic, list[str]]:
    """The client of such a topic, and the problems that it reports."""
    problems: list[str] = []
    options = SimpleNamespace(brokers=3, loss_permitted=False)
    return SideTopic(SimpleNamespace(options=options, problems=problems), brokers, {}), problems  # type: ignore[arg-type]


async def test_undeleted_topic_is_no_new_generation() -> None:
    """The broker that was asked for the topics did not know this one, and the answer that it exists already was lost."""
    brokers = Brokers()
    side, problems = side_topic(brokers)
    await side.churn(brokers)
    brokers.is_hidden = True
    await side.churn(brokers)
    assert problems == []
    assert brokers.records == [b"1 %d" % number for number in range(SideTopic.RECORDS)]
    brokers.is_hidden = False
    await side.churn(brokers)
    assert problems == []
    assert brokers.records[0] == b"3 0"


async def test_lagging_broker_may_serve_a_deleted_topic() -> None:
    brokers = Brokers()
    side, problems = side_topic(brokers)
    await side.churn(brokers)
    brokers.behind = brokers.id, brokers.records[0]
    await side.churn(brokers)
    assert problems == []


async def test_producer_may_write_to_a_topic_that_a_lagging_broker_names() -> None:
    """The topic's leader is cut off with that broker, and does not know of the deletion either. The records continue where the
    old topic ended, and the new topic lacks them: neither is a problem."""
    brokers = Brokers()
    side, problems = side_topic(brokers)
    await side.churn(brokers)
    brokers.named, brokers.old_records = brokers.id, list(brokers.records)
    await side.churn(brokers)
    assert problems == []
    assert len(brokers.old_records) > SideTopic.RECORDS
    brokers.named = 0
    await side.churn(brokers)
    assert problems == []
    assert brokers.records[0] == b"3 0"


async def test_a_new_topic_with_records_of_the_old_one_is_a_problem() -> None:
    brokers = Brokers()
    brokers.keeps_records = True
    side, problems = side_topic(brokers)
    await side.churn(brokers)
    assert problems == []
    await side.churn(brokers)
    assert problems[0] == "generation 2 of topic side: record 0 is at 5"
    assert problems[-1] == "generation 2 of topic side: its first record is b'1 0'"


def test_lying_client_is_refused_without_effect_on_others() -> None:
    report = run_seed(5, options=quiet(5).replaced(lies=30))
    assert report.verdict == "ok", str(report)
    assert report.acked > 0


def test_accepted_lie_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader checks no record: the response shows it, or a consumer reads what no client wrote."""
    monkeypatch.setattr("strandline.storage.log.validation.check_records", lambda *args: RecordTimes(*args[2][7:9]))
    monkeypatch.setattr("strandline.storage.log.record_rules.is_out_of_range", lambda *_: False)
    found = {v["invariant"] for seed in range(5, 9) for v in run_seed(seed, options=quiet(seed).replaced(lies=60)).violations}
    assert found & {"client", "unwritten-read"}


def test_some_runs_have_a_lying_client() -> None:
    liars = sum(draw_options(seed).lies > 0 for seed in range(300))
    assert 10 < liars < 60


def test_no_client_lies_about_timestamps_that_a_broker_sets() -> None:
    """A batch that is marked as LogAppendTime is right in such a topic (seed 1329)."""
    drawn = [draw_options(seed) for seed in range(1_300, 1_700)]
    of_brokers = [o for o in drawn if any("message.timestamp.type" in topic.configs for topic in o.topics)]
    assert len(of_brokers) > 20
    assert not any(options.lies for options in of_brokers)
