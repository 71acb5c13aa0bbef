"""The page of metrics, made from the catalogue: `python -m strandline.observe.reference > docs/metrics.md`.

The rows are what is printed, so the page cannot say anything else than the nodes do; a test compares the two.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator

from strandline.observe import catalog
from strandline.observe.catalog import BOTH, Row, Section

_INTRODUCTION = """\
# Metrics

Made from the catalogue by `python -m strandline.observe.reference`; do not edit.

Every node serves its own metrics at `/metrics` of its HTTP address (`http.listener`), in Prometheus' text format or in
OpenMetrics', whichever is asked for. `deploy/prometheus/` has a scrape configuration and alert rules for them. A scrape
reads the node's state at that moment and keeps nothing; a broker with 1,000 partitions prints about 5,500 lines.

"""


def reference() -> str:
    """The whole page."""
    return "".join([_INTRODUCTION, *_names(), *(part for section in catalog.SECTIONS for part in _describe(section))])


def _names() -> Iterator[str]:
    """What the catalogue says of names, as a chapter."""
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
