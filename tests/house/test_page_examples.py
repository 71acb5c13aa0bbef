"""Every example of the pages runs, and prints what the page shows: a newcomer types what a page says, once.

`page_session.py` runs a page from its first example to its last. Pages of other kinds have a test of their own."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import structlog
from page_session import Example, comparable, examples_of, run_page

ROOT = Path(__file__).parents[2]
OWN_RUNNERS = {
    "client.md": "tests/house/test_installs.py",  # the program; the other blocks are signatures
    "failover.md": "tests/cli/test_cli_failover.py",
    "spark.md": "tests/pipeline/test_spark_page.py",
    "spark-recipes.md": "tests/pipeline/test_spark_recipes.py",
    "testing.md": "tests/testing/kit/test_kit_docs.py",
}
EXAMPLE = re.compile(r"^```(python|console)", re.MULTILINE)
WITH_EXAMPLES = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if EXAMPLE.search(page.read_text())]
PAGES = [name for name in WITH_EXAMPLES if name not in OWN_RUNNERS]

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _structlog_as_in_a_new_process() -> None:
    """A test that ran before in this process may have configured structlog, and then log lines are printed to stdout."""
    structlog.reset_defaults()


@pytest.mark.page
@pytest.mark.parametrize("name", PAGES)
def test_examples_print_what_the_page_shows(name: str, tmp_path: Path) -> None:
    """If a command prints something else now on purpose: `python tests/house/page_session.py docs/PAGE.md` writes it."""
    differs = [
        f"{name}:{example.line}: {example.code}\n  the page: {example.shown}\n  printed: {printed}"
        for example, printed in run_page((ROOT / "docs" / name).read_text(), tmp_path)
        if is_shown(example) and comparable(example.code, printed) != comparable(example.code, example.shown)
    ]
    assert not differs, "\n".join(differs)


def is_shown(example: Example) -> bool:
    """A command that prints something shows it; Python only if a block of text follows."""
    return example.kind == "console" or bool(example.shown)


@pytest.mark.parametrize("name", OWN_RUNNERS)
def test_other_pages_have_a_test_of_their_own(name: str) -> None:
    assert name in WITH_EXAMPLES
    assert name in (ROOT / OWN_RUNNERS[name]).read_text()


NOT_RUN = [(name, e) for name in PAGES for e in examples_of((ROOT / "docs" / name).read_text()) if e.why_not]


def test_few_examples_are_not_run() -> None:
    assert len(NOT_RUN) <= 4


@pytest.mark.parametrize(("name", "example"), NOT_RUN, ids=[f"{name}:{e.line}" for name, e in NOT_RUN])
def test_imports_of_examples_that_are_not_run_exist(name: str, example: Example) -> None:
    imports = [node for node in ast.walk(ast.parse(example.code)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert imports
    for node in imports:
        exec(ast.unparse(node), {})
