"""The verdict as numbers, text and JSON, and the recorded fields of each operation."""

from __future__ import annotations

import json
from math import inf

import pytest

from strandline.testing.history import FAIL, INFO, OK, OPEN, Dump, History, check, compare_dumps

P = ("orders", 0)


def lossy() -> History:
    h = History(lambda: 7.25)
    for offset, value in enumerate("abcdefgh"):
        h.invoke("p", P, value).ok(offset)
    h.invoke("p", P, "x").fail()
    h.poll("r", P, [(0, "a"), (1, "x")], final=True)
    return h


def test_verdict_shows_meaning_and_examples_of_each_anomaly() -> None:
    assert str(check(lossy())).splitlines() == [
        "8 acknowledged, 0 unknown, 1 failed, 2 read: 1 inconsistent-offsets, 7 lost-write, 1 aborted-read",
        "  inconsistent-offsets: one offset holds two values",
        "    orders-0: offset 1 was acknowledged for 'b', and 'x' was read there (at 7.250 s)",
        "  lost-write: an acknowledged record, or one that a consumer had read, is missing",
        *(
            f"    orders-0: {value!r}, acknowledged at {offset}, is not in the final read (at 7.250 s)"
            for offset, value in enumerate("bcdef", 1)
        ),
        "    ... and 2 more",
        "  aborted-read: a consumer read a value whose send certainly failed (G1a)",
        "    orders-0: 'x' was read at 1, and its send had failed",
        "  unseen: 7 acknowledged records at the end, at most 7",
    ]


def test_a_good_verdict_is_one_line() -> None:
    h = History()
    h.invoke("p", P, "a").ok(0)
    h.poll("r", P, [(0, "a")], final=True)
    assert str(check(h)) == "1 acknowledged, 0 unknown, 0 failed, 1 read: no anomaly"


def test_an_anomaly_names_its_partition_as_logs_do() -> None:
    h = History()
    for partition in ("lines", 3, ("orders", 0), (b"\x01\xff", 2), b"\x0a"):
        h.poll("r", partition, [(0, repr(partition))])
    assert [str(a).partition(":")[0] for a in check(h).anomalies] == [
        f"unwritten-read in {name}" for name in ("lines", "partition 3", "orders-0", "01ff-2", "0a")
    ]


def test_a_verdict_is_json() -> None:
    """Its keys do not change, because reports are compared over years."""
    written = json.loads(json.dumps(check(lossy()).as_dict(examples=3)))
    assert written["verdict"] == "bad"
    assert written["anomalies"] == {"inconsistent-offsets": 1, "lost-write": 7, "aborted-read": 1}
    assert [e["name"] for e in written["examples"]] == ["inconsistent-offsets", "lost-write", "aborted-read"]
    assert written["examples"][1] == {
        "name": "lost-write",
        "partition": "orders-0",
        "text": "'b', acknowledged at 1, is not in the final read",
        "offset": 1,
        "at": 7.25,
    }
    assert set(written) == {
        "verdict", "acknowledged", "unknown", "failed", "read", "polls", "anomalies", "examples", "duplicates_allowed",
        "unpromised_lost", "unseen", "realtime_lag",
    }  # fmt: skip
    assert json.loads(json.dumps(check(History()).as_dict()))["verdict"] == "ok"


# -- what is measured -------------------------------------------------------------------------------------------------


def test_worst_lag_is_the_longest_time_that_a_poll_was_behind() -> None:
    """Jepsen's measure: the time from when the first missed record was known until the poll began."""
    h = History()
    for offset, value in enumerate("abc"):
        h.invoke("p", P, value, at=offset).ok(offset, at=offset + 1)  # known at 1, 2, 3
    h.poll("r", P, [(0, "a")], began_at=1.5, at=1.6)  # b is not known yet
    h.poll("r", P, [], began_at=2.5, at=2.6)  # 0.5 s behind
    h.poll("r", P, [(1, "b")], began_at=9, at=9.1)  # c is known since 3
    h.poll("r", P, [(2, "c")], began_at=50, at=50.1)  # at the end: no lag
    lag = check(h).lag
    assert lag is not None
    assert (lag.seconds, lag.process, lag.partition, lag.offset, lag.at) == (6, "r", P, 2, 9)
    assert "worst lag: r did not reach offset 2 of orders-0, which had been in the log for 6.000 s" in str(check(h))
    assert check(h).as_dict()["realtime_lag"] == {"seconds": 6, "process": "r", "partition": "orders-0", "offset": 2, "at": 9}


