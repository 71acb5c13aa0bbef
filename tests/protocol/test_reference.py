"""The protocol reference page says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest
from message_strategies import MESSAGE_CLASSES

from strandline.protocol.apis import APIS
from strandline.protocol.errors import ErrorCode
from strandline.protocol.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"


def test_the_committed_page_is_up_to_date():
    """When this fails: python -m strandline.protocol.reference > docs/protocol.md"""
    assert PAGE.read_text() == reference()


@pytest.mark.parametrize("cls", MESSAGE_CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_of_every_message_is_on_the_page(cls):
    _, _, section = reference().partition(f"### {cls.__name__}\n")
    table = section.partition("\n#")[0]
    assert [f"\n| {field} | " in table for field in cls.__struct_fields__] == [True] * len(cls.__struct_fields__)


def test_every_api_and_every_error_code_is_on_the_page():
    page = reference()
    assert all(f"\n## {api.name}\n" in page for api in APIS.values())
    assert all(f"| {int(code)} | {code.name} |" in page for code in ErrorCode)
