"""Settings of all tests."""

from __future__ import annotations

import gc
import signal
from pathlib import Path

import pytest
import python_parser
from hypothesis import settings
from long_files import LONG_FILES

TESTS = Path(__file__).parent

settings.register_profile("tests", deadline=None)  # An example that is slow on a busy machine is no failure.
settings.load_profile("tests")

python_parser.install()

# A shell's background job ignores SIGINT, and so does whatever a build machine starts. A test that interrupts itself would then
# wait for ever, and the processes that tests start would inherit it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Each process collects all 18,000 tests, and so holds 700,000 objects. To look for garbage among them again and again took a
# tenth of the time of all tests. There is none, so they are not looked at; what a test leaves is found as before.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
