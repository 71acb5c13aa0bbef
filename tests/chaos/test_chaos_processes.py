"""`strandline chaos run` on real processes: the files of deploy/chaos, and runs that fail or are interrupted.

The scenarios that need containers are in tests/docker/test_chaos.py.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import COMMAND, ENVIRONMENT, Outcome, run, wait_until

from strandline.local_cluster import free_port_range
from strandline.pipeline.jobs.replication_facts import Fact, read_line
from strandline.pipeline.jobs.replication_report import report_of
from strandline.pipeline.jobs.replication_result import Read

pytestmark = pytest.mark.processes

SCENARIOS = Path(__file__).parents[2] / "deploy" / "chaos"
FAST_SESSIONS = ["--set", "broker.session.timeout.ms=1500", "--set", "broker.heartbeat.interval.ms=300"]
RUN_MAX_S = 60


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a running `strandline up`."""
    folder = tmp_path_factory.mktemp("up") / "data"
    words = [*COMMAND, "up", "--json", "--data", str(folder), "--base-port", str(free_port_range(15)), *FAST_SESSIONS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=ENVIRONMENT) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if json.loads(line)["event"] == "ready":
                    break
            yield folder
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)


def chaos(scenario: Path | str, *options: str) -> Outcome:
    file = scenario if isinstance(scenario, Path) else SCENARIOS / f"{scenario}.toml"
    return run("chaos", "run", str(file), *options, timeout_s=RUN_MAX_S)


def good(outcome: Outcome) -> dict[str, Any]:
    """Check each figure behind a good verdict: the word "ok" alone proves nothing."""
    assert outcome.code == 0, outcome.err
    report: dict[str, Any] = outcome.json()
    assert report["verdict"] == "ok"
    assert report["problems"] == []
    assert report["records_sent"] == report["records_acknowledged"] > 600
    assert report["records_read"] >= report["records_acknowledged"]
    assert report["records_failed"] == report["records_lost"] == report["records_doubled"] == report["records_reordered"] == 0
    assert report["replicas_compared"] >= 3
    assert report["replicas_different"] == 0
    assert all(claim["ok"] for claim in report["claims"])
    assert report["longest_gap_ms"] >= max(f["gap_ms"] for f in report["faults"]) > 0
    return report


def seen(report: dict[str, Any]) -> list[str]:
    return [e["text"] for e in report["events"] if e["kind"] == "seen"]


def states(up: Path) -> dict[str, str]:
    return {n["name"]: n["state"] for n in run("node", "list", "--data", str(up), "--json").json()["nodes"]}


@pytest.mark.parametrize("options", [(), ("--secure",)], ids=["open", "secure"])
def test_leader_is_killed_in_a_new_cluster(options: tuple[str, ...]) -> None:
    """In a secure cluster, all nodes and clients authenticate each other again, and the gap has the same bound."""
    report = good(chaos("kill-leader", "--json", *options))
    kill, start = report["faults"]
    assert (kill["do"], start["do"]) == ("kill", "start")
    assert 0 in kill["partitions_led"]
    assert any("partition 0: leader " in text for text in seen(report))


def test_active_controller_is_killed_in_a_running_cluster(up: Path) -> None:
    report = good(chaos("kill-controller", "--local", str(up), "--json"))
    assert any("active controller " in text for text in seen(report))
    assert set(states(up).values()) == {"running"}


def facts_of(up: Path) -> list[Fact]:
    return [fact for log in up.glob("*/log.jsonl") for text in log.read_text().splitlines() for fact in read_line(text).facts]


