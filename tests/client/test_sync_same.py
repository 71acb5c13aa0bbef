"""The clients without asyncio have the calls of the ones for asyncio: names, signatures, results and docstrings."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import strandline.sync
from strandline import client
from strandline.client.sync import generate

FILE = Path(__file__).parents[2] / "client" / "sync" / "calls.py"
PAIRS = [(getattr(client, name), getattr(strandline.sync, name)) for name in ("Producer", "Consumer", "Table", "Admin")]
CALLS = [(name, original, pair) for pair in PAIRS for name, original in generate.calls_of(pair[0]).items()]
OWN_WORDS = {("Producer", "send"), ("Producer", "send_nowait"), ("Producer", "send_many"), ("Consumer", "subscribe")}
OWN_WORDS |= {("Producer", "transaction")}
"""Calls with docstrings of their own, because something differs: results, where callbacks run, what several threads may do."""


def classes(source: str) -> list[str]:
    return [ast.dump(node) for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]


def test_generated_calls_are_those_of_the_client() -> None:
    hint = "out of date: python -m strandline.client.sync.generate > client/sync/calls.py, then ruff check --fix and ruff format"
    assert classes(FILE.read_text()) == classes(generate.module()), hint


@pytest.mark.parametrize(("name", "original", "pair"), CALLS, ids=[f"{pair[0].__name__}.{name}" for name, _, pair in CALLS])
def test_every_call_has_the_signature_of_its_original(name: str, original, pair) -> None:
    mirrored = generate.calls_of(pair[1]).get(name)
    assert mirrored is not None, f"strandline.sync.{pair[0].__name__} has no {name}"
    if isinstance(original, property):
        assert mirrored.fget.__annotations__["return"] == original.fget.__annotations__["return"]
        return
    ours, theirs = inspect.signature(mirrored), inspect.signature(original)
    assert ours.parameters == theirs.parameters
    assert ours.return_annotation == generate.result_of(original)
    assert not inspect.iscoroutinefunction(mirrored)


@pytest.mark.parametrize(("name", "original", "pair"), CALLS, ids=[f"{pair[0].__name__}.{name}" for name, _, pair in CALLS])
def test_every_call_says_what_its_original_says(name: str, original, pair) -> None:
    mirrored = generate.calls_of(pair[1])[name]
    assert mirrored.__doc__
    assert "await" not in mirrored.__doc__
    if (pair[0].__name__, name) not in OWN_WORDS | {(kind, "stop") for kind in ("Producer", "Consumer", "Table")}:
        words = generate.plain_words(inspect.cleandoc(original.__doc__)).split()
        assert mirrored.__doc__.split() == words


@pytest.mark.parametrize("pair", PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_no_call_exists_only_without_asyncio(pair) -> None:
    assert set(generate.calls_of(pair[1])) == set(generate.calls_of(pair[0]))


@pytest.mark.parametrize("pair", PAIRS, ids=[pair[0].__name__ for pair in PAIRS])
def test_constructors_take_the_same_options(pair) -> None:
    ours, theirs = (inspect.signature(kind.__init__).parameters for kind in reversed(pair))
    assert dict(ours) == {name: parameter for name, parameter in theirs.items() if name != "cluster"}
