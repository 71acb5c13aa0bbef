"""Tables fit the terminal's width: no word, address or number is broken, and omitted columns are named."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.cli.table import layout

COLUMNS = ("topic", "partition", "leader", "replicas", "offline", "data", "state")
ROWS = [
    ("orders", 0, 1, (1, 2, 3), (), "./cluster/broker-1/data/orders-0", "under-replicated"),
    ("orders", 1, 2, (2, 3, 1), (), "./cluster/broker-2/data/orders-1", "ok"),
]


def test_a_table_without_a_limit_has_one_line_per_row() -> None:
    lines = layout(COLUMNS, ROWS)
    assert lines[1].split() == ["topic", "partition", "leader", "replicas", "data", "state"]
    assert lines[3].split() == ["orders", "0", "1", "1,2,3", "./cluster/broker-1/data/orders-0", "under-replicated"]


def test_an_empty_column_is_hidden() -> None:
    assert "offline" not in "\n".join(layout(COLUMNS, ROWS))


def test_headings_stay_when_there_is_no_row() -> None:
    assert layout(COLUMNS, [])[1].split() == list(COLUMNS)


def test_a_spare_column_is_omitted_and_named() -> None:
    lines = layout(COLUMNS, ROWS, width=80, spare=("data",))
    assert "data" not in lines[1]
    assert lines[-1] == "(not shown: data; --wide shows all columns)"
    assert max(map(len, lines)) <= 80


def test_text_is_wrapped_between_words() -> None:
    rows = [("log.retention.ms", 604800000, "how long a record is kept before its segment may be removed, by its timestamp")]
    lines = layout(("key", "default", "meaning"), rows, width=60)
    assert max(map(len, lines)) <= 60
    column = lines[1].index("meaning")
    assert " ".join(line[column:] for line in lines[3:]).split() == rows[0][2].split()


def test_a_table_that_cannot_fit_becomes_blocks() -> None:
    lines = layout(COLUMNS, ROWS, width=30)
    assert " partition  0" in lines
    assert " state      under-replicated" in lines


def test_numbers_are_aligned_right_and_lists_left() -> None:
    lines = layout(("n", "replicas"), [(5, (1, 2)), (1234, (1, 2, 3))])
    assert lines[3:5] == ["    5   1,2", " 1234   1,2,3"]


def test_a_long_list_is_broken_only_after_commas() -> None:
    addresses = "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    lines = layout(("key", "value"), [("bootstrap", addresses)], width=45)
    assert max(map(len, lines)) <= 45
    pieces = [line.split()[-1] for line in lines[3:] if line]
    assert "".join(pieces) == addresses
    assert all(piece.endswith(",") for piece in pieces[:-1])


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(st.text("ab-:./ 1", max_size=30), min_size=n, max_size=n).map(tuple), min_size=1, max_size=5)
    ),
    st.integers(20, 120),
)
def test_no_word_is_broken(rows: list[tuple[str, ...]], width: int) -> None:
    """At any width a word stays whole, so that grep and the mouse can select it."""
    lines = layout([f"c{i}" for i in range(len(rows[0]))], rows, width=width)
    printed = re.split(r"\s+", "\n".join(lines))
    assert {word for row in rows for text in row for word in text.split()} <= set(printed)


@pytest.mark.parametrize("width", range(40, 130, 7))
def test_a_table_fits_or_becomes_blocks(width: int) -> None:
    lines = layout(COLUMNS, ROWS, width=width, spare=("data",))
    assert max(map(len, lines[:-1])) <= width or not any("─" in line for line in lines)


def test_control_characters_of_a_value_do_not_reach_the_terminal() -> None:
    """F35: client ids and names of groups come from anyone, and an administrator looks at them."""
    lines = layout(["CLIENT"], [["a\x1b[2Jb\nc"], ["\u202ed"]])
    assert [line.strip() for line in lines[-3:-1]] == ["a\\x1b[2Jb\\nc", "\\u202ed"]
