"""The replication report without Spark: from lines to facts, from facts to findings, and the page.

`replication_logs/` has the logs of a chaos run in the format of `docker-compose logs` (two leaders were killed, one broker was
shut down cleanly), and the verdict of that run.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import pytest
from chromium import find_chromium, new_page, running_chromium
from typer.testing import CliRunner

from strandline.cli import pipeline
from strandline.controller.decision import Cause
from strandline.pipeline.jobs.replication import log_files
from strandline.pipeline.jobs.replication_facts import CUT, EVENTS, FOREIGN, Fact, read_line
from strandline.pipeline.jobs.replication_page import page
from strandline.pipeline.jobs.replication_partition import (
    INTERVAL,
    OUT_OF_ISR,
    PLANNED,
    STATE,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    WITHOUT_LEADER,
)
from strandline.pipeline.jobs.replication_report import report_of
from strandline.pipeline.jobs.replication_result import Read, Replication, duration, spread
from strandline.protocol.errors import UsageError

LOGS = Path(__file__).parent / "replication_logs"
BASE_S = 1_767_261_600
"""2026-01-01T10:00:00Z"""

REFUSED = "its port refuses connections"


def line(at_s: float, node: str, event: str, **fields: Any) -> str:
    """A line as a node writes it. `at_s`: seconds after `BASE_S`."""
    seconds, micros = divmod(round((BASE_S + at_s) * 1_000_000), 1_000_000)
    hours, rest = divmod(seconds - BASE_S, 3600)
    stamp = f"2026-01-01T{10 + hours:02}:{rest // 60:02}:{rest % 60:02}.{micros:06}Z"
    return json.dumps({**fields, "event": event, "level": "info", "node": node, "timestamp": stamp})


def created(at_s: float = 0.0, partitions: int = 1) -> list[str]:
    rows = [[p, 0, 0, 1, [1, 2, 3], [1, 2, 3]] for p in range(partitions)]
    return [
        line(at_s, "controller-101", "topic.created", topic="orders", topic_id="aa", partitions=partitions),
        line(at_s, "controller-101", "partitions.changed", topic="orders", topic_id="aa", partitions=partitions, changes=rows,
             metadata_offset=9, cause="topic_created"),
        line(at_s, "broker-1", "partition.became_leader", topic="orders", partition=0, leader_epoch=0, partition_epoch=0,
             high_watermark=0, log_end_offset=0, isr=[1, 2, 3], replicas=[1, 2, 3], min_insync_replicas=2),
    ]  # fmt: skip


def changed(
    at_s: float, epochs: tuple[int, int], leaders: tuple[int, int], isrs: tuple[list[int], list[int]], cause: str, **more: Any
) -> str:
    """A line `partition.changed`. `epochs` are (leader epoch, partition epoch); `leaders` and `isrs` are (before, after)."""
    fields = {
        "topic": "orders", "partition": 0, "leader_epoch": epochs[0], "partition_epoch": epochs[1], "leader_id": leaders[1],
        "previous_leader_id": leaders[0], "isr": isrs[1], "previous_isr": isrs[0], "replicas": [1, 2, 3], "metadata_offset": 20,
    }  # fmt: skip
    return line(at_s, more.pop("node", "controller-101"), "partition.changed", **{**fields, **more}, cause=cause)


def report(lines: Iterable[str], **more: Any) -> Replication:
    read = [read_line(text) for text in lines]
    facts = [fact for one in read for fact in one.facts]
    times = [fact.at_us for fact in facts]
    counts = Read(lines=len(read), events=len(read), nodes=tuple(sorted({fact.node for fact in facts})))
    return report_of(facts, counts, min(times, default=0), max(times, default=0), **more)


def failover() -> list[str]:
    """The lines of one fail-over: broker 1 dies at 10.0 s; the controller fences it at 10.1 s; broker 2 leads at 10.104 s; broker
    1 rejoins the ISR at 40.1 s."""
    return [
        *created(),
        line(10.0, "broker-2", "fetcher.connection_lost", leader_id=1, reason="gone"),
        line(10.1, "controller-101", "broker.fencing", broker_id=1, broker_epoch=1, reason=REFUSED, silent_ms=100),
        changed(10.1, (1, 1), (1, 2), ([1, 2, 3], [2, 3]), "broker_fenced"),
        line(10.104, "broker-2", "partition.became_leader", topic="orders", partition=0, leader_epoch=1, partition_epoch=1,
             high_watermark=90, log_end_offset=97, isr=[2, 3], replicas=[1, 2, 3], min_insync_replicas=2),
        line(39.0, "broker-1", "partition.truncated", topic="orders", partition=0, leader_epoch=1, partition_epoch=1,
             log_start_offset=0, high_watermark=90, log_end_offset=97, offset=97, records=3, reason="diverging epoch"),
        changed(40.1, (1, 2), (2, 2), ([2, 3], [1, 2, 3]), "leader_proposed"),
        line(60.0, "controller-101", "node.stopping"),
    ]  # fmt: skip


# -- lines ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem", "facts"),
    [
        (line(1, "broker-1", "node.started", port=1), "", 1),
        ("broker-1_1  | " + line(1, "broker-1", "node.started", port=1), "", 1),
        (line(1, "broker-1", "http.failed"), "", 0),
        ("Traceback (most recent call last):", FOREIGN, 0),
        ("/usr/lib/x.py:3: DeprecationWarning: {old}", FOREIGN, 0),
        ('{"level": "info"}', FOREIGN, 0),
        ('{"topic": "orders", "part', CUT, 0),
        ('{"topic": "orders", "part' + line(1, "broker-1", "node.started", port=1), "", 1),
        ('{"topic": "orders", "part' + line(1, "broker-1", "node.started", port=1, more={"inner": 1}), "", 1),
        ('{"topic": "or' * 3 + line(1, "broker-1", "node.started", port=1), "", 1),
        (line(1, "broker-1", "partition.truncated"), FOREIGN, 0),
        ("{" * 100_000, FOREIGN, 0),
    ],
)
def test_line_is_parsed_or_its_problem_is_named(text: str, problem: str, facts: int) -> None:
    """Real logs have all of these: prefixes of compose, Python's warnings, unfinished lines, and events without their fields."""
    found = read_line(text)
    assert (found.problem, len(found.facts)) == (problem, facts)


