"""`strandline pipeline`: jobs on topics, lakes, logs and brokers' directories. Only the jobs that need Spark import it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from strandline.cli import (
    pipeline_audit,
    pipeline_compact,
    pipeline_materialize,
    pipeline_replay,
    pipeline_replication,
    pipeline_simulate,
    pipeline_verify,
)
from strandline.cli.common import DEFAULT_BOOTSTRAP, UNHEALTHY, fail, new_app, note
from strandline.cli.output import Form, Output, print_document, print_table
from strandline.cli.pipeline_common import (
    DEFAULT_MASTER,
    SILENT,
    Master,
    Servers,
    client_options,
    session_of,
    spark_errors,
    without_preamble,
)
from strandline.cli.pipeline_offload import Watch

app = new_app("Jobs on topics, lakes, logs and brokers' directories, most of them with Spark.")
app.command()(pipeline_audit.audit)
app.command()(pipeline_compact.compact)
app.command()(pipeline_materialize.materialize)
app.command()(pipeline_materialize.snapshot)
app.command()(pipeline_replay.replay)
app.command()(pipeline_replication.replication)
app.command()(pipeline_simulate.simulate)
app.command()(pipeline_verify.verify)


@app.callback()
def _group() -> None:
    """Jobs on topics, lakes, logs and brokers' directories, most of them with Spark."""


@app.command()
def offload(
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="Folder of the lake or table. It is created if it is missing.")],
    topic: Annotated[list[str] | None, typer.Option("--topic", help="May be given several times.")] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="Read all topics whose name matches, instead of --topic.")
    ] = None,
    continuous: Annotated[
        float | None, typer.Option("--continuous", metavar="S", help="Keep running, and write a batch every S seconds.", min=0.0)
    ] = None,
    headers: Annotated[bool, typer.Option("--headers", help="Add a column with the headers.")] = False,
    format: Annotated[
        str, typer.Option(metavar="parquet|delta", help="Files with manifests, or a Delta table (needs the extra `delta`).")
    ] = "parquet",
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the checkpoint. By default it is in the lake.")
    ] = None,
    max_offsets: Annotated[int | None, typer.Option(metavar="N", help="Read about N records per batch.", min=1)] = None,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
    bootstrap: Servers = DEFAULT_BOOTSTRAP,
) -> None:
    """Copy topics into a lake of Parquet files or into a Delta table, each record once. A later run continues where the last
    one stopped. It shows its progress, and at the end, also after Ctrl-C, what was written."""
    with spark_errors(), without_preamble():
        from strandline.pipeline.jobs import offload as job
        from strandline.pipeline.jobs.offload_progress import newest_manifest

        arguments: dict[str, Any] = {
            "format": format,
            "pattern": pattern,
            "checkpoint": checkpoint,
            "trigger": "available-now" if continuous is None else continuous,
            "max_offsets_per_trigger": max_offsets or job.MAX_OFFSETS_PER_TRIGGER,
            "include_headers": headers,
            "options": client_options(bootstrap),
        }
        job.check(topic or (), pattern, to, format)
        spark = session_of(format == "delta")("strandline offload", master, SILENT)
        try:
            watch = Watch(to, newest_manifest(to) if format == "parquet" else None, output=output)
            watch.until_end(job.offload(spark, bootstrap, topic or (), to, **arguments))
        finally:
            spark.stop()


@app.command()
def lake(
    folder: Annotated[str, typer.Argument(metavar="DIR")],
    checksums: Annotated[bool, typer.Option("--checksums", help="Read every file and compare its checksum.")] = False,
    output: Output = Form.table,
) -> None:
    """Show offsets, records, files and bytes of each partition in a lake. Exit code 3 when the lake is damaged."""
    from strandline.pipeline.jobs.lake import LakeDamaged, partition_rows
    from strandline.pipeline.jobs.lake_folder import read_manifest

    try:
        rows = partition_rows(read_manifest(folder, checksums=checksums).files)
    except LakeDamaged as e:
        if output.is_document:
            print_document({"damaged": str(e)}, output)
        fail(f"the lake {folder} is damaged: {e}", UNHEALTHY)
    if output.is_document:
        print_document({"damaged": None, "partitions": rows}, output)
    elif rows:
        print_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows], output)
    else:
        note(f"there is no lake in {folder}, or the lake is empty")
