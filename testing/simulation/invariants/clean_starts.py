"""I25: a process treats the logs of a data directory as cleanly closed only if the last process that used it closed them.

An orderly stop leaves a clean-shutdown marker, which spares the next start the reading of every log. The marker is true until
something is written. If the marker were still there after a write, a later start would trust logs that a crash has torn. Because
the damage may show much later, the start itself is judged.
"""

from __future__ import annotations

from strandline.testing.simulation.invariants.ghosts import Ghosts
from strandline.testing.simulation.invariants.violation import Violation


def on_closing(ghosts: Ghosts, disk: object) -> None:
    """An orderly close of the logs of this data directory has begun: the next start may treat them as cleanly closed."""
    ghosts.closed_disks.add(disk)


def on_loaded(ghosts: Ghosts, disk: object, node: int, was_clean: bool) -> None:
    """A process has opened this data directory, and treats its logs as cleanly closed or not (`was_clean`). It is a violation to
    treat them so if the previous process did not close them. From now on the process writes, so the directory counts as not
    closed."""
    if was_clean and disk not in ghosts.closed_disks:
        text = f"node {node} treats its logs as cleanly closed, but its previous process died without closing them"
        raise Violation("I25", text, node=node)
    ghosts.closed_disks.discard(disk)
