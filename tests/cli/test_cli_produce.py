"""`strandline produce`: the record of a line, and the report about the lines, however the command ends."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Outcome, Up, one_sentence, run, wait_until
from terminal import CTRL_C, CTRL_D, at_a_terminal

from strandline.cli.produce import _ranges

pytestmark = pytest.mark.processes

SOON_S = 5.0
"""The promise is about a second; a machine that runs other tests gets more."""


@pytest.fixture
def env(up: Up) -> dict[str, str]:
    return {"STRANDLINE_BOOTSTRAP": up.bootstrap}


@pytest.fixture
def topic(env: dict[str, str], request: pytest.FixtureRequest) -> str:
    """Create a topic with two partitions for one test."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    assert run("topic", "create", name, "--partitions", "2", "--replication-factor", "3", env=env).code == 0
    return name


def records(topic: str, env: dict[str, str]) -> list[dict[str, object]]:
    outcome = run("consume", topic, "--from", "beginning", "--exit-at-end", "--json", env=env)
    assert outcome.code == 0, outcome.err
    return outcome.lines()


def values(topic: str, env: dict[str, str]) -> list[object]:
    return [record["value"] for record in records(topic, env)]


# -- Ctrl-C


def test_ctrl_c_reports_what_was_acknowledged(topic: str, env: dict[str, str]) -> None:
    """The thread that waits for the next line must not keep the process alive."""
    with at_a_terminal("produce", topic, "-p", "0", env=env) as terminal:
        terminal.wait_for("each line is a record")
        terminal.type("tea\ncoffee\n")
        wait_until(lambda: values(topic, env) == ["tea", "coffee"], "both lines are in the log")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(SOON_S) == 130
    assert terminal.screen.splitlines()[-1] == "strandline: interrupted: 2 records sent and acknowledged"
    assert "Traceback" not in terminal.screen


def test_ctrl_c_works_before_the_first_line(topic: str, env: dict[str, str]) -> None:
    with at_a_terminal("produce", topic, env=env) as terminal:
        terminal.wait_for("each line is a record")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(SOON_S) == 130
    assert terminal.screen.splitlines()[-1] == "strandline: interrupted: nothing was sent"


def test_ctrl_d_ends_the_input(topic: str, env: dict[str, str]) -> None:
    with at_a_terminal("produce", topic, env=env) as terminal:
        terminal.wait_for("Ctrl-D")
        terminal.type(f"tea\n{CTRL_D}")
        assert terminal.wait_for_end(20) == 0
    assert values(topic, env) == ["tea"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Up]:
    """A cluster of one broker and one controller that the test may kill."""
    from strandline.local_cluster import free_port_range

    words = ["up", "--json", "--data", str(tmp_path / "data"), "--base-port", str(free_port_range(5))]
    words += ["--brokers", "1", "--controllers", "1"]
    words += ["--set", "default.replication.factor=1", "--set", "min.insync.replicas=1"]
    with subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        try:
            ready = next(e for e in map(json.loads, process.stdout) if e["event"] == "ready")
            yield Up(process, ready, tmp_path / "data", list)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def test_ctrl_c_names_lines_in_doubt_when_the_cluster_is_down(alone: Up, tmp_path: Path) -> None:
    """Before, the command waited for all of delivery_timeout_ms, and then did not report the lines."""
    env = {"STRANDLINE_BOOTSTRAP": alone.bootstrap}
    assert run("topic", "create", "orders", "--partitions", "1", env=env).code == 0
    words = [*COMMAND, "produce", "orders"]
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(words, stdin=subprocess.PIPE, stderr=err, text=True, env=ENVIRONMENT | env)
    with process:
        assert process.stdin is not None
        print("first\nsecond", file=process.stdin, flush=True)
        wait_until(lambda: values("orders", env) == ["first", "second"], "two lines are in the log")
        assert run("node", "pause", "broker-1", "--data", str(alone.folder)).code == 0
        print("third\nfourth", file=process.stdin, flush=True)
        said = "line 3 is not acknowledged yet"
        wait_until(lambda: said in (tmp_path / "err").read_text(), "it says what it waits for", timeout_s=30)
        # A new process, not a fork: meanwhile the producer finds its connections lost, as at the pace of a person.
        subprocess.run([*COMMAND, "node", "kill", "broker-1", "--data", str(alone.folder)], check=True, env=ENVIRONMENT)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SOON_S) == 130
        assert time.monotonic() - began < SOON_S
    story = "2 of 4 records acknowledged; not acknowledged: lines 3 to 4, which may be in the log all the same"
    assert (tmp_path / "err").read_text().splitlines()[-1] == f"strandline: interrupted: {story}"


