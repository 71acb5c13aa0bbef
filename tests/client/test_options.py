"""Names and values of settings: what is accepted, and what a mistake says."""

from __future__ import annotations

import dataclasses

import pytest

from strandline.client import options
from strandline.client.errors import UsageError
from strandline.client.options import AdminOptions, ConsumerOptions, ProducerOptions, parse_options


def test_dotted_names_and_other_clients_names_are_accepted() -> None:
    config = {"bootstrap.servers": "a:1", "linger.ms": 5, "batch.size": 100}
    parsed = parse_options(ProducerOptions, {"config": config, "linger_ms": 7, "max_batch_size": 200})
    assert (parsed.bootstrap_servers, parsed.linger_ms, parsed.batch_size) == ("a:1", 7, 200)


@pytest.mark.parametrize(
    ("kind", "wrong", "near"),
    [(ProducerOptions, "lingerms", "linger_ms"), (ConsumerOptions, "offset.reset", "auto_offset_reset")],
)
def test_an_unknown_name_is_a_type_error_with_the_nearest_known_one(kind, wrong: str, near: str) -> None:
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
    ],
)
def test_a_wrong_value_is_a_usage_error(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse_options(ProducerOptions, wrong)


def test_idempotence_follows_acks_unless_told() -> None:
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
