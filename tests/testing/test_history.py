"""The history checker is judged by hand-written histories: each anomaly is found, as that and nothing else, and whatever
comes near it without breaking a promise is left alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from strandline.testing.history import MEANINGS, History, Send, check

P = ("orders", 0)
Build = Callable[[History], dict[str, Any] | None]
"""Writes a history; returns the options of the check."""

BAD: dict[str, list[Build]] = {}
GOOD: list[Build] = []


def bad(name: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        BAD.setdefault(name, []).append(build)
        return build

    return register


def good(build: Build) -> Build:
    GOOD.append(build)
    return build


def by_their_acks(build: Build) -> Build:
    """Judge each send by Kafka's promise for its own acks, which is weaker."""

    @functools.wraps(build)
    def weaker(history: History) -> dict[str, Any]:
        return {"acks": "all", **(build(history) or {})}

    return weaker


class Clock:
    """A clock that moves only when a history moves it. Two operations at the same time have no order."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def build_history(build: Build) -> tuple[History, dict[str, Any]]:
    history = History(Clock())
    return history, build(history) or {}


def sent(h: History, values: dict[str, int], process: str = "producer", **options: Any) -> list[Send]:
    """Sends that were acknowledged, each at its offset."""
    sends = [h.invoke(process, P, value, **options) for value in values]
    for send, offset in zip(sends, values.values(), strict=True):
        send.ok(offset)
    return sends


def read(h: History, process: str, values: str, first: int = 0, **options: Any) -> None:
    """`read(h, "r", "abc", 4)`: a at 4, b at 5, c at 6."""
    h.poll(process, P, list(enumerate(values, first)), **options)


# -- one offset, one value --------------------------------------------------------------------------------------------


@bad("inconsistent-offsets")
def two_readers_hold_different_truths(h: History) -> None:
    """The readers see a fork."""
    h.invoke("p", P, "a").info()
    h.invoke("q", P, "b").info()
    read(h, "r1", "a")
    read(h, "r2", "b")


@bad("inconsistent-offsets")
def two_producers_got_the_same_offset(h: History) -> None:
    """Two leaders of one epoch would do this, and no read is needed to see it."""
    h.invoke("p", P, "a").ok(0)
    h.invoke("q", P, "b").ok(0)


@bad("inconsistent-offsets")
def an_offset_changes_in_the_midst_of_a_longer_poll(h: History) -> None:
    for value in "abcx":
        h.invoke(value, P, value).info()
    read(h, "r1", "abc")
    read(h, "r2", "axc")


@good
def the_same_offset_in_another_partition_is_another_one(h: History) -> None:
    for index, value in enumerate("ab"):
        h.invoke("p", ("orders", index), value).ok(0)
        h.poll("r", ("orders", index), [(0, value)], final=True)


@good
def a_recreated_topic_is_another_one(h: History) -> None:
    """Partitions are named by the topic's id."""
    for topic_id, value in ((b"\x01" * 16, "a"), (b"\x02" * 16, "b")):
        h.invoke("p", (topic_id, 0), value).ok(0)
        h.poll("r", (topic_id, 0), [(0, value)], final=True)


@good
@by_their_acks
def the_offset_of_a_record_that_was_lost_with_acks_1_is_given_away(h: History) -> None:
    h.invoke("p", P, "a", acks=1).ok(0)
    h.invoke("q", P, "b").ok(0)
    read(h, "r", "b", final=True)


# -- once -------------------------------------------------------------------------------------------------------------


@bad("duplicate")
def a_retry_was_appended_again(h: History) -> None:
    sent(h, {"a": 0})
    read(h, "r", "aa")


@bad("duplicate")
def a_value_was_acknowledged_here_and_read_there(h: History) -> None:
    """No consumer has read up to the acknowledged offset, so the copy may be before or after it."""
    sent(h, {"a": 1})
    read(h, "r", "a")


@bad("duplicate")
def an_idempotent_producer_among_others(h: History) -> None:
    """The promise belongs to each send, not to the history."""
    sent(h, {"a": 0}, "loose", idempotent=False)
    sent(h, {"b": 2}, "strict", idempotent=True)
    read(h, "r", "aabb")


@good
def a_producer_that_is_not_idempotent_sends_twice(h: History) -> None:
    sent(h, {"a": 0}, idempotent=False)
    read(h, "r", "aa")


@good
def all_producers_are_not_idempotent(h: History) -> dict[str, Any]:
    sent(h, {"a": 0})
    read(h, "r", "aa")
    return {"idempotent": False}


@good
def an_application_sends_a_value_again(h: History) -> None:
    """It got no answer to the first send. Two sends have two offsets."""
    h.invoke("p", P, "a").info()
    h.invoke("p", P, "a").ok(1)
    read(h, "r", "aa", final=True)


@bad("duplicate")
def a_value_that_was_sent_twice_is_there_three_times(h: History) -> None:
    h.invoke("p", P, "a").info()
    h.invoke("p", P, "a").ok(1)
    read(h, "r", "aaa", final=True)


# -- not lost ---------------------------------------------------------------------------------------------------------


@bad("lost-write")
def an_acknowledged_value_is_unread_although_a_consumer_read_beyond_it(h: History) -> None:
    sent(h, {"a": 0, "b": 1, "c": 2})
    read(h, "r1", "a")
    read(h, "r2", "c", 2)


