"""`strandline pipeline compact`: joins small files of a lake into larger ones, while others write and read it."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.output import Form, Output
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, print_document_of, spark_errors, spark_for


def compact(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The lake.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic. May be given several times.")
    ] = None,
    target_mb: Annotated[
        float, typer.Option("--target", metavar="MB", help="Approximate size of the joined files.", min=1)
    ] = 256,
    keep_h: Annotated[float, typer.Option("--keep", metavar="H", help="Delete replaced files after H hours.", min=0)] = 24,
    output: Output = Form.table,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Join small files of a lake into larger ones, and its manifests into one. Offloads may write meanwhile. Replaced files stay
    for --keep hours, for readers that already use them."""
    with spark_errors():
        from strandline.pipeline.jobs import compact as job
    job.check(folder)
    with spark_for("compact", master) as spark:
        done = job.compact(spark, folder, topics=topic or (), target_bytes=int(target_mb * 1_048_576), keep_s=keep_h * 3600)
    if output.is_document:
        print_document_of(done, output)
    else:
        print(
            f"the lake had {done.files_before:,} files and now has {done.files_after:,}; {done.deleted:,} old files were deleted"
        )
