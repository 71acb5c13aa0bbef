"""Golden transcripts: five scenarios, message by message, as text that is checked in and compared.

    make transcripts                                                      write them again, after a change that is meant
    python -m strandline.testing.simulation.scenarios.transcripts S03     print one

A change to the protocol shows in the diff of these files: another message, another field, another order. Each scenario is played
in a `SteadyWorld`, so that no other change shows there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.kernel.world import SteadyWorld
from strandline.testing.simulation.scenarios import find, run_scenario
from strandline.testing.simulation.story.transcript import Recorder, transcript

GOLDEN = ("S03", "S14", "S18", "S38", "S50")
"""A fork and its truncation, a follower joining the ISR, a lost AlterPartition response, a retry across a fail-over, and an
active controller that is cut off."""
SEED = 0


def play_transcript(number: str, seed: int = SEED) -> str:
    """The transcript of a scenario. Raises `AssertionError` with its page when the scenario fails."""
    scenario = find(number)
    world = SteadyWorld(seed, full_trace=True)
    world.network.taps.append(Recorder(world.trace))
    report = run_scenario(number, seed, world=world)
    if not report.good:
        raise AssertionError(report.violations[0]["story"])
    return transcript(world.trace, f"{scenario.number}: {scenario.title}\n{scenario.source}")


def write_all(folder: Path) -> None:
    """Write the golden files, `S03.txt` and so on."""
    for number in GOLDEN:
        (folder / f"{number}.txt").write_text(play_transcript(number), encoding="utf-8")


def main(arguments: list[str]) -> None:
    if len(arguments) == 2 and arguments[0] == "--write":
        write_all(Path(arguments[1]))
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        print(play_transcript(arguments[0]), end="")
    else:
        raise UsageError("name one scenario, or --write FOLDER")


if __name__ == "__main__":
    main(sys.argv[1:])
