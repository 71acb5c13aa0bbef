"""`strandline pipeline materialize` and `snapshot`: make and show a table with the last value of each key of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import DEFAULT_BOOTSTRAP, UNHEALTHY, fail
from strandline.cli.output import Form, Output, print_document, print_table
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, Servers, client_options, print_document_of, spark_for
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.pipeline.jobs.materialize import Materialized


def materialize(
    topic: Annotated[str, typer.Option("--topic", metavar="NAME")],
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Folder of the snapshot. It is created if it is missing.")],
    lake: Annotated[str | None, typer.Option("--lake", metavar="DIR", help="Read from this lake instead of the log.")] = None,
    across: Annotated[
        str | None,
        typer.Option(
            metavar="refuse|timestamp",
            help="If a key has records in several partitions: fail, or take the record with the latest timestamp. The default "
            "is the snapshot's choice, and refuse for a new one.",
        ),
    ] = None,
    without_key: Annotated[
        str, typer.Option(metavar="skip|refuse", help="If records have no key: skip and count them, or fail.")
    ] = "skip",
    keep: Annotated[int, typer.Option(metavar="N", help="Number of versions that stay readable.", min=1)] = 3,
    go_on: Annotated[
        bool,
        typer.Option("--ignore-data-loss", help="Continue after records that were deleted before a run read them."),
    ] = False,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Make a table with the last value of each key. A later run reads only new records. Readers see the previous version until
    the new one is complete."""
    arguments: dict[str, Any] = {
        "lake": lake,
        "across": _one_of("--across", across, "refuse", "timestamp", None),
        "without_key": _one_of("--without-key", without_key, "skip", "refuse"),
        "keep": keep,
        "options": {"failOnDataLoss": str(not go_on).lower(), **client_options(bootstrap)},
    }
    _check_folder(to)
    with spark_for("materialize", master) as spark:
        from strandline.pipeline.jobs import materialize as job

        done = job.materialize(spark, bootstrap, topic, to, **arguments)
    if output.is_document:
        print_document_of(done, output)
    else:
        print(_sentence(done, topic, to))


def _check_folder(to: str) -> None:
    """Raises UsageError for a folder that cannot hold a snapshot, before Spark is started, which takes seconds."""
    from strandline.pipeline.jobs.lake_folder import local_path

    local_path(to)


def _sentence(done: Materialized, topic: str, to: str) -> str:
    from strandline.pipeline.jobs.results import counted

    version = f"version {done.version}, with {counted(done.rows, 'key')}"
    if not done.is_new:
        return f"{topic} has no new records; {to} stays at {version}"
    skipped = f", {done.without_key:,} without a key skipped" if done.without_key else ""
    read = f"{counted(done.records, 'record')} read, {counted(done.tombstones, 'tombstone')} among them{skipped}"
    return f"{to} is at {version}: {read}"


def _one_of(option: str, value: str | None, *choices: str | None) -> str | None:
    if value not in choices:
        raise UsageError(f"{option} must be {' or '.join(filter(None, choices))}, not {value!r}")
    return value


def snapshot(folder: Annotated[str, typer.Argument(metavar="DIR")], output: Output = Form.table) -> None:
    """Show the versions of a table that `pipeline materialize` has written. Exit code 3 when the table is damaged."""
    from strandline.pipeline.jobs.materialize_folder import SnapshotDamaged, SnapshotFolder

    try:
        there = SnapshotFolder(folder)
        newest = there.version()
        versions = [there.version(number) for number in there.numbers()]
    except SnapshotDamaged as e:
        if output.is_document:
            print_document({"damaged": str(e)}, output)
        fail(f"the snapshot {folder} is damaged: {e}", UNHEALTHY)
    rows = [
        {"version": v.number, "keys": v.rows, "files": len(v.table), "bytes": sum(file.bytes for file in v.table)}
        for v in versions
    ]
    if output.is_document:
        until = {str(place.partition): at.offset for place, at in sorted(newest.until.items())}
        print_document(
            {"damaged": None, "topic": newest.topic, "across": newest.across, "until": until, "versions": rows}, output
        )
        return
    print_table(list(rows[0]), [list(row.values()) for row in rows], output, title=f"the last values of {newest.topic}")
    print_table(["partition", "read up to offset"], [[p.partition, at.offset] for p, at in sorted(newest.until.items())], output)
