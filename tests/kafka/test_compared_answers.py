"""The differences that `compare_with_kafka.py` finds. The comparison with a real Kafka is in `make test-kafka`."""

from __future__ import annotations

from pathlib import Path

import pytest
from compared_answers import (
    CLOSED,
    NO_ROW,
    Difference,
    Known,
    codes_of,
    differences,
    read_known,
    unexplained,
    value_differences,
    values_of,
)
from odd_requests import LEFT_OUT, GroupEpoch, Names

from strandline.broker.kafka.apis import KAFKA_APIS

KNOWN = read_known(Path(__file__).parent / "known_differences.toml")


def answer(*rows: tuple[str, int, int], top: int | None = None) -> dict:
    topics = [{"name": name, "partitions": [{"partition_index": number, "error_code": code}]} for name, number, code in rows]
    return {"topics": topics} if top is None else {"error_code": top, "topics": topics}


def found(kafka: object, ours: object) -> list[Difference]:
    def codes(given: object) -> dict:
        return codes_of(given, lambda _, value: value)

    return differences("Fetch", codes(kafka), codes(ours))


def test_order_and_repetition_of_rows_do_not_count() -> None:
    assert found(answer(("a", 0, 3), ("b", 1, 0)), answer(("b", 1, 0), ("a", 0, 3), ("a", 0, 3))) == []


def test_code_at_the_same_place_differs() -> None:
    pair = Difference("Fetch", "UNKNOWN_TOPIC_OR_PARTITION", "NONE")
    assert found(answer(("a", 0, 3), ("a", 1, 3)), answer(("a", 0, 0), ("a", 1, 0))) == [pair]


def test_row_of_one_side_alone_is_a_difference() -> None:
    assert found(answer(("a", 0, 0)), answer()) == [Difference("Fetch", "NONE", NO_ROW)]
    assert found(answer(), answer(("a", 0, 3))) == [Difference("Fetch", NO_ROW, "UNKNOWN_TOPIC_OR_PARTITION")]


def test_error_of_the_whole_answer_is_compared_alone() -> None:
    assert found(answer(("a", 0, 0), top=0), answer(top=42)) == [Difference("Fetch", "NONE", "INVALID_REQUEST")]
    assert found(CLOSED, answer(top=42)) == [Difference("Fetch", CLOSED, "INVALID_REQUEST")]


def test_id_of_a_topic_with_its_name_is_no_part_of_the_place() -> None:
    """The two sides have different ids for the topics of other rounds."""
    kafka, ours = ({"topics": [{"name": "a", "topic_id": bytes([side]) * 16, "error_code": 0}]} for side in (1, 2))
    assert found(kafka, ours) == []
    assert found({"topics": [{"topic_id": b"1", "error_code": 0}]}, {"topics": [{"topic_id": b"2", "error_code": 0}]})


def test_values_of_rows_that_both_sides_have_are_compared() -> None:
    kafka = {"topics": [{"name": "a", "offset": 3, "error_code": 0}, {"name": "b", "offset": 9}], "throttle_time_ms": 5}
    ours = {"topics": [{"name": "a", "offset": 4, "error_code": 1}], "throttle_time_ms": 0}
    sides = [values_of(answer, lambda _, value: value) for answer in (kafka, ours)]
    assert value_differences("ListOffsets", *sides) == [Difference("ListOffsets", "3", "4", "offset")]


def test_values_of_internal_topics_are_not_compared() -> None:
    sides = [
        values_of({"topics": [{"name": "__consumer_offsets", "offset": offset}]}, lambda _, value: value) for offset in (3, 4)
    ]
    assert value_differences("ListOffsets", *sides) == []


def test_order_of_a_list_of_plain_values_does_not_matter() -> None:
    sides = [values_of({"filters": order}, lambda _, value: value) for order in (["a", "b"], ["b", "a"])]
    assert value_differences("ListTransactions", *sides) == []


def test_known_value_explains_only_its_field() -> None:
    known = [Known("ListOffsets", "*", "*", "why", "timestamp")]
    offset = Difference("ListOffsets", "3", "4", "offset")
    assert unexplained([Difference("ListOffsets", "3", "4", "timestamp"), offset], known) == [offset]


def test_only_a_listed_pair_is_explained() -> None:
    known = [Known("Fetch", "NONE", "*", "why")]
    new = Difference("Fetch", "INVALID_REQUEST", "NONE")
    assert unexplained([Difference("Fetch", "NONE", CLOSED), new], known) == [new]
    assert unexplained([Difference("Produce", "NONE", CLOSED)], known)


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: f"{known.api}-{known.field}-{known.kafka}-{known.ours}")
def test_known_difference_names_a_compared_api_and_a_reason(known: Known) -> None:
    assert known.api == "*" or known.api in {api.name for key, api in KAFKA_APIS.items() if key not in LEFT_OUT}
    assert known.why.endswith(".")


def test_epochs_of_groups_are_counted_from_the_first_one() -> None:
    """A group of the newer protocol begins with epoch 2 in Kafka 4.3 and with 1 here."""
    kafka, ours = Names(first_group_epoch=2), Names(first_group_epoch=1)
    assert [side.fill({"member_epoch": GroupEpoch(1)})["member_epoch"] for side in (kafka, ours)] == [2, 1]
    later = [values_of({"member_epoch": epoch}, side.common) for side, epoch in ((kafka, 3), (ours, 2))]
    assert later[0] == later[1]
    assert kafka.common("member_epoch", -1) == -1
