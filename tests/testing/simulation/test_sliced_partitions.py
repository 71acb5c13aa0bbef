"""New partitions that are created one at a time, each in its own turn of the event loop, under faults.

Runs have too few partitions for slices of the usual size."""

from __future__ import annotations

import pytest

from strandline.broker import metadata_applier
from strandline.broker.metadata_applier import MetadataApplier
from strandline.testing.simulation.runs.run import run_seed


@pytest.mark.parametrize("seed", [5, 14])
def test_nothing_depends_on_partitions_that_appear_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, transactions and replicas get their part of a delta after its partitions."""
    slices: list[int] = []
    create = MetadataApplier._create_slice

    def counted(self: MetadataApplier) -> None:
        slices.append(1)
        create(self)

    monkeypatch.setattr(MetadataApplier, "_create_slice", counted)
    monkeypatch.setattr(metadata_applier, "NEW_PER_SLICE", 1)
    report = run_seed(seed)
    assert report.good, str(report)
    assert slices