def test_line_of_many_partitions_gives_one_fact_per_partition() -> None:
    _, shared, _ = created(partitions=3)
    facts = read_line(shared).facts
    assert [(fact.event, fact.topic, fact.partition) for fact in facts] == [("partition.changed", "orders", p) for p in range(3)]
    assert Fact.from_json(facts[2].to_json()) == facts[2]


def test_median_and_p95_are_durations_that_occurred() -> None:
    """With two fail-overs, the median is the shorter one (nearest rank)."""
    assert spread([]).count == 0
    assert (spread([5]).median, spread([5]).p95) == (5, 5)
    assert (spread([1, 9]).median, spread([1, 9]).p95) == (1, 9)
    assert spread(range(1, 21)).p95 == 19


def test_nodes_log_every_event_that_the_report_reads() -> None:
    """If an event were renamed in the nodes only, its figures would be missing from reports without an error."""
    page = (Path(__file__).parents[2] / "docs" / "logs.md").read_text()
    text = gzip.decompress((LOGS / "kills.log.gz").read_bytes()).decode()
    recorded_ = set(re.findall(r'"event": "([^"]+)"', text))
    assert sorted(event for event in EVENTS | recorded_ if f"`{event}`" not in page) == []


# -- one partition ----------------------------------------------------------------------------------------------------


def test_failover_lasts_from_the_lost_leader_to_the_new_one() -> None:
    found = report(failover())
    [election] = found.failovers
    assert (election.previous_broker, election.broker, election.leader_epoch) == (1, 2, 1)
    assert election.ms == pytest.approx(104)
    assert (election.cause, election.detail) == ("broker_fenced", REFUSED)
    assert found.total_ms(UNDER_REPLICATED) == pytest.approx(30_000)
    assert [(row.broker, row.ms) for row in found.of(INTERVAL, OUT_OF_ISR)] == [(1, pytest.approx(30_000))]
    assert found.total_ms(UNDER_MIN_ISR) == 0
    [cut] = found.truncations
    assert (cut.broker, cut.first_offset, cut.end_offset, cut.records, cut.below_hw) == (1, 97, 100, 3, 0)
    assert [row.records for row in found.rows if row.what == "hw" and row.records] == [7]


def test_order_and_repetition_of_lines_do_not_matter() -> None:
    """Files are read in parallel, and a user may name the same log twice."""
    lines = [*failover(), *failover()]
    random.Random(3).shuffle(lines)
    assert report(lines).rows == report(failover()).rows