def test_replication_report_finds_the_failovers_of_the_verdict(up: Path) -> None:
    """The same partitions lost the same leader, and none for longer than the clients' gap, which adds their own part."""
    before = {fact.topic for fact in facts_of(up)}
    report = good(chaos("kill-leader", "--local", str(up), "--json"))
    facts = facts_of(up)
    times = [fact.at_us for fact in facts]
    [topic] = {fact.topic for fact in facts} - before - {None}
    found = report_of(facts, Read(), min(times), max(times), topics=[topic])
    kill = report["faults"][0]
    assert sorted(row.partition for row in found.failovers) == kill["partitions_led"]
    for row in found.failovers:
        assert f"broker-{row.previous_broker}" in kill["nodes"]
        assert 0 < row.ms <= kill["gap_ms_by_partition"][str(row.partition)] + report["interval_ms"]
        assert row.cause == "broker_fenced"
    assert {row.cause for row in found.changes} == {"broker_fenced", "caught_up"}


def test_rolling_restart_fails_no_send_and_shuts_every_process_down_cleanly(up: Path) -> None:
    report = good(chaos("rolling-restart", "--local", str(up), "--json"))
    assert [f["nodes"][0] for f in report["faults"] if f["do"] == "stop"] == [*states(up)]
    assert [c["claim"] for c in report["claims"]] == ["clean shutdown"] * 6


def test_resumed_leader_acknowledges_nothing(up: Path) -> None:
    report = good(chaos("pause-leader", "--local", str(up), "--set", "pause_s=1", "--json"))
    for claim, acks in zip(report["claims"], ("all", "1"), strict=True):
        assert claim["claim"].endswith(f"acks={acks}")
        assert "NOT_LEADER_OR_FOLLOWER" in claim["seen"]
    assert report["parameters"] == {"pause_s": 1}


def test_two_of_three_dead_with_a_summary_of_several_runs(up: Path) -> None:
    outcome = chaos("two-of-three-dead", "--local", str(up), "--repeat", "2", "--json")
    assert outcome.code == 0, outcome.err
    document = outcome.json()
    gaps = document["longest_gap_ms"]
    assert (document["verdict"], document["runs"]) == ("ok", 2)
    assert 0 < gaps["min"] <= gaps["median"] <= gaps["max"]
    for report in document["reports"]:
        assert [c["ok"] for c in report["claims"]] == [True] * 5


def test_a_drained_broker_leads_nothing_when_it_is_stopped(up: Path) -> None:
    report = good(chaos("drain", "--local", str(up), "--json"))
    assert [f["do"] for f in report["faults"]] == ["drain", "stop", "start", "undrain"]
    assert report["replicas_compared"] == 6
    (drained,) = report["faults"][0]["nodes"]
    stopped = next(f for f in report["faults"] if f["do"] == "stop")
    assert (stopped["nodes"], stopped["partitions_led"]) == ([drained], [])
    brokers = run("cluster", "describe", "--json", env=_bootstrap(up)).json()["brokers"]
    assert [b["broker_id"] for b in brokers if b["is_draining"]] == []


def test_a_lost_disk_costs_the_broker_and_no_record(up: Path) -> None:
    report = good(chaos("disk-loss", "--local", str(up), "--json"))
    offline, again = report["claims"]
    assert "No such file or directory" in offline["seen"]
    assert "registered again" in again["claim"]
    assert set(states(up).values()) == {"running"}


def test_records_lost_by_an_unclean_election_are_in_its_report(up: Path) -> None:
    """The loss is intended here, so the verdict is good, and the report says how many records it cost."""
    outcome = chaos("unclean-election", "--local", str(up), "--json")
    assert outcome.code == 0, outcome.err
    report = outcome.json()
    assert (report["verdict"], report["problems"], report["other_anomalies"]) == ("ok", [], 0)
    assert report["records_failed"] == report["records_lost"] == report["records_doubled"] == report["records_reordered"] == 0
    assert report["records_lost_as_reported"] >= 300
    assert report["records_read"] == report["records_acknowledged"] - report["records_lost_as_reported"]
    (claim,) = report["claims"]
    assert claim["seen"].startswith("may be lost: 0: ")
    assert report["replicas_compared"] == 3


