"""One small cluster, run by `strandline up`, for all tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_world import Up, start_up


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Three brokers and one controller, by the command itself."""
    with start_up(tmp_path_factory.mktemp("up"), "--controllers", "1") as up:
        yield up
