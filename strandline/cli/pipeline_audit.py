"""`strandline pipeline audit`: compares a log with its lake, ledger and copies. Exit code 3 if a record is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, UNHEALTHY, fail
from strandline.cli.output import Form, Output, print_document, print_table
from strandline.cli.pipeline_common import (
    DEFAULT_MASTER,
    Complete,
    Copies,
    Html,
    LakeOrTable,
    Ledgers,
    Master,
    Servers,
    client_options,
    delta_for,
    pairs_of,
    print_findings,
    spark_errors,
    spark_for,
)

if TYPE_CHECKING:
    from strandline.pipeline.jobs.audit_result import Audit


def audit(
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    lake: LakeOrTable = None,
    ledger: Ledgers = None,
    copy: Copies = None,
    html: Html = None,
    complete: Complete = False,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="S", help="Records younger than S seconds may be missing in a copy.", min=0)
    ] = 0,
    every_s: Annotated[
        int, typer.Option("--every", metavar="S", help="Length of the intervals in the report, in seconds.", min=1)
    ] = 3600,
    headers: Annotated[bool, typer.Option("--headers", help="Compare the headers of copies, too.")] = False,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Compare a log with a lake, a ledger and copies, and count records that are lost, doubled or different. Exit code 3 when
    there are any."""
    with spark_errors():
        from strandline.pipeline.jobs import audit as job
        from strandline.pipeline.jobs.lake_folder import is_delta, local_path
    copies = pairs_of(copy or ())
    job.check(topic or (), lake, ledger or (), copies)
    arguments: dict[str, Any] = {"lake": lake, "ledger": ledger or (), "copies": copies, "is_complete": complete}
    arguments |= {"grace_ms": int(grace_s * 1000), "interval_s": every_s, "include_headers": headers}
    arguments["options"] = client_options(bootstrap)
    session = delta_for if lake is not None and is_delta(local_path(lake)) else spark_for
    with session("audit", master) as spark:
        found = job.audit(spark, bootstrap, topic or (), **arguments)
    if html is not None:
        _write_page(html, found)
    if output.is_document:
        print_document(found.document, output)
    else:
        _print(found, output)
    if not found.is_ok:
        fail(found.verdict, UNHEALTHY)


def _write_page(path: str, found: Audit) -> None:
    from strandline.pipeline.jobs.audit_page import page

    Path(path).write_text(page(found, "Audit of " + ", ".join(sorted({p.topic for p in found.partitions}))))


def _print(found: Audit, output: Form) -> None:
    rows = []
    for p in found.partitions:
        own = [row for row in found.intervals if (row.topic, row.partition) == (p.topic, p.partition)]
        counts = [sum(row.seen[source].count for row in own) for source in found.sources]
        rows.append([p.topic, p.partition, p.log_start, p.log_end, p.lake_end, *counts])
    print_table(["topic", "partition", "log start", "log end", "lake end", *(f"in {s}" for s in found.sources)], rows, output)
    if output is Form.plain:
        return
    print_findings(found.findings)
    if found.is_ok:
        print(found.verdict)
