"""Who runs a node has no pytest. The image imports all of our modules once, but for those that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK = """
import importlib, json, pkgutil, sys

class WithoutPytest:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pytest", "_pytest", "pytest_asyncio", "hypothesis"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, WithoutPytest())
failed = []
for folder in sys.argv[2:]:
    for module in pkgutil.walk_packages([f"{sys.argv[1]}/{folder}"], f"strandline.{folder}."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            failed.append(module.name)
print(json.dumps(failed))
"""


def test_the_modules_that_need_pytest_are_those_that_the_image_skips() -> None:
    words = [sys.executable, "-c", LOOK, str(ROOT), "broker", "client", "controller", "protocol", "storage", "testing"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    skipped = re.search(r"skipped = \((.*?)\);", (ROOT / "deploy" / "Dockerfile").read_text())
    assert skipped is not None
    assert sorted(json.loads(done.stdout)) == sorted(re.findall(r'"(.*?)"', skipped[1]))
