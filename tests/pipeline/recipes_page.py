"""Takes the recipes from docs/spark-recipes.md, so that a test runs what a reader copies.

`order-1.avsc` is ...: + ```json     a file of that name in the working directory
```python                            run, in one namespace per recipe
```text after it                     what it must print
"""

from __future__ import annotations

import contextlib
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "spark-recipes.md"
SECTION = re.compile(r"^##+ (.*?)\n(.*?)(?=^##+ |\Z)", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
BEFORE = "Before you begin"
WITH_DELTA = ("Delta",)
"""Recipes that need an environment with Delta: test_spark_delta.py runs them."""


@dataclass(frozen=True)
class Block:
    code: str
    printed: str
    line: int
    """Line of the page, so that a traceback names it."""


def sections() -> dict[str, str]:
    return dict(SECTION.findall(PAGE.read_text()))


def recipes() -> list[str]:
    """The headings of sections with Python."""
    return [heading for heading, text in sections().items() if PYTHON.search(text) and heading != BEFORE]


def blocks(heading: str) -> list[Block]:
    page, text = PAGE.read_text(), sections()[heading]
    return [Block(code, printed, page[: page.index(code)].count("\n")) for code, printed in PYTHON.findall(text)]


def write_files(heading: str, folder: Path) -> None:
    """Writes the JSON blocks of a recipe as schema files. The last file name in the paragraph above a block is its name."""
    text = sections()[heading]
    for found in re.finditer(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        paragraph = text[: found.start()].rstrip().split("\n\n")[-1]
        (folder / re.findall(r"`([\w-]+\.avsc)`", paragraph)[-1]).write_text(found[1])


def run(heading: str, folder: Path) -> list[tuple[str, str]]:
    """Runs a recipe; returns for each block what it printed and what the page shows. `folder` is the working directory."""
    write_files(heading, folder)
    # Functions of __main__ are sent to Spark's workers by value, as those of a user's program are.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(BEFORE):
        execute(block, namespace)
    return [(execute(block, namespace), block.printed) for block in blocks(heading)]


def execute(block: Block, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * block.line + block.code, str(PAGE), "exec"), namespace)
    return re.sub(r"\n+$", "\n", out.getvalue())
