"""The pages that people read: of a run that failed, and of a run that teaches.

A page must not be wrong about which broker had which records, silent about the cause, or so long that it is not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from handwritten_traces import ORDERS, HandwrittenTrace, busy, kip_101, kip_279

from strandline.testing.simulation import invariants
from strandline.testing.simulation.kernel.trace import Event, Trace
from strandline.testing.simulation.nemesis import KINDS
from strandline.testing.simulation.story.drawing import WIDTH, draw
from strandline.testing.simulation.story.fault_words import BY_NODE_EVENTS, TELLERS, brief, short
from strandline.testing.simulation.story.picture import Picture, Replica, Run, names_of
from strandline.testing.simulation.story.sentences import Sentences
from strandline.testing.simulation.story.story import MEANINGS, narrate, tell


@dataclass
class Violated:
    invariant: str = "I6"
    text: str = "broker 2 truncated orders-0 to 1, and offset 1 of epoch 1 is committed"
    partition: str = ORDERS
    node: int = 2


# -- the picture: what is known from the events


def test_a_replica_is_known_by_the_epochs_of_its_log() -> None:
    replica = Replica(2)
    replica.append(0, 9, 1)
    replica.append(10, 10, 2)
    replica.append(11, 11, 2)
    assert str(replica) == "0..9@e1 10..11@e2"
    replica.cut(10)
    assert (str(replica), replica.end) == ("0..9@e1", 10)
    replica.append(10, 11, 1)
    assert replica.runs == [Run(0, 12, 1)]


def test_a_log_that_begins_later_has_lost_its_oldest_epochs() -> None:
    replica = Replica(1)
    replica.append(0, 4, 1)
    replica.append(5, 9, 2)
    replica.start_at(7)
    assert replica.runs == [Run(7, 10, 2)]
    replica.start_at(100)
    assert (replica.runs, replica.start, replica.end) == ([], 100, 100)
    replica.append(100, 100, 3)
    assert str(replica) == "100@e3"


def test_dropped_events_leave_unknown_epochs() -> None:
    """A ring of events begins in the midst of a log."""
    replica = Replica(1)
    replica.append(500, 509, 4)
    assert str(replica) == "0..499@? 500..509@e4"


def test_after_a_lossy_crash_the_log_is_what_recovery_found() -> None:
    written = HandwrittenTrace()
    written.appends(1, 0, 9, 1)
    written.emit("node.crashed", 1, lossy=True)
    written.starts(1)
    written.emit("log.recovered", 1, ORDERS, end=7)
    picture = Picture.after(written.trace.events())
    assert str(picture.replicas[ORDERS][1]) == "0..6@e1"


def test_a_dead_broker_neither_leads_nor_follows() -> None:
    written = HandwrittenTrace()
    written.leads(1, 1, [1, 2], start=0, followers=[2])
    written.emit("node.crashed", 1, lossy=False)
    picture = Picture.after(written.trace.events())
    assert picture.nodes[1].state == "dead"
    assert (picture.replicas[ORDERS][1].leads, picture.replicas[ORDERS][2].follows) == (None, (1, 1))


def test_fault_end_refers_to_the_matching_fault() -> None:
    written = HandwrittenTrace()
    written.emit("fault.begin", 0, fault="cut", a=1, b=2)
    written.emit("fault.begin", 0, fault="cut", a=1, b=3)
    written.emit("fault.end", 0, fault="cut", a=1, b=2)
    assert [fault.nodes for fault in Picture.after(written.trace.events()).faults] == [(1, 3)]
    written.emit("fault.end", 0, fault="no such")
    assert len(Picture.after(written.trace.events()).faults) == 1


# -- sentences


def sentence(written: HandwrittenTrace, kind: str, node: int, partition: str = "", **fields: object) -> str:
    event = Event(written.now, 0, kind, node, partition, fields)
    return Sentences(Picture.after(written.trace.events())).of(event)


def test_a_truncation_says_where_and_why() -> None:
    written = HandwrittenTrace()
    written.appends(2, 0, 9, 1)
    written.appends(2, 10, 11, 2)
    written.emit("fetch.diverging", 3, ORDERS, epoch=1, end_offset=10)
    assert sentence(written, "log.truncated", 2, ORDERS, to=10, was=12) == (
        "broker 2 truncates orders-0 from 12 to 10: on the leader, epoch 1 ends at 10"
    )


def test_truncation_below_the_leaders_end_shows_both_ends() -> None:
    """The rule of KIP-279 is the smaller of the two ends; a reader must see both to understand it."""
    written = HandwrittenTrace()
    written.appends(2, 0, 9, 1)
    written.appends(2, 10, 11, 2)
    written.emit("fetch.diverging", 3, ORDERS, epoch=1, end_offset=12)
    assert sentence(written, "log.truncated", 2, ORDERS, to=10, was=12).endswith("on the leader, epoch 1 ends at 12, here at 10")


@pytest.mark.parametrize(
    ("kind", "node", "fields", "expected"),
    [
        ("node.crashed", 1, {"lossy": True}, "broker 1 crashes and loses what it had not flushed"),
        ("node.paused", 102, {}, "controller 102 is paused"),
        (
            "leader.became",
            2,
            {"epoch": 4, "start_offset": 7},
            "broker 2 becomes leader of orders-0 in epoch 4, which begins at 7",
        ),
        ("follower.became", 2, {"epoch": 4, "leader": -1}, "broker 2 has no leader to follow in orders-0 (epoch 4)"),
        ("log.appended", 1, {"base": 5, "last": 5, "epoch": 0, "role": "leader"}, "broker 1 appends 5 to orders-0 in epoch 0"),
        ("log.appended", 2, {"base": 5, "last": 7, "epoch": 0, "role": "follower"}, "broker 2 copies 5..7 of orders-0 (epoch 0)"),
        ("produce.acked", 1, {"base": 5, "last": 7, "acks": -1}, "broker 1 acknowledges 5..7 of orders-0 (acks=all)"),
        (
            "produce.failed",
            1,
            {"error": "NOT_ENOUGH_REPLICAS"},
            "broker 1 rejects a produce request to orders-0: NOT_ENOUGH_REPLICAS",
        ),
        ("isr.proposed", 1, {"isr": [3, 1]}, "broker 1 proposes ISR {1,3} for orders-0"),
        ("hw.advanced", 1, {"hw": 3}, "HW of orders-0 on broker 1 is 3"),
        (
            "client.acked",
            201,
            {"offset": 3, "value": "tea"},
            'client 201 gets the acknowledgement of "tea" at offset 3 of orders-0',
        ),
        (
            "log.isr.member_lagged",
            1,
            {"level": "warning", "behind_ms": 7},
            "broker 1 logs warning: isr.member_lagged of orders-0: behind ms 7",
        ),
        ("something.new", 1, {"x": [1, 2]}, "broker 1: something.new of orders-0: x {1,2}"),
    ],
)
def test_each_event_is_a_sentence_in_the_words_of_kafka(kind: str, node: int, fields: dict[str, object], expected: str) -> None:
    assert sentence(HandwrittenTrace(), kind, node, ORDERS, **fields) == expected


def test_event_with_missing_fields_has_a_sentence() -> None:
    """A page about one bug must not fail because of another one."""
    assert sentence(HandwrittenTrace(), "log.truncated", 2, ORDERS) == "broker 2: log.truncated of orders-0"


def test_a_decision_of_the_controller_says_what_is_new_in_it() -> None:
    written = HandwrittenTrace()
    written.decides(1, 1, [1, 2, 3])
    text = sentence(written, "metadata.partition", 101, ORDERS, leader=1, leader_epoch=1, partition_epoch=1, isr=[1, 2], elr=[])
    assert text == "the controller decides for orders-0: ISR {1,2,3} -> {1,2} (partition epoch 1)"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"others": None}, "broker 1 is cut off from all others"),
        ({"others": [2, 3]}, "broker 1 is cut off from brokers 2 and 3"),
        (
            {"others": None, "inbound": False},
            "broker 1 is cut off from all others, one way: it receives messages, but its own do not arrive",
        ),
    ],
)
def test_a_cut_says_from_whom_and_in_which_direction(fields: dict[str, object], expected: str) -> None:
    assert sentence(HandwrittenTrace(), "fault.begin", 1, fault="cut", **fields) == expected


def test_every_fault_of_the_nemesis_has_its_words() -> None:
    without = set(KINDS) - BY_NODE_EVENTS - set(TELLERS)
    assert not without, f"fault_words.py has no clause for {sorted(without)}"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"fault": "rot", "pattern": "/data/*-*/*.log", "flips": 5}, "5 bits flip in the logs of broker 2"),
        ({"fault": "rot", "pattern": "/data/*checkpoint*", "flips": 1}, "1 bit flips in the checkpoints of broker 2"),
        (
            {"fault": "rot", "pattern": "/data/*-*/*.index", "flips": 0},
            "no bit flips in the indexes of broker 2: they are still empty",
        ),
        (
            {"fault": "misdirect", "onto": None, "hidden": False},
            "a write to a log of broker 2 lands elsewhere in the same file",
        ),
        (
            {"fault": "misdirect", "onto": "/data/*-*/*.log", "hidden": True},
            "a write to a log of broker 2 lands somewhere in its logs, which shows when the page cache no longer has it",
        ),
        ({"fault": "stale_read"}, "reads of the logs of broker 2 return old content"),
    ],
)
def test_lying_disk_is_described_by_its_effect(fields: dict[str, object], expected: str) -> None:
    assert sentence(HandwrittenTrace(), "fault.begin", 2, victim=2, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"fault": "reset", "connections": 1}, "1 connection of broker 2 breaks"),
        ({"fault": "reset", "connections": 3}, "3 connections of broker 2 break"),
        ({"fault": "mute", "connections": 1}, "1 connection of broker 2 is silently dead"),
        (
            {"fault": "reset_response", "api": "Produce", "is_request": False, "times": 1},
            "a connection breaks at the next Produce response",
        ),
        (
            {"fault": "reset_response", "api": "Fetch", "is_request": True, "times": 5},
            "a connection breaks at each of the next 5 Fetch requests",
        ),
        ({"fault": "left out: cut"}, "broker 2 is cut off from all others, and stays so while the others recover"),
    ],
)
def test_singular_and_plural(fields: dict[str, object], expected: str) -> None:
    assert sentence(HandwrittenTrace(), "fault.begin", 2, victim=2, **fields) == expected


def test_fault_with_missing_fields_is_described_by_the_others() -> None:
    assert sentence(HandwrittenTrace(), "fault.begin", 0, fault="disk_stall", victim=3, seconds=2.0) == (
        "fault begins: disk stall, broker 3 (seconds 2.000)"
    )


def test_options_are_shortened() -> None:
    """A seed draws two hundred values; the command draws them again."""
    options = {
        "brokers": 3,
        "settings": {"a": 1, "b": 2},
        "faults": [{"kind": "cut"}, {"kind": "loss"}, {"kind": "cut"}],
        "ids": [1],
    }
    assert short(brief(options)) == "brokers 3, settings 2 set, faults {2 cut, loss}, ids {1}"


def test_nodes_are_named_by_their_role() -> None:
    assert names_of([3, 101, 1, 2]) == "controller 101 and brokers 1, 2 and 3"
    assert names_of([2]) == "broker 2"


# -- the logs, side by side


def test_the_drawing_shows_where_the_histories_part() -> None:
    picture = Picture.after([event for event in kip_279().events() if event.time < 8.0])
    assert draw(picture, ORDERS) == [
        "  offset       0..9   10..11   12",
        "  broker 1   |  e1  |   e1   |    |   LEO 12   HW 10   paused, hold, leads epoch 1",
        "  broker 2   |  e1  |   e2   |    |   LEO 12   HW 10   dead, hold",
        "  broker 3   |  e1  |   e1   | e3 |   LEO 13   HW 10   leads epoch 3, in the ISR",
        "                    ^",
        "                    HW 10: everything to the left is committed",
        "                    the histories diverge here",
    ]


def test_no_drawing_is_wider_than_a_page() -> None:
    """Forty elections leave forty epochs; those in front are drawn as one column."""
    written = HandwrittenTrace()
    for epoch in range(40):
        for node in (1, 2, 3):
            written.appends(node, epoch * 1000, epoch * 1000 + 999, epoch)
    written.appends(1, 40_000, 40_000, 40)
    lines = draw(Picture.after(written.trace.events()), ORDERS)
    assert max(map(len, lines)) <= WIDTH
    assert "e40" in lines[1]
    assert "e0..e" in lines[1]


# -- a run that failed


def page(trace: Trace | None = None, **kwargs: object) -> str:
    violated = kwargs.pop("violated", Violated())
    return tell(trace or kip_101(), violated, 4711, "S01", **kwargs)  # type: ignore[arg-type]


def test_page_of_a_failure_has_violation_time_and_command() -> None:
    text = page(options={"brokers": 2, "faults": ["cut", "lossy crash"]}, replay="--until 13")
    assert text.startswith("I6 is violated: broker 2 truncated orders-0 to 1, and offset 1 of epoch 1 is committed\n")
    assert f"I6: {MEANINGS['I6']}." in text
    assert "seed 4711, scenario S01, at 12.302 s of virtual time" in text
    assert "drawn: brokers 2, faults {cut, lossy crash}" in text
    assert text.endswith("  strandline simulate --seed 4711 --scenario S01 --until 13\n")


def test_a_failed_run_tells_the_last_events_with_their_times() -> None:
    assert "\n    12.301 s  broker 2 truncates orders-0 from 2 to 1\n" in page()


def test_page_of_a_failure_lists_dead_and_isolated_nodes() -> None:
    text = page()
    assert "  broker 1: dead since 12.302 s, with the loss of what it had not flushed\n" in text
    assert "  broker 2: cut (controller 101) since 11.001 s\n" in text


def test_a_failed_run_shows_the_logs_of_all_replicas() -> None:
    text = page()
    assert "  broker 1   0..1@e1\n" in text
    assert "  broker 2   0@e1\n" in text


def test_page_shows_logged_warnings_but_no_infos() -> None:
    assert "broker 2 logs warning: fetcher.connection_lost" in page()
    assert "became_follower" not in page()


def test_page_of_a_long_run_shows_its_end_and_earlier_key_events() -> None:
    """The crash that began it may be thousands of events ago; the events around the violation are the last."""
    text = page(busy(), events_max=10, violated=Violated(partition="orders-0"))
    lines = text.split("What happened to orders-0\n")[1].split("\n\n")[0].splitlines()
    assert 10 < len(lines) < 60
    assert any("broker 1 crashes" in line for line in lines)
    assert re.search(r"^ +\(\d+ more\)$", text, re.MULTILINE)
    assert "orders-1" not in text


def test_a_violation_of_no_partition_shows_some_of_them() -> None:
    assert "The logs of orders-0" in page(violated=Violated("I24", "no leader in 90 s", ""))


def test_page_of_an_incomplete_trace_says_so() -> None:
    written = HandwrittenTrace(full=False)
    for offset in range(3_000):
        written.appends(1, offset, offset, 1)
    assert "Not every event was kept" in page(written.trace)
    assert "Not every event was kept" not in page()


def test_every_invariant_has_a_meaning() -> None:
    assert list(MEANINGS) == [f"I{number}" for number in range(1, 51) if number != 21]  # I36 to I40 are in its place
    in_the_table = re.findall(r"^\| (I\d+) ", invariants.__doc__ or "", re.MULTILINE)
    assert in_the_table == list(MEANINGS)
    assert "\n\n" not in page(violated=Violated("I99", "something new")).split("seed")[0].rstrip()


# -- a run that teaches


def test_scenario_page_has_a_picture_under_each_heading() -> None:
    text = narrate(kip_279())
    assert text.startswith("S03: Fast fail-over fork: the leader lacks the asked epoch\n====")
    chapters = re.split(r"\n(?=\d\. )", text)
    assert len(chapters) == 6
    for chapter in chapters[1:]:
        assert "  offset " in chapter


def test_repeated_events_become_one_sentence() -> None:
    """Ten records make a hundred events, and four sentences."""
    chapter = narrate(kip_279()).split("\n1. ")[1].split("\n2. ")[0]
    assert re.findall(r" s  (.*)", chapter) == [
        "broker 1 appends 0..9 in epoch 1",
        "brokers 2 and 3 copy 0..9 (epoch 1)",
        "HW is 10 on brokers 1, 2 and 3",
        "broker 1 acknowledges 0..9 (acks=all)",
    ]


def test_gathered_events_stay_on_their_side_of_a_truncation() -> None:
    """Records before and after a truncation are two sentences, one on each side of it."""
    written = HandwrittenTrace()
    written.copies(2, 0, 11, 1)
    written.emit("log.truncated", 2, ORDERS, to=10, was=12)
    written.copies(2, 10, 12, 2)
    assert re.findall(r" s  (.*)", narrate(written.trace)) == [
        "broker 2 copies 0..11 (epoch 1)",
        "broker 2 truncates its log from 12 to 10",
        "broker 2 copies 10..12 (epoch 2)",
    ]


def test_gap_in_copied_offsets_is_shown() -> None:
    written = HandwrittenTrace()
    written.copies(2, 0, 3, 1)
    written.copies(2, 7, 9, 1)
    assert re.findall(r" s  (.*)", narrate(written.trace)) == ["broker 2 copies 0..3 (epoch 1)", "broker 2 copies 7..9 (epoch 1)"]


def test_noise_is_left_out() -> None:
    text = narrate(kip_279())
    for noise in ("votes for", "segment", "isr.member_lagged", "proposes", "client 201", "partition epoch"):
        assert noise not in text


def test_failed_check_of_a_story_is_on_the_page() -> None:
    written = HandwrittenTrace()
    written.emit("scenario.must", 0, text="broker 3 goes on at offset 12", holds=False)
    assert "CHECK FAILED: broker 3 goes on at offset 12" in narrate(written.trace)


def test_many_checks_that_held_are_counted() -> None:
    """A scenario of three hundred writes has three hundred checks; the page must not list each one."""
    written = HandwrittenTrace()
    for number in range(300):
        written.appends(1, number, number, 0)
        written.emit("scenario.must", 0, text=f"write {number} is acknowledged", holds=True)
    assert re.findall(r" s  (.*)", narrate(written.trace)) == [
        "broker 1 appends 0..299 in epoch 0",
        "check passed: write 0 is acknowledged",
        "check passed: write 1 is acknowledged",
        "check passed, like 297 others: write 299 is acknowledged",
    ]


def test_many_topics_are_created_in_one_sentence() -> None:
    written = HandwrittenTrace()
    for number in range(20):
        written.emit("metadata.topic", 101, name=f"t{number}", topic_id="0")
    assert re.findall(r" s  (.*)", narrate(written.trace)) == ["topics t0, t1, t2 and 17 more are created"]


def test_page_follows_the_partitions_with_most_events() -> None:
    written = HandwrittenTrace()
    for number in range(50):
        written.appends(1, 0, 0, 1, partition=f"t-{number}")
    for number in (48, 7, 20):
        written.emit("log.truncated", 1, f"t-{number}", to=0, was=1)
    text = narrate(written.trace)
    assert "There are 47 more partitions; this page follows t-7, t-20 and t-48." in text
    assert "t-3 " not in text


def test_opened_log_that_reports_its_epochs_is_known() -> None:
    written = HandwrittenTrace()
    written.emit("log.recovered", 1, ORDERS, start=5, end=30, epochs=[[0, 0], [2, 10], [3, 20], [4, 30]], hw=28)
    replica = Picture.after(written.trace.events()).replicas[ORDERS][1]
    assert (str(replica), replica.start, replica.hw) == ("5..9@e0 10..19@e2 20..29@e3", 5, 28)


def test_follower_below_the_leaders_log_start_restarts_its_log() -> None:
    written = HandwrittenTrace()
    written.copies(2, 0, 19, 1)
    assert sentence(written, "log.truncated", 2, ORDERS, to=100, was=20) == (
        "broker 2 restarts orders-0 at 100, the log start of its leader"
    )
    written.emit("log.truncated", 2, ORDERS, to=100, was=20)
    written.copies(2, 100, 104, 3)
    replica = Picture.after(written.trace.events()).replicas[ORDERS][2]
    assert (str(replica), replica.start) == ("100..104@e3", 100)


def test_end_of_a_fault_names_the_fault() -> None:
    written = HandwrittenTrace()
    written.emit("fault.begin", 1, fault="cut_node", number=3, victim=1)
    assert sentence(written, "fault.end", 1, fault="cut_node", number=3) == "broker 1 is no longer cut off"
    written.emit("fault.begin", 0, fault="clog", number=4, nodes=[1, 2])
    ended = sentence(written, "fault.end", 0, fault="clog", number=4)
    assert ended == "fault ends: the links of brokers 1 and 2 are clogged: messages wait"


def test_crash_is_shown_once() -> None:
    written = HandwrittenTrace()
    written.emit("node.crashed", 1, lossy=False)
    written.emit("fault.begin", 1, fault="crash", number=1, victim=1)
    assert len(re.findall(r" s  (.*)", narrate(written.trace))) == 1


def test_a_fault_is_over_when_everything_is_healed() -> None:
    written = HandwrittenTrace()
    written.emit("fault.begin", 1, fault="cut")
    written.emit("fault.begin", 2, fault="reset", number=9, victim=2)
    assert [fault.name for fault in Picture.after(written.trace.events()).faults] == ["cut"]
    written.emit("phase", 0, name="heal")
    assert Picture.after(written.trace.events()).faults == []


def test_page_names_user_partitions_and_omits_internal_ones() -> None:
    written = HandwrittenTrace()
    for name in ("a-0", "b-0", "__cluster_metadata-0"):
        written.appends(1, 0, 0, 1, partition=name)
    text = narrate(written.trace)
    assert "broker 1 appends 0 to a-0 in epoch 1" in text
    assert "\n  b-0\n" in text
    assert "__cluster_metadata" not in text
    assert "b-0" not in narrate(written.trace, partition="a-0")


@pytest.mark.parametrize("text", [narrate(kip_279()), narrate(busy()), page(), page(busy())])
def test_no_line_is_longer_than_a_hundred_columns(text: str) -> None:
    assert max(map(len, text.splitlines())) <= WIDTH
    assert not [line for line in text.splitlines() if line != line.rstrip()]
