"""The pages that people read: of a run that failed, and of a run that teaches.

What they must not be: wrong about who had what, silent about the cause, or so long that nobody reads them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from told_runs import ORDERS, Told, busy, kip_101, kip_279

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
    told = Told()
    told.appends(1, 0, 9, 1)
    told.emit("node.crashed", 1, lossy=True)
    told.starts(1)
    told.emit("log.recovered", 1, ORDERS, end=7)
    picture = Picture.after(told.trace.events())
    assert str(picture.replicas[ORDERS][1]) == "0..6@e1"


def test_a_dead_broker_neither_leads_nor_follows() -> None:
    told = Told()
    told.leads(1, 1, [1, 2], start=0, followers=[2])
    told.emit("node.crashed", 1, lossy=False)
    picture = Picture.after(told.trace.events())
    assert picture.nodes[1].state == "dead"
    assert (picture.replicas[ORDERS][1].leads, picture.replicas[ORDERS][2].follows) == (None, (1, 1))


def test_fault_end_refers_to_the_matching_fault() -> None:
    told = Told()
    told.emit("fault.begin", 0, fault="cut", a=1, b=2)
    told.emit("fault.begin", 0, fault="cut", a=1, b=3)
    told.emit("fault.end", 0, fault="cut", a=1, b=2)
    assert [fault.nodes for fault in Picture.after(told.trace.events()).faults] == [(1, 3)]
    told.emit("fault.end", 0, fault="no such")
    assert len(Picture.after(told.trace.events()).faults) == 1


# -- sentences


def sentence(told: Told, kind: str, node: int, partition: str = "", **fields: object) -> str:
    event = Event(told.now, 0, kind, node, partition, fields)
    return Sentences(Picture.after(told.trace.events())).of(event)


def test_a_truncation_says_where_and_why() -> None:
    told = Told()
    told.appends(2, 0, 9, 1)
    told.appends(2, 10, 11, 2)
    told.emit("fetch.diverging", 3, ORDERS, epoch=1, end_offset=10)
    assert sentence(told, "log.truncated", 2, ORDERS, to=10, was=12) == (
        "broker 2 truncates orders-0 from 12 to 10: leader says epoch 1 ends at 10"
    )


def test_a_truncation_below_what_the_leader_said_shows_both_ends() -> None:
    """The rule of KIP-279 is the smaller of the two; a reader has to see both to understand it."""
    told = Told()
    told.appends(2, 0, 9, 1)
    told.appends(2, 10, 11, 2)
    told.emit("fetch.diverging", 3, ORDERS, epoch=1, end_offset=12)
    assert sentence(told, "log.truncated", 2, ORDERS, to=10, was=12).endswith("leader says epoch 1 ends at 12, here at 10")


@pytest.mark.parametrize(
    ("kind", "node", "fields", "expected"),
    [
        ("node.crashed", 1, {"lossy": True}, "broker 1 crashes and loses what it had not flushed"),
        ("node.paused", 102, {}, "controller 102 is paused"),
        ("leader.became", 2, {"epoch": 4, "start_offset": 7}, "broker 2 takes over for orders-0: epoch 4, which begins at 7"),
        ("follower.became", 2, {"epoch": 4, "leader": -1}, "broker 2 follows no one: there is no leader in orders-0 (epoch 4)"),
        ("log.appended", 1, {"base": 5, "last": 5, "epoch": 0, "role": "leader"}, "broker 1 appends 5 to orders-0 in epoch 0"),
        ("log.appended", 2, {"base": 5, "last": 7, "epoch": 0, "role": "follower"}, "broker 2 copies 5..7 of orders-0 (epoch 0)"),
        ("produce.acked", 1, {"base": 5, "last": 7, "acks": -1}, "broker 1 acknowledges 5..7 of orders-0 (acks=all)"),
        ("produce.failed", 1, {"error": "NOT_ENOUGH_REPLICAS"}, "broker 1 refuses a produce to orders-0: NOT_ENOUGH_REPLICAS"),
        ("isr.proposed", 1, {"isr": [3, 1]}, "broker 1 proposes ISR {1,3} for orders-0"),
        ("hw.advanced", 1, {"hw": 3}, "HW of orders-0 on broker 1 is 3"),
        ("client.acked", 201, {"offset": 3, "value": "tea"}, 'client 201 knows that "tea" is at offset 3 of orders-0'),
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
    assert sentence(Told(), kind, node, ORDERS, **fields) == expected


def test_event_with_missing_fields_has_a_sentence() -> None:
    """A page about a bug must not fail because of one more."""
    assert sentence(Told(), "log.truncated", 2, ORDERS) == "broker 2: log.truncated of orders-0"


def test_a_decision_of_the_controller_says_what_is_new_in_it() -> None:
    told = Told()
    told.decides(1, 1, [1, 2, 3])
    text = sentence(told, "metadata.partition", 101, ORDERS, leader=1, leader_epoch=1, partition_epoch=1, isr=[1, 2], elr=[])
    assert text == "the controller decides for orders-0: ISR {1,2,3} -> {1,2} (partition epoch 1)"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"others": None}, "broker 1 is cut off from everybody"),
        ({"others": [2, 3]}, "broker 1 is cut off from brokers 2 and 3"),
        (
            {"others": None, "inbound": False},
            "broker 1 is cut off from everybody, one way: it hears the others, and is not heard",
        ),
    ],
)
def test_a_cut_says_from_whom_and_in_which_direction(fields: dict[str, object], expected: str) -> None:
    assert sentence(Told(), "fault.begin", 1, fault="cut", **fields) == expected


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
            "bits would flip in the indexes of broker 2, but there is nothing in them yet",
        ),
        (
            {"fault": "misdirect", "onto": None, "hidden": False},
            "a write to a log of broker 2 lands elsewhere in the same file",
        ),
        (
            {"fault": "misdirect", "onto": "/data/*-*/*.log", "hidden": True},
            "a write to a log of broker 2 lands somewhere in its logs, which shows when the page cache has forgotten it",
        ),
        ({"fault": "stale_read"}, "reads of the logs of broker 2 bring what was there before"),
    ],
)
def test_a_disk_that_lies_is_told_by_what_it_does(fields: dict[str, object], expected: str) -> None:
    assert sentence(Told(), "fault.begin", 2, victim=2, **fields) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"fault": "reset", "connections": 1}, "1 connection of broker 2 breaks"),
        ({"fault": "reset", "connections": 3}, "3 connections of broker 2 break"),
        ({"fault": "mute", "connections": 1}, "1 connection of broker 2 is dead without a notice"),
        (
            {"fault": "reset_response", "api": "Produce", "is_request": False, "times": 1},
            "a connection breaks under the next Produce response",
        ),
        (
            {"fault": "reset_response", "api": "Fetch", "is_request": True, "times": 5},
            "connections break under the next 5 Fetch requests",
        ),
        ({"fault": "left out: cut"}, "broker 2 is cut off from everybody, and stays so while the others heal"),
    ],
)
def test_singular_and_plural(fields: dict[str, object], expected: str) -> None:
    assert sentence(Told(), "fault.begin", 2, victim=2, **fields) == expected


def test_a_fault_without_the_fields_that_its_words_need_is_told_by_those_it_has() -> None:
    assert sentence(Told(), "fault.begin", 0, fault="disk_stall", victim=3, seconds=2.0) == (
        "fault begins: disk stall, broker 3 (seconds 2.000)"
    )


def test_options_are_told_in_short() -> None:
    """A seed draws two hundred values; the command draws them again."""
    options = {
        "brokers": 3,
        "settings": {"a": 1, "b": 2},
        "faults": [{"kind": "cut"}, {"kind": "loss"}, {"kind": "cut"}],
        "ids": [1],
    }
    assert short(brief(options)) == "brokers 3, settings 2 set, faults {2 cut, loss}, ids {1}"


def test_nodes_are_called_by_what_they_are() -> None:
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
        "                    here the histories part",
    ]


def test_no_drawing_is_wider_than_a_page() -> None:
    """Forty elections leave forty epochs; those in front are drawn as one column."""
    told = Told()
    for epoch in range(40):
        for node in (1, 2, 3):
            told.appends(node, epoch * 1000, epoch * 1000 + 999, epoch)
    told.appends(1, 40_000, 40_000, 40)
    lines = draw(Picture.after(told.trace.events()), ORDERS)
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
    assert "  broker 1: dead since 12.302 s, without what it had not flushed\n" in text
    assert "  broker 2: cut (controller 101) since 11.001 s\n" in text


def test_a_failed_run_shows_the_logs_of_all_replicas() -> None:
    text = page()
    assert "  broker 1   0..1@e1\n" in text
    assert "  broker 2   0@e1\n" in text


def test_warnings_that_were_logged_are_told_and_infos_are_not() -> None:
    assert "broker 2 logs warning: fetcher.connection_lost" in page()
    assert "became_follower" not in page()


def test_a_long_run_is_told_from_its_end_with_what_mattered_before() -> None:
    """The crash that began it may be thousands of events ago; the events around the violation are the last."""
    text = page(busy(), events_max=10, violated=Violated(partition="orders-0"))
    lines = text.split("What happened to orders-0\n")[1].split("\n\n")[0].splitlines()
    assert 10 < len(lines) < 60
    assert any("broker 1 crashes" in line for line in lines)
    assert re.search(r"^ +\(\d+ more\)$", text, re.MULTILINE)
    assert "orders-1" not in text


def test_a_violation_of_no_partition_shows_some_of_them() -> None:
    assert "The logs of orders-0" in page(violated=Violated("I24", "no leader in 90 s", ""))


def test_a_page_from_a_ring_says_that_it_is_not_everything() -> None:
    told = Told(full=False)
    for offset in range(3_000):
        told.appends(1, offset, offset, 1)
    assert "Not every event was kept" in page(told.trace)
    assert "Not every event was kept" not in page()


def test_every_invariant_has_a_meaning() -> None:
    assert list(MEANINGS) == [f"I{number}" for number in range(1, 26)]
    assert "\n\n" not in page(violated=Violated("I99", "something new")).split("seed")[0].rstrip()


# -- a run that teaches


def test_a_scenario_is_told_under_its_headings_with_a_picture_after_each() -> None:
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
    told = Told()
    told.copies(2, 0, 11, 1)
    told.emit("log.truncated", 2, ORDERS, to=10, was=12)
    told.copies(2, 10, 12, 2)
    assert re.findall(r" s  (.*)", narrate(told.trace)) == [
        "broker 2 copies 0..11 (epoch 1)",
        "broker 2 truncates its log from 12 to 10",
        "broker 2 copies 10..12 (epoch 2)",
    ]


def test_a_gap_in_what_was_copied_is_not_covered_up() -> None:
    told = Told()
    told.copies(2, 0, 3, 1)
    told.copies(2, 7, 9, 1)
    assert re.findall(r" s  (.*)", narrate(told.trace)) == ["broker 2 copies 0..3 (epoch 1)", "broker 2 copies 7..9 (epoch 1)"]


def test_noise_is_left_out() -> None:
    text = narrate(kip_279())
    for noise in ("votes for", "segment", "isr.member_lagged", "proposes", "client 201", "partition epoch"):
        assert noise not in text


def test_failed_check_of_a_story_is_on_the_page() -> None:
    told = Told()
    told.emit("scenario.must", 0, text="broker 3 goes on at offset 12", holds=False)
    assert "IT DOES NOT HOLD: broker 3 goes on at offset 12" in narrate(told.trace)


def test_many_checks_that_held_are_counted() -> None:
    """A scenario of three hundred writes says of each that it was acknowledged."""
    told = Told()
    for number in range(300):
        told.appends(1, number, number, 0)
        told.emit("scenario.must", 0, text=f"write {number} is acknowledged", holds=True)
    assert re.findall(r" s  (.*)", narrate(told.trace)) == [
        "broker 1 appends 0..299 in epoch 0",
        "it holds: write 0 is acknowledged",
        "it holds: write 1 is acknowledged",
        "it holds, like 297 other things: write 299 is acknowledged",
    ]


def test_many_topics_are_created_in_one_sentence() -> None:
    told = Told()
    for number in range(20):
        told.emit("metadata.topic", 101, name=f"t{number}", topic_id="0")
    assert re.findall(r" s  (.*)", narrate(told.trace)) == ["topics t0, t1, t2 and 17 more are created"]


def test_of_many_partitions_those_are_followed_to_which_most_happened() -> None:
    told = Told()
    for number in range(50):
        told.appends(1, 0, 0, 1, partition=f"t-{number}")
    for number in (48, 7, 20):
        told.emit("log.truncated", 1, f"t-{number}", to=0, was=1)
    text = narrate(told.trace)
    assert "There are 47 more partitions; this page follows t-7, t-20 and t-48." in text
    assert "t-3 " not in text


def test_a_log_that_tells_its_epochs_when_it_is_opened_is_known_from_then_on() -> None:
    told = Told()
    told.emit("log.recovered", 1, ORDERS, start=5, end=30, epochs=[[0, 0], [2, 10], [3, 20], [4, 30]], hw=28)
    replica = Picture.after(told.trace.events()).replicas[ORDERS][1]
    assert (str(replica), replica.start, replica.hw) == ("5..9@e0 10..19@e2 20..29@e3", 5, 28)


def test_a_follower_that_is_behind_its_leaders_start_begins_anew() -> None:
    told = Told()
    told.copies(2, 0, 19, 1)
    assert sentence(told, "log.truncated", 2, ORDERS, to=100, was=20) == (
        "broker 2 restarts orders-0 at 100, where its leader's begins"
    )
    told.emit("log.truncated", 2, ORDERS, to=100, was=20)
    told.copies(2, 100, 104, 3)
    replica = Picture.after(told.trace.events()).replicas[ORDERS][2]
    assert (str(replica), replica.start) == ("100..104@e3", 100)


def test_a_fault_that_ends_is_told_as_its_end() -> None:
    told = Told()
    told.emit("fault.begin", 1, fault="cut_node", number=3, victim=1)
    assert sentence(told, "fault.end", 1, fault="cut_node", number=3) == "broker 1 is no longer cut off"
    told.emit("fault.begin", 0, fault="clog", number=4, nodes=[1, 2])
    ended = sentence(told, "fault.end", 0, fault="clog", number=4)
    assert ended == "over: the links of brokers 1 and 2 are clogged: messages wait"


def test_a_crash_that_is_told_by_the_node_is_not_told_by_the_fault_again() -> None:
    told = Told()
    told.emit("node.crashed", 1, lossy=False)
    told.emit("fault.begin", 1, fault="crash", number=1, victim=1)
    assert len(re.findall(r" s  (.*)", narrate(told.trace))) == 1


def test_a_fault_is_over_when_everything_is_healed() -> None:
    told = Told()
    told.emit("fault.begin", 1, fault="cut")
    told.emit("fault.begin", 2, fault="reset", number=9, victim=2)
    assert [fault.name for fault in Picture.after(told.trace.events()).faults] == ["cut"]
    told.emit("phase", 0, name="heal")
    assert Picture.after(told.trace.events()).faults == []


def test_several_partitions_are_named_and_the_clusters_own_are_left_out() -> None:
    told = Told()
    for name in ("a-0", "b-0", "__cluster_metadata-0"):
        told.appends(1, 0, 0, 1, partition=name)
    text = narrate(told.trace)
    assert "broker 1 appends 0 to a-0 in epoch 1" in text
    assert "\n  b-0\n" in text
    assert "__cluster_metadata" not in text
    assert "b-0" not in narrate(told.trace, partition="a-0")


@pytest.mark.parametrize("text", [narrate(kip_279()), narrate(busy()), page(), page(busy())])
def test_no_line_is_longer_than_a_hundred_columns(text: str) -> None:
    assert max(map(len, text.splitlines())) <= WIDTH
    assert not [line for line in text.splitlines() if line != line.rstrip()]
