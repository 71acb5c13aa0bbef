"""Names and values of options: which are accepted, and what the error of a mistake says."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from strandline.client import Admin, Consumer, Producer, options
from strandline.client.errors import UsageError
from strandline.client.option_types import (
    Acks,
    Addresses,
    Bytes,
    Choice,
    Duration,
    Flag,
    Function,
    Instance,
    Nothing,
    Number,
    OrNone,
    Path,
    Text,
    TokenSource,
    Whole,
)
from strandline.client.options import AdminOptions, ConsumerOptions, Option, ProducerOptions, parse_options, table_of
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

CLIENTS = [(Producer, ProducerOptions), (Consumer, ConsumerOptions), (Admin, AdminOptions)]
ROWS = [(client, row) for client, kind in CLIENTS for row in table_of(kind)]


def test_dotted_names_and_other_clients_names_are_accepted() -> None:
    config = {"bootstrap.servers": "a:1", "linger.ms": 5, "batch.size": 100}
    parsed = parse_options(ProducerOptions, {"config": config, "linger_ms": 7, "max_batch_size": 200})
    assert (parsed.bootstrap_servers, parsed.linger_ms, parsed.batch_size) == ("a:1", 7, 200)


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [(ProducerOptions, "lingerms", "linger_ms"), (ConsumerOptions, "offset.reset", "auto_offset_reset")],
)
def test_unknown_option_names_the_nearest_one(kind, wrong: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"did you mean '{near}'"):
        parse_options(kind, {"config": {wrong: 1}})


@pytest.mark.parametrize(
    "wrong",
    [
        {"acks": 2},
        {"acks": 1, "enable_idempotence": True},
        {"linger_ms": -1},
        {"linger_ms": "5"},
        {"request_timeout_ms": True},
        {"linger_ms": 10, "delivery_timeout_ms": 5},
        {"batch_size": 100, "buffer_memory": 50},
        {"max_in_flight_requests_per_connection": 0},
        {"batch_size": 0},
        {"key_serializer": "json"},
        {"acks": True},
        {"acks": "1"},
        {"enable_idempotence": "false"},
        {"enable_idempotence": 0},
        {"linger_ms": float("nan")},
        {"linger_ms": float("inf")},
        {"request_timeout_ms": 0},
        {"buffer_memory": 1 << 63},
        {"batch_size": 2_000_000},
        {"max_request_size": 200_000_000},
        {"bootstrap_servers": 9092},
        {"bootstrap_servers": [9092]},
        {"bootstrap_servers": "nowhere"},
        {"client_id": None},
        {"producer_name": "sink", "producer_note": "text"},
        {"reconnect_backoff_ms": 100, "reconnect_backoff_max_ms": 50},
        {"config": {"enable.idempotence": "no"}},
        {"config": {"enable.idempotence": "true", "acks": "1"}},
        {"config": {"linger.ms": "soon"}},
        {"config": {"key.serializer": "org.apache.kafka.common.serialization.StringSerializer"}},
        {"config": [("acks", 1)]},
    ],
)
def test_a_wrong_value_is_a_usage_error(wrong: dict[str, object]) -> None:
    """The error names the option and the value at construction; no producer with another behaviour is created."""
    with pytest.raises(UsageError) as refused:
        Producer(**wrong)  # type: ignore[arg-type]
    name = next(reversed(wrong.get("config", wrong)), "config") if isinstance(wrong.get("config", {}), dict) else "config"
    assert name in str(refused.value) or name.replace(".", "_") in str(refused.value)


def test_texts_of_a_properties_file_are_read() -> None:
    """`acks=1` of a properties file used to be refused, and `enable.idempotence=false` to mean true."""
    config = {
        "acks": "1",
        "enable.idempotence": "False",
        "linger.ms": " 2.5 ",
        "batch.size": "100",
        "buffer.memory": "1000",
        "client.id": "billing",
    }
    parsed = parse_options(ProducerOptions, {"config": config})
    assert (parsed.acks, parsed.enable_idempotence, parsed.linger_ms) == (1, False, 2.5)
    assert (parsed.batch_size, parsed.buffer_memory, parsed.client_id) == (100, 1000, "billing")
    consumer = parse_options(
        ConsumerOptions, {"config": {"check.crcs": "false", "auto.offset.reset": "none", "fetch.min.bytes": 7}}
    )
    assert (consumer.check_crcs, consumer.auto_offset_reset, consumer.fetch_min_bytes) == (False, "error", 7)


def test_times_may_be_floats_and_are_rounded() -> None:
    """A program that computes with seconds writes `0.29 * 1000`."""
    assert parse_options(ConsumerOptions, {"request_timeout_ms": 0.29 * 1000}).request_timeout_ms == 290


WRONG = {
    Acks: [True, "1", 2, None, 1.0],
    Addresses: [None, "", "host", 9092, b"a:1", {"a:1": 1}],
    Bytes: ["text", None, 5, bytes(100_000)],
    Choice: ["nonsense", None, 1, True],
    Duration: ["5", True, -1, -0.5, None, float("nan"), float("inf")],
    Flag: ["false", "", 0, 1, None],
    Function: ["json", 5, True],
    Instance: ["text", 5, None, object()],
    Path: [5, None, True, b"path", ""],
    TokenSource: ["token", 5, None],
    Nothing: ["group"],
    Number: ["5", True, -1, float("nan"), float("inf"), None],
    Text: [5, None, True, b"text"],
    Whole: ["5", True, -1, 0.5, None, 1 << 64],
}
"""Values that must be refused, by type of option."""


@pytest.mark.parametrize(("client", "row"), ROWS, ids=[f"{client.__name__}-{row.name}" for client, row in ROWS])
def test_every_option_is_checked(client: type, row: Option) -> None:
    """The whole table, so that an option that is added later is checked, too."""
    is_optional = isinstance(row.type, OrNone)
    of_type = row.type.other if isinstance(row.type, OrNone) else row.type
    for wrong in WRONG[type(of_type)]:
        if wrong is None and is_optional:
            continue
        with pytest.raises(UsageError, match=row.name):
            client(**{row.name: wrong})
    assert row.meaning.endswith(".")
    assert row.check(row.default) == row.default


@pytest.mark.parametrize(("client", "row"), ROWS, ids=[f"{client.__name__}-{row.name}" for client, row in ROWS])
def test_default_of_an_option_can_be_written_as_text(client: type, row: Option) -> None:
    if isinstance(row.default, (bool, int, float, str)):
        assert row.parse(str(row.default)) == row.default


def test_idempotence_follows_acks_by_default() -> None:
    assert ProducerOptions().idempotent
    assert not ProducerOptions(acks=1).idempotent
    assert not ProducerOptions(enable_idempotence=False).idempotent


@pytest.mark.parametrize(
    ("kind", "keywords"),
    [
        (ProducerOptions, options.ProducerKeywords),
        (ConsumerOptions, options.ConsumerKeywords),
        (AdminOptions, options.ClientKeywords),
    ],
)
def test_type_checkers_know_exactly_the_options(kind, keywords) -> None:
    assert set(keywords.__annotations__) - {"config"} == {field.name for field in dataclasses.fields(kind)}


def test_names_of_librdkafka_are_understood() -> None:
    """The nearest of our names would be another option: `message.timeout.ms` is not `request_timeout_ms`."""
    config = {
        "metadata.broker.list": "a:1",
        "message.timeout.ms": "4000",
        "queue.buffering.max.ms": "3",
        "compression.codec": "lz4",
    }
    parsed = parse_options(ProducerOptions, {"config": config})
    assert (parsed.delivery_timeout_ms, parsed.linger_ms, parsed.compression_type) == (4000, 3, "lz4")


# -- security ---------------------------------------------------------------------------------------------------------

SECRET = "hunter2-secret"
SCRAM = {"security_protocol": "SASL_SSL", "sasl_plain_username": "alice", "sasl_plain_password": SECRET, "ssl_cafile": "ca.pem"}


@pytest.mark.parametrize(("client", "kind"), CLIENTS)
def test_security_settings_are_one_object_for_connections(client: type, kind) -> None:
    expected = ClientSecurity(**SCRAM)
    assert parse_options(kind, SCRAM).connection_security == expected
    assert parse_options(kind, {"security": expected}).connection_security == expected
    assert parse_options(kind, {}).connection_security == NO_SECURITY


def test_kafkas_security_properties_are_understood_in_config() -> None:
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'a.ScramLoginModule required username="alice" password="{SECRET}";',
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
    }
    assert parse_options(AdminOptions, {"config": config}).connection_security == ClientSecurity(**SCRAM)


@pytest.mark.parametrize(
    "wrong",
    [
        {**SCRAM, "security_protocol": "PLAINTEXT"},
        {**SCRAM, "sasl_plain_username": None},
        {**SCRAM, "sasl_plain_password": SECRET.encode()},
        {**SCRAM, "ssl_password": [SECRET]},
        {**SCRAM, "sasl_oauth_token_provider": SECRET},
        {**SCRAM, "security": ClientSecurity()},
        {"config": {"security.protocol": "SASL_SSL", "sasl.jaas.config": SECRET}},
    ],
)
def test_wrong_security_is_refused_without_naming_a_secret(wrong) -> None:
    with pytest.raises(UsageError) as e:
        parse_options(ProducerOptions, wrong)
    assert SECRET not in str(e.value)


def test_secrets_are_in_no_repr_of_options() -> None:
    assert SECRET not in repr(parse_options(ProducerOptions, {**SCRAM, "ssl_password": SECRET}))


def test_tokens_come_from_a_function_or_from_an_object_of_aiokafka() -> None:
    class Provider:
        async def token(self) -> str:
            return "of an object"

    async def function() -> str:
        return "of a coroutine function"

    sources = {"of an object": Provider(), "of a coroutine function": function, "plain": lambda: "plain"}
    for token, source in sources.items():
        given = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": source}
        provider = parse_options(AdminOptions, given).connection_security.sasl_oauth_token_provider
        assert provider is not None
        assert asyncio.run(provider()) == token