def test_clock_that_is_behind_changes_no_order_and_is_reported() -> None:
    """By its clock, broker 2 becomes leader before it is elected."""
    lines = [text.replace("10:00:10.104", "10:00:07.104") for text in failover()]
    found = report(lines)
    assert [row.broker for row in found.of(STATE)] == [1, 2, 2]
    assert found.failovers[0].ms == pytest.approx(100)
    assert any("the clock of broker-2 is behind by 3.0 s" in note for note in found.notes)


def test_elections_are_found_without_the_controllers_logs() -> None:
    found = report(text for text in failover() if "controller-101" not in text)
    assert [(row.previous_broker, row.broker) for row in found.elections] == [(1, 2)]
    assert any("controllers' logs are missing" in note for note in found.notes)


def test_failover_of_an_offline_partition_begins_with_its_lost_leader() -> None:
    """The time without a leader is part of the fail-over."""
    found = report([
        *created(),
        line(5, "controller-101", "broker.fencing", broker_id=1, broker_epoch=1, reason="its session timed out", silent_ms=3000),
        changed(5, (1, 3), (1, -1), ([1], [1]), "broker_fenced"),
        changed(9, (2, 4), (-1, 1), ([1], [1]), "broker_unfenced"),
        line(9.5, "broker-1", "partition.became_leader", topic="orders", partition=0, leader_epoch=2, partition_epoch=4,
             high_watermark=5, log_end_offset=5, isr=[1], replicas=[1, 2, 3], min_insync_replicas=2),
    ])  # fmt: skip
    assert found.total_ms(WITHOUT_LEADER) == pytest.approx(4000)
    [election] = found.failovers
    assert (election.previous_broker, election.broker, election.ms) == (1, 1, pytest.approx(7500))
    assert [row.is_open for row in found.of(INTERVAL, UNDER_MIN_ISR)] == [True]


@pytest.mark.parametrize(
    "cause",
    [
        "controlled_shutdown",
        "preferred_election",
        "leaders_balanced",
        "reassignment_requested",
        "leader_proposed",
        "min_isr_lowered",
    ],
)
def test_planned_handover_is_not_a_failover(cause: str) -> None:
    """The old leader still runs. The last three end a reassignment that removes it."""
    found = report([*created(), changed(5, (1, 1), (1, 2), ([1, 2, 3], [2, 3]), cause)])
    assert (len(found.failovers), [row.what for row in found.elections]) == (0, ["handover"])


def test_planned_causes_are_causes_of_the_controller() -> None:
    assert set(PLANNED) < set(get_args(Cause))


def test_shrink_has_the_cause_that_the_leader_logged() -> None:
    about = {"topic": "orders", "partition": 0, "leader_epoch": 0, "log_end_offset": 90, "fetch_offset": 40}
    found = report([
        *created(),
        line(4.9, "broker-1", "isr.member_lagged", **about, partition_epoch=0, broker_id=3, behind_ms=10_000),
        changed(5, (0, 1), (1, 1), ([1, 2, 3], [1, 2]), "leader_proposed"),
        changed(8, (0, 2), (1, 1), ([1, 2], [1, 2, 3]), "leader_proposed"),
        line(8.9, "broker-1", "isr.member_lost_records", **about, partition_epoch=2, broker_id=2),
        changed(9, (0, 3), (1, 1), ([1, 2, 3], [1, 3]), "leader_proposed"),
    ])  # fmt: skip
    changes = [(row.removed, row.added, row.cause, row.detail) for row in found.changes]
    assert changes == [
        ([3], [], "lagging", "not caught up for 10000 ms"),
        ([], [3], "caught_up", ""),
        ([2], [], "lost_records", "fetched again from offset 40"),
    ]
    assert [row.records for row in found.rows if row.what == "follower"] == [50]


def test_next_controllers_decision_replaces_an_uncommitted_one() -> None:
    """Both decisions have the same partition epoch."""
    found = report([
        *created(),
        changed(5, (1, 1), (1, 2), ([1, 2, 3], [2, 3]), "broker_fenced"),
        changed(5.4, (1, 1), (1, 3), ([1, 2, 3], [3, 2]), "broker_fenced", node="controller-102"),
    ])  # fmt: skip
    assert [row.broker for row in found.elections] == [3]


