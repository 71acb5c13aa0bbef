"""The catalogue of metrics: Kafka's names if Kafka has the metric, and consistent names otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from strandline.observe.catalog import ROWS, SECTIONS, Row
from strandline.observe.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
PRINTED_BY_KAFKA = {
    line for line in (Path(__file__).parent / "kafka_4_3_names.txt").read_text().split("\n") if line and not line.startswith("#")
}
LABELS_IN_THE_NAME = "kafka_server_socket_server_metrics_"
"""The exporter's example rules have none for these beans, so it prints `..._listener_plaintext_networkprocessor_0_...`. The
names here are those of the rules that people add for them (Strimzi's, Confluent's)."""

every_row = pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)


@every_row
def test_kafka_names_are_printed_by_kafkas_exporter(row: Row) -> None:
    """Existing alert rules and dashboards use these names."""
    if row.name.startswith("kafka_") and not row.name.startswith(LABELS_IN_THE_NAME):
        assert row.name in PRINTED_BY_KAFKA


@every_row
def test_a_histogram_has_the_count_of_kafkas_exporter(row: Row) -> None:
    if row.name.startswith("kafka_") and row.kind in ("histogram", "summary"):
        assert row.name + "_count" in PRINTED_BY_KAFKA


@every_row
def test_a_name_ends_with_its_kind_and_unit(row: Row) -> None:
    """A name ends in `_total` if the metric only increases, and in ms for milliseconds; our own times are in seconds."""
    assert re.fullmatch(r"[a-z][a-z0-9_]*", row.name)
    assert (row.kind == "counter") == row.name.endswith("_total")
    if row.kind in ("histogram", "summary"):
        assert row.per_second == (1000 if row.name.endswith("ms") else 1)
    if row.kind == "histogram":
        assert row.name.endswith("ms") or row.name.endswith("_seconds")


@every_row
def test_a_row_has_kafkas_bean_or_our_prefix(row: Row) -> None:
    assert bool(row.mbean) == row.name.startswith("kafka_")
    assert row.name.startswith(("kafka_", "strandline_", "process_"))


@every_row
def test_a_row_has_its_meaning_as_a_sentence(row: Row) -> None:
    assert row.help.endswith((".", ".)"))
    assert "\n" not in row.help
    assert "|" not in row.help
    assert all(re.fullmatch(r"[a-zA-Z][a-zA-Z_]*", label) for label in row.labels)


def test_no_name_is_listed_twice() -> None:
    names = [row.name for section in SECTIONS for row in section.rows]
    assert len(names) == len(set(names)) == len(ROWS)


def test_the_page_of_metrics_is_up_to_date() -> None:
    """If this fails, run: python -m strandline.observe.reference > docs/metrics.md"""
    assert PAGE.read_text() == reference()


@every_row
def test_every_row_is_on_the_page_with_its_meaning(row: Row) -> None:
    assert f"| `{row.name}` | {row.kind} |" in reference()
    assert row.help in reference()
