"""A command writes each JSON document as one line, by every definition of a line."""

import json

import pytest

from strandline.cli.output import Form, View, rendered
from strandline.cli.record_json import encode
from strandline.client import ConsumerRecord

LINE_BREAKS = [chr(code) for code in range(0x2030) if len(f"a{chr(code)}b".splitlines()) > 1]


@pytest.mark.parametrize("line_break", LINE_BREAKS, ids=ascii)
def test_a_document_is_one_line_and_keeps_its_text(line_break: str) -> None:
    """A random id in a dumped record contained a NEL (U+0085), at which Python's `splitlines` splits a line."""
    document = {"value": f"a{line_break}b", line_break: 1}
    assert [json.loads(line) for line in rendered(View(document), Form.json, None).splitlines()] == [document]
    assert "\u00e9" in encode(_record("\u00e9")).decode(), "other characters stay as they are"


@pytest.mark.parametrize("line_break", LINE_BREAKS, ids=ascii)
def test_a_record_is_one_line_and_keeps_its_text(line_break: str) -> None:
    """Programs read the output of `consume --json` line by line."""
    (line,) = encode(_record(f"a{line_break}b")).decode().splitlines()
    assert json.loads(line)["value"] == f"a{line_break}b"


def _record(value: str) -> ConsumerRecord:
    return ConsumerRecord("orders", 0, 7, 0, None, value.encode(), (), 0)
