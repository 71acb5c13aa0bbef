"""The arguments of `Consumer.run`, the delays of a `Backoff`, and the headers of failed records."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from strandline.client import Backoff, ConsumerRecord, attempt_of
from strandline.client.consumer.run import headers
from strandline.client.consumer.run.settings import Fate, RunSettings
from strandline.client.errors import UsageError

RECORD = ConsumerRecord("orders", 3, 17, 1_000, b"key", b"value", (("trace", b"7"), ("note", None)), 2)


# -- Backoff ----------------------------------------------------------------------------------------------------------


def test_delays_grow_up_to_the_longest() -> None:
    backoff = Backoff(first_ms=100, factor=3, max_ms=1_000, jitter=0)
    assert [backoff.delay_ms(attempt, Random(1)) for attempt in (1, 2, 3, 4, 10_000)] == [100, 300, 900, 1_000, 1_000]


def test_jitter_spreads_delays_within_its_bounds() -> None:
    backoff, random = Backoff(first_ms=100, max_ms=100_000, jitter=0.2), Random(1)
    delays = [backoff.delay_ms(1, random) for _ in range(1_000)]
    assert 80 <= min(delays) < 85
    assert 115 < max(delays) <= 120
    assert max(Backoff(first_ms=100, max_ms=110).delay_ms(1, random) for _ in range(100)) <= 110


def test_first_attempt_counts() -> None:
    backoff = Backoff(attempts=3)
    assert [backoff.has_attempt_after(attempt) for attempt in (1, 2, 3)] == [True, True, False]
    assert Backoff(attempts=None).has_attempt_after(1_000_000)


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_ms": -1},
        {"first_ms": "1"},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"max_ms": float("inf")},
        {"attempts": 0},
        {"attempts": True},
        {"jitter": 1.5},
        {"first_ms": 2_000, "max_ms": 1_000},
    ],
)
def test_wrong_backoffs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(wrong))}.* of a Backoff must"):
        Backoff(**wrong)


# -- the arguments of run ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"concurrency": "keys"}, 'concurrency must be "partition", "key" or a whole number'),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 4, "max_tasks": 5}, "max_tasks contradicts"),
        ({"max_tasks": 0}, "max_tasks"),
        ({"batch_size": 0}, "batch_size"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"retry": 3}, "retry must be a Backoff"),
        ({"retry_topic": "again"}, "retry_topic needs retry=Backoff"),
        ({"retry": Backoff(), "retry_topic": "again", "dlq": "again"}, "two topics"),
        ({"dlq": 5}, "5"),
        ({"no_retry": "ValueError"}, "classes of exceptions"),
        ({"no_retry": (ValueError, KeyboardInterrupt)}, "classes of exceptions"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"drain_timeout_ms": -1}, "drain_timeout_ms"),
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        RunSettings(**wrong)


def test_number_of_calls_follows_from_the_concurrency() -> None:
    assert RunSettings(concurrency=3).calls_max == 3
    assert RunSettings(concurrency="key", max_tasks=5).calls_max == 5
    assert RunSettings().calls_max == 64


@pytest.mark.parametrize(
    ("settings", "error", "attempt", "fate"),
    [
        ({}, KeyError(), 1, Fate.STOP),
        ({"on_failure": "skip"}, KeyError(), 1, Fate.SKIP),
        ({"dlq": "dead"}, KeyError(), 1, Fate.DEAD_LETTER),
        ({"retry": Backoff(attempts=2)}, KeyError(), 1, Fate.RETRY_HERE),
        ({"retry": Backoff(attempts=2)}, KeyError(), 2, Fate.STOP),
        ({"retry": Backoff(attempts=2), "retry_topic": "again", "dlq": "dead"}, KeyError(), 1, Fate.RETRY_TOPIC),
        ({"retry": Backoff(attempts=2), "retry_topic": "again", "dlq": "dead"}, KeyError(), 2, Fate.DEAD_LETTER),
        ({"retry": Backoff(), "no_retry": LookupError, "dlq": "dead"}, KeyError(), 1, Fate.DEAD_LETTER),
        ({"retry": Backoff(), "no_retry": (ValueError,), "dlq": "dead"}, KeyError(), 1, Fate.RETRY_HERE),
    ],
)  # fmt: skip
def test_fate_of_a_failed_record(settings: dict[str, Any], error: Exception, attempt: int, fate: Fate) -> None:
    assert RunSettings(**settings).fate(error, attempt) is fate


def test_pointless_attempts_are_not_made() -> None:
    """A record that cannot be deserialized gets no further attempt."""
    assert RunSettings(retry=Backoff(), dlq="dead").fate(ValueError(), 1, may_repeat=False) is Fate.DEAD_LETTER


# -- headers ----------------------------------------------------------------------------------------------------------


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as e:
        return e


def in_topic(topic: str, fields: headers.HeaderList) -> ConsumerRecord:
    """The record as it is read from a retry topic."""
    return ConsumerRecord(topic, 0, 99, 5_000, RECORD.key, RECORD.value, tuple(fields), 9)


def test_retried_record_is_found_again_at_its_origin() -> None:
    """Its handler sees the topic, partition, offset and time of the first attempt: they identify the record."""
    fields = headers.retry_headers(RECORD, "billing", raised(ValueError("no")), 2, 123_456)
    found = headers.parse(in_topic("again", fields))
    assert found[1:] == (2, 123_456, "billing")
    origin = found.record
    assert (origin.topic, origin.partition, origin.offset, origin.timestamp_ms) == ("orders", 3, 17, 1_000)
    assert (origin.key, origin.value, origin.headers[:2]) == (b"key", b"value", RECORD.headers)
    assert attempt_of(origin) == 2


def test_headers_of_the_last_attempt_replace_the_earlier_ones() -> None:
    first = headers.parse(in_topic("again", headers.retry_headers(RECORD, "g", raised(ValueError("first")), 2, 0)))
    fields = dict(headers.retry_headers(first.record, "g", raised(KeyError("second")), 3, 5))
    assert (fields[headers.ERROR_TYPE], fields[headers.ATTEMPT]) == (b"KeyError", b"3")
    assert (fields[headers.TOPIC], fields[headers.OFFSET], fields["trace"]) == (b"orders", b"17", b"7")
    assert len(fields) == len(headers.retry_headers(first.record, "g", raised(KeyError("second")), 3, 5))


def test_dead_letter_says_what_went_wrong_and_where() -> None:
    fields = dict(headers.dead_letter_headers(RECORD, "billing", raised(UsageError("too late")), 4))
    assert fields[headers.ERROR_TYPE] == b"strandline.protocol.errors.UsageError"
    assert fields[headers.ERROR_MESSAGE] == b"too late"
    assert fields[headers.ATTEMPTS] == b"4"
    assert fields[headers.GROUP] == b"billing"
    traceback = fields[headers.TRACEBACK]
    assert traceback is not None
    assert traceback.endswith(b" in raised")
    assert b"test_run_settings.py:" in traceback
    assert headers.ATTEMPT not in fields


def test_attempts_of_a_resent_dead_letter_begin_at_one() -> None:
    """An operator sends dead letters back to their topic, with the headers; the attempts are then counted from 1."""
    fields = headers.dead_letter_headers(RECORD, "billing", raised(ValueError()), 4)
    assert attempt_of(in_topic("orders", fields)) == 1


def test_long_texts_are_cut() -> None:
    def deep(depth: int) -> None:
        if depth:
            deep(depth - 1)
        raise ValueError("x" * 100_000)

    with pytest.raises(ValueError) as caught:
        deep(200)
    fields = dict(headers.dead_letter_headers(RECORD, None, caught.value, 1))
    assert len(fields[headers.ERROR_MESSAGE] or b"") == headers.MESSAGE_MAX
    assert len((fields[headers.TRACEBACK] or b"").splitlines()) == headers.FRAMES_MAX
    assert headers.TRACEBACK not in dict(headers.without_traceback(list(fields.items())))
    assert headers.GROUP not in fields


def test_errors_that_cannot_be_printed_are_described() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    fields = dict(headers.dead_letter_headers(RECORD, None, raised(Silent()), 1))
    assert fields[headers.ERROR_MESSAGE] == b""
    assert dict(headers.dead_letter_headers(RECORD, None, ValueError("\ud800"), 1))[headers.ERROR_MESSAGE] == b"?"


@pytest.mark.parametrize(
    "strange",
    [
        [],
        [(headers.ATTEMPT, b"many"), (headers.NOT_BEFORE, b"-1"), (headers.TOPIC, b"orders")],
        [(headers.ATTEMPT, b"0"), (headers.NOT_BEFORE, b"9" * 30), (headers.OFFSET, b"1")],
        [(headers.ATTEMPT, None), (headers.NOT_BEFORE, b"")],
        [(headers.TOPIC, b"t"), (headers.PARTITION, b"-1"), (headers.OFFSET, b"5")],
        [(headers.ATTEMPT, "\u0663".encode())],
    ],
)
def test_strange_records_in_a_retry_topic_count_as_new(strange: headers.HeaderList) -> None:
    record = in_topic("again", strange)
    assert headers.parse(record) == (record, 1, 0, None)
    assert attempt_of(record) == 1


def test_number_of_the_attempt_is_replaced() -> None:
    record = headers.with_attempt(headers.with_attempt(RECORD, 2), 3)
    assert attempt_of(record) == 3
    assert len(record.headers) == len(RECORD.headers) + 1
