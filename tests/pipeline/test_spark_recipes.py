"""The recipes of docs/spark-recipes.md print what the page shows, so that a reader can copy them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import recipes_page

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from strandline.testing import ThreadedCluster


@pytest.mark.parametrize("heading", [name for name in recipes_page.recipes() if name not in recipes_page.WITH_DELTA])
def test_recipe_prints_what_the_page_shows(
    heading: str, spark: SparkSession, log: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STRANDLINE_BOOTSTRAP", log.bootstrap_servers)
    for printed, expected in recipes_page.run(heading, tmp_path):
        assert printed == expected


def test_every_recipe_shows_what_it_prints() -> None:
    """Without an expected output, a test would only know that the recipe raises no error."""
    for heading in recipes_page.recipes():
        assert any(block.printed for block in recipes_page.blocks(heading)), heading
