"""The nemesis: does what the plan says, as far as the budget permits, and undoes it again.

`engine.py` follows the plan. Each kind of fault is a function in one of the other files, by what it strikes: it picks its
victim, begins, and returns an `Effect`: what it did, whom it holds up, and how it ends. What the plan wants and the budget
refuses (or what finds no victim) is left out and counted.

Beside the plan there is an operator: a process that ended by itself, because it could not go on, is started again after
a while.
"""

from __future__ import annotations

from strandline.testing.simulation.nemesis import (
    clients,
    connections,
    cuts,
    disks,
    late_messages,
    leaders,
    lying_disks,
    processes,
    slow_links,
    voters,
)
from strandline.testing.simulation.nemesis.engine import KINDS, Nemesis

__all__ = ["KINDS", "Nemesis"]

FILES = (processes, cuts, slow_links, connections, late_messages, leaders, disks, lying_disks, voters, clients)
"""Whoever looks for a kind finds them all."""