def test_read_record_counts_for_the_lag() -> None:
    """It counts although its acknowledgement arrived late, or never."""
    h = History()
    h.invoke("p", P, "a", at=0).info(at=1)
    h.poll("other", P, [(0, "a")], at=2)
    h.poll("r", P, [], began_at=5, at=6)
    lag = check(h).lag
    assert lag is not None
    assert lag.seconds == 3


def test_polls_without_a_start_time_have_no_lag() -> None:
    h = History()
    h.invoke("p", P, "a").ok(0)
    h.poll("r", P, [])
    assert check(h).lag is None


def test_consumer_has_no_lag_between_a_jump_and_its_next_read() -> None:
    h = History()
    h.invoke("p", P, "a", at=0).ok(0, at=1)
    h.seek("r", P)
    h.poll("r", P, [], began_at=9, at=10)
    assert check(h).lag is None
    h.seek("r", P, 0)
    h.poll("r", P, [], began_at=12, at=13)
    lag = check(h).lag
    assert lag is not None
    assert lag.seconds == 11


def test_unseen_counts_acknowledged_records_until_they_are_read() -> None:
    h = History()
    for at, value in enumerate("abc"):
        h.invoke("p", P, value, at=at).ok(at, at=at + 0.5)
    h.invoke("p", P, "d", at=3, acks=0).ok(at=3)  # nothing is acknowledged
    h.poll("r", P, [(0, "a")], at=2)
    h.poll("r", P, [(1, "b"), (2, "c")], at=5)
    unseen = check(h).unseen
    assert (unseen.most, unseen.most_at, unseen.last, unseen.last_zero_at) == (2, 1.5, 0, 5)
    assert unseen.series == [(0.5, 1), (1.5, 2), (2.5, 2), (5, 0)]


def test_record_read_before_its_acknowledgement_is_never_unseen() -> None:
    h = History()
    send = h.invoke("p", P, "a", at=0)
    h.poll("r", P, [(0, "a")], at=1)
    send.ok(0, at=2)
    assert check(h).unseen.most == 0


def test_permitted_anomalies_are_counted() -> None:
    h = History()
    h.invoke("p", P, "a", idempotent=False).ok(0)
    h.invoke("p", P, "b", acks=1).ok(2)
    h.poll("r", P, [(0, "a"), (1, "a")], final=True)
    verdict = check(h, acks="all")
    assert verdict.good
    assert (verdict.duplicates_allowed, verdict.unpromised_lost) == (1, 1)
    assert "permitted: 1 duplicates" in str(verdict)


# -- what is written down ---------------------------------------------------------------------------------------------


def test_a_send_ends_once() -> None:
    """Two ends of one send are a mistake in the test that writes the history; judged quietly, it would hide a loss."""
    send = History().invoke("p", P, "a")
    assert send.outcome == OPEN
    send.info()
    with pytest.raises(ValueError, match="info, then ok"):
        send.ok(0)
    assert send.outcome == INFO


def test_an_operation_keeps_both_its_times() -> None:
    """Virtual time gives the order; the wall clock leads to the place in a log."""
    wall = iter((1000.0, 1001.5, 1002.0))
    virtual = iter((5.0, 6.0, 7.0))
    h = History(lambda: next(virtual), lambda: next(wall))
    send = h.invoke("p", P, "a")
    send.fail()
    h.poll("r", P, [])
    assert (send.outcome, send.invoked_at, send.ended_at, send.invoked_wall, send.ended_wall) == (FAIL, 5, 6, 1000, 1001.5)
    assert (h.polls[0].ended_at, h.polls[0].wall) == (7, 1002)


def test_an_open_send_has_no_end() -> None:
    send = History().invoke("p", P, "a")
    assert send.ended_at == inf


