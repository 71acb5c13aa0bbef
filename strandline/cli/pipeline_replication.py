"""`strandline pipeline replication`: reports leaders, ISRs, fail-overs and truncations from the nodes' logs."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, fail, note
from strandline.cli.output import Form, Output, print_document, print_table
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, moment_of, spark_errors, spark_for
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.replication_result import Replication


def replication(
    logs: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE_OR_DIR...", help="Log files or folders with log files, plain or compressed with gzip or bzip2."
        ),
    ],
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Start of the range, such as 2026-01-31T09:00 (UTC).")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="End of the range, exclusive.")] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep reading as the logs grow, until Ctrl-C.")] = False,
    every_s: Annotated[
        float, typer.Option("--every", metavar="S", help="With --follow: read the logs every S seconds.", min=0.1)
    ] = 5.0,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="DIR", help="With --follow: folder of the progress, with which a later run continues."
        ),
    ] = None,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Report fail-overs, ISR changes, truncations, and the times under-replicated and under min ISR. Exit code 3 when a replica
    truncated records below its high watermark."""
    with spark_errors():
        from strandline.pipeline.jobs import replication as job
    begin, end = _range_us(since, until)
    _check(since, until, html, follow, checkpoint)
    job.log_files(logs)
    if follow:
        _follow(logs, checkpoint, every_s, topic or (), html, output, master)
        return
    with spark_for("replication", master) as spark:
        found = job.findings(spark, logs, since_us=begin, until_us=end, topics=topic or ())
    _report(found, html, output)
    if found.is_bad:
        fail("a replica truncated records below its high watermark; --html and --json list each truncation", UNHEALTHY)


def _range_us(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """The range of time in microseconds since the epoch; None: no limit."""
    begin = None if since is None else round(moment_of("--since", since).timestamp() * 1_000_000)
    end = None if until is None else round(moment_of("--until", until).timestamp() * 1_000_000)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--until {until} must be later than --since {since}")
    return begin, end


def _check(since: str | None, until: str | None, html: str | None, follow: bool, checkpoint: str | None) -> None:
    if follow and (since or until):
        raise UsageError("--follow takes neither --since nor --until: it reports on everything in the logs")
    if checkpoint is not None and not follow:
        raise UsageError("--checkpoint needs --follow")
    if html is not None and not Path(html).absolute().parent.is_dir():
        raise UsageError(f"the folder of the page {html} does not exist")


def _follow(
    logs: list[str],
    checkpoint: str | None,
    every_s: float,
    topics: list[str] | tuple[()],
    html: str | None,
    output: Form,
    master: str,
) -> None:
    from strandline.pipeline.jobs.replication_stream import replication_stream

    def on_report(found: Replication) -> None:
        if html is not None:
            _write_page(html, found)
        if output.is_document:
            print_document(found.document, output)
        else:
            print(f"{datetime.now(UTC):%H:%M:%S} {found.verdict}", flush=True)

    with ExitStack() as stack:
        folder = checkpoint or stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-replication-"))
        spark = stack.enter_context(spark_for("replication", master))
        replication_stream(spark, logs, folder, on_report, every_s=every_s, topics=topics).awaitTermination()


def _report(found: Replication, html: str | None, output: Form) -> None:
    if html is not None:
        _write_page(html, found)
    if output.is_document:
        print_document(found.document, output)
        return
    _print(found, output)


def _write_page(path: str, found: Replication) -> None:
    from strandline.pipeline.jobs.replication_page import page

    temporary = Path(f"{path}.tmp")  # A browser that reloads must see a complete page.
    temporary.write_text(page(found))
    temporary.replace(path)


def _print(found: Replication, output: Form) -> None:
    from strandline.pipeline.jobs.replication_result import duration

    unknown = set(found.without_min_isr)
    rows: list[list[Any]] = [
        [h.topic, _hour(h.hour_us), duration(h.under_replicated_ms),
         "unknown" if h.topic in unknown else duration(h.under_min_isr_ms), duration(h.without_leader_ms), h.shrinks,
         h.expansions, h.failovers, duration(h.failover_ms_max) if h.failovers else None, h.handovers, h.records_cut]
        for h in found.topic_hours()
    ]  # fmt: skip
    heads = ["topic", "hour (UTC)", "under-replicated", "under min ISR", "no leader", "shrinks", "expansions", "fail-overs",
             "longest", "handovers", "cut"]  # fmt: skip
    if rows:
        print_table(heads, rows, output)
    if output is Form.plain:
        return
    for text in found.notes:
        note(text)
    print(found.verdict)


def _hour(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1_000_000, UTC):%Y-%m-%d %H:%M}"
