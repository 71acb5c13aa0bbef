"""`strandline pipeline replication`: what the nodes' logs say of leaders, ISRs, fail-overs and truncations."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import UNHEALTHY, Json, fail, note, print_json, print_table
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, spark_errors, spark_for
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.replication_result import Replication


def replication(
    logs: Annotated[
        list[str],
        typer.Argument(metavar="FILE_OR_DIR...", help="Log files, or folders with them, plain or packed with gzip or bzip2."),
    ],
    since: Annotated[
        str | None, typer.Option("--since", metavar="TIME", help="Start of the range, such as 2026-01-31T09:00 (UTC).")
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="End of the range; this moment is not in it.")
    ] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", metavar="NAME", help="May be given several times.")] = None,
    html: Annotated[str | None, typer.Option("--html", metavar="FILE", help="Write a page with pictures.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep reading as the logs grow, until Ctrl-C.")] = False,
    every_s: Annotated[
        float, typer.Option("--every", metavar="S", help="With --follow: seconds between two looks.", min=0.1)
    ] = 5.0,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="DIR", help="With --follow: folder of the progress, to continue later."),
    ] = None,
    json: Json = False,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Report fail-overs, time under-replicated and under min ISR, ISR changes and truncations. Exit code 3 when a replica cut
    records below its high watermark."""
    with spark_errors():
        from strandline.pipeline.jobs import replication as job
    begin, end = _moment("--since", since), _moment("--until", until)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--until {until} lies before --since {since}")
    if follow and (begin or end):
        raise UsageError("--follow takes neither --since nor --until: it reports on all that the logs hold")
    if checkpoint is not None and not follow:
        raise UsageError("--checkpoint is for --follow")
    if html is not None and not Path(html).absolute().parent.is_dir():
        raise UsageError(f"there is no folder for the page {html}")
    job.log_files(logs)
    if follow:
        _follow(logs, checkpoint, every_s, topic or (), html, json, master)
        return
    with spark_for("replication", master) as spark:
        found = job.findings(spark, logs, since_us=begin, until_us=end, topics=topic or ())
    _tell(found, html, json)
    if found.is_bad:
        fail("a replica cut records below its high watermark: look at what was cut", UNHEALTHY)


def _follow(
    logs: list[str],
    checkpoint: str | None,
    every_s: float,
    topics: list[str] | tuple[()],
    html: str | None,
    json: bool,
    master: str,
) -> None:
    from strandline.pipeline.jobs.replication_stream import replication_stream

    def on_report(found: Replication) -> None:
        if html is not None:
            _write_page(html, found)
        if json:
            print_json(found.document)
        else:
            print(f"{datetime.now(UTC):%H:%M:%S} {found.verdict}", flush=True)

    with ExitStack() as stack:
        folder = checkpoint or stack.enter_context(tempfile.TemporaryDirectory(prefix="strandline-replication-"))
        spark = stack.enter_context(spark_for("replication", master))
        replication_stream(spark, logs, folder, on_report, every_s=every_s, topics=topics).awaitTermination()


def _moment(option: str, written: str | None) -> int | None:
    if written is None:
        return None
    try:
        at = datetime.fromisoformat(written)
    except ValueError:
        raise UsageError(
            f"{option} takes a time such as 2026-01-31T09:00 or 2026-01-31T09:00:00+01:00, not {written!r}"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000_000)


def _tell(found: Replication, html: str | None, json: bool) -> None:
    if html is not None:
        _write_page(html, found)
    if json:
        print_json(found.document)
        return
    _print(found)


def _write_page(path: str, found: Replication) -> None:
    from strandline.pipeline.jobs.replication_page import page

    temporary = Path(f"{path}.tmp")  # A browser that reloads sees a whole page.
    temporary.write_text(page(found))
    temporary.replace(path)


def _print(found: Replication) -> None:
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
        print_table(heads, rows)
    for text in found.notes:
        note(text)
    print(found.verdict)


def _hour(at_us: int) -> str:
    return f"{datetime.fromtimestamp(at_us / 1_000_000, UTC):%Y-%m-%d %H:%M}"
