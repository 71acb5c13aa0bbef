"""A pytest plugin that runs tests without a guard, or reports which guards made a difference in each test.

    pytest -p strandline.testing.simulation.guards.plugin tests/broker

reads the environment: STRANDLINE_WITHOUT_GUARD=G17 removes that guard; STRANDLINE_WATCH_GUARDS=FILE watches all guards and
writes one line of JSON per test.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from strandline.testing.simulation.guards.catalogue import GUARDS, WATCH, WITHOUT
from strandline.testing.simulation.guards.removal import Hits, watched, without


class _Watching:
    def __init__(self, hits: Hits, path: Path) -> None:
        self._hits, self._path = hits, path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._hits.clear()
        began, failed = time.perf_counter(), item.session.testsfailed
        result = yield
        passed = item.session.testsfailed == failed
        line = {"test": item.nodeid, "guards": sorted(self._hits), "s": round(time.perf_counter() - began, 3), "passed": passed}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result


def pytest_configure(config: pytest.Config) -> None:
    stack = ExitStack()
    config.add_cleanup(stack.close)
    if number := os.environ.get(WITHOUT):
        stack.enter_context(without(GUARDS[number]))
    if path := os.environ.get(WATCH):
        hits = stack.enter_context(watched(GUARDS.values()))
        config.pluginmanager.register(_Watching(hits, Path(path)))
