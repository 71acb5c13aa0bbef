"""`strandline cat` and `topic analyze`: JSON lines out of a topic and into it, and what a topic holds."""

from __future__ import annotations

import json
import subprocess
from collections import Counter

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, one_sentence, run
from terminal import CTRL_C, CTRL_D, at_a_terminal

from strandline.cli import analysis
from strandline.cli.analysis import Analysis
from strandline.client import FetchedBatch
from strandline.client.consumer.columns import BinaryColumn, int64s


def batch(offsets: list[int], keys: list[bytes | None], values: list[bytes | None], *, next_offset: int = -1) -> FetchedBatch:
    times = int64s([1000 + offset for offset in offsets])
    after = next_offset if next_offset >= 0 else offsets[-1] + 1
    return FetchedBatch("t", 0, 0, after, int64s(offsets), times, 0, BinaryColumn.of(keys), BinaryColumn.of(values), None)


# -- analysis -----------------------------------------------------------------------------------------------------------


def test_records_keys_sizes_and_times_are_counted() -> None:
    found = Analysis(0, 5)
    found.add(batch([0, 1, 2], [b"a", b"b", None], [b"xx", None, b"yyyy"]))
    found.add(batch([3, 4], [b"a", b"c"], [b"z", b""]))
    assert found.is_complete
    assert (found.records, found.batches, found.keys, found.null_keys, found.tombstones) == (5, 2, 3, 1, 1)
    assert (found.key_bytes, found.value_bytes, found.largest_value, found.bytes) == (4, 7, 4, 11)
    assert (found.first_timestamp_ms, found.last_timestamp_ms) == (1000, 1004)
    assert (found.gaps, found.document["missing_offsets"]) == (0, 0)


def test_gaps_are_runs_of_offsets_without_records() -> None:
    """In a batch, between batches, and at the end, where the cleaner has left an empty batch."""
    found = Analysis(10, 30)
    found.add(batch([12, 13, 17], [None] * 3, [b""] * 3, next_offset=20))
    found.add(batch([25], [None], [b""], next_offset=30))
    assert (found.gaps, found.records, found.document["missing_offsets"]) == (3, 4, 16)
    assert found.is_complete


def test_records_outside_the_range_are_not_counted() -> None:
    """Brokers send whole batches, and others may be written while the topic is read."""
    found = Analysis(2, 4)
    found.add(batch([0, 1, 2, 3, 4, 5], [None] * 6, [b""] * 6))
    assert (found.records, found.is_complete) == (2, True)


def test_number_of_keys_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "KEYS_MAX", 2)
    found = Analysis(0, 9)
    found.add(batch([0, 1, 2, 3], [b"a", b"b", b"c", b"d"], [b""] * 4))
    assert (found.keys, len(found._keys)) == (None, 3)


# -- a real cluster -----------------------------------------------------------------------------------------------------

LINES = [
    {"key": "a", "value": "one", "partition": 0, "headers": [["h", "1"]]},
    {"key": "b", "value": None, "partition": 1},
    {"key": None, "value": {"base64": "/w=="}, "partition": 1},
]


@pytest.fixture(scope="module")
def topic(up: Up) -> str:
    assert run("topic", "create", "lines", "-p", "2", "-r", "3", "-b", up.bootstrap).code == 0
    outcome = run("cat", "lines", "-b", up.bootstrap, stdin="".join(json.dumps(line) + "\n" for line in LINES))
    assert (outcome.code, outcome.out) == (0, "")
    assert "sending the lines of standard input to lines (-C prints its records instead)" in outcome.err
    assert "3 records sent to lines" in outcome.err
    return "lines"


@pytest.mark.processes
def test_cat_prints_what_it_was_given(up: Up, topic: str) -> None:
    printed = sorted(
        run("cat", topic, "-e", "-C", "-b", up.bootstrap).lines(), key=lambda line: (line["partition"], line["offset"])
    )
    assert [{name: line[name] for name in LINES[0]} for line in printed] == [{"headers": [], **line} for line in LINES]
    assert run("cat", "-C", "-J", "--topic", topic, "-o", "-1", "-c", "2", "-b", up.bootstrap).code == 0


