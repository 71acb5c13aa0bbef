"""`strandline simulate` as a user runs it: a seed, a scenario, and the output of a failure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cli_world
import pytest
import warm
from cli_world import Outcome, one_sentence

from strandline.testing.simulation.options import draw_options
from strandline.testing.simulation.runs.replay import Replay

KEYS = {"seed", "verdict", "violations", "trace_sha256", "events", "messages", "virtual_s", "wall_s", "faults", "marks"}
CALM = '{"faults":[],"faults_s":0.5,"consumers":[],"leave_out":0}'
"""A run that is over soon."""


SIMULATOR = (
    "strandline.testing.simulation.campaign.mutations",
    "strandline.testing.simulation.runs.replay",
    "strandline.testing.simulation.scenarios",
)
"""Modules that `strandline simulate` imports only when it needs them; their import takes longer than most of these commands."""
_servers: list[warm.Server] = []


@pytest.fixture(scope="module", autouse=True)
def _forks_with_the_simulator() -> Iterator[None]:
    server = warm.Server(cli_world.ENVIRONMENT, also=SIMULATOR)
    _servers.append(server)
    yield
    _servers.clear()
    server.stop()


def run(*words: str, timeout_s: float = 30) -> Outcome:
    return cli_world.run(*words, timeout_s=timeout_s, server=_servers[0])


def test_json_output_has_the_documented_keys() -> None:
    outcome = run("simulate", "--seed", "3", "--options", CALM, "--json", timeout_s=120)
    assert (outcome.code, outcome.err) == (0, "")
    document = outcome.json()
    assert document.keys() >= KEYS
    assert (document["seed"], document["verdict"], document["violations"]) == (3, "ok", [])
    assert document["messages"] > 100
    assert len(document["trace_sha256"]) == 64


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    one, other = (run("simulate", "--seed", "3", "--options", CALM, "--json", timeout_s=120).json() for _ in range(2))
    assert one["trace_sha256"] == other["trace_sha256"]
    assert one["events"] == other["events"]


def test_the_page_has_options_faults_and_verdict() -> None:
    outcome = run("simulate", "--seed", "3", timeout_s=120)
    assert (outcome.code, outcome.err) == (0, "")
    for words in ("Seed 3", "Options", "min.insync.replicas", "Faults and events", "The faults begin.", "acknowledged"):
        assert words in outcome.out
    assert outcome.out.splitlines()[-1].startswith("ok: ")


def test_s03_shows_kip_279() -> None:
    """The page draws the fork and explains it. It is the same for every seed below 100."""
    outcome = run("simulate", "--seed", "42", "--scenario", "S03", "--trace", timeout_s=120)
    assert (outcome.code, outcome.err) == (0, "")
    page = outcome.out
    for words in (
        "KIP-279",
        "the histories diverge here",
        "truncates its log from 12 to 10",
        "leader epoch",
        "HW 10",
        "byte for byte",
    ):
        assert words in page, words
    assert max(map(len, page.splitlines())) <= 100


def test_a_violation_has_exit_code_3_and_a_replay_command() -> None:
    outcome = run("simulate", "--seed", "0", "--scenario", "S01", "--mutation", "M11", timeout_s=120)
    assert (outcome.code, outcome.err) == (3, "")
    for words in ("I15 is violated", "What happened", "The logs of orders-0"):
        assert words in outcome.out
    again = {line.strip().removeprefix("again: ") for line in outcome.out.splitlines() if "strandline simulate" in line}
    assert again == {"strandline simulate --seed 0 --scenario S01 --mutation M11"}
    assert run(*again.pop().split()[1:], timeout_s=120).code == 3
    assert outcome.out.splitlines()[-1] == "violation: I15"


def test_shrinking_drops_what_the_failure_does_not_need() -> None:
    """The run begins small, because each attempt is a run; `test_shrink.py` shrinks larger ones."""
    small: dict[str, Any] = {"faults": [0], "consumers": [], "controllers": 1}
    replays = (Replay(seed, mutation="M11", changes=small) for seed in range(50) if draw_options(seed).faults)
    seed = next(replay.seed for replay in replays if not replay.run().good)
    words = ("--seed", str(seed), "--mutation", "M11", "--options", json.dumps(small))
    outcome = run("simulate", *words, "--shrink", "--json", timeout_s=300)
    assert (outcome.code, outcome.err) == (3, "")
    shrunk = outcome.json()["shrunk"]
    assert shrunk["faults"] == 0
    assert shrunk["invariant"] == outcome.json()["violations"][0]["invariant"]
    command = shlex.split(shrunk["command"])
    assert command[:2] == ["strandline", "simulate"]
    again = run(*command[1:], "--json", timeout_s=120)
    assert again.code == 3
    assert again.json()["violations"][0]["invariant"] == shrunk["invariant"]
    assert again.json()["options"] == shrunk["options"]


def test_shrinking_a_good_run_is_refused() -> None:
    outcome = run("simulate", "--seed", "3", "--options", CALM, "--shrink", timeout_s=120)
    assert outcome.code == 0
    assert "nothing to shrink" in outcome.err


def test_until_ends_a_run_early() -> None:
    document = run("simulate", "--seed", "3", "--until", "0.5", "--json", timeout_s=120).json()
    assert document["verdict"] == "ok"
    assert document["virtual_s"] <= 0.5


def test_several_seeds_are_a_line_each() -> None:
    outcome = run("simulate", "--scenario", "S03", "--seeds", "100..102", timeout_s=120)
    assert outcome.code == 0
    assert [line.partition(":")[0] for line in outcome.out.splitlines()[:-1]] == ["seed 100", "seed 101", "seed 102"]
    assert outcome.out.splitlines()[-1] == "3 seeds, 0 with a violation"


def test_the_timeline_is_one_html_file(tmp_path: Path) -> None:
    file = tmp_path / "s03.html"
    outcome = run("simulate", "--seed", "42", "--scenario", "S03", "--timeline", str(file), timeout_s=120)
    assert outcome.code == 0
    assert f"timeline: {file}" in outcome.out
    text = file.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert "S03" in text


def test_the_list_has_every_scenario_and_missing_feature() -> None:
    document = run("simulate", "--list", "--json").json()
    assert {
        "number": "S03",
        "title": "Fast fail-over fork: the leader lacks the asked epoch",
        "source": "KIP-279, KAFKA-6361",
    } in (document["scenarios"])
    assert document["waiting"] == []
    assert "M01" in {row["number"] for row in document["mutations"]}
    page = run("simulate", "--list").out
    assert all(row["title"] in page for row in document["scenarios"])


def test_options_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "options.json"
    file.write_text(CALM)
    document = run("simulate", "--seed", "3", "--options", str(file), "--json", timeout_s=120).json()
    assert document["options"]["faults"] == []


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--scenario", "S999"], "did you mean S"),
        (["--scenario", "orders"], "there is no scenario 'orders'"),
        (["--mutation", "M999"], "did you mean M"),
        (["--seeds", "5"], "a range such as 0..99"),
        (["--seeds", "5..1"], "a range such as 0..99"),
        (["--seed", "1", "--seeds", "1..2"], "exclude each other"),
        (["--until", "0"], "above 0"),
        (["--until", "nan"], "above 0"),
        (["--scenario", "S03", "--options", "{}"], "exclude each other"),
        (["--timeline", "/nowhere/at/all.html"], "there is no folder /nowhere/at"),
        (["--options", "{"], "is not JSON"),
        (["--options", "[1]"], "a JSON object"),
        (["--options", "no-such-file"], "no-such-file: No such file"),
        (["--options", '{"broker": 2}'], "did you mean brokers?"),
        (["--options", '{"brokers": "2"}'], "Expected `int`, got `str`"),
        (["--options", '{"brokers": 0}'], "brokers"),
        (["--options", '{"topics": []}'], "there must be a topic"),
        (["--options", '{"faults": [999]}'], "999 is not among them"),
        (
            ["--options", '{"faults": [{"number": 0, "at_s": 1, "kind": "crush", "duration_s": 1, "draw": 1}]}'],
            "did you mean crash?",
        ),
        (["--options", '{"settings": {"broker.session.timeout": 1}}'], "did you mean 'broker.session.timeout.ms'?"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(words: list[str], complaint: str) -> None:
    outcome = run("simulate", *(() if "--seed" in words or "--seeds" in words else ("--seed", "3")), *words, timeout_s=120)
    assert complaint in one_sentence(outcome)
    assert outcome.code == 2


@pytest.mark.parametrize("words", [["--seed", "x"], ["--seed", "-1"], ["--sed", "4"], ["--until", "soon"]])
def test_unknown_options_are_wrong_usage(words: list[str]) -> None:
    outcome = run("simulate", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert "Usage: strandline simulate" in outcome.err


def test_json_with_the_trace_has_every_event() -> None:
    outcome = run("simulate", "--seed", "42", "--scenario", "S03", "--trace", "--json", timeout_s=120)
    events = outcome.json()["trace"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert json.dumps(events[0])
