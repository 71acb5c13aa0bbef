"""`strandline pipeline verify`: compares brokers' directories at rest. Exit code 3 if there is a bad finding."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, fail
from strandline.cli.output import Form, Output, print_document, print_table
from strandline.cli.pipeline_common import (
    DEFAULT_MASTER,
    Complete,
    Copies,
    Html,
    LakeOrTable,
    Ledgers,
    delta_for,
    pairs_of,
    print_findings,
    spark_for,
)
from strandline.cli.progress import show_step

if TYPE_CHECKING:
    from strandline.pipeline.jobs.verify_result import Finding, Verification


def verify(
    folder: Annotated[
        list[str], typer.Argument(metavar="DIR...", show_default=False, help="Brokers' data directories, or a folder with them.")
    ],
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    lake: LakeOrTable = None,
    ledger: Ledgers = None,
    copy: Copies = None,
    complete: Complete = False,
    html: Html = None,
    output: Output = Form.table,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Read the directories with Spark, on this master.")
    ] = None,
) -> None:
    """Compare the replicas of each partition byte by byte, and logs with checkpoints, a lake, a ledger and copies. No broker has
    to run. Exit code 3 when a fault is found; legal differences are notes."""
    from strandline.pipeline.jobs.lake_folder import is_delta, local_path
    from strandline.pipeline.jobs.verify import check
    from strandline.pipeline.jobs.verify import verify as job
    from strandline.pipeline.jobs.verify_folders import find

    directories, pairs = find(folder), pairs_of(copy or ())
    check(directories, topic or (), lake, ledger or (), pairs)
    arguments: dict[str, Any] = {"lake": lake, "ledger": ledger or (), "copies": pairs, "is_complete": complete}
    with ExitStack() as stack:
        if master is not None or lake is not None or ledger or pairs:
            session = delta_for if lake is not None and is_delta(local_path(lake)) else spark_for
            arguments["spark"] = stack.enter_context(session("verify", master or DEFAULT_MASTER))
        found = job(directories, topic or (), progress=show_step if sys.stderr.isatty() else None, **arguments)
    if html is not None:
        _write_page(html, found)
    if output.is_document:
        print_document(found.document, output)
    else:
        _print(found, output)
    if not found.is_ok:
        fail(found.verdict, UNHEALTHY)


def _write_page(path: str, found: Verification) -> None:
    from strandline.pipeline.jobs.verify_page import page

    Path(path).write_text(page(found))


def _print(found: Verification, output: Form) -> None:
    rows = [
        [f"{partition.topic}-{partition.partition}", replica.broker, replica.start, replica.end, replica.high_watermark,
         partition.committed, replica.batches, replica.records, replica.size, _state(replica.broker, partition.findings)]
        for partition in found.partitions
        for replica in partition.replicas
    ]  # fmt: skip
    columns = ["partition", "broker", "start", "end", "HW", "committed", "batches", "records", "bytes", "state"]
    print_table(columns, rows, output)
    if output is Form.plain:
        return
    print_findings(found.all_findings)
    if found.comparison is not None:
        print_findings(found.comparison.findings)
    if found.is_ok:
        print(found.verdict)


def _state(broker: str, findings: tuple[Finding, ...]) -> str:
    """The kinds of a replica's bad findings; its notes if there are none; `sound` without any."""
    own = [finding for finding in findings if not finding.brokers or broker in finding.brokers]
    bad = [finding.kind for finding in own if finding.is_bad]
    return ", ".join(dict.fromkeys(bad or [finding.kind for finding in own])).replace("_", " ") or "sound"
