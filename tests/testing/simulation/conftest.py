"""Shared by all tests of the simulation."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_ends_of_worlds() -> None:
    """Exempts the objects from before the tests of a file from garbage collection, because each world ends with one."""
    gc.collect()
    gc.freeze()
