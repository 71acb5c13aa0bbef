"""I25: a process takes the logs of a disk for orderly closed only if the one before it closed them.

What an orderly stop leaves behind (the clean-shutdown marker) spares the next start the reading of every log. It is true until
anything is written; should it outlive that, a later start believes logs that a crash has torn. By then it may take long until
somebody notices, so the start itself is judged.
"""

from __future__ import annotations

from strandline.testing.simulation.invariants.ghosts import Ghosts
from strandline.testing.simulation.invariants.violation import Violation


def on_closing(ghosts: Ghosts, disk: object) -> None:
    """An orderly close has begun, whose marker will be true."""
    ghosts.closed_disks.add(disk)


def on_loaded(ghosts: Ghosts, disk: object, node: int, was_clean: bool) -> None:
    """A start has looked at the marker, and writes from now on. `was_clean`: it believes in an orderly stop."""
    if was_clean and disk not in ghosts.closed_disks:
        text = f"node {node} takes its logs for orderly closed, and the process before it died without closing them"
        raise Violation("I25", text, node=node)
    ghosts.closed_disks.discard(disk)