def test_acks_are_taken_as_producers_write_them() -> None:
    h = History()
    assert [h.invoke("p", P, n, acks=a).acks for n, a in enumerate(("all", -1, "1", 1, "0", 0))] == [-1, -1, 1, 1, 0, 0]


def test_a_history_can_be_published_as_jepsen_writes_it() -> None:
    h = History(wall=lambda: 99.0)
    send = h.invoke("p", P, "a", session=4, at=1)
    send.written_as(7, 0, 12)
    send.ok(3, leader_epoch=2, at=3)
    h.invoke("p", P, "b", acks=1, at=2)
    h.poll("r", P, [(3, "a")], began_at=4, at=5)
    h.latest("c", P, 4, began_at=6, at=7)
    events = list(h.events())
    assert [(e["time"], e["type"], e["f"]) for e in events] == [
        (1, "invoke", "send"),
        (2, "invoke", "send"),
        (3, OK, "send"),
        (4, "invoke", "poll"),
        (5, OK, "poll"),
        (6, "invoke", "latest"),
        (7, OK, "latest"),
    ]
    assert events[0] == {
        "time": 1, "wall": 99, "type": "invoke", "f": "send", "process": "p", "partition": P, "value": "a", "acks": -1,
        "session": 4, "producer_id": 7, "producer_epoch": 0, "sequence": 12,
    }  # fmt: skip
    assert events[2]["offset"] == 3
    assert events[2]["leader_epoch"] == 2
    assert events[4]["records"] == [(3, "a")]


# -- dumps ------------------------------------------------------------------------------------------------------------


LOG = [(0, 1, b"one"), (1, 1, b"two"), (2, 2, b"three")]


def test_equal_dumps_are_equal() -> None:
    comparison = compare_dumps(P, {"broker-1": LOG, "broker-2": iter(LOG), "broker-3": [Dump(*entry) for entry in LOG]})
    assert comparison.equal
    assert str(comparison) == "orders-0 on broker-1, broker-2, broker-3: equal (3 entries)"


@pytest.mark.parametrize(
    ("other", "difference", "offset"),
    [
        (LOG[:2], "broker-2 holds nothing more; broker-1 holds offset 2 of epoch 2, 5 bytes", 2),
        (
            [*LOG, (3, 2, b"x")],
            "broker-2 holds offset 3 of epoch 2, 1 bytes; broker-1 holds nothing more",
            3,
        ),
        (
            [*LOG[:2], (2, 1, b"three")],
            "broker-2 holds offset 2 of epoch 1, 5 bytes; broker-1 holds offset 2 of epoch 2, 5 bytes",
            2,
        ),
        (
            [LOG[0], (1, 1, b"twO"), LOG[2]],
            "broker-2 holds offset 1 of epoch 1, 3 bytes, other from byte 2 on; broker-1 holds offset 1 of epoch 1, 3 bytes",
            1,
        ),
        ([LOG[0], LOG[2]], "broker-2 holds offset 2 of epoch 2, 5 bytes; broker-1 holds offset 1 of epoch 1, 3 bytes", 1),
        ([LOG[0], LOG[0]], "broker-2 holds offset 0 after 0", 0),
        ([], "broker-2 holds nothing more; broker-1 holds offset 0 of epoch 1, 3 bytes", 0),
    ],
)
def test_dump_comparison_shows_the_first_difference(other: list[tuple[int, int, bytes]], difference: str, offset: int) -> None:
    comparison = compare_dumps(P, {"broker-1": LOG, "broker-2": other, "broker-3": LOG})
    assert not comparison.equal
    assert comparison.difference == difference
    assert comparison.offset == offset
    assert "DIFFERENT" in str(comparison)


def test_deletable_records_are_not_compared() -> None:
    assert compare_dumps(P, {"broker-1": LOG, "broker-2": LOG[2:]}, log_start=2).equal
    assert not compare_dumps(P, {"broker-1": LOG, "broker-2": LOG[2:]}, log_start=1).equal
    h = History()
    h.log_start(P, 2)
    assert check(h, replicas={P: {"broker-1": LOG, "broker-2": LOG[2:]}}).good
