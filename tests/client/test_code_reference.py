"""docs/error-codes.md has every code, and says what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from strandline.client import code_reference
from strandline.protocol.errors import ErrorCode

ROOT = Path(__file__).parents[2]
NOT_SENT = ROOT / "broker/kafka/errors.py"
"""Says what Kafka's clients get in place of our own codes."""
SERVERS = ("broker", "controller", "storage", "protocol/rpc", "protocol/records")


def test_the_page_is_that_of_the_table() -> None:
    hint = "out of date: .venv/bin/python -m strandline.client.code_reference > docs/error-codes.md"
    assert (ROOT / "docs" / "error-codes.md").read_text() == code_reference.reference(), hint


def test_every_code_is_in_one_section() -> None:
    named = [code for codes in code_reference._SECTIONS.values() for code in codes]
    assert Counter([*named, *code_reference.NEVER_SENT]) == Counter(ErrorCode)


def test_a_code_that_is_never_sent_is_in_no_server() -> None:
    """If a server begins to send one, the page must say what to do about it."""
    files = [file for room in SERVERS for file in (ROOT / room).rglob("*.py") if file != NOT_SENT]
    source = "\n".join(file.read_text() for file in files)
    sent = {code.name for code in code_reference.NEVER_SENT if re.search(rf"ErrorCode\.{code.name}\b", source)}
    assert sent == set()