BROKEN_CLAIM = """
title = "A claim that does not hold"
why = "The cluster has no fault, so acks=all is acknowledged; and no gap is below zero."
[[steps]]
do = "kill"
target = "follower"
[[steps]]
do = "start"
[[steps]]
do = "wait"
until = "in-sync"
[[steps]]
do = "expect"
claim = "refuses"
error = "NOT_ENOUGH_REPLICAS"
[[steps]]
do = "expect"
claim = "gap-below"
seconds = 0
[[steps]]
do = "wait"
until = "leader-moved"
away_from = "every-broker"
within_s = 0.2
"""


def test_bad_verdict_names_the_broken_claims(up: Path, tmp_path: Path) -> None:
    """Exit code 3; the problems name each broken claim and the failed step; every node runs afterwards."""
    file = tmp_path / "broken.toml"
    file.write_text(BROKEN_CLAIM)
    outcome = chaos(file, "--local", str(up), "--json")
    assert outcome.code == 3, outcome.err
    report = outcome.json()
    assert report["verdict"] == "bad"
    assert [c["ok"] for c in report["claims"]] == [False, False]
    refused, gap, failed = report["problems"]
    assert refused.startswith("step 4: ")
    assert refused.endswith(": acknowledged")
    assert gap.startswith("step 5: no gap above 0 ms: the longest is ")
    assert failed == ("step 6 (wait leader-moved every-broker): timed out after 0.2 s: waiting until other brokers lead")
    assert report["records_lost"] == 0
    assert set(states(up).values()) == {"running"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interrupted_run_heals_the_cluster(up: Path, tmp_path: Path, number: signal.Signals) -> None:
    """A signal in the middle of a pause does not leave a broker paused."""
    story = tmp_path / "story"
    words = [*COMMAND, "chaos", "run", str(SCENARIOS / "pause-leader.toml"), "--local", str(up)]
    with (
        story.open("w") as err,
        subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=err, env=ENVIRONMENT, preexec_fn=_as_in_the_foreground
        ) as process,
    ):
        wait_until(lambda: "> pause " in story.read_text(), "the leader is paused")
        wait_until(lambda: "paused" in states(up).values(), "the node's state is paused")
        process.send_signal(number)
        assert process.wait(timeout=30) != 0
    assert "> resume " in story.read_text()
    assert "Traceback" not in story.read_text()
    assert set(states(up).values()) == {"running"}
    assert json.loads(run("topic", "list", "--json", env=_bootstrap(up)).out)["topics"] == []


def _as_in_the_foreground() -> None:
    """A background process of a shell ignores SIGINT, and its children inherit that; the test run may be such a child."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _bootstrap(up: Path) -> dict[str, str]:
    return {"STRANDLINE_BOOTSTRAP": json.loads((up / "cluster.json").read_text())["bootstrap"]}


def test_impossible_scenario_is_refused_in_one_sentence(up: Path) -> None:
    outcome = chaos("partition-leader", "--local", str(up))
    assert outcome.code == 2
    assert "no node can be cut off; run the scenario with --compose" in outcome.err.splitlines()[-1]
    outcome = chaos("disk-full", "--local", str(up))
    assert outcome.code == 2
    assert "only root can mount a small disk, and only without --local" in outcome.err.splitlines()[-1]


def test_missing_cluster_is_reported_in_one_sentence(tmp_path: Path) -> None:
    outcome = chaos("kill-leader", "--local", str(tmp_path))
    message = f"strandline: no cluster is running in {tmp_path}; start it with `strandline up --data {tmp_path}`"
    assert (outcome.code, outcome.err.splitlines()[-1]) == (1, message)


def test_list_names_every_file() -> None:
    document = run("chaos", "list", str(SCENARIOS), "--json").json()
    assert [Path(s["file"]).name for s in document["scenarios"]] == sorted(f.name for f in SCENARIOS.glob("*.toml"))
    assert "kill-leader.toml" in run("chaos", "list", str(SCENARIOS)).out
    assert run("chaos", "list", str(SCENARIOS / "none")).code == 2
