"""The view that a command shows, and the forms in which `-o` prints it.

A command builds one `View`, and `show` prints it:

    table   tables that fit the terminal, and sentences             for people
    wide    the same with every column, whatever the width
    json    the document, in one line; keys are the API's names     for programs
    yaml    the same document
    plain   the rows alone: a line each, values separated by tabs   for `cut`, `awk` and `while read`

Plain rows have the columns of `wide`, and an empty value keeps its place, so a script can count on positions. In a value, a tab,
a line break and a backslash are written as \\t, \\n and \\\\. A second table follows after an empty line. A view without tables
shows its sentences.

If a part of the answer could not be found out, the view marks it, a remark on standard error names it, and the exit code shows
it. The other parts are shown.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from strandline.cli.notes import note
from strandline.protocol.errors import UsageError

WIDTH_MIN = 20
NEVER_WRAPPED = 2**31 - 1
"""The width of YAML: the largest that its library takes."""


class Form(StrEnum):
    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    plain = "plain"

    @property
    def is_document(self) -> bool:
        """Whether it prints the document of a view, and not its tables."""
        return self in (Form.json, Form.yaml)


@dataclass(slots=True)
class Table:
    """A table for people. `spare`: the columns that a narrow terminal omits first. `more`: the columns that only `wide` and
    `plain` have. Both are names of `columns`."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    spare: Sequence[str] = ()
    more: Sequence[str] = ()
    title: str | None = None


@dataclass(slots=True)
class View:
    """The result of a command. `document` has only values of JSON; its keys are stable."""

    document: Any
    parts: Sequence[Table | str] = ()
    """Tables and sentences, in their order."""
    remarks: Sequence[str] = ()
    """Sentences for standard error, for example about a broker that did not answer."""
    code: int = 0
    """The exit code."""
    plain: Table | None = field(default=None)
    """The rows of `plain`, if they are not those of the tables."""


# -- the options --------------------------------------------------------------------------------------------------------

_SHORT_FORM = "strandline.output"


def choose_short_form(context: typer.Context, form: Form) -> None:
    """`--json` or `--wide` was given. UsageError if the other was, too."""
    if context.meta.setdefault(_SHORT_FORM, form) != form:
        raise UsageError("--json and --wide exclude each other")


def _chosen(context: typer.Context, value: Form) -> Form:
    """The form of `-o`, or of its short forms. UsageError if they contradict each other."""
    short = context.meta.get(_SHORT_FORM, value)
    if short != value and getattr(context.get_parameter_source("output"), "name", "") == "COMMANDLINE":
        raise UsageError(f"--{short} and -o {value} exclude each other")
    return Form(short)


Output = Annotated[
    Form,
    typer.Option(
        "--output",
        "-o",
        metavar="FORM",
        callback=_chosen,
        help="table, wide (every column), json, yaml, or plain (rows separated by tabs).",
    ),
]


# -- printing -----------------------------------------------------------------------------------------------------------


def show(view: View, output: Form) -> None:
    """Print the view, its remarks on standard error, and end the command by `typer.Exit` if its exit code is not 0."""
    text = rendered(view, output, terminal_width())
    if text:
        print(text, flush=True)
    for remark in view.remarks:
        note(remark)
    if view.code:
        raise typer.Exit(view.code)


def rendered(view: View, output: Form, width: int | None) -> str:
    """The view as text without a line break at its end; `width` in characters, None for no limit."""
    if output is Form.json:
        from strandline.cli.record_json import one_line

        return one_line(view.document)
    if output is Form.yaml:
        return yaml_text(view.document)
    if output is Form.plain:
        return _plain(view)
    is_wide = output is Form.wide
    room = None if is_wide else width
    return "\n".join(_wrapped(part, room) if isinstance(part, str) else _drawn(part, is_wide, room) for part in view.parts)


def yaml_text(document: Any) -> str:
    """One YAML document, which begins with `---`, so that several can follow each other."""
    import yaml

    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    values_of_json = json.loads(json.dumps(document))
    text: str = yaml.dump(
        values_of_json, Dumper=dumper, sort_keys=False, allow_unicode=True, explicit_start=True, width=NEVER_WRAPPED
    )
    return text.rstrip("\n")


def _wrapped(text: str, width: int | None) -> str:
    """The lines of a sentence, none longer than `width` if that breaks no word."""
    if width is None or len(text) <= width:
        return text
    import textwrap

    lines = (textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))
    return "\n".join(lines)


def _drawn(table: Table, is_wide: bool, width: int | None) -> str:
    from strandline.cli.table import layout

    shown = [i for i, name in enumerate(table.columns) if is_wide or name not in table.more]
    rows = [[row[i] for i in shown] for row in table.rows]
    lines = layout([table.columns[i] for i in shown], rows, width=width, spare=() if is_wide else table.spare)
    return "\n".join([table.title, *lines] if table.title else lines)


def _plain(view: View) -> str:
    from strandline.cli.table import cell

    tables = [view.plain] if view.plain is not None else [part for part in view.parts if isinstance(part, Table)]
    if not tables:
        return "\n".join(part for part in view.parts if isinstance(part, str))
    return "\n\n".join("\n".join("\t".join(_escaped(cell(value)) for value in row) for row in table.rows) for table in tables)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n")


def terminal_width() -> int | None:
    """COLUMNS, or the terminal's width; None if stdout is no terminal."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return max(shutil.get_terminal_size().columns, WIDTH_MIN)
    return None


def print_document(document: Any, output: Form) -> None:
    """Print one document as JSON or YAML, for a command that prints several, each as soon as it is known."""
    print(rendered(View(document), output, None), flush=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], output: Form = Form.table, *, title: str | None = None
) -> None:
    """Print one table, for a command that prints its parts as soon as they are known."""
    print(rendered(View(None, [Table(columns, rows, title=title)]), output, terminal_width()), flush=True)