def test_recreated_topic_has_findings_of_its_own() -> None:
    """The epochs of a recreated topic begin at 0 again, so they must not be compared with those of the old topic."""
    removed = line(20, "controller-101", "topic.removed", topic="orders", topic_id="aa", partitions=1)
    found = report([*failover(), removed, *created(70), changed(75, (0, 1), (1, 1), ([1, 2, 3], [1, 2]), "leader_proposed")])
    assert [row.partition_epoch for row in found.of(STATE)] == [0, 1, 2, 0, 1]
    assert {row.incarnation for row in found.of(STATE)} == {1, 2}
    assert [row.is_open for row in found.of(INTERVAL, UNDER_REPLICATED)][-1]


def test_loss_of_a_leader_is_dated_although_the_controller_died_too() -> None:
    """The next controller does not know how long the leader was silent. The lost connection of a follower dates the loss."""
    lines = [text.replace('"silent_ms": 100', '"silent_ms": 20') for text in failover()]
    lines.append(line(10.05, "controller-102", "controller.activated", node_id=102, controller_epoch=2, metadata_offset=19))
    assert report(lines).failovers[0].ms == pytest.approx(104)


def test_truncated_records_below_a_high_watermark_are_counted() -> None:
    below = line(39.0, "broker-1", "partition.truncated_below_hw", topic="orders", partition=0, leader_epoch=1, partition_epoch=1,
                 high_watermark=97, log_end_offset=97, offset=97, previous_high_watermark=99)  # fmt: skip
    found = report([*failover(), below])
    assert (found.truncations[0].below_hw, found.is_bad) == (2, True)
    assert "2 of them below a high watermark" in found.verdict


# -- sums -------------------------------------------------------------------------------------------------------------


def test_interval_counts_in_each_hour_that_it_touches() -> None:
    found = report([
        *created(),
        changed(3000, (0, 1), (1, 1), ([1, 2, 3], [1, 2]), "leader_proposed"),
        changed(9000, (0, 2), (1, 1), ([1, 2], [1, 2, 3]), "leader_proposed"),
    ])  # fmt: skip
    assert [hour.under_replicated_ms for hour in found.topic_hours()] == [600_000, 3_600_000, 1_800_000]
    assert [(hour.broker, hour.out_of_isr_ms) for hour in found.broker_hours()] == [(3, 600_000), (3, 3_600_000), (3, 1_800_000)]


def test_range_clips_intervals_and_drops_earlier_changes() -> None:
    lines = [read_line(text) for text in failover()]
    facts = [fact for one in lines for fact in one.facts]
    whole = report(failover())
    middle = (BASE_S + 20) * 1_000_000
    found = report_of(facts, Read(), whole.begin_us, whole.end_us, since_us=middle, until_us=middle + 10_000_000)
    assert found.total_ms(UNDER_REPLICATED) == pytest.approx(10_000)
    assert (found.elections, found.changes, found.truncations) == ([], [], [])
    assert report_of(facts, Read(), whole.begin_us, whole.end_us, topics=["others"]).partitions == []


def test_durations_are_readable() -> None:
    assert [duration(ms) for ms in (0, 184.4, 3210, 245_000, 7_800_000)] == ["0 ms", "184 ms", "3.2 s", "4 min 5 s", "2 h 10 min"]


# -- a chaos run ------------------------------------------------------------------------------------------------------


def recorded() -> Replication:
    return report(gzip.open(LOGS / "kills.log.gz", "rt").read().splitlines())


