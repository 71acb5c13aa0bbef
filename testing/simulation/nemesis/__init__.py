"""The nemesis: applies the faults of the plan, as far as the budget permits, and ends them again.

`engine.py` follows the plan. Each kind of fault is a function in one of the other files, which are named after what they strike.
The function chooses a victim, begins the fault, and returns an `Effect`: a description, the nodes that are held up, and the
function that ends it. A fault that the budget refuses, or that finds no victim, is skipped and counted.

There is also an operator, who restarts a process that exited because it could not continue.
"""

from __future__ import annotations

from strandline.testing.simulation.nemesis import (
    clients,
    connections,
    cuts,
    disks,
    groups,
    late_messages,
    leaders,
    lying_disks,
    processes,
    slow_links,
    transactions,
    voters,
)
from strandline.testing.simulation.nemesis.engine import KINDS, Nemesis

__all__ = ["KINDS", "Nemesis"]

FILES = (
    processes,
    cuts,
    slow_links,
    connections,
    late_messages,
    leaders,
    disks,
    lying_disks,
    voters,
    clients,
    groups,
    transactions,
)
"""The files that define kinds, imported here so that `KINDS` is complete."""
