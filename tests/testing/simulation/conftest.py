"""What all tests of the simulation share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_ends_of_worlds() -> None:
    """Each world ends with a garbage collection; what was there before the tests of a file need not be looked at."""
    gc.collect()
    gc.freeze()