@pytest.mark.processes
def test_cat_copies_a_topic_through_a_pipe(up: Up, topic: str) -> None:
    assert run("topic", "create", "copied", "-p", "1", "-r", "3", "-b", up.bootstrap).code == 0
    (cat,) = COMMAND
    shell = f"{cat} cat {topic} -e < /dev/null | {cat} cat copied --ignore-partition"
    environment = ENVIRONMENT | {"STRANDLINE_BOOTSTRAP": up.bootstrap}
    done = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    copied = run("cat", "copied", "-eC", "-b", up.bootstrap).lines()
    assert sorted(str(line["value"]) for line in copied) == sorted(str(line["value"]) for line in LINES)


@pytest.mark.processes
def test_cat_at_a_terminal_prints_and_follows(up: Up, topic: str) -> None:
    with at_a_terminal("cat", topic, "-b", up.bootstrap) as terminal:
        terminal.wait_for('"value": "one"')
        terminal.wait_for("waiting for more records")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(5) == 130
    with at_a_terminal("cat", "copied", "-P", "-b", up.bootstrap) as terminal:
        terminal.wait_for("each line is a record for copied")
        terminal.type(f'{{"value": "typed"}}\n{CTRL_D}')
        assert terminal.wait_for_end(10) == 0


def test_directions_do_not_mix() -> None:
    assert "exclude each other" in one_sentence(run("cat", "t", "-C", "-P"))
    assert "-C reads although lines are piped in" in one_sentence(run("cat", "t", "-e", stdin="{}\n"))
    assert "about sending" in one_sentence(run("cat", "t", "-C", "-z", "zstd"))


@pytest.mark.processes
def test_analysis_is_shown_by_partition(up: Up, topic: str) -> None:
    found = run("topic", "analyze", topic, "-o", "json", "-b", up.bootstrap).json()
    first, second = found["partitions"]
    assert (found["records"], found["complete"]) == (3, True)
    assert (first["records"], first["keys"], first["tombstones"], first["header_bytes"]) == (1, 1, 0, 2)
    assert (second["records"], second["keys"], second["tombstones"], second["null_keys"]) == (2, 1, 1, 1)
    shown = run("topic", "analyze", topic, "-b", up.bootstrap, env={"COLUMNS": "80"}).out.splitlines()
    assert shown[-1] == "lines: 3 records, 8 B of keys, values and headers"
    assert max(map(len, shown)) <= 80
    assert run("topic", "analyze", topic, "-p", "1", "-o", "plain", "-b", up.bootstrap).out.startswith("1\t2\t")
    assert "has no partition 7" in one_sentence(run("topic", "analyze", topic, "-p", "7", "-b", up.bootstrap))


@pytest.mark.processes
def test_progress_is_shown_at_a_terminal_alone(up: Up, topic: str) -> None:
    with at_a_terminal("topic", "analyze", topic, "-b", up.bootstrap) as terminal:
        terminal.wait_for("100%")
        assert terminal.wait_for_end(10) == 0
    assert run("topic", "analyze", topic, "-b", up.bootstrap).err == ""


@pytest.mark.processes
def test_deleting_a_topic_asks_first(up: Up) -> None:
    assert run("topic", "create", "doomed", "-b", up.bootstrap).code == 0
    assert "give --yes" in one_sentence(run("topic", "delete", "doomed", "-b", up.bootstrap))
    for answer, code in (("n", 1), ("y", 0)):
        with at_a_terminal("topic", "delete", "doomed", "-b", up.bootstrap) as terminal:
            terminal.wait_for("for good. Continue?")
            terminal.type(f"{answer}\n")
            assert terminal.wait_for_end(10) == code
    names = Counter(line.split("\t")[0] for line in run("topic", "list", "-o", "plain", "-b", up.bootstrap).out.splitlines())
    assert names["doomed"] == 0
