"""All replicas are killed again and again: none may lose a record, and none may be taken for one that has (KIP-966)."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.scenarios import run_scenario
from strandline.testing.simulation.scenarios.stage import SCENARIOS, Scenario, Stage

CHUNK = 25
"""Kills of all replicas in one simulated world."""


def story(rounds: int) -> Scenario:
    """All three replicas die within a moment, and return in any order. The replicas that may be elected are counted each time."""

    async def kills(stage: Stage) -> None:
        await stage.open(replicas=[1, 2, 3])
        random = stage.world.stream("kills")
        for _ in range(rounds):
            await stage.append(2, broker=stage.leader())
            for node in random.sample((1, 2, 3), 3):
                stage.crash(node)
                await stage.sleep(random.choice((0.0, 0.0, 0.01, 0.3)))
            await stage.until(lambda: stage.leader() == -1 or not stage.cluster.brokers, what="all are dead")
            for node in random.sample((1, 2, 3), 3):
                stage.start(node)
                await stage.sleep(random.choice((0.0, 0.05)))
            await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.leads(stage.leader()), what="all are in the ISR")
        struck = [c.controller.metrics.struck_replicas for c in stage.cluster.controllers.values()]
        stage.must(sum(struck) == 0, f"no replica was struck ({struck})")
        await stage.at_rest()

    return Scenario("KILLS", f"All replicas are killed {rounds} times", "KIP-966", kills)


def kill_all(monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int) -> None:
    monkeypatch.setitem(SCENARIOS, "KILLS", story(rounds))
    report = run_scenario("KILLS", seed)
    assert report.verdict == "ok", str(report)


def test_no_kill_of_all_replicas_loses_or_strikes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kill_all(monkeypatch, 1, CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_a_thousand_kills_of_all_replicas(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    kill_all(monkeypatch, 2 + seed, CHUNK)
