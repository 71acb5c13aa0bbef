"""`strandline consume`: its start, its notes while it waits, and the options that it refuses."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Up, one_sentence, run, wait_until
from terminal import CTRL_C, at_a_terminal

from strandline.cli import consume, consume_places
from strandline.cli.consume_job import Job
from strandline.cli.consume_options import Isolation
from strandline.cli.consume_places import NO_LEADER, Places
from strandline.cli.start import BeforeEnd, Beginning, End, Offset, Time, parse_start
from strandline.client import TopicPartition
from strandline.protocol.errors import UsageError

SOON_S = 5.0
NOW_MS = 1_767_268_800_000
"""2026-01-01T12:00 UTC"""


# -- where it starts


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("0", Offset(0)),
        ("1234", Offset(1234)),
        ("-1", BeforeEnd(1)),
        ("-10", BeforeEnd(10)),
        ("@2026-01-01T12:00", Time(NOW_MS)),
        ("@2026-01-01 12:00:00", Time(NOW_MS)),
        ("@2026-01-01T12:00Z", Time(NOW_MS)),
        ("@2026-01-01T13:00+01:00", Time(NOW_MS)),
        ("@2026-01-01", Time(NOW_MS - 12 * 3_600_000)),
        ("@1767268800000", Time(NOW_MS)),
        ("@-5m", Time(NOW_MS - 300_000)),
        ("@-1h30m", Time(NOW_MS - 5_400_000)),
        ("@-250ms", Time(NOW_MS - 250)),
        ("@-2d", Time(NOW_MS - 172_800_000)),
        ("@-99999d", Time(0)),
    ],
)
def test_a_start_is_read(text: str, start: object) -> None:
    assert parse_start(text, NOW_MS) == start


def test_a_word_is_a_start() -> None:
    assert all(isinstance(parse_start(word, NOW_MS), Beginning) for word in ("beginning", "start", "earliest"))
    assert all(isinstance(parse_start(word, NOW_MS), End) for word in ("end", "latest"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("yesterday", "'yesterday'"),
        ("-0", "end"),
        ("1.5", "'1.5'"),
        ("@yesterday", "@2026-01-01T12:00"),
        ("@5m", "@-5m"),
        ("@-5y", "@-5m"),
        ("@1767268800", "in seconds it is @1767268800000"),
        ("@", "@-5m"),
        ("", "''"),
    ],
)
def test_an_invalid_start_is_refused_with_the_valid_forms(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        parse_start(text, NOW_MS)


@pytest.fixture
def env(up: Up) -> dict[str, str]:
    return {"STRANDLINE_BOOTSTRAP": up.bootstrap}


@pytest.fixture
def topic(env: dict[str, str], request: pytest.FixtureRequest) -> str:
    """Create a topic with one partition and four records: an hour, ten minutes and a minute old, and new."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name)
    assert run("topic", "create", name, "--partitions", "1", "--replication-factor", "3", env=env).code == 0
    now_ms = int(time.time() * 1000)
    ages_s = {"old": 3600, "recent": 600, "new": 60, "newest": 0}
    lines = [json.dumps({"value": value, "timestamp_ms": now_ms - age_s * 1000}) for value, age_s in ages_s.items()]
    assert run("produce", name, "--json", stdin="\n".join(lines), env=env).code == 0
    return name


@pytest.mark.processes
def test_reading_starts_at_a_time(topic: str, env: dict[str, str]) -> None:
    def since(start: str) -> list[str]:
        return run("consume", topic, "--from", start, "-e", env=env).out.splitlines()

    assert since("@-2h") == ["old", "recent", "new", "newest"]
    assert since("@-30m") == ["recent", "new", "newest"]
    assert since("@-5m") == ["new", "newest"]
    an_hour_ago = time.strftime("@%Y-%m-%dT%H:%M", time.gmtime(time.time() - 1800))
    assert since(an_hour_ago) == ["recent", "new", "newest"]
    assert since("@2100-01-01") == []


@pytest.mark.processes
def test_exit_at_end_reads_the_topic_from_the_beginning(topic: str, env: dict[str, str]) -> None:
    """To read from the end to the end would always give nothing, so the default start is the beginning then."""
    assert len(run("consume", topic, "--exit-at-end", env=env).out.splitlines()) == 4


@pytest.mark.processes
def test_a_rack_without_replicas_reads_from_the_leader(topic: str, env: dict[str, str]) -> None:
    assert len(run("consume", topic, "-e", "--client-rack", "elsewhere", env=env).out.splitlines()) == 4


def test_the_rack_is_that_of_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str | None] = []

    def refuse(*, client_rack: str | None, **_: object) -> None:
        given.append(client_rack)
        raise UsageError("enough")

    monkeypatch.setattr("strandline.client.Consumer", refuse)
    for rack in ("eu-1a", None):
        with pytest.raises(UsageError, match="enough"):
            consume.consume(topic="orders", client_rack=rack)
    assert given == ["eu-1a", None]


def test_the_isolation_level_is_that_of_the_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def refuse(*, isolation_level: str, **_: object) -> None:
        given.append(isolation_level)
        raise UsageError("enough")

    monkeypatch.setattr("strandline.client.Consumer", refuse)
    for level in Isolation:
        with pytest.raises(UsageError, match="enough"):
            consume.consume(topic="orders", isolation_level=level)
    assert given == ["read_uncommitted", "read_committed"]