def test_failovers_agree_with_the_verdict_of_the_chaos_run() -> None:
    """Logs and clients must agree on what happened: the same partitions lost the same leaders at the same times. The verdict's
    gap is the one that a client measured. It contains the client's own part (find the leader, send again), so it is longer than
    the report's fail-over, in this run by less than 80 ms."""
    verdict = json.loads((LOGS / "kills.verdict.json").read_text())
    found = recorded()
    kills = [fault for fault in verdict["faults"] if fault["do"] == "kill"]
    moments = sorted({row.lost_us or 0 for row in found.failovers})
    assert len(moments) == len(kills)
    for fault, moment in zip(kills, moments, strict=True):
        ours = {row.partition: row for row in found.failovers if row.lost_us == moment}
        assert sorted(ours) == fault["partitions_led"]
        assert {f"broker-{row.previous_broker}" for row in ours.values()} == set(fault["nodes"])
        for partition, row in ours.items():
            gap_ms = fault["gap_ms_by_partition"][str(partition)]
            assert row.ms <= gap_ms + verdict["interval_ms"]
            assert gap_ms - row.ms < 80
    between_s = (moments[1] - moments[0]) / 1_000_000
    assert between_s == pytest.approx(kills[1]["at_s"] - kills[0]["at_s"], abs=0.05)
    [stop] = [fault for fault in verdict["faults"] if fault["do"] == "stop"]
    assert sorted(row.partition for row in found.elections if row.what == "handover") == stop["partitions_led"]


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["nowhere"], "there is no file or folder nowhere"),
        (["."], "there is no log in ."),
        (["x.log", "--since", "yesterday"], "--since takes a time such as 2026-01-31T09:00"),
        (["x.log", "--follow", "--until", "2026-01-31"], "--follow takes neither --since nor --until"),
        (["x.log", "--follow", "--since", "1970-01-01"], "--follow takes neither --since nor --until"),
        (["x.log", "--checkpoint", "c"], "--checkpoint needs --follow"),
        (["x.log", "--since", "2026-01-02", "--until", "2026-01-01"], "--until 2026-01-01 must be later than --since 2026-01-02"),
        ([".x.log"], "Spark reads no file whose name begins with a dot or an underscore: rename .x.log"),
        (["x.log.xz"], "x.log.xz is compressed, but not with gzip or bzip2: decompress it first"),
        (["x.log", "--html", "nowhere/page.html"], "the folder of the page nowhere/page.html does not exist"),
    ],
)
def test_wrong_argument_is_one_sentence_before_spark_starts(
    words: list[str], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if "x.log" in words[0]:
        Path(words[0]).touch()
    result = CliRunner().invoke(pipeline.app, ["replication", *words])
    assert isinstance(result.exception, UsageError)
    assert text in str(result.exception)


def test_segments_and_configuration_files_are_not_logs(tmp_path: Path) -> None:
    names = ("log.jsonl", "log.jsonl.1", "old.jsonl.gz", "cluster.log", "00000000000000000000.log", "cluster.json", "broker.toml")
    for name in names:
        (tmp_path / name).touch()
    assert [Path(file).name for file in log_files(tmp_path)] == ["cluster.log", "log.jsonl", "log.jsonl.1", "old.jsonl.gz"]


# -- missing lines and uncommitted decisions --------------------------------------------------------------------------


def test_failover_that_began_before_the_logs_counts_from_their_begin() -> None:
    """A log may be rotated while a partition has no leader. Then the time of the loss is unknown."""
    found = report([
        line(0, "broker-2", "node.started", port=1),
        changed(30, (5, 9), (-1, 2), ([2], [2]), "broker_unfenced"),
        line(60, "controller-101", "node.stopping"),
    ])  # fmt: skip
    assert found.total_ms(WITHOUT_LEADER) == pytest.approx(30_000)
    [election] = found.failovers
    assert (election.ms, election.previous_broker) == (pytest.approx(30_000), -1)
    assert "before these logs begin" in election.detail


def test_uncommitted_decision_is_ignored() -> None:
    """Controller 101 logs a fencing that the quorum never commits. Controller 102 receives heartbeats of broker 1, and changes
    nothing."""
    found = report([
        line(0, "controller-101", "controller.activated", node_id=101, controller_epoch=1, metadata_offset=0),
        *created(),
        changed(5, (1, 1), (1, 2), ([1, 2, 3], [2, 3]), "broker_fenced", metadata_offset=20),
        line(5.5, "controller-102", "controller.activated", node_id=102, controller_epoch=2, metadata_offset=20),
        line(60, "controller-102", "node.stopping"),
    ])  # fmt: skip
    assert (found.elections, found.changes) == ([], [])
    assert found.total_ms(UNDER_REPLICATED) == 0


def test_decision_committed_before_the_next_term_counts() -> None:
    found = report([
        line(0, "controller-101", "controller.activated", node_id=101, controller_epoch=1, metadata_offset=0),
        *created(),
        changed(5, (1, 1), (1, 2), ([1, 2, 3], [2, 3]), "broker_fenced", metadata_offset=20),
        line(5.5, "controller-102", "controller.activated", node_id=102, controller_epoch=2, metadata_offset=21),
        line(60, "controller-102", "node.stopping"),
    ])  # fmt: skip
    assert [row.broker for row in found.elections] == [2]


def test_uncommitted_creation_of_a_topic_leaves_no_open_interval() -> None:
    """The next controller creates the topic again, and no line removes the first one, because it never existed."""
    found = report([*created(0), *created(4), line(60, "controller-102", "node.stopping")])
    opened = [row for row in found.of(STATE) if row.is_open]
    assert [row.incarnation for row in opened] == [2]


def test_min_isr_of_a_partition_without_it_is_that_of_the_topic() -> None:
    """A broker that takes many roles at once logs none of them, so only one of the 200 partitions has `min.insync.replicas`."""
    rows = [[p, 1, 1, 2, [2], [1, 2, 3]] for p in range(200)]
    shared = line(10, "controller-101", "partitions.changed", topic="orders", topic_id="aa", partitions=200, changes=rows,
                  metadata_offset=30, cause="broker_fenced")  # fmt: skip
    found = report([*created(partitions=200), shared, line(11, "controller-101", "node.stopping")])
    assert found.total_ms(UNDER_MIN_ISR) == pytest.approx(200_000)


def test_topics_with_unknown_min_isr_are_named() -> None:
    unknown = [text.replace('"orders"', '"clicks"') for text in created() if "became_leader" not in text]
    found = report([*created(), *unknown])
    assert any("min.insync.replicas of clicks" in note for note in found.notes)


def test_two_truncations_below_the_high_watermark_count_each_record_once() -> None:
    """A follower compares epochs again after each truncation: it truncates [95, 100) first, then [90, 95)."""

    def cut(at_s: float, offset: int, records: int, high_watermark: int) -> list[str]:
        about = {"topic": "orders", "partition": 0, "leader_epoch": 1, "partition_epoch": 1, "log_start_offset": 0}
        below = {**about, "high_watermark": offset, "log_end_offset": offset, "offset": offset}
        cut_ = {**about, "high_watermark": high_watermark, "log_end_offset": offset + records, "offset": offset}
        return [
            line(at_s, "broker-1", "partition.truncated", **cut_, records=records, reason="diverging epoch"),
            line(at_s + 0.001, "broker-1", "partition.truncated_below_hw", **below, previous_high_watermark=high_watermark),
        ]

    found = report([*failover()[:-3], *cut(39, 95, 5, 98), *cut(39.1, 90, 5, 95)])
    assert [(row.first_offset, row.end_offset, row.below_hw) for row in found.truncations] == [(95, 100, 3), (90, 95, 5)]


def test_recovery_below_the_checkpointed_high_watermark_is_bad() -> None:
    """Recovery logs the truncation before it knows the log end, so the checkpoint says how many records were lost."""
    found = report([
        *created(),
        line(30, "broker-1", "log.tail_cut_in_recovery", topic="orders", partition=0, leader_epoch=0, log_start_offset=0,
             high_watermark=90, log_end_offset=0, offset=70, segment=0, reason="torn"),
    ])  # fmt: skip
    [cut] = found.truncations
    assert (cut.first_offset, cut.records, cut.below_hw, found.is_bad) == (70, 20, 20, True)


# -- ranges -----------------------------------------------------------------------------------------------------------


def test_interval_that_extends_beyond_the_range_is_open() -> None:
    begin = (BASE_S + 20) * 1_000_000
    found = report(failover(), since_us=begin, until_us=begin + 1_000_000)
    assert [row.is_open for row in found.of(INTERVAL, UNDER_REPLICATED)] == [True]


def test_sums_of_consecutive_ranges_add_up() -> None:
    """A range includes its begin and excludes its end, so that the days add up to the week."""
    lines = [*failover(), *many_partitions()]
    whole = report(lines)
    border = (BASE_S + 40) * 1_000_000 + 100_000  # exactly when the ISR is whole again
    parts = [report(lines, until_us=border), report(lines, since_us=border)]
    for what in (UNDER_REPLICATED, WITHOUT_LEADER, OUT_OF_ISR):
        assert sum(part.total_ms(what) for part in parts) == pytest.approx(whole.total_ms(what))
    for count in (lambda r: len(r.changes), lambda r: len(r.elections), lambda r: len(r.truncations)):
        assert sum(map(count, parts)) == count(whole)
    assert [row for row in parts[1].of(INTERVAL) if not row.ms] == []


def test_sums_per_topic_and_per_broker_agree() -> None:
    for found in (recorded(), report([*failover(), *many_partitions()])):
        topics, brokers = found.topic_hours(), found.broker_hours()
        assert sum(hour.under_replicated_ms for hour in topics) == pytest.approx(found.total_ms(UNDER_REPLICATED))
        assert sum(hour.out_of_isr_ms for hour in brokers) == pytest.approx(found.total_ms(OUT_OF_ISR))
        assert sum(hour.failovers + hour.handovers for hour in topics) == sum(hour.leads_won for hour in brokers)
        assert sum(hour.records_cut for hour in topics) == sum(hour.records_cut for hour in brokers)
        assert sum(hour.shrinks for hour in topics) == sum(bool(row.removed) for row in found.changes)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"since_us": (BASE_S + 4000) * 1_000_000}, "these logs have no events of that time: they extend from"),
        ({"until_us": (BASE_S - 4000) * 1_000_000}, "these logs have no events of that time: they extend from"),
        ({"topics": ["orderz"]}, "these logs have no partition of orderz; their topics are orders"),
    ],
)
def test_range_or_topic_without_events_is_reported_as_missing(more: dict[str, Any], text: str) -> None:
    """A report of zeros would look like a quiet cluster."""
    found = report(failover(), **more)
    assert text in found.verdict
    assert text[1:] in page(found)
    assert "<svg" not in page(found)