@bad("lost-write")
def an_acknowledged_value_is_not_in_the_final_read(h: History) -> None:
    """No record after it was read, so only the final read shows the loss."""
    sent(h, {"a": 0, "b": 1})
    read(h, "r", "a", final=True)


@bad("lost-write")
def a_value_that_was_read_is_gone(h: History) -> None:
    """The outcome of the send is unknown, but a consumer read the record, so it was committed."""
    sent(h, {"a": 0})
    h.invoke("p", P, "b").info()
    read(h, "early", "ab")
    read(h, "late", "a", final=True)


@bad("lost-write")
def a_value_with_acks_1_that_was_read_is_gone(h: History) -> None:
    """The acks alone would permit the loss, but the record was read, so it was below the high watermark."""
    h.invoke("p", P, "a", acks=1).ok(0)
    read(h, "early", "a")
    read(h, "late", "", final=True)


@bad("lost-write")
def a_whole_partition_is_gone(h: History) -> None:
    """A reader reports no poll for an empty partition; still, the final read covers all partitions."""
    sent(h, {"a": 0})
    h.poll("late", ("orders", 1), [], final=True)


@bad("lost-write")
def an_acknowledged_value_is_missing_though_the_acknowledgement_did_not_say_where(h: History) -> None:
    sent(h, {"a": -1})
    read(h, "late", "", final=True)


@good
def what_ended_in_doubt_may_be_missing(h: History) -> None:
    sent(h, {"a": 0})
    h.invoke("p", P, "b").info()
    h.invoke("p", P, "c")
    read(h, "r", "a", final=True)


@good
def what_ended_in_doubt_may_be_there(h: History) -> None:
    sent(h, {"a": 0})
    h.invoke("p", P, "b").info()
    h.invoke("p", P, "c")
    read(h, "r", "abc", final=True)


