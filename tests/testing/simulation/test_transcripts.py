"""The golden transcripts of five scenarios. After an intended change: `make transcripts`, and read the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

from strandline.testing.simulation.kernel.world import SteadyWorld
from strandline.testing.simulation.scenarios.transcripts import GOLDEN, play_transcript

FOLDER = Path(__file__).parent / "transcripts"


@pytest.mark.parametrize("number", GOLDEN)
def test_scenario_has_its_golden_transcript(number: str) -> None:
    golden = (FOLDER / f"{number}.txt").read_text(encoding="utf-8")
    assert play_transcript(number).splitlines() == golden.splitlines()


def test_every_golden_transcript_belongs_to_a_scenario() -> None:
    assert sorted(file.stem for file in FOLDER.iterdir()) == sorted(GOLDEN)


def test_transcript_does_not_depend_on_the_turns_of_loops() -> None:
    """Two seeds differ only in the brokers' own draws, and S38 depends on none of them."""
    assert play_transcript("S38", 1) == play_transcript("S38", 2)


def test_steady_world_draws_nothing_for_loops_and_network() -> None:
    world = SteadyWorld(5)
    drawn = {world.scheduler._draw(), world.network.draw()}
    world.close()
    assert drawn == {0.5}
