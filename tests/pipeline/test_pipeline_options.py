"""What a user writes in `.option(...)`: a misspelt name or a wrong value is told at once, with what was meant."""

from __future__ import annotations

import pytest

from strandline.pipeline.options import read_options, write_options
from strandline.protocol.errors import UsageError

SERVERS = {"bootstrap.servers": "one:9092,two:9092"}
ORDERS = {**SERVERS, "subscribe": "orders"}


def test_a_batch_reads_everything_and_a_stream_what_comes_from_now_on() -> None:
    batch, stream = read_options(ORDERS, is_stream=False), read_options(ORDERS, is_stream=True)
    assert (batch.starting, batch.ending) == ("earliest", "latest")
    assert stream.starting == "latest"
    assert batch.fail_on_data_loss
    assert batch.client == {"bootstrap_servers": "one:9092,two:9092"}


def test_names_are_taken_in_any_case_as_spark_hands_them_over() -> None:
    options = read_options({**ORDERS, "STARTINGOFFSETS": "Latest", "maxoffsetspertrigger": "7"}, is_stream=True)
    assert options.starting == "latest"
    assert options.max_offsets_per_trigger == 7


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean 'startingOffsets'?"),
        ({"failOnDataLos": "false"}, "did you mean 'failOnDataLoss'?"),
        ({"strandline.request.timeout": "1"}, "did you mean 'strandline.request_timeout_ms'?"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({"minPartitions": "many"}, "minPartitions must be a whole number, not 'many'"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"startingOffsets": "{"}, 'startingOffsets must be JSON such as {"orders": {"0": 23, "1": 42}}'),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "topic orders has {'0': -3}"),
        ({"startingOffsets": "latest"}, "a batch read cannot start at the latest offsets"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "a batch read cannot start at the latest offsets"),
        ({"endingOffsets": "earliest"}, "a read cannot end at the earliest offsets"),
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger is for streams, not for batch reads"),
        ({"assign": '{"orders": [0]}'}, "subscribe and assign are given"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "must be one of error, latest, not 'guess'"),
        ({"strandline.fetch_max_bytes": "-1"}, "fetch_max_bytes must be a whole number from 1"),
    ],
)
def test_a_mistake_is_told_with_what_was_meant(more: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        read_options({**ORDERS, **more}, is_stream=False)
    assert told in str(error.value)


def test_what_is_only_for_batches_is_refused_in_a_stream() -> None:
    with pytest.raises(UsageError, match="endingOffsets is for batch reads, not for streams"):
        read_options({**ORDERS, "endingOffsets": "latest"}, is_stream=True)


def test_without_servers_or_topics_nothing_is_read() -> None:
    with pytest.raises(UsageError, match=r"option bootstrap\.servers is missing"):
        read_options({"subscribe": "orders"}, is_stream=False)
    with pytest.raises(UsageError, match="exactly one of the options subscribe, subscribePattern and assign is needed; none"):
        read_options(SERVERS, is_stream=False)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "is no regular expression"),
        ({"assign": "[]"}, "must be JSON"),
        ({"assign": '{"orders": [-1]}'}, "topic orders has"),
        ({"assign": "{}"}, "names no partition"),
    ],
)
def test_topics_that_cannot_be_understood_are_refused(option: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_options({**SERVERS, **option}, is_stream=False)


def test_options_of_the_client_are_passed_on_as_what_they_are() -> None:
    """Also in the spelling of Kafka's connector, for jobs that are moved."""
    written = {"kafka.bootstrap.servers": "one:9092", "strandline.request_timeout_ms": "500", "strandline.check.crcs": "false"}
    options = read_options({**written, "subscribe": "orders"}, is_stream=False)
    assert options.client == {"bootstrap_servers": "one:9092", "request_timeout_ms": 500, "check_crcs": False}


def test_times_and_durations_are_read() -> None:
    options = read_options(
        {**ORDERS, "startingTimestamp": "1000", "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}, is_stream=False
    )
    assert options.starting_times == 1000
    assert options.ending_times == {"orders": {0: 5}}
    assert read_options({**ORDERS, "maxTriggerDelay": "2m"}, is_stream=True).max_trigger_delay_ms == 120_000
    with pytest.raises(UsageError, match="maxTriggerDelay must be a duration"):
        read_options({**ORDERS, "maxTriggerDelay": "soon"}, is_stream=True)


def test_a_sink_is_exactly_once_unless_it_is_told_otherwise() -> None:
    assert write_options({**SERVERS, "topic": "orders"}).delivery == "exactly-once"
    assert write_options({**SERVERS, "delivery": "at-least-once", "strandline.acks": "1"}).client["acks"] == 1
    with pytest.raises(UsageError, match=r"exactly-once.*needs acks=all"):
        write_options({**SERVERS, "strandline.acks": "1"})
