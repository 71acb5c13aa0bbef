"""Generates the page of metrics from the catalogue: `python -m strandline.observe.reference > docs/metrics.md`.

Nodes print the metrics from the same rows, so the page and the nodes agree. A test compares the page with the rows.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from strandline.observe import catalog
from strandline.observe.catalog import BOTH, Row, Section

_INTRODUCTION = """\
# Metrics

Generated from the catalogue by `python -m strandline.observe.reference`; do not edit.

Every node serves its own metrics at `/metrics` of its HTTP address (`http.listener`), in Prometheus' text format or in
OpenMetrics, as the request's Accept header asks. `deploy/prometheus/` has a scrape configuration and alert rules. A scrape
reads the node's present state and keeps nothing; a broker with 1,000 partitions prints about 6,200 lines.

"""


def reference() -> str:
    """The whole page."""
    return "".join([_INTRODUCTION, *_names(), *(part for section in catalog.SECTIONS for part in _describe(section))])


def _names() -> Iterator[str]:
    """The catalogue's paragraphs on names, as a chapter."""
    text = inspect.cleandoc(catalog.__doc__ or "")
    yield "## Names\n\n" + text[text.index("**Names.** ") :].removeprefix("**Names.** ") + "\n"


def _describe(section: Section) -> Iterator[str]:
    yield f"\n## {section.title}\n\n"
    if section.text:
        yield section.text + "\n\n"
    yield "| metric | kind | labels | printed by | meaning |\n|---|---|---|---|---|\n"
    for row in section.rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        yield f"| `{row.name}` | {row.kind} | {labels} | {_printed_by(row)} | {row.help}{_mbean(row)} |\n"


def _printed_by(row: Row) -> str:
    return "both" if row.roles == BOTH else f"{row.roles[0]}s"


def _mbean(row: Row) -> str:
    return f" `{row.mbean}`" if row.mbean else ""


if __name__ == "__main__":
    sys.stdout.write(reference())
