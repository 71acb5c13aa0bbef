"""The page of the client and `help()` say what the code does."""

from __future__ import annotations

import inspect
import pydoc
from pathlib import Path

import pytest

import strandline
from strandline import client
from strandline.client import Admin, Consumer, Producer, reference
from strandline.client.errors import StrandlineError
from strandline.client.option_docs import accepts, default_of
from strandline.client.options import AdminOptions, ConsumerOptions, ProducerOptions, table_of

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
CLIENTS = [(Producer, ProducerOptions), (Consumer, ConsumerOptions), (Admin, AdminOptions)]


def test_page_is_that_of_the_code() -> None:
    hint = "out of date: .venv/bin/python -m strandline.client.reference > docs/client.md"
    assert PAGE.read_text() == reference.reference(), hint


@pytest.mark.parametrize(("kind", "options"), CLIENTS)
def test_help_shows_every_option(kind, options) -> None:
    """`help(Producer)` used to say: see `ProducerOptions`."""
    shown = pydoc.plain(pydoc.render_doc(kind))
    for row in table_of(options):
        unit = f" ({row.unit})" if row.unit else ""
        assert f"{row.name} = {default_of(row)}{unit}: {accepts(row)}\n" in shown
        assert row.meaning.split()[-1] in shown


@pytest.mark.parametrize(("kind", "options"), CLIENTS)
def test_every_public_call_says_what_it_does(kind, options) -> None:
    calls = reference.calls_of(kind)
    assert {"start", "stop", "health"} <= set(calls)
    assert [name for name, member in calls.items() if not member.__doc__] == []


def test_page_keeps_lists_of_a_docstring() -> None:
    """The errors of a transaction, and what to do after each, were one item on the page."""
    docstring = Producer.transaction.__doc__ or ""
    items = [line.strip() for line in docstring.splitlines() if line.strip().startswith("- ")]
    assert len(items) == 3
    assert "\n\n" + "\n".join(items) + "\n\n" in PAGE.read_text()


def test_every_error_says_what_happened_and_what_to_do() -> None:
    kinds = [getattr(client, name) for name in client.__all__]
    found = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, StrandlineError)]
    page = PAGE.read_text()
    assert {kind.__name__ for kind in found} == set(reference._TO_DO)
    assert [kind.__name__ for kind in found if not kind.__dict__.get("__doc__") or f"`{kind.__name__}` |" not in page] == []


def test_every_error_is_imported_from_the_top() -> None:
    """A first program catches errors; it should not have to look for the module that they are in."""
    kinds = {
        name for name in client.__all__ if inspect.isclass(getattr(client, name)) and issubclass(getattr(client, name), Exception)
    }
    assert kinds <= set(strandline.__all__)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (Consumer.fetch_until, "(partition: TopicPartition | tuple[str, int], offset: int | None) -> None"),
        (Producer.flush, "(timeout_ms: float | None = None) -> None"),
        (Admin.list_topics, "(*, timeout_ms: float = 30000) -> list[str]"),
    ],
)
def test_signatures_are_as_they_are_defined(call, text: str) -> None:
    assert reference.signature(call) == text
