"""Controllers whose disks lie: the damage is found, or does no harm, and no committed decision is lost."""

from __future__ import annotations

import pytest

from strandline.testing.simulation.nemesis import lying_disks
from strandline.testing.simulation.options import FaultPlan, Options, draw_options
from strandline.testing.simulation.runs.run import run_seed

KINDS = ("rot", "controller_kill", "stale_read", "crash", "misdirect", "controller_kill", "rot")
SEEDS = [seed for seed in range(60) if draw_options(seed).controllers >= 3 and draw_options(seed).brokers >= 2][:8]


def lies(seed: int) -> Options:
    """The disk of one controller lies, and leaders of the quorum die meanwhile."""
    faults = tuple(FaultPlan(n, 0.2 + 0.7 * n, kind, 1.0, 1000 * seed + n) for n, kind in enumerate(KINDS))
    return draw_options(seed).replaced(faults=faults, kinds=dict.fromkeys(KINDS, 1.0), faults_s=5.5, loss_permitted=False)


def test_controller_with_a_damaged_disk_recovers_after_a_wipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller logs what to do, and the operator does it while the other controllers are healthy."""
    monkeypatch.setattr(lying_disks, "CONTROLLERS_SHARE", 1.0)
    emptied = 0
    for seed in SEEDS:
        report = run_seed(seed, options=lies(seed))
        assert report.verdict == "ok", str(report)
        assert report.trace is not None
        begun = report.trace.events(kinds="fault.begin")
        struck = {event.fields["victim"] for event in begun if event.fields["fault"] in ("rot", "stale_read", "misdirect")}
        assert len(struck) <= 1, "one controller of a run, at most"
        assert all(node > 100 for node in struck)
        emptied += sum(event.fields["fault"] == "emptied" for event in begun)
        if emptied:
            return
    pytest.fail("no run has found its damage")