@good
def an_acknowledged_value_beyond_what_was_read(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    read(h, "r", "a")


@bad("lost-write")
def a_record_that_its_leader_alone_acknowledged_is_missing(h: History) -> None:
    """The producer received an offset: by default every acknowledgement is a promise."""
    h.invoke("p", P, "a", acks=1).ok(0)
    read(h, "r", "", final=True)


@good
def what_no_broker_answered_may_be_missing(h: History) -> None:
    """With acks=0 the producer gets no response."""
    h.invoke("p", P, "a", acks=0).ok()
    read(h, "r", "", final=True)


@good
def the_end_lies_before_what_a_leader_alone_acknowledged(h: History) -> None:
    """The high watermark follows later, without a loss."""
    h.invoke("p", P, "a", acks=1, at=1).ok(0, at=2)
    h.latest("c", P, 0, began_at=3, at=4)
    read(h, "late", "a", final=True, at=6)


@bad("lost-write")
def one_of_two_copies_of_a_value_is_missing(h: History) -> None:
    """Two sends of one value are two records: the copy of one does not replace the other."""
    h.invoke("p", P, "a").ok(0)
    h.invoke("p", P, "a").ok(1)
    read(h, "r", "a", final=True)


@bad("lost-write")
def a_record_that_was_acknowledged_without_a_partition_is_missing(h: History) -> None:
    h.invoke("p", None, "a").ok(3)
    read(h, "r", "", final=True)


@good
def a_record_that_was_acknowledged_without_a_partition_is_there(h: History) -> None:
    h.invoke("p", None, "a").ok(0)
    read(h, "r", "a", final=True)


@good
def a_record_without_a_partition_may_lie_below_a_log_start(h: History) -> None:
    """Its partition is not known, so a permitted deletion in any partition excuses it."""
    h.invoke("p", None, "a").ok()
    sent(h, {"b": 1})
    h.log_start(P, 1)
    read(h, "r", "b", 1, final=True)


@good
def a_record_without_a_partition_may_lie_in_a_declared_loss(h: History) -> None:
    h.invoke("p", None, "a").ok()
    h.loss(P, 0)
    read(h, "r", "", final=True)


@bad("lost-write")
def a_record_without_a_partition_that_began_after_the_loss_is_missing(h: History) -> None:
    h.loss(P, 0, at=1)
    h.invoke("p", None, "a", at=2).ok(at=3)
    read(h, "r", "", final=True, at=4)


@good
@by_their_acks
def what_was_acknowledged_by_the_leader_alone_may_be_missing(h: History) -> None:
    h.invoke("p", P, "a", acks=1).ok(0)
    h.invoke("p", P, "b", acks="0").ok()
    read(h, "r", "", final=True)


@good
def what_lay_below_the_log_start_is_deleted(h: History) -> None:
    sent(h, {"a": 0, "b": 1, "c": 2})
    read(h, "early", "ab")
    h.log_start(P, 2)
    read(h, "late", "c", 2, final=True)


@bad("lost-write")
def what_lay_at_the_log_start_is_gone(h: History) -> None:
    sent(h, {"a": 0, "b": 1, "c": 2})
    read(h, "early", "ab")
    h.log_start(P, 1)
    read(h, "late", "c", 2, final=True)


@good
def no_consumer_has_read_from_the_beginning(h: History) -> None:
    """A consumer that follows the end declares that; then no record before it can be missed."""
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.seek("r", P)
    read(h, "r", "c", 2)


# -- nothing else -----------------------------------------------------------------------------------------------------


@bad("aborted-read")
def a_value_was_read_whose_send_failed(h: History) -> None:
    h.invoke("p", P, "a").fail()
    read(h, "r", "a")


@bad("aborted-read")
def a_value_was_read_whose_send_failed_before_it_had_a_partition(h: History) -> None:
    h.invoke("p", None, "a").fail()
    read(h, "r", "a")


@good
def a_value_was_refused_and_sent_again(h: History) -> None:
    h.invoke("p", P, "a").fail()
    h.invoke("p", P, "a").ok(0)
    h.invoke("p", P, "b").ok(1)
    h.invoke("p", P, "b").fail()
    read(h, "r", "ab", final=True)


@bad("unwritten-read")
def a_value_was_read_that_no_producer_sent(h: History) -> None:
    read(h, "r", "a")


@bad("unwritten-read")
def a_value_was_read_that_was_sent_to_another_partition(h: History) -> None:
    h.invoke("p", ("orders", 1), "a").info()
    read(h, "r", "a")


@good
def a_value_was_read_whose_partition_the_producer_chose(h: History) -> None:
    h.invoke("p", None, "a").ok(0, partition=P)
    h.invoke("p", None, "b").info()
    read(h, "r", "ab", final=True)


# -- consumers --------------------------------------------------------------------------------------------------------


def three(h: History) -> None:
    sent(h, {"a": 0, "b": 1, "c": 2})
    read(h, "other", "abc")


@bad("int-poll-skip")
def one_poll_goes_over_a_record(h: History) -> None:
    three(h)
    h.poll("r", P, [(0, "a"), (2, "c")])


@bad("int-nonmonotonic-poll")
def one_poll_goes_back(h: History) -> None:
    three(h)
    h.poll("r", P, [(0, "a"), (1, "b"), (1, "b"), (2, "c")])


@bad("poll-skip")
def the_next_poll_goes_over_a_record(h: History) -> None:
    three(h)
    read(h, "r", "a")
    read(h, "r", "c", 2)


@bad("poll-skip")
def a_poll_after_a_seek_begins_beyond_the_place(h: History) -> None:
    three(h)
    read(h, "r", "a")
    h.seek("r", P, 1)
    read(h, "r", "c", 2)


@bad("nonmonotonic-poll")
def the_next_poll_reads_an_offset_again(h: History) -> None:
    three(h)
    read(h, "r", "ab")
    read(h, "r", "bc", 1)


@good
def a_consumer_may_go_anywhere_after_a_seek(h: History) -> None:
    three(h)
    read(h, "r", "ab")
    h.seek("r", P)
    read(h, "r", "a")
    h.seek("r", P, 2)
    read(h, "r", "c", 2)


@good
def a_consumer_may_go_anywhere_after_a_rebalance(h: History) -> None:
    three(h)
    read(h, "r", "abc")
    h.rebalance("r")
    read(h, "r", "bc", 1)


@good
def a_restarted_consumer_may_begin_anywhere(h: History) -> None:
    three(h)
    read(h, "r", "abc", session=1)
    read(h, "r", "ab", session=2)
    read(h, "r", "c", 2, session=2)


@bad("nonmonotonic-poll")
def a_seek_excuses_one_jump(h: History) -> None:
    three(h)
    read(h, "r", "ab")
    h.seek("r", P, 0)
    read(h, "r", "a")
    read(h, "r", "a")


@good
def polls_that_bring_nothing(h: History) -> None:
    three(h)
    read(h, "r", "a")
    read(h, "r", "")
    read(h, "r", "bc", 1)


@good
def a_consumer_goes_over_what_was_deleted(h: History) -> None:
    three(h)
    read(h, "r", "a")
    h.log_start(P, 2)
    read(h, "r", "c", 2)


@bad("poll-skip")
def a_consumer_goes_over_more_than_was_deleted(h: History) -> None:
    three(h)
    read(h, "r", "a")
    h.log_start(P, 1)
    read(h, "r", "c", 2)


@bad("gap")
def a_reader_skips_offsets_that_no_send_explains(h: History) -> None:
    sent(h, {"a": 0, "b": 2})
    h.poll("r", P, [(0, "a"), (2, "b")])


@bad("gap")
def a_record_in_doubt_does_not_explain_a_hole_that_a_reader_went_over(h: History) -> None:
    sent(h, {"a": 0, "b": 2})
    h.invoke("q", P, "c").info()
    h.poll("r", P, [(0, "a"), (2, "b")])


@bad("gap")
def there_are_more_holes_than_records_in_doubt(h: History) -> None:
    sent(h, {"a": 0, "b": 3})
    h.invoke("q", P, "c").info()
    read(h, "r1", "a")
    read(h, "r2", "b", 3)


@bad("gap")
@by_their_acks
def a_record_that_was_lost_with_acks_1_leaves_no_hole(h: History) -> None:
    """The next record gets its offset."""
    sent(h, {"a": 0, "c": 2})
    h.invoke("q", P, "b", acks=1).ok(1)
    h.poll("r", P, [(0, "a"), (2, "c")])


@good
def records_of_unknown_outcome_may_be_at_unread_offsets(h: History) -> None:
    sent(h, {"a": 0, "b": 3})
    h.invoke("q", P, "c").info()
    h.invoke("q", None, "d").info()
    read(h, "r1", "a")
    read(h, "r2", "b", 3)


@good
def copies_of_a_record_may_be_at_unread_offsets(h: History) -> None:
    sent(h, {"a": 0, "b": 9}, idempotent=False)
    read(h, "r1", "a")
    read(h, "r2", "b", 9)


@good
def offsets_that_hold_no_record_for_consumers(h: History) -> None:
    sent(h, {"a": 0, "b": 3})
    h.no_records(P, 1, 2)
    h.no_records(P, 2, 3)
    h.poll("r", P, [(0, "a"), (3, "b")])


@bad("gap")
def more_offsets_than_were_declared(h: History) -> None:
    sent(h, {"a": 0, "b": 4})
    h.no_records(P, 1, 2)
    h.no_records(P, 2, 3)
    h.poll("r", P, [(0, "a"), (4, "b")])


@good
def a_fence_lies_before_the_first_record_with_its_token(h: History) -> None:
    sent(h, {"a": 0})
    sent(h, {"b": 2, "c": 3}, fencing_token=5)
    h.invoke("q", P, "d", fencing_token=6).info()
    h.poll("r", P, [(0, "a"), (2, "b"), (3, "c"), (5, "d")])


@good
def a_fence_whose_record_was_lost_with_the_leader_lies_anywhere_before(h: History) -> None:
    """The next leader has got only the fence, and other records follow it."""
    sent(h, {"a": 0, "b": 2})
    sent(h, {"c": 3}, fencing_token=5)
    h.poll("r", P, [(0, "a"), (2, "b"), (3, "c")])


@good
def a_fence_stays_when_its_record_is_nowhere(h: History) -> None:
    sent(h, {"a": 0, "b": 2})
    h.invoke("q", P, "c", fencing_token=5).info()
    h.poll("r", P, [(0, "a"), (2, "b")])


@good
def a_fence_has_the_offset_of_a_record_that_was_lost(h: History) -> None:
    """This happens after an unclean election."""
    h.invoke("p", P, "x", acks=1).info()
    read(h, "early", "x", 1)
    sent(h, {"a": 0})
    sent(h, {"b": 2}, fencing_token=5)
    h.poll("late", P, [(0, "a"), (2, "b")])


@good
def a_fence_that_was_lost_is_written_again(h: History) -> None:
    """After an unclean election the log is shorter, and other records get the offset of the first fence."""
    sent(h, {"a": 0})
    for value in "bc":
        h.invoke("q", P, value, acks=1).info()
    h.invoke("p", P, "d", acks=1, fencing_token=5).info()
    h.poll("early", P, [(0, "a"), (1, "b"), (2, "c"), (4, "d")])
    h.loss(P, 1, 5)
    sent(h, {"e": 2, "f": 3, "g": 4}, fencing_token=5)
    h.poll("late", P, [(0, "a"), (2, "e"), (3, "f"), (4, "g")])


@bad("int-poll-skip")
def a_reader_may_skip_a_fence_only(h: History) -> None:
    sent(h, {"a": 1, "x": 2, "b": 3}, fencing_token=5)
    read(h, "early", "ax", 1)
    h.poll("late", P, [(1, "a"), (3, "b")])


@bad("gap")
def a_token_has_one_fence(h: History) -> None:
    sent(h, {"a": 0})
    sent(h, {"b": 2, "c": 4}, fencing_token=5)
    h.poll("r", P, [(0, "a"), (2, "b"), (4, "c")])


@bad("gap")
def a_rejected_token_has_no_fence(h: History) -> None:
    sent(h, {"a": 0, "b": 2})
    h.invoke("q", P, "c", fencing_token=5).fail()
    h.poll("r", P, [(0, "a"), (2, "b")])


@bad("lost-write")
def a_record_does_not_pass_for_a_fence(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    sent(h, {"c": 2}, fencing_token=5)
    h.poll("r", P, [(0, "a"), (2, "c")])


@bad("follower-read-subset")
def a_follower_shows_what_the_final_read_does_not(h: History) -> None:
    sent(h, {"a": 0})
    h.invoke("p", P, "b").info()
    read(h, "r", "ab", follower=True)
    read(h, "late", "a", final=True)


@bad("follower-read-subset")
def a_follower_shows_what_a_reader_of_the_leader_goes_over(h: History) -> None:
    sent(h, {"a": 0, "c": 2})
    h.invoke("q", P, "b").info()
    read(h, "r", "ab", follower=True)
    h.poll("other", P, [(0, "a"), (2, "c")])


@good
def a_follower_is_ahead_of_the_leaders_readers(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    read(h, "r", "ab", follower=True)
    read(h, "other", "a")


# -- order ------------------------------------------------------------------------------------------------------------


@bad("nonmonotonic-send")
def a_later_send_got_the_lower_offset(h: History) -> None:
    """Order of one producer within one partition is a promise, also across its retries."""
    sent(h, {"a": 1, "b": 0})


@good
def a_new_session_of_the_producer_overtakes_the_old_one(h: History) -> None:
    old, new = h.invoke("p", P, "a", session=1), h.invoke("p", P, "b", session=2)
    new.ok(0)
    old.ok(1)


@good
def another_partition_has_another_order(h: History) -> None:
    h.invoke("p", ("orders", 0), "a").ok(5)
    h.invoke("p", ("orders", 1), "b").ok(0)


@good
def two_sends_without_idempotence_change_places(h: History) -> None:
    sent(h, {"a": 1, "b": 0}, idempotent=False)


@good
@by_their_acks
def a_later_send_with_acks_1_got_the_lower_offset(h: History) -> None:
    """The leader changed, and what it had beyond the high watermark is gone."""
    sent(h, {"a": 7, "b": 5}, acks=1)


@good
def sends_of_others_lie_between(h: History) -> None:
    """Jepsen's int-send-skip."""
    sent(h, {"a": 0, "c": 2})
    sent(h, {"b": 1}, "other")
    read(h, "r", "abc", final=True)


@bad("producer-order")
def a_record_in_doubt_was_read_behind_a_later_one(h: History) -> None:
    """There is no acknowledgement, but the order in the log is known from the reads."""
    h.invoke("p", P, "a").info()
    h.invoke("p", P, "b").ok(0)
    read(h, "r", "ba", final=True)


@bad("producer-order")
def sequence_numbers_go_back_along_the_log(h: History) -> None:
    first, second = h.invoke("p", P, "a"), h.invoke("p", P, "b")
    first.written_as(7, 0, 1)
    second.written_as(7, 0, 0)
    first.ok(0)
    second.ok(1)


@good
def sequence_numbers_begin_again(h: History) -> None:
    """They do so with a new epoch, and after the highest number."""
    for offset, (epoch, sequence) in enumerate([(0, 5), (1, 0), (2, (1 << 31) - 1), (2, 0)]):
        send = h.invoke("p", P, f"v{offset}")
        send.written_as(7, epoch, sequence)
        send.ok(offset)


@good
def a_record_in_doubt_of_another_producer_is_read_behind(h: History) -> None:
    h.invoke("q", P, "a").info()
    h.invoke("p", P, "b").ok(0)
    read(h, "r", "ba", final=True)


@bad("realtime-order")
def a_send_that_began_after_an_acknowledgement_got_the_lower_offset(h: History) -> None:
    h.invoke("p", P, "a", at=1).ok(1, at=2)
    h.invoke("q", P, "b", at=3).ok(0, at=4)


@bad("realtime-order")
def a_send_without_idempotence_that_began_after_an_acknowledgement_got_the_lower_offset(h: History) -> None:
    h.invoke("p", P, "a", at=1, idempotent=False).ok(1, at=2)
    h.invoke("p", P, "b", at=3, idempotent=False).ok(0, at=4)


@good
def a_send_that_began_before_the_acknowledgement_got_the_lower_offset(h: History) -> None:
    h.invoke("p", P, "a", at=1).ok(1, at=3)
    h.invoke("q", P, "b", at=3).ok(0, at=4)


@good
@by_their_acks
def a_send_that_began_after_one_with_acks_1_got_the_lower_offset(h: History) -> None:
    h.invoke("p", P, "a", at=1, acks=1).ok(1, at=2)
    h.invoke("q", P, "b", at=3).ok(0, at=4)


# -- the end of the log -----------------------------------------------------------------------------------------------


@bad("nonmonotonic-latest")
def the_end_went_back_for_one_client(h: History) -> None:
    """No clock is needed: the client asked one after the other."""
    h.latest("c", P, 5)
    h.latest("c", P, 4)


@bad("nonmonotonic-latest")
def the_end_went_back_between_two_clients(h: History) -> None:
    h.latest("c", P, 5, began_at=1, at=2)
    h.latest("d", P, 4, began_at=3, at=4)


@bad("nonmonotonic-latest")
def the_end_lies_before_what_was_acknowledged(h: History) -> None:
    h.invoke("p", P, "a", at=0).ok(4, at=1)
    h.latest("c", P, 4, began_at=2, at=3)


@bad("nonmonotonic-latest")
def the_end_lies_before_what_was_read(h: History) -> None:
    """This also finds a follower that returned records above the high watermark."""
    h.invoke("p", P, "a", at=0).info(at=5)
    read(h, "r", "a", 4, follower=True, at=1)
    h.latest("c", P, 4, began_at=2, at=3)


@bad("nonmonotonic-latest")
def the_final_read_ends_before_the_end(h: History) -> None:
    h.latest("c", P, 1, began_at=1, at=2)
    read(h, "late", "", final=True, at=3)


@good
def the_end_of_two_questions_at_the_same_time(h: History) -> None:
    h.latest("c", P, 5, began_at=1, at=3)
    h.latest("d", P, 4, began_at=3, at=4)


@good
@by_their_acks
def the_end_lies_behind_all(h: History) -> None:
    h.invoke("p", P, "a", at=0).ok(0, at=1)
    h.invoke("q", P, "x", at=0, acks=1).ok(7, at=1)
    h.latest("c", P, 1, began_at=2, at=3)
    h.latest("c", P, 1, began_at=4, at=5)
    read(h, "late", "a", final=True, at=6)
    h.latest("d", P, 2, began_at=7, at=8)


# -- epochs -----------------------------------------------------------------------------------------------------------


@bad("stale-leader-ack")
def a_leader_acknowledges_after_its_successor_was_seen(h: History) -> None:
    h.saw_epoch("c", P, 4, at=1)
    h.invoke("p", P, "a", at=2).ok(0, leader_epoch=3, at=3)


@bad("stale-leader-ack")
def a_leader_acknowledges_after_its_successor_did(h: History) -> None:
    h.invoke("q", P, "a", at=0).ok(0, leader_epoch=4, at=1)
    h.invoke("p", P, "b", at=2).ok(1, leader_epoch=3, at=3)


@bad("stale-leader-ack")
def a_leader_acknowledges_after_a_poll_showed_its_successor(h: History) -> None:
    read(h, "c", "", leader_epoch=4, at=1)
    h.invoke("p", P, "a", at=2).ok(0, leader_epoch=3, at=3)


@good
def an_acknowledgement_is_on_its_way_when_the_successor_is_seen(h: History) -> None:
    send = h.invoke("p", P, "a", at=0)
    h.saw_epoch("c", P, 4, at=1)
    send.ok(0, leader_epoch=3, at=3)


@good
def an_old_leader_may_acknowledge_with_acks_1(h: History) -> None:
    h.saw_epoch("c", P, 4, at=1)
    h.invoke("p", P, "a", at=2, acks=1).ok(0, leader_epoch=3, at=3)


@good
def another_partition_has_other_epochs(h: History) -> None:
    h.saw_epoch("c", ("orders", 1), 4, at=1)
    h.invoke("p", P, "a", at=2).ok(0, leader_epoch=3, at=3)


# -- in time ----------------------------------------------------------------------------------------------------------


@bad("unseen")
def an_acknowledged_record_is_unread_after_the_heal(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    read(h, "r", "a")
    h.heal()


@good
def an_acknowledged_record_is_unread_during_faults(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    read(h, "r", "a")


@good
@by_their_acks
def everything_is_read_after_all_is_healed(h: History) -> None:
    sent(h, {"a": 0, "b": 1})
    h.invoke("q", P, "c", acks=1).ok(2)
    h.invoke("q", P, "d").info()
    h.heal()
    read(h, "r", "ab")


@bad("realtime-lag")
def a_poll_does_not_reach_what_was_acknowledged_long_before(h: History) -> dict[str, Any]:
    h.invoke("p", P, "a", at=0).ok(0, at=1)
    read(h, "r", "", began_at=7, at=8)
    return {"lag_s_max": 5.0}


@good
def a_poll_does_not_reach_what_was_acknowledged_just_before(h: History) -> dict[str, Any]:
    h.invoke("p", P, "a", at=0).ok(0, at=1)
    read(h, "r", "", began_at=5, at=20)
    return {"lag_s_max": 5.0}


@good
def a_poll_does_not_reach_what_may_be_lost_or_was_never_acknowledged(h: History) -> dict[str, Any]:
    h.invoke("p", P, "a", at=0, acks=1).ok(0, at=1)
    h.invoke("p", P, "b", at=0).info(at=1)
    read(h, "r", "", began_at=100, at=101)
    return {"lag_s_max": 5.0}


@good
def the_final_read_begins_at_the_start(h: History) -> dict[str, Any]:
    h.invoke("p", P, "a", at=0).ok(0, at=1)
    h.invoke("p", P, "b", at=0).ok(1, at=1)
    read(h, "r", "a", began_at=100, at=101, final=True)
    read(h, "r", "b", 1, began_at=102, at=103, final=True)
    return {"lag_s_max": 5.0}


# -- replicas ---------------------------------------------------------------------------------------------------------


@bad("replica-mismatch")
def one_replica_differs_in_a_byte(h: History) -> dict[str, Any]:
    return {"replicas": {P: {"broker-1": [(0, 1, b"ab")], "broker-2": [(0, 1, b"aB")]}}}


@good
def all_replicas_are_equal(h: History) -> dict[str, Any]:
    return {"replicas": {P: {"broker-1": [(0, 1, b"ab")], "broker-2": [(0, 1, b"ab")]}}}


# -- a declared loss --------------------------------------------------------------------------------------------------


def an_unclean_election(h: History, *, declared: bool, tail: str = "x") -> None:
    """a b c were acknowledged and read, and b c are gone; x has the offset of b."""
    for offset, value in enumerate("abc"):
        h.invoke("p", P, value, at=0).ok(offset, at=1)
    read(h, "r", "abc", at=2)
    h.latest("c", P, 3, began_at=3, at=4)
    if declared:
        h.loss(P, 1, 3, at=5)
    for offset, value in enumerate(tail, 1):
        h.invoke("q", P, value, at=6).ok(offset, at=7)
    read(h, "r", tail, 1, at=8)
    h.latest("c", P, 1 + len(tail), began_at=9, at=10)


@good
def what_was_declared_as_lost_is_lost(h: History) -> None:
    an_unclean_election(h, declared=True)
    read(h, "late", "ax", final=True, at=11)


@good
def what_was_declared_as_lost_is_lost_and_there_is_no_final_read(h: History) -> None:
    an_unclean_election(h, declared=True)
    h.heal(at=11)


@good
def a_loss_is_declared_up_to_what_was_known_of_the_log(h: History) -> None:
    for offset, value in enumerate("abc"):
        h.invoke("p", P, value, at=0).ok(offset, at=1)
    h.loss(P, 1, at=5)
    read(h, "late", "a", final=True, at=11)


@bad("lost-write")
def more_is_lost_than_was_declared(h: History) -> None:
    for offset, value in enumerate("abc"):
        h.invoke("p", P, value, at=0).ok(offset, at=1)
    h.loss(P, 2, 3, at=5)
    read(h, "late", "a", final=True, at=11)


@bad("lost-write")
def what_was_acknowledged_after_the_loss_is_lost(h: History) -> None:
    an_unclean_election(h, declared=True, tail="xy")
    read(h, "late", "ax", final=True, at=8.5)


@bad("nonmonotonic-latest")
def the_end_goes_back_behind_a_declared_loss(h: History) -> None:
    an_unclean_election(h, declared=True)
    h.latest("c", P, 1, began_at=11, at=12)
    read(h, "late", "ax", final=True, at=13)


# -- compaction -------------------------------------------------------------------------------------------------------


def keyed(h: History, value: str, offset: int | None, *, tombstone: bool = False, process: str = "p", **options: Any) -> Send:
    """A send to a compacted partition: the first letter of the value is its key. Without an offset its outcome is unknown."""
    h.compacted(P, delete_retention_s=10.0)
    send = h.invoke(process, P, value, key=value[0], tombstone=tombstone, **options)
    if offset is None:
        send.info()
    else:
        send.ok(offset)
    return send


@good
def superseded_records_are_gone(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", 2)
    keyed(h, "a3", 3)
    h.poll("early", P, [(0, "a1"), (1, "b1"), (2, "a2"), (3, "a3")])
    h.poll("late", P, [(1, "b1"), (3, "a3")])
    h.poll("final", P, [(1, "b1"), (3, "a3")], final=True)


@bad("lost-write")
def the_last_value_of_a_key_is_gone(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "a2", 1)
    keyed(h, "b1", 2)
    h.poll("final", P, [(2, "b1")], final=True)


@bad("lost-write")
def the_last_value_of_a_key_is_skipped_without_a_final_read(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", 2)
    h.poll("r", P, [(0, "a1"), (2, "a2")])


@bad("lost-write")
def the_last_value_was_read_and_is_gone(h: History) -> None:
    keyed(h, "a1", None)
    keyed(h, "b1", 1)
    h.poll("r", P, [(0, "a1"), (1, "b1")])
    h.poll("final", P, [(1, "b1")], final=True)


@bad("lost-write")
def a_newer_record_that_certainly_failed_supersedes_nothing(h: History) -> None:
    keyed(h, "a1", 0)
    h.invoke("p", P, "a2", key="a").fail()
    keyed(h, "b1", 1)
    h.poll("final", P, [(1, "b1")], final=True)


@bad("lost-write")
def an_unread_newer_record_of_unknown_outcome_supersedes_nothing(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "a2", None)
    keyed(h, "b1", 1)
    h.poll("final", P, [(1, "b1")], final=True)


@bad("lost-write")
def a_record_that_its_leader_alone_acknowledged_supersedes_nothing(h: History) -> dict[str, Any]:
    keyed(h, "a1", 0)
    keyed(h, "a2", 1, acks=1)
    keyed(h, "b1", 1)
    h.poll("final", P, [(1, "b1")], final=True)
    return {"acks": "all"}


@bad("gap")
def a_partition_that_is_not_compacted_lacks_superseded_records(h: History) -> None:
    h.invoke("p", P, "a1", key="a").info()
    h.invoke("p", P, "a2", key="a").ok(1)
    h.invoke("p", P, "b1", key="b").ok(3)
    h.poll("r", P, [(1, "a2"), (3, "b1")])


@bad("poll-skip")
def a_record_is_skipped_before_the_newer_one_was_sent(h: History) -> None:
    for value, offset, at in (("a1", 0, 0), ("b1", 1, 1), ("c1", 2, 2)):
        keyed(h, value, None, at=at)
        h.poll("early", P, [(offset, value)], at=at)
    h.poll("r", P, [(0, "a1")], at=3)
    h.poll("r", P, [(2, "c1")], at=4)
    keyed(h, "b2", 3, at=5)
    h.poll("final", P, [(0, "a1"), (2, "c1"), (3, "b2")], final=True, at=6)


@good
def a_record_is_skipped_after_the_newer_one_was_sent(h: History) -> None:
    for value, offset, at in (("a1", 0, 0), ("b1", 1, 1), ("c1", 2, 2)):
        keyed(h, value, None, at=at)
        h.poll("early", P, [(offset, value)], at=at)
    keyed(h, "b2", 3, at=3)
    h.poll("r", P, [(0, "a1")], at=4)
    h.poll("r", P, [(2, "c1"), (3, "b2")], at=5)


@good
def a_deleted_key_and_its_tombstone_are_gone(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "a2", 1, tombstone=True)
    keyed(h, "b1", 2)
    h.poll("final", P, [(2, "b1")], final=True)


@good
def a_tombstone_of_unknown_outcome_may_have_removed_the_key(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", None, tombstone=True)
    keyed(h, "b2", 3)
    h.poll("final", P, [(3, "b2")], final=True)


@bad("lost-write")
def a_tombstone_that_its_producer_sent_earlier_removes_nothing(h: History) -> None:
    keyed(h, "a1", None, tombstone=True)
    keyed(h, "a2", 1)
    keyed(h, "b2", 2)
    h.poll("final", P, [(2, "b2")], final=True)


@good
def a_tombstone_of_another_producer_may_have_come_late(h: History) -> None:
    keyed(h, "a1", None, tombstone=True, process="q")
    keyed(h, "a2", 1)
    keyed(h, "b2", 3)
    h.poll("final", P, [(3, "b2")], final=True)


@good
def records_of_unknown_outcome_were_superseded_before_they_were_read(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", None)
    keyed(h, "b2", 2)
    h.poll("final", P, [(0, "a1"), (2, "b2")], final=True)


@bad("gap")
def more_offsets_are_missing_than_records_may_have_been_removed(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", None)
    keyed(h, "b2", 3)
    h.poll("r", P, [(0, "a1"), (3, "b2")])


@bad("gap")
def an_unknown_record_without_a_newer_one_explains_no_gap(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", None)
    keyed(h, "c1", 2)
    h.poll("r", P, [(0, "a1"), (2, "c1")])


@bad("deleted-key")
def a_deleted_key_reappears(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", 2, tombstone=True)
    h.poll("final", P, [(0, "a1"), (1, "b1")], final=True)


@good
def a_deleted_key_is_shown_with_its_tombstone(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", 2, tombstone=True)
    h.poll("final", P, [(0, "a1"), (1, "b1"), (2, "a2")], final=True)


@good
def a_key_was_deleted_and_set_again(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "a2", 1, tombstone=True)
    keyed(h, "a3", 2)
    h.poll("final", P, [(2, "a3")], final=True)


@good
def a_final_read_longer_than_tombstones_are_kept(h: History) -> None:
    """It reads the value; then the cleaner removes the value and, after its time, the tombstone; then the read continues."""
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "a2", 2, tombstone=True)
    h.poll("final", P, [(0, "a1")], final=True, at=1)
    h.poll("final", P, [(1, "b1")], final=True, at=12)


@good
def the_log_ends_with_tombstones_that_are_gone(h: History) -> None:
    keyed(h, "a1", 0, at=0)
    keyed(h, "b1", 1, tombstone=True, at=1)
    h.latest("c", P, 2, began_at=2, at=3)
    h.poll("final", P, [(0, "a1")], final=True, began_at=4, at=5)


@bad("nonmonotonic-latest")
def the_log_ends_with_offsets_that_no_removed_record_explains(h: History) -> None:
    keyed(h, "a1", 0, at=0)
    keyed(h, "b1", 1, tombstone=True, at=1)
    h.latest("c", P, 3, began_at=2, at=3)
    h.poll("final", P, [(0, "a1")], final=True, began_at=4, at=5)


@bad("unseen")
def the_last_value_of_a_key_is_never_read(h: History) -> None:
    keyed(h, "a1", 0)
    keyed(h, "b1", 1)
    keyed(h, "b2", 2)
    h.poll("r", P, [(0, "a1")])
    h.heal()


# -- the judgement ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "build"), [pytest.param(n, b, id=b.__name__) for n, builds in BAD.items() for b in builds])
def test_a_bad_history_is_flagged_with_exactly_its_anomaly(name: str, build: Build) -> None:
    """A name that also appears for something else sends people to look in the wrong place."""
    history, options = build_history(build)
    verdict = check(history, **options)
    assert verdict.counts() == {name: 1}, str(verdict)


@pytest.mark.parametrize("build", [pytest.param(b, id=b.__name__) for b in GOOD])
def test_history_close_to_an_anomaly_is_good(build: Build) -> None:
    """A false alarm costs its reader a day, and makes true alarms less credible."""
    history, options = build_history(build)
    verdict = check(history, **options)
    assert verdict.good, str(verdict)


def test_every_anomaly_has_its_bad_history() -> None:
    assert set(BAD) == set(MEANINGS)


def test_a_good_history_is_counted() -> None:
    h = History()
    sent(h, {"a": 0, "b": 1, "c": 2})
    h.invoke("producer", P, "d").fail()
    h.invoke("producer", P, "e").info()
    h.invoke("producer", P, "f")
    read(h, "reader", "ab")
    read(h, "reader", "ce", 2)
    read(h, "last", "abce", final=True)
    verdict = check(h)
    assert verdict.good, str(verdict)
    assert (verdict.acknowledged, verdict.failed, verdict.unknown, verdict.read, verdict.polls) == (3, 1, 2, 4, 3)


def test_offset_with_two_values_in_one_poll_is_two_anomalies() -> None:
    """The first poll of a range goes into the checker's tables in one go; a fork inside it must not be lost there."""
    h = History()
    h.invoke("p", P, "a").info()
    h.invoke("q", P, "b").info()
    h.poll("r", P, [(0, "a"), (0, "b")])
    assert check(h).counts() == {"inconsistent-offsets": 1, "int-nonmonotonic-poll": 1}


def test_acknowledged_fork_is_reported_as_loss_too() -> None:
    """Real faults cause several anomalies at once; each is reported under its own name."""
    h = History()
    h.invoke("p", P, "a").ok(0)
    h.invoke("q", P, "b").ok(0)
    read(h, "r", "a", final=True)
    assert check(h).counts() == {"inconsistent-offsets": 1, "lost-write": 1}


def test_fork_in_a_compacted_partition_is_reported() -> None:
    """The offset of the second value counts as that of the first one."""
    h = History()
    keyed(h, "a1", None)
    keyed(h, "b1", None)
    keyed(h, "b2", None, tombstone=True)
    h.poll("r", P, [(0, "a1")])
    h.poll("final", P, [(0, "b1")], final=True)
    assert check(h).counts()["inconsistent-offsets"] == 1


def test_acks_of_the_judge_are_known_ones() -> None:
    assert check(History(), acks=("all", 1, 0)).good
    with pytest.raises(ValueError, match='acks is one or several of 0, 1 and "all", not 2'):
        check(History(), acks=2)
    with pytest.raises(ValueError, match="not \\(\\)"):
        check(History(), acks=())


def test_the_verdict_counts_what_it_judged() -> None:
    """A verdict that judged nothing is good as well."""
    h = History()
    h.invoke("p", P, "a").ok(0)
    h.invoke("p", P, "b", acks=1).ok(1)
    h.invoke("p", P, "c", acks=0).ok()
    read(h, "r", "ab", final=True)
    assert (check(h).judged, check(h, acks="all").judged, check(h).acknowledged) == (2, 1, 3)
