"""Runs the scenarios of deploy/chaos in real containers, with the command and the files that users run.

Each prints the longest gap between acknowledgements of one partition, and the verdict. The expected gap (`gap_goal_s` in the
file) holds on an idle machine. These tests print the gap and only limit it to a value that would mean a wait for the wrong
timer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import ROOT, inspect, run
from project import NODES, STRANDLINE, Project

from strandline.chaos.scenario import load_scenario

pytestmark = [pytest.mark.docker, pytest.mark.processes]

SCENARIOS = ROOT / "deploy" / "chaos"
FILES = sorted(SCENARIOS.glob("*.toml"))
SMALL_DISK = {"disk-full"}
ALSO_ON_PROCESSES = {
    "disk-loss",
    "drain",
    "kill-controller",
    "kill-leader",
    "pause-leader",
    "rolling-restart",
    "two-of-three-dead",
    "unclean-election",
}
"""tests/chaos/test_chaos_processes.py runs these in every build. In containers they are `slow`."""
RUN_MAX_S = 240
GAP_SLACK_S = 10.0
"""How far a gap may exceed its goal, because of other work on the machine. A request that waits for its whole timeout of 30 s
still exceeds the sum."""


@pytest.fixture
def small_disk_project(image: str) -> Iterator[Project]:
    """A separate project whose broker-3 has a small disk."""
    project = Project(image)
    project.environment["COMPOSE_FILE"] = "docker-compose.yml:deploy/chaos/small-disk.yml"
    try:
        project.up()
        yield project
    finally:
        project.down("--volumes", "--remove-orphans")


def chaos(project: Project, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    words = [STRANDLINE, "chaos", "run", str(file), "--compose", str(ROOT), "--project", project.name, "--json"]
    done = run(*words, check=False, timeout_s=RUN_MAX_S, env=project.environment)
    assert done.code in (0, 3), done.err
    report: dict[str, Any] = json.loads(done.out)
    goal = "" if report["gap_goal_ms"] is None else f" (expected: at most {report['gap_goal_ms']:.0f} ms)"
    with capsys.disabled():
        figures = f"longest gap {report['longest_gap_ms']:.0f} ms{goal}, {report['records_acknowledged']} acknowledged"
        print(f"\nchaos: {report['scenario']}: {figures}, {report['records_lost']} lost: {report['verdict']}")
    assert report["verdict"] == "ok", done.err
    return report


def judge(project: Project, report: dict[str, Any]) -> None:
    """Check each part of the verdict, and that all containers run again."""
    assert report["problems"] == []
    assert report["records_sent"] == report["records_acknowledged"] > 0
    assert report["records_failed"] == report["records_lost"] == report["records_doubled"] == report["records_reordered"] == 0
    load = load_scenario(SCENARIOS / f"{report['scenario']}.toml").load
    assert report["replicas_compared"] == load.replicas * load.partitions
    assert report["replicas_different"] == 0
    assert all(claim["ok"] for claim in report["claims"])
    if report["gap_goal_ms"] is not None:
        assert report["longest_gap_ms"] <= report["gap_goal_ms"] + GAP_SLACK_S * 1000
    states = {node: inspect(project.container(node)) for node in NODES}
    assert {node: s["State"]["Status"] for node, s in states.items()} == dict.fromkeys(NODES, "running")
    assert all(project.network("cluster") in s["NetworkSettings"]["Networks"] for s in states.values())


def _scenario(file: Path) -> Any:
    return pytest.param(file, marks=[pytest.mark.slow] if file.stem in ALSO_ON_PROCESSES else [], id=file.stem)


@pytest.mark.parametrize("file", [_scenario(f) for f in FILES if f.stem not in SMALL_DISK])
def test_every_scenario_has_a_good_verdict(project: Project, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge(project, chaos(project, file, capsys))


def test_the_full_disk_scenario_has_a_good_verdict(small_disk_project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    report = chaos(small_disk_project, SCENARIOS / "disk-full.toml", capsys)
    judge(small_disk_project, report)
    assert any("No space left on device" in claim["seen"] for claim in report["claims"])


def test_a_missing_small_disk_is_explained(project: Project) -> None:
    words = [STRANDLINE, "chaos", "run", str(SCENARIOS / "disk-full.toml"), "--compose", str(ROOT), "--project", project.name]
    done = run(*words, check=False, env=project.environment)
    assert done.code == 2
    assert "deploy/chaos/small-disk.yml" in done.err.splitlines()[-1]
