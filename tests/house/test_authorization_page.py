"""docs/authorization.md has the rights of the code."""

from __future__ import annotations

from pathlib import Path

from strandline.cli.rights_reference import table

PAGE = Path(__file__).parents[2] / "docs" / "authorization.md"


def test_table_of_rights_is_up_to_date() -> None:
    hint = "out of date: python -m strandline.cli.rights_reference prints the table"
    assert table() in PAGE.read_text(), hint
