"""docs/configuration.md names every key that can be changed while the nodes run, and the place for it; docs/configuration-keys.md
has every key."""

from __future__ import annotations

import re
from pathlib import Path

from strandline.cli.key_reference import reference
from strandline.controller.metadata.config_keys import TOPIC_DEFAULT_CONFIGS, Update
from strandline.controller.metadata.node_keys import DYNAMIC_BROKER_CONFIGS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "configuration.md").read_text()


def test_the_page_of_keys_is_that_of_the_tables() -> None:
    hint = "out of date: .venv/bin/python -m strandline.cli.key_reference > docs/configuration-keys.md"
    assert (DOCS / "configuration-keys.md").read_text() == reference(), hint


def test_the_table_of_dynamic_keys_is_complete() -> None:
    table = PAGE.split("## Keys that can be changed")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("| ")]
    shown = {key: where for keys, where, _ in rows[1:] for key in re.findall(r"`([a-z.]+)`", keys)}
    defaults = {name: key.update for name, key in TOPIC_DEFAULT_CONFIGS.items() if key.update is Update.CLUSTER_OR_BROKER}
    of_nodes = {name: str(key.update) for name, key in DYNAMIC_BROKER_CONFIGS.items() if name not in defaults}
    assert {name: where for name, where in shown.items() if name not in defaults} == of_nodes
