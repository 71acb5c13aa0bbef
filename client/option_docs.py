"""The table of options as text: in the docstrings of the clients (`help(Producer)`), and in docs/client.md."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from strandline.client.options import ClientOptions, Option, table_of

AnyClient = TypeVar("AnyClient", bound=type[Any])


def documents(kind: type[ClientOptions]) -> Callable[[AnyClient], AnyClient]:
    """A class decorator: the docstring of a client ends with its options, so that `help` shows them."""

    def document(client: AnyClient) -> AnyClient:
        if client.__doc__ is not None:  # `python -OO` has removed it.
            options = "\n".join(_paragraphs(kind))
            client.__doc__ = f"{inspect.cleandoc(client.__doc__)}\n\nOptions, as keyword arguments:\n\n{options}"
        return client

    return document


def _paragraphs(kind: type[ClientOptions]) -> Iterator[str]:
    for row in table_of(kind):
        unit = f" ({row.unit})" if row.unit else ""
        yield f"{row.name} = {default_of(row)}{unit}: {accepts(row)}"
        yield textwrap.fill(row.meaning, 96, initial_indent="    ", subsequent_indent="    ")


def options_table(rows: list[Option]) -> Iterator[str]:
    """A Markdown table, one line per option."""
    yield "| option | default | unit | accepts | meaning |\n|---|---|---|---|---|\n"
    for row in rows:
        yield f"| `{row.name}` | `{default_of(row)}` | {row.unit} | {accepts(row)} | {row.meaning} |\n"


def default_of(row: Option) -> str:
    """The default as Python writes it, with large numbers in groups of three digits."""
    value: Any = row.default
    if isinstance(value, str):
        return f'"{value}"'
    return f"{value:_}" if isinstance(value, (int, float)) and not isinstance(value, bool) else repr(value)


def accepts(row: Option) -> str:
    """Which values the option accepts. An upper bound that is only that of int32 or int64 is left out."""
    return re.sub(r" from (\d+) to (2147483647|9223372036854775807)", r", at least \1", row.type.text)