@pytest.mark.processes
def test_short_options_are_those_of_kcat_and_rpk(topic: str, env: dict[str, str], up: Up) -> None:
    outcome = run("consume", "-b", up.bootstrap, "-t", topic, "-p", "0", "-o", "-3", "-n", "2", "-e", "-f", r"%p %v\n")
    assert outcome.out.splitlines() == ["0 recent", "0 new"]
    assert [r["value"] for r in run("consume", topic, "-o", "3", "-c", "1", "-J", env=env).lines()] == ["newest"]


@pytest.mark.processes
def test_an_offset_outside_the_log_is_reported(topic: str, env: dict[str, str]) -> None:
    outcome = run("consume", topic, "--from", "99", "-e", env=env)
    assert (outcome.code, outcome.out) == (0, "")
    assert f"offset 99 is not in the log of {topic}-0 (offsets 0 to 3)" in outcome.err


@pytest.mark.processes
def test_an_empty_range_is_reported(topic: str, env: dict[str, str]) -> None:
    outcome = run("consume", topic, "--from", "end", "-e", env=env)
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == f"strandline: nothing to read: {topic} has no record from end to its end\n"


# -- what it waits for


@pytest.mark.processes
def test_waiting_is_reported_and_ends_on_ctrl_c(topic: str, env: dict[str, str]) -> None:
    with at_a_terminal("consume", topic, env=env) as terminal:
        terminal.wait_for(f"waiting for new records of {topic}")
        run("produce", topic, stdin="tea\n", env=env)
        terminal.wait_for("tea")
        terminal.type(CTRL_C)
        assert terminal.wait_for_end(SOON_S) == 130
    assert "Traceback" not in terminal.screen


@pytest.mark.processes
def test_the_number_of_missing_records_is_reported(topic: str, env: dict[str, str]) -> None:
    with at_a_terminal("consume", topic, "-o", "beginning", "-n", "7", env=env) as terminal:
        terminal.wait_for(f"waiting for 3 more records of {topic}")


@pytest.mark.processes
def test_a_partition_without_a_leader_is_reported(env: dict[str, str], up: Up) -> None:
    run("topic", "create", "leaderless", "--replica-assignment", "3", env=env)
    assert run("node", "stop", "broker-3", "--data", str(up.folder)).code == 0
    try:
        with at_a_terminal("consume", "leaderless", env=env) as terminal:
            terminal.wait_for("still waiting for the leaders of leaderless-0")
            terminal.type(CTRL_C)
            assert terminal.wait_for_end(SOON_S) == 130
    finally:
        assert run("node", "start", "broker-3", "--data", str(up.folder)).code == 0
    wait_until(lambda: run("cluster", "describe", env=env).code == 0, "broker 3 is unfenced")


def places_of(*numbers: int) -> Places:
    """The partitions of `consume orders -e`, which are all read to their end."""
    job = Job("h:1", "orders", None, Beginning(), "beginning", None, True, lambda record: b"")
    nothing: Any = None
    places = Places(nothing, nothing, job, [TopicPartition("orders", number) for number in numbers])
    places._unknown.clear()
    return places


def test_partitions_that_were_given_up_are_named() -> None:
    places = places_of(0, 1)
    assert places.failure == ""
    places._give_up([TopicPartition("orders", 1)], NO_LEADER)
    assert places.failure == "orders-1 could not be read to the end: no leader has answered; the others were"


async def test_several_partitions_without_a_leader_have_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """'It has no leader' after two names would leave open which one is meant."""
    monkeypatch.setattr(consume_places, "GIVE_UP_S", -1)
    places = places_of(0, 1)
    places._unknown.update(dict.fromkeys([TopicPartition("orders", 0), TopicPartition("orders", 1)]))
    await places._learn()
    assert places.failure == "orders-0, orders-1 could not be read to the end: no leader has answered"


@pytest.mark.parametrize("others", ["none", "left", "unknown"])
def test_other_partitions_are_only_read_if_there_are_some(others: str) -> None:
    """With --count the command ends before it has read the others: `left`, or even asked their leaders: `unknown`."""
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    places = places_of(0) if others == "none" else places_of(0, 1)
    places.left.update({second: None} if others == "left" else {})
    places._unknown.update({second: None} if others == "unknown" else {})
    places._give_up([first], NO_LEADER)
    assert places.failure == "orders-0 could not be read to the end: no leader has answered"


@pytest.mark.processes
def test_a_closed_pipe_ends_the_wait(topic: str, env: dict[str, str]) -> None:
    """`strandline consume orders | head -n 1` does not wait for a second record."""
    command = f"{COMMAND[0]} consume {topic} --from beginning | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=ENVIRONMENT | env, timeout=20, check=True)
    assert (done.stdout, "Traceback" in done.stderr) == ("old\n", False)


@pytest.mark.processes
def test_ctrl_c_ends_a_blocked_write(topic: str, env: dict[str, str]) -> None:
    """The command blocks in a write to a full pipe."""
    run("produce", topic, stdin=f"{'x' * 1000}\n" * 500, env=env)
    words = [*COMMAND, "consume", topic, "--from", "beginning"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT | env) as process:
        wait_until(lambda: "pipe" in Path(f"/proc/{process.pid}/wchan").read_text(), "its output is full")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=SOON_S) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


# -- what it refuses


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["orders", "--json", "--format", "%v"], "--json and --format"),
        (["orders", "-t", "returns"], "given twice"),
        ([], "strandline consume TOPIC"),
        (["orders", "--format", "%x"], "%x"),
        (["orders", "--from", "@noon"], "@2026-01-01T12:00"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], words: str) -> None:
    outcome = run("consume", *options)
    assert (outcome.code, words in one_sentence(outcome)) == (2, True), outcome.err
