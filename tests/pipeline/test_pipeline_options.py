"""Options of the source and sink: a misspelt name or a wrong value is an error that says what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.pipeline import option_names
from strandline.pipeline.options import read_options, write_options
from strandline.protocol.errors import UsageError

SERVERS = {"bootstrap.servers": "one:9092,two:9092"}
ORDERS = {**SERVERS, "subscribe": "orders"}


def test_batch_starts_at_earliest_and_stream_at_latest() -> None:
    """These are the defaults of Spark's Kafka connector."""
    batch, stream = read_options(ORDERS, is_stream=False), read_options(ORDERS, is_stream=True)
    assert (batch.starting, batch.ending) == ("earliest", "latest")
    assert stream.starting == "latest"
    assert batch.fail_on_data_loss
    assert batch.client == {"bootstrap_servers": "one:9092,two:9092"}


def test_names_may_be_in_any_case() -> None:
    """Spark's option names ignore case."""
    options = read_options({**ORDERS, "STARTINGOFFSETS": "Latest", "maxoffsetspertrigger": "7"}, is_stream=True)
    assert options.starting == "latest"
    assert options.max_offsets_per_trigger == 7


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"startingOffset": "earliest"}, "unknown option 'startingOffset'; did you mean 'startingOffsets'?"),
        ({"failOnDataLos": "false"}, "did you mean 'failOnDataLoss'?"),
        ({"FAILONDATALOS": "false"}, "unknown option 'FAILONDATALOS'; did you mean 'failOnDataLoss'?"),
        ({"topics": "orders"}, "unknown option 'topics'; did you mean 'subscribe'?"),
        ({"servers": "one:9092"}, "unknown option 'servers'; did you mean 'bootstrap.servers'?"),
        ({"xyz": "1"}, "unknown option 'xyz'; there are assign, bootstrap.servers, "),
        ({"roworder": "stable"}, "option rowOrder is for sinks, not for sources"),
        ({"topic": "orders"}, "option topic is for sinks, not for sources"),
        ({"kafka.acks": "all"}, "option kafka.acks is for sinks, not for sources"),
        ({"strandline.xyz": "1"}, "unknown option 'strandline.xyz'; docs/client.md has the options of the client"),
        (
            {"strandline.group.id": "g"},
            "option strandline.group.id is not supported: leave it out, because there are no consumer groups",
        ),
        ({"strandline.request.timeout": "1"}, "did you mean 'strandline.request_timeout_ms'?"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss must be true or false, not 'maybe'"),
        ({"minPartitions": "many"}, "minPartitions must be a whole number, not 'many'"),
        ({"minPartitions": "0"}, "minPartitions must be at least 1"),
        ({"startingOffsets": "{"}, 'startingOffsets must be earliest, latest, or JSON such as {"orders": {"0": 23, "1": 42}}: '),
        ({"startingOffsets": "begin"}, "\"1\": 42}}, not 'begin'"),
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
def test_mistake_is_rejected_with_a_suggestion(more: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        read_options({**ORDERS, **more}, is_stream=False)
    assert told in str(error.value)


def test_batch_option_is_rejected_in_a_stream() -> None:
    with pytest.raises(UsageError, match="endingOffsets is for batch reads, not for streams"):
        read_options({**ORDERS, "endingOffsets": "latest"}, is_stream=True)


def test_servers_and_topics_are_required() -> None:
    with pytest.raises(UsageError, match=r"option bootstrap\.servers is missing"):
        read_options({"subscribe": "orders"}, is_stream=False)
    with pytest.raises(UsageError, match="exactly one of the options subscribe, subscribePattern and assign is needed; none"):
        read_options(SERVERS, is_stream=False)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "("}, "is not a regular expression"),
        ({"assign": "[]"}, "must be JSON"),
        ({"assign": '{"orders": [-1]}'}, "topic orders has"),
        ({"assign": "{}"}, "names no partition"),
    ],
)
def test_unreadable_subscription_is_rejected(option: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        read_options({**SERVERS, **option}, is_stream=False)


def test_client_options_are_parsed_and_passed_on() -> None:
    """The prefix and spelling of Kafka's connector are accepted as well, for jobs that are moved."""
    written = {"kafka.bootstrap.servers": "one:9092", "strandline.request_timeout_ms": "500", "strandline.check.crcs": "false"}
    options = read_options({**written, "subscribe": "orders", "strandline.client.rack": "a"}, is_stream=False)
    assert options.client == {
        "bootstrap_servers": "one:9092",
        "request_timeout_ms": 500,
        "check_crcs": False,
        "client_rack": "a",
    }


def test_times_and_durations_are_parsed() -> None:
    options = read_options(
        {**ORDERS, "startingTimestamp": "1000", "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}, is_stream=False
    )
    assert options.starting_times == 1000
    assert options.ending_times == {"orders": {0: 5}}
    assert read_options({**ORDERS, "maxTriggerDelay": "2m"}, is_stream=True).max_trigger_delay_ms == 120_000
    with pytest.raises(UsageError, match="maxTriggerDelay must be a duration"):
        read_options({**ORDERS, "maxTriggerDelay": "soon"}, is_stream=True)


def test_sink_is_exactly_once_by_default() -> None:
    assert write_options({**SERVERS, "topic": "orders"}).delivery == "exactly-once"
    assert write_options({**SERVERS, "delivery": "at-least-once", "strandline.acks": "1"}).client["acks"] == 1
    with pytest.raises(UsageError, match=r"exactly-once.*needs acks=all"):
        write_options({**SERVERS, "strandline.acks": "1"})


def test_option_of_the_other_side_is_named_as_such() -> None:
    """The nearest option of the sink would be a misleading suggestion: `subscribe` is spelled correctly, but belongs to the
    source."""
    with pytest.raises(UsageError, match="option subscribe is for sources, not for sinks"):
        write_options({**SERVERS, "subscribe": "orders"})
    with pytest.raises(UsageError, match=r"option kafka\.fetch\.max\.bytes is for sources, not for sinks"):
        write_options({**SERVERS, "kafka.fetch.max.bytes": "1"})


FOREIGN = [(name, foreign.instead) for foreign in (*option_names.KAFKA, *option_names.OURS) for name in foreign.names]


@pytest.mark.parametrize(("name", "instead"), FOREIGN, ids=[name for name, _ in FOREIGN])
def test_unsupported_option_is_rejected_with_advice(name: str, instead: str) -> None:
    """This must hold for source and sink, in any case of letters, and in both spellings of client options."""
    written = name.replace("*", "protocol")
    is_of_client = written.startswith(option_names.CLIENT_PREFIXES)
    points = written.replace(".", "_").replace("_", ".", 1) if is_of_client else written.lower()
    for spelling in (written, written.upper(), points):
        wanted = f"option {spelling} is not supported: {instead}"
        with pytest.raises(UsageError) as error:
            read_options({**ORDERS, spelling: "1"}, is_stream=False)
        assert str(error.value) == wanted
        with pytest.raises(UsageError) as error:
            write_options({**SERVERS, spelling: "1"})
        assert str(error.value) == wanted


def test_docs_have_the_table_of_the_code() -> None:
    """`python -m strandline.pipeline.option_names` prints the table."""
    assert option_names.table() in (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def test_every_suggested_option_exists() -> None:
    """The source or the sink must accept each option that the table suggests."""
    for name, value in {
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "readTimeoutMs": "1",
        "strandline.max_block_ms": "1000",
    }.items():
        assert read_options({**ORDERS, name: value}, is_stream=False)
    for name, value in {"strandline.delivery_timeout_ms": "60000", "delivery": "exactly-once", "producerName": "a"}.items():
        assert write_options({**SERVERS, name: value})


def test_batch_id_requires_the_two_names() -> None:
    """A batch number alone does not identify a write."""
    whole = {**SERVERS, "batchId": "7", "producerName": "split", "writeName": "odd"}
    assert write_options(whole).batch_id == 7
    for name in ("producerName", "writeName"):
        with pytest.raises(UsageError, match="option batchId needs the options producerName and writeName"):
            write_options({key: value for key, value in whole.items() if key != name})
