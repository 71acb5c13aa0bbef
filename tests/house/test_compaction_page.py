"""docs/compaction.md: its pictures show what the log cleaner does today, its keys have their defaults, its tests exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from strandline.controller.metadata.config_keys import TOPIC_CONFIGS
from strandline.node import keys_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "compaction.md").read_text()


def test_the_pictures_of_compaction_are_up_to_date() -> None:
    """Another layout of a compacted log, or other steps of a replacement, change them: run `python docs/compaction.py`."""
    done = subprocess.run([sys.executable, "docs/compaction.py", "--check"], cwd=ROOT, timeout=60, check=False)
    assert done.returncode == 0, "docs/compaction.svg or compaction-files.svg is out of date: .venv/bin/python docs/compaction.py"


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else ",".join(value) if isinstance(value, list) else str(value)


def test_every_key_has_its_default() -> None:
    keys = {key.name: key for key in (*keys_of("broker"), *TOPIC_CONFIGS.values())}
    rows = dict(re.findall(r"^\| `([a-z.]+)` \| `([^`]+)` \|", PAGE, re.MULTILINE))
    assert rows == {name: shown(keys[name].default) for name in rows}
    assert {name for name in keys if name.startswith("log.cleaner.") and not name.endswith((".ms", ".ratio"))} <= set(rows)
    assert {name for name in TOPIC_CONFIGS if "compaction" in name or "retention" in name or "cleanable" in name} <= set(rows)


def test_every_guarantee_names_its_test() -> None:
    source = (ROOT / "tests" / "integration" / "test_guarantees_of_compaction.py").read_text()
    named = re.findall(r"`(test_guarantee_\w+)`", PAGE)
    assert len(named) == 5
    assert re.findall(r"^async def (test_guarantee_\w+)\(", source, re.MULTILINE) == named
