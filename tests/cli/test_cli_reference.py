"""docs/cli.md has the texts, options and examples of the commands."""

from __future__ import annotations

from pathlib import Path

from strandline.cli.commands import COMMANDS
from strandline.cli.examples import EXAMPLES
from strandline.cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_the_page_is_that_of_the_commands() -> None:
    assert PAGE.read_text() == reference(), "out of date: .venv/bin/python -m strandline.cli.reference > docs/cli.md"


def test_every_command_has_a_section_and_its_examples() -> None:
    page = PAGE.read_text()
    assert [name for name in COMMANDS if f"\n## {name}\n" not in page or f"(#{name})" not in page] == []
    assert [line for lines in EXAMPLES.values() for line in lines if f"\n    {line}\n" not in page] == []


def test_an_option_of_many_commands_is_described_once() -> None:
    """Only `produce` and `consume` have a `--json` of their own."""
    page = PAGE.read_text()
    assert page.count("| `-b, --bootstrap") == page.count("| `--context NAME`") == 1
    assert page.count("| `-J, --json`") == 2
    assert page.count("| `--json` |") == 1