# -- lines that cannot be sent


def test_a_too_large_line_is_named_with_its_limit(topic: str, env: dict[str, str]) -> None:
    outcome = run("produce", topic, stdin=f"one\ntwo\n{'x' * 1_100_000}\nfour\n", env=env)
    assert outcome.code == 2
    sentence = one_sentence(outcome)
    for words in ("line 3 has", "1048576", "--max-request-size BYTES", "2 records sent and acknowledged"):
        assert words in sentence
    assert sorted(map(str, values(topic, env))) == ["one", "two"]


def test_an_endless_line_is_refused_early(topic: str, env: dict[str, str]) -> None:
    """`produce < /dev/zero`"""
    with open("/dev/zero", "rb") as zeros:
        done = subprocess.run(
            [*COMMAND, "produce", topic],
            stdin=zeros,
            capture_output=True,
            text=True,
            env=ENVIRONMENT | env,
            check=False,
            timeout=20,
        )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "line 1 has more than 1048576 bytes" in done.stderr


def test_the_limit_of_a_line_can_be_raised(env: dict[str, str], topic: str) -> None:
    assert run("topic", "alter", topic, "--set", "max.message.bytes=3000000", env=env).code == 0
    large = "x" * 1_100_000
    assert run("produce", topic, "--max-request-size", "3000000", stdin=large, env=env).code == 0
    assert values(topic, env) == [large]


def test_a_rejection_by_the_topic_names_the_lines_before(topic: str, env: dict[str, str]) -> None:
    outcome = run("produce", topic, "-p", "0", "--max-request-size", "3000000", stdin=f"one\n{'x' * 1_100_000}\n", env=env)
    assert outcome.code == 1
    sentence = one_sentence(outcome)
    assert "max.message.bytes is 1048588" in sentence
    assert sentence.endswith("1 of 2 records acknowledged; not acknowledged: line 2")


def test_invalid_lines_and_their_neighbours_are_named(env: dict[str, str]) -> None:
    """All lines are in one batch, which the leader rejects as a whole."""
    name, configs = "compacted-lines", ("--config", "cleanup.policy=compact")
    assert run("topic", "create", name, "--partitions", "1", "--replication-factor", "3", *configs, env=env).code == 0
    outcome = run("produce", name, "--key-separator", ":", stdin="a:1\nbad\nc:3\nd:4\nbad\nbad\n", env=env)
    assert outcome.code == 1
    sentence = one_sentence(outcome)
    assert "the record has no key: a compacted topic" in sentence
    assert sentence.endswith(
        "0 of 6 records acknowledged; not acknowledged: lines 1 to 6; lines 2 and 5 to 6 are invalid; "
        "lines 1 and 3 to 4 are valid, but in the same batch as an invalid line"
    )
    assert run("produce", name, "--key-separator", ":", stdin="a:1\nc:3\nd:4\n", env=env).code == 0


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([7], "line 7"),
        ([7, 8], "lines 7 to 8"),
        ([1, 3], "lines 1 and 3"),
        ([1, 2, 3, 7, 9, 10], "lines 1 to 3, 7 and 9 to 10"),
        (list(range(1, 41, 2)), "lines 1, 3, 5, 7, 9, 11, 13, 15, 17, 19 and others (20 lines)"),
    ],
)
def test_line_numbers_are_listed_as_ranges(numbers: list[int], text: str) -> None:
    assert _ranges(numbers) == text


