"""The judge of groups of processes finds what it looks for, in files that were written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from group_judge import Findings, Poll, judge

Lines = list[dict[str, Any]]

FIRST: Lines = [
    {"at": 1.0, "do": "assigned", "epoch": 1, "partitions": [0]},
    {"at": 2.0, "do": "records", "epoch": 1, "partition": 0, "numbers": [0, 1], "first": 0, "next": 2},
    {"at": 3.0, "do": "revoked", "epoch": 1, "partitions": [0]},
    {"at": 3.5, "do": "ended", "epoch": 0},
]
SECOND: Lines = [
    {"at": 4.0, "do": "assigned", "epoch": 2, "partitions": [0]},
    {"at": 5.0, "do": "records", "epoch": 2, "partition": 0, "numbers": [2], "first": 2, "next": 3},
]
WENT_BACK = "the committed offset of partition 0 went from 2 back to 1 at 4.000 s"
POLLS = [Poll(2.5, {0: 1}), Poll(3.5, {0: 2}), Poll(6.0, {0: 3})]


@pytest.fixture(autouse=True)
def whole() -> None:
    """Replaces the fixture that heals the cluster of this folder: these tests need none."""


def judged(
    folder: Path,
    first: Lines = FIRST,
    second: Lines = SECOND,
    *,
    polls: list[Poll] = POLLS,
    first_died_at: float | None = None,
    name: str = "b",
    end: int = 3,
    torn: str = "",
) -> Findings:
    files = {folder / "a.0": first_died_at, folder / f"{name}.0": 7.0}
    for file, lines in zip(files, (first, second), strict=True):
        file.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)
    return judge(files, {0: {0, 1, 2}}, polls, {0: end})


def test_a_group_in_order(tmp_path: Path) -> None:
    """The second process was killed, and its file ends in the middle of a line."""
    found = judged(tmp_path, torn='{"at": 6.0, "do": "rec')
    assert found.wrong == []
    assert [(t.member, t.began, t.ended) for t in found.tenures] == [("a.0", 1.0, 3.0), ("b.0", 4.0, 7.0)]


def test_ownership_at_the_same_time(tmp_path: Path) -> None:
    """The first process has not given up the partition, and lives until after the second one got it."""
    (wrong,) = judged(tmp_path, FIRST[:2], first_died_at=4.5).wrong
    assert wrong.startswith("partition 0 was owned by two members at the same time: a.0, 1.000 to 4.500 s")
    assert judged(tmp_path, FIRST[:2], first_died_at=3.5).wrong == []


def test_ownership_in_the_same_epoch(tmp_path: Path) -> None:
    second = [{**line, "epoch": 1} for line in SECOND]
    (wrong,) = judged(tmp_path, second=second).wrong
    assert wrong.startswith("partition 0 was owned by two members in the same epoch")


def test_lost_partition_was_owned_until_its_last_records(tmp_path: Path) -> None:
    lost = [*FIRST[:2], {"at": 4.5, "do": "lost", "epoch": 0, "partitions": [0]}, FIRST[3]]
    assert judged(tmp_path, lost).wrong == []
    late = [FIRST[0], {**FIRST[1], "at": 4.2}, *lost[2:]]
    assert any("at the same time" in wrong for wrong in judged(tmp_path, late, polls=[Poll(6.0, {0: 3})]).wrong)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ([FIRST[1], FIRST[3]], "a.0 got records of partition 0, which it did not own"),
        ([*FIRST[:2], FIRST[3]], "a.0 has ended and not given up partition 0"),
        ([FIRST[0], *FIRST], "a.0 was assigned partition 0 twice"),
        ([*FIRST[:3], *FIRST[2:]], "a.0 gave up partition 0, which it did not own"),
    ],
)
def test_one_member_contradicts_itself(tmp_path: Path, first: Lines, expected: str) -> None:
    assert expected in judged(tmp_path, first).wrong


@pytest.mark.parametrize(
    ("polls", "expected"),
    [
        (
            [Poll(3.5, {0: 2}), Poll(4.0, {0: 1}), POLLS[2]],
            WENT_BACK,
        ),
        ([Poll(3.5, {0: 2}), Poll(4.0, {}), POLLS[2]], WENT_BACK.replace("back to 1", "back to -1")),
        ([Poll(1.5, {0: 1}), POLLS[2]], "1 was committed for partition 0 at 1.500 s; only 0 records were processed"),
        (POLLS[:2], "partition 0 ends at 3, and 2 is committed at the end"),
    ],
)
def test_commits(tmp_path: Path, polls: list[Poll], expected: str) -> None:
    assert judged(tmp_path, polls=polls).wrong == [expected]


def test_record_that_was_not_processed(tmp_path: Path) -> None:
    """The second member has begun after the record."""
    second = [SECOND[0], {**SECOND[1], "numbers": [3], "first": 3, "next": 4}]
    assert judged(tmp_path, second=second, end=4, polls=[*POLLS[:2], Poll(6.0, {0: 4})]).wrong == [
        "1 acknowledged records of partition 0 were not processed, the first is 2",
        "b.0 began partition 0 at 3; only 2 records were processed",
    ]
