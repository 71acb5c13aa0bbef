"""`strandline pipeline audit`: is everything there, once? Exit code 3 when something is lost or doubled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, UNHEALTHY, Json, fail, print_json, print_table
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, Servers, delta_for, spark_errors, spark_for
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.audit_result import Audit


def audit(
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Compare with this lake, or Delta table.")] = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option("--ledger", metavar="FILE", help="Compare with a producer's ledger of acknowledged records."),
    ] = None,
    copy: Annotated[
        list[str] | None, typer.Option("--copy", metavar="TOPIC=COPY", help="Compare a topic with its copy in another one.")
    ] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report with pictures.")] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="The offload has ended: records that the lake lacks are lost, not pending.")
    ] = False,
    grace_s: Annotated[
        float, typer.Option("--grace", metavar="S", help="Records younger than S seconds may be missing in a copy.", min=0)
    ] = 0,
    every_s: Annotated[
        int, typer.Option("--every", metavar="S", help="Length of the intervals in the report, in seconds.", min=1)
    ] = 3600,
    headers: Annotated[bool, typer.Option("--headers", help="Compare the headers of copies, too.")] = False,
    json: Json = False,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Compare a log with a lake, a ledger and copies, and count lost and doubled records. Exit code 3 when there are any."""
    with spark_errors():
        from strandline.pipeline.jobs import audit as job
        from strandline.pipeline.jobs.lake_folder import is_delta, local_path
    copies = pairs_of(copy or ())
    job.check(topic or (), lake, ledger or (), copies)
    arguments: dict[str, Any] = {"lake": lake, "ledger": ledger or (), "copies": copies, "is_complete": complete}
    arguments |= {"grace_ms": int(grace_s * 1000), "interval_s": every_s, "include_headers": headers}
    session = delta_for if lake is not None and is_delta(local_path(lake)) else spark_for
    with session("audit", master) as spark:
        found = job.audit(spark, bootstrap, topic or (), **arguments)
    if html is not None:
        _write_page(html, found)
    if json:
        print_json(found.document)
    else:
        _print(found)
    if not found.is_ok:
        fail(found.verdict, UNHEALTHY)


def pairs_of(written: list[str] | tuple[()]) -> dict[str, str]:
    pairs = dict[str, str]()
    for pair in written:
        topic, equals, copy = pair.partition("=")
        if not (topic and equals and copy):
            raise UsageError(f"--copy takes TOPIC=COPY, not {pair!r}")
        pairs[topic] = copy
    return pairs


def _write_page(path: str, found: Audit) -> None:
    from strandline.pipeline.jobs.audit_page import page

    Path(path).write_text(page(found, "Audit of " + ", ".join(sorted({p.topic for p in found.partitions}))))


def _print(found: Audit) -> None:
    rows = []
    for p in found.partitions:
        own = [row for row in found.intervals if (row.topic, row.partition) == (p.topic, p.partition)]
        counts = [sum(row.seen[source].count for row in own) for source in found.sources]
        rows.append([p.topic, p.partition, p.log_start, p.log_end, p.lake_end, *counts])
    print_table(["topic", "partition", "log start", "log end", "lake end", *(f"in {s}" for s in found.sources)], rows)
    for finding in found.findings:
        print(finding.sentence)
        for example in finding.examples:
            print(f"    {example}")
    if found.is_ok:
        print(found.verdict)
