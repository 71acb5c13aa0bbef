"""Settings of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from long_files import LONG_FILES

TESTS = Path(__file__).parent

settings.register_profile("tests", deadline=None)  # An example that is slow on a busy machine is no failure.
settings.load_profile("tests")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