# -- what a line becomes


def test_every_record_has_the_key_the_headers_and_the_partition(topic: str, env: dict[str, str]) -> None:
    run("produce", "-t", topic, "-k", "alice", "-H", "source=till-3", "-H", "empty=", "-p", "1", stdin="tea\nmilk\n", env=env)
    for record, value in zip(records(topic, env), ["tea", "milk"], strict=True):
        assert (record["key"], record["value"], record["partition"]) == ("alice", value, 1)
        assert record["headers"] == [["source", "till-3"], ["empty", ""]]


def test_a_tab_separates_key_and_value(topic: str, env: dict[str, str]) -> None:
    run("produce", topic, "-K", r"\t", stdin="alice\ttea\n", env=env)
    assert [(r["key"], r["value"]) for r in records(topic, env)] == [("alice", "tea")]


RECENT_MS = int(time.time() * 1000) - 60_000
RICH = [
    {"key": "alice", "value": "tea", "headers": [["source", "till-3"], ["none", None]], "timestamp_ms": RECENT_MS},
    {"key": None, "value": {"base64": "/wAK"}, "headers": [["raw", {"base64": "gA=="}]], "partition": 1},
    {"key": {"base64": "gA=="}, "value": None, "partition": 0},
    {"key": "", "value": "", "partition": 1},
    {"value": '{"base64": "gA=="}', "partition": 1},
    {"value": "zwei\nZeilen, \u00e4\u00f6\u00fc", "partition": 1},
]
COMPARED = ("partition", "timestamp_ms", "key", "value", "headers")


def test_json_from_consume_is_produced_unchanged(topic: str, env: dict[str, str]) -> None:
    """The records have bytes that are not UTF-8, empty and missing keys and values, headers, times and partitions."""
    lines = "\n".join(map(json.dumps, RICH)) + "\n\n"
    assert run("produce", topic, "--json", stdin=lines, env=env).err == f"strandline: 6 records sent to {topic}\n"
    first = run("consume", topic, "--exit-at-end", "--json", env=env)
    assert len(first.lines()) == len(RICH)
    run("topic", "create", f"{topic}-copy", "--partitions", "2", env=env)
    assert run("produce", f"{topic}-copy", "--json", stdin=first.out, env=env).code == 0

    def compared(outcome: Outcome) -> list[str]:
        return sorted(json.dumps([record[name] for name in COMPARED]) for record in outcome.lines())

    assert compared(run("consume", f"{topic}-copy", "--exit-at-end", "--json", env=env)) == compared(first)


def test_bytes_and_text_differ_in_json(topic: str, env: dict[str, str]) -> None:
    r"""Before, the text `\xff` and the byte 255 looked the same."""
    subprocess.run([*COMMAND, "produce", topic, "-p", "0"], input=b"\xff\n\\xff\n", env=ENVIRONMENT | env, check=True)
    assert values(topic, env) == [{"base64": "/w=="}, "\\xff"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("tea", "not a record in JSON"),
        ('{"key": "alice"}', "`value`"),
        ('{"vlaue": "tea"}', "unknown field `vlaue`"),
        ('{"value": {"sum": 5}}', "$.value"),
        ('{"value": {"base64": "%"}}', "$.value"),
        ('{"value": "tea", "partition": 7}', "has 2 partitions"),
        ('{"value": "tea", "partition": 7}', "--ignore-partition"),
        ('{"value": "tea", "timestamp_ms": -5}', "timestamp"),
        ('{"value": "tea", "partition": -5}', "partition"),
    ],
)
def test_an_invalid_json_line_is_named(topic: str, env: dict[str, str], line: str, words: str) -> None:
    outcome = run("produce", topic, "--json", stdin=f'{{"value": "good"}}\n{line}\n', env=env)
    sentence = one_sentence(outcome)
    assert (outcome.code, "line 2" in sentence, words in sentence) == (2, True, True), sentence
    assert values(topic, env) == ["good"]