def test_logs_without_json_are_answered_with_the_setting() -> None:
    read = Read(lines=7, foreign=7, files=1)
    assert any("STRANDLINE_LOG_FORMAT=json" in note for note in report_of([], read, 0, 0).notes)


# -- the page ---------------------------------------------------------------------------------------------------------


def many_partitions(count: int = 200) -> list[str]:
    lines = created(partitions=count)
    rows = [[p, 1, 1, 2 + p % 2, [2, 3], [1, 2, 3]] for p in range(count)]
    lines.append(line(10.1, "controller-101", "broker.fencing", broker_id=1, broker_epoch=1, reason="gone", silent_ms=90))
    lines.append(line(10.1, "controller-101", "partitions.changed", topic="orders", topic_id="aa", partitions=count, changes=rows,
                      metadata_offset=30, cause="broker_fenced"))  # fmt: skip
    lines += [line(10.15, f"broker-{b}", "metadata.applied", metadata_offset=30, leaders=count // 2, followers=0) for b in (2, 3)]
    return [*lines, line(30, "controller-101", "node.stopping")]


def test_failover_in_a_shared_line_ends_when_the_broker_applies_it() -> None:
    """A broker that takes many roles at once logs only that it has applied the metadata."""
    found = report(many_partitions())
    assert len(found.failovers) == 200
    assert {round(row.ms) for row in found.failovers} == {140}


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_page_is_one_file_without_scripts() -> None:
    tags = Tags(page(recorded(), "Logs of <us>"))
    assert (tags.links, tags.names.count("script"), tags.names.count("svg")) == ([], 0, 5)
    assert "Logs of &lt;us&gt;" in page(recorded(), "Logs of <us>")


def test_page_of_empty_logs_has_a_sentence_and_no_picture() -> None:
    text = page(report([]))
    assert "These logs name no partition" in text
    assert Tags(text).names.count("svg") == 0


LOOK = """[...document.querySelectorAll('svg')].map((svg) => {
  const box = svg.getBoundingClientRect();
  const inside = [...svg.querySelectorAll('rect, text, circle, path')].every((shape) => {
    const at = shape.getBoundingClientRect();
    return at.left >= box.left - 1 && at.right <= box.right + 1 && at.top >= box.top - 1 && at.bottom <= box.bottom + 1;
  });
  return inside && box.height > 20;
})"""


async def test_browser_draws_every_shape_inside_its_picture(tmp_path: Path) -> None:
    program = find_chromium()
    if program is None:
        pytest.skip("there is no Chromium")
    pages = {"one": page(recorded()), "many": page(report(many_partitions())), "few": page(report(failover()))}
    with running_chromium(program, tmp_path / "chromium") as address:
        for name, text in pages.items():
            file = tmp_path / f"{name}.html"
            file.write_text(text.replace("<html ", "<html data-ready=yes "))
            async with new_page(address) as shown:
                await shown.open(file)
                looks = await shown.run(LOOK)
                assert (len(looks) > 3, all(looks)) == (True, True), name
                assert await shown.run("document.documentElement.scrollWidth <= innerWidth")
                assert (shown.console, len(shown.requests)) == ([], 1)


def test_no_number_is_written_as_a_power_of_ten() -> None:
    text = page(report(many_partitions()))
    assert "1e6" not in text
    assert "e+" not in text
