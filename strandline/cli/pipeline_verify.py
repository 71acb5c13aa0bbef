"""`strandline pipeline verify`: brokers' directories at rest, compared with each other. Exit code 3 when something differs."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, Json, fail, print_json, print_table
from strandline.cli.pipeline_audit import pairs_of
from strandline.cli.pipeline_common import DEFAULT_MASTER, delta_for, spark_for

if TYPE_CHECKING:
    from strandline.pipeline.jobs.verify_result import Finding, Verification


def verify(
    folder: Annotated[
        list[str], typer.Argument(metavar="DIR...", show_default=False, help="Brokers' data directories, or a folder with them.")
    ],
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Compare with this lake, or Delta table.")] = None,
    copy: Annotated[
        list[str] | None, typer.Option("--copy", metavar="TOPIC=COPY", help="Compare a topic with its copy in another one.")
    ] = None,
    ledger: Annotated[
        list[str] | None,
        typer.Option("--ledger", metavar="FILE", help="Compare with a producer's ledger of acknowledged records."),
    ] = None,
    complete: Annotated[
        bool, typer.Option("--complete", help="The offload has ended: records that the lake lacks are lost, not pending.")
    ] = False,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a report with pictures.")] = None,
    json: Json = False,
    master: Annotated[
        str | None, typer.Option("--master", metavar="URL", help="Read the directories with Spark, on this master.")
    ] = None,
) -> None:
    """Compare the replicas of each partition byte by byte, checkpoints with logs, and a lake, a copy or a ledger with both. No
    broker has to run. Exit code 3 when something differs."""
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
        found = job(directories, topic or (), progress=_show if sys.stderr.isatty() else None, **arguments)
    if html is not None:
        from strandline.pipeline.jobs.verify_page import page

        Path(html).write_text(page(found))
    if json:
        print_json(found.document)
    else:
        _print(found)
    if not found.is_ok:
        fail(found.verdict, UNHEALTHY)


def _show(text: str) -> None:
    """Progress for a person at a terminal."""
    sys.stderr.write(f"\r\033[Kreading {text}")
    if text.split(":")[0].split(" of ")[0] == text.split(":")[0].split(" of ")[-1]:
        sys.stderr.write("\r\033[K")
    sys.stderr.flush()


def _print(found: Verification) -> None:
    rows = [
        [f"{partition.topic}-{partition.partition}", replica.broker, replica.start, replica.end, replica.high_watermark,
         partition.committed, replica.batches, replica.records, replica.size, _state(replica.broker, partition.findings)]
        for partition in found.partitions
        for replica in partition.replicas
    ]  # fmt: skip
    columns = ["partition", "broker", "start", "end", "HW", "committed", "batches", "records", "bytes", "state"]
    print_table(columns, rows)
    for finding in found.all_findings:
        print(("" if finding.is_bad else "note: ") + finding.sentence)
        if finding.action:
            print(f"    {finding.action}")
    for compared in found.comparison.findings if found.comparison is not None else ():
        print(("" if compared.is_bad else "note: ") + compared.sentence)
        for example in compared.examples:
            print(f"    {example}")
    if found.is_ok:
        print(found.verdict)


def _state(broker: str, findings: tuple[Finding, ...]) -> str:
    own = [finding for finding in findings if not finding.brokers or broker in finding.brokers]
    bad = [finding.kind for finding in own if finding.is_bad]
    return ", ".join(dict.fromkeys(bad or [finding.kind for finding in own])).replace("_", " ") or "sound"