def test_ignore_partition_lets_the_key_choose(topic: str, env: dict[str, str]) -> None:
    line = '{"key": "alice", "value": "tea", "partition": 7}\n'
    assert run("produce", topic, "--json", "--ignore-partition", stdin=line, env=env).code == 0
    assert values(topic, env) == ["tea"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["orders", "-k", "a", "-K", ":"], "--key-separator"),
        (["orders", "-J", "-k", "a"], "--key and --json"),
        (["orders", "-J", "-K", ":"], "--key-separator and --json"),
        (["orders", "-J", "-H", "a=b"], "--header and --json"),
        (["orders", "-H", "nothing"], "NAME=VALUE"),
        (["orders", "--ignore-partition"], "--json"),
        (["orders", "-J", "-p", "1", "--ignore-partition"], "exclude each other"),
        (["orders", "-t", "returns"], "given twice"),
        ([], "strandline produce TOPIC"),
        (["orders", "-K", ""], "--key-separator"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], words: str) -> None:
    outcome = run("produce", *options, stdin="a\n")
    assert (outcome.code, words in one_sentence(outcome)) == (2, True), outcome.err


# -- standard streams


def test_a_closed_standard_input_is_one_sentence(topic: str, env: dict[str, str]) -> None:
    command = f"{COMMAND[0]} produce {topic} <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT | env, timeout=30, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "standard input is closed" in done.stderr


def test_closed_streams_do_not_become_sockets(topic: str, env: dict[str, str]) -> None:
    """A file gets the lowest free descriptor: with closed standard streams that would be a socket of the event loop, say."""
    command = f"echo tea | {COMMAND[0]} produce {topic} >&- 2>&- && {COMMAND[0]} topic list >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=ENVIRONMENT | env, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert values(topic, env) == ["tea"]


# -- compression


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_lines_are_compressed_with_the_codec(topic: str, env: dict[str, str], up: Up, codec: str) -> None:
    lines = "".join(f"{number} tea, milk and sugar\n" for number in range(500))
    assert run("produce", topic, "-p", "0", "--compression", codec, stdin=lines, env=env).code == 0
    batches = stored_batches(up, topic)
    assert {batch["compression"] for batch in batches} == {codec}
    assert sum(batch["size"] for batch in batches) < len(lines)
    assert values(topic, env) == lines.splitlines()


def test_a_level_is_passed_to_the_codec(topic: str, env: dict[str, str], up: Up) -> None:
    """The line is one batch, so its size depends on nothing but the level."""
    line = " ".join(str(number * number) for number in range(20_000))
    sizes = []
    for level in ("1", "19"):
        assert run("produce", topic, "-p", "0", "-z", "zstd", "--compression-level", level, stdin=line, env=env).code == 0
        sizes.append(stored_batches(up, topic)[-1]["size"])
    assert sizes[1] < sizes[0] < len(line)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--compression", "brotli"], "'brotli' is not one of 'none', 'gzip', 'snappy', 'lz4', 'zstd'"),
        (["-z", "snappy", "--compression-level", "1"], "needs a codec with levels: --compression gzip, lz4 or zstd, not snappy"),
        (["--compression-level", "3"], "needs a codec with levels: --compression gzip, lz4 or zstd, not none"),
        (["-z", "gzip", "--compression-level", "10"], "--compression-level of gzip must be from 1 to 9, not 10"),
    ],
)
@pytest.mark.parametrize("command", [["produce", "orders"], ["bench", "produce"], ["bench", "consume"]], ids=" ".join)
def test_a_codec_or_level_that_does_not_exist_is_refused(command: list[str], words: list[str], problem: str) -> None:
    outcome = run(*command, *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert problem in outcome.err


def stored_batches(up: Up, topic: str) -> list[dict[str, Any]]:
    """The batches of partition 0 that are in the log of one of its brokers."""
    segment = up.folder / "broker-1" / "data" / f"{topic}-0" / f"{0:020}.log"
    return run("log", "dump", str(segment), "--json").lines()
