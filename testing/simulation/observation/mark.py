"""A coverage mark, and how often it must be seen. The marks themselves are in `marks.py` and `group_marks.py`."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.testing.simulation.observation.watching import OnCall, Sight

SWEEP, RARE, SCENARIO = "sweep", "rare", "scenario"


@dataclass(frozen=True, slots=True)
class Mark:
    meaning: str
    """The event that the mark counts, in one line."""
    sights: tuple[Sight, ...]
    """Any of these counts as the mark."""
    reach: str = SWEEP
    """SWEEP: a few hundred random seeds must reach it. RARE: some thousand seeds must. SCENARIO: only scenarios, other kinds of
    clusters, or tests reach it."""


def refused(target: str, *codes: int) -> OnCall:
    """The call raised one of these wire errors."""
    return OnCall(target, lambda call: call.code in codes, raised=True)
