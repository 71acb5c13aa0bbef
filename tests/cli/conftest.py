"""One small cluster for all tests of the command line, started with `strandline up`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_world import Up, start_up


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three brokers and one controller, started with the command."""
    with start_up(tmp_path_factory.mktemp("up"), "--controllers", "1") as up:
        yield up
