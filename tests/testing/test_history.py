"""The history checker is judged by hand-written histories: each anomaly is found, and a good history is left alone."""

from __future__ import annotations

import time

from strandline.testing.history import History, check

P = ("orders", 0)


def sent(history: History, values: dict[str, int], process: str = "producer") -> None:
    for value, offset in values.items():
        history.invoke(process, P, value).ok(offset)


def found(history: History, **options: bool) -> dict[str, int]:
    return dict(check(history, **options).counts())


def test_a_good_history_has_no_anomaly() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.invoke("producer", P, "d").fail()
    h.invoke("producer", P, "e").info()
    h.poll("reader", P, [(0, "a"), (1, "b")])
    h.poll("reader", P, [(2, "c"), (3, "e")])
    h.poll("last", P, [(0, "a"), (1, "b"), (2, "c"), (3, "e")], final=True)
    verdict = check(h)
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.failed, verdict.unknown, verdict.read) == (3, 1, 1, 4)


def test_two_values_at_one_offset_are_inconsistent() -> None:
    """A fork: two clients hold different truths about one offset."""
    h = History()
    h.invoke("p", P, "a").info()
    h.invoke("q", P, "b").info()
    h.poll("r1", P, [(0, "a")])
    h.poll("r2", P, [(0, "b")])
    assert found(h) == {"inconsistent-offsets": 1}


def test_two_acknowledgements_of_one_offset_are_inconsistent() -> None:
    """Two leaders of one epoch would do this, and no read is needed to see it."""
    h = History()
    h.invoke("p", P, "a").ok(0)
    h.invoke("q", P, "b").ok(0)
    assert found(h) == {"inconsistent-offsets": 1}


def test_a_value_at_two_offsets_is_a_duplicate() -> None:
    h = History()
    sent(h, {"a": 0})
    h.poll("r", P, [(0, "a"), (1, "a")])
    assert found(h) == {"duplicate": 1}
    assert found(h, idempotent=False) == {}


def test_an_acknowledged_value_below_the_highest_read_that_nobody_read_is_lost() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.poll("r1", P, [(0, "a")])
    h.poll("r2", P, [(2, "c")])
    assert found(h) == {"lost-write": 1}


def test_an_acknowledged_value_that_the_final_read_misses_is_lost() -> None:
    """The tail: nothing beyond it was read, so only the final read can tell."""
    h = History()
    sent(h, {"a": 0, "b": 1})
    h.poll("r", P, [(0, "a")], final=True)
    assert found(h) == {"lost-write": 1}


def test_a_value_that_was_read_once_may_not_vanish() -> None:
    """Its send is unknown, yet it was visible: the high watermark went back."""
    h = History()
    sent(h, {"a": 0})
    h.invoke("p", P, "b").info()
    h.poll("early", P, [(0, "a"), (1, "b")])
    h.poll("late", P, [(0, "a")], final=True)
    assert found(h) == {"lost-write": 1}


def test_reading_a_value_whose_send_failed_is_an_aborted_read() -> None:
    h = History()
    h.invoke("p", P, "a").fail()
    h.poll("r", P, [(0, "a")])
    assert found(h) == {"aborted-read": 1}


def test_reading_a_value_that_nobody_sent_is_found() -> None:
    h = History()
    h.poll("r", P, [(0, "ghost")])
    assert found(h) == {"unwritten-read": 1}


def test_a_consumer_that_goes_over_a_known_record_skips() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.poll("r1", P, [(0, "a"), (1, "b"), (2, "c")])
    h.poll("r2", P, [(0, "a")])
    h.poll("r2", P, [(2, "c")])
    assert found(h) == {"poll-skip": 1}


def test_a_skip_inside_one_poll_is_found_too() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.poll("r1", P, [(0, "a"), (1, "b"), (2, "c")])
    h.poll("r2", P, [(0, "a"), (2, "c")])
    assert found(h) == {"poll-skip": 1}


def test_a_consumer_that_reads_an_offset_again_is_nonmonotonic() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1})
    h.poll("r", P, [(0, "a"), (1, "b")])
    h.poll("r", P, [(1, "b")])
    assert found(h) == {"nonmonotonic-poll": 1}


def test_a_consumer_may_go_anywhere_after_a_seek() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.poll("r", P, [(0, "a"), (1, "b"), (2, "c")])
    h.seek("r", P)
    h.poll("r", P, [(0, "a")])
    assert found(h) == {}


def test_a_later_send_at_a_lower_offset_is_nonmonotonic() -> None:
    """Order of one producer within one partition is a promise, also across its retries."""
    h = History()
    h.invoke("p", P, "a").ok(1)
    h.invoke("p", P, "b").ok(0)
    assert found(h) == {"nonmonotonic-send": 1}


def test_an_offset_that_nobody_wrote_is_a_gap() -> None:
    h = History()
    sent(h, {"a": 0, "b": 2})
    h.poll("r", P, [(0, "a"), (2, "b")])
    assert found(h) == {"gap": 1}


def test_partitions_are_judged_apart() -> None:
    h = History()
    h.invoke("p", ("orders", 0), "a").ok(0)
    h.invoke("p", ("orders", 1), "b").ok(0)
    h.poll("r", ("orders", 0), [(0, "a")], final=True)
    h.poll("r", ("orders", 1), [(0, "b")], final=True)
    assert found(h) == {}


def test_a_million_operations_are_judged_in_linear_time() -> None:
    """The bound is generous; a quadratic check would need hours."""
    h = History()
    for i in range(500_000):
        h.invoke("p", P, i).ok(i)
    for start in range(0, 500_000, 500):
        h.poll("r", P, [(i, i) for i in range(start, start + 500)], final=True)
    started = time.monotonic()
    assert check(h).good
    assert time.monotonic() - started < 60
