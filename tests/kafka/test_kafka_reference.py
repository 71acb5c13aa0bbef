"""docs/kafka-apis.md says what the code does, and accounts for every API of Kafka's."""

from __future__ import annotations

from pathlib import Path

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.reference import NOT_SERVED, reference
from strandline.broker.kafka.schemas import api_names

PAGE = Path(__file__).parents[2] / "docs" / "kafka-apis.md"


def test_the_page_is_that_of_the_table() -> None:
    hint = "out of date: .venv/bin/python -m strandline.broker.kafka.reference > docs/kafka-apis.md"
    assert PAGE.read_text() == reference(), hint


def test_every_api_of_kafka_is_served_or_has_a_reason() -> None:
    assert sorted(api_names().keys() - KAFKA_APIS.keys()) == sorted(NOT_SERVED)


def test_names_are_kafkas() -> None:
    names = api_names()
    assert {key: api.name for key, api in KAFKA_APIS.items()} == {key: names[key] for key in KAFKA_APIS}
