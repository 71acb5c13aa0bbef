"""`strandline pipeline compact`: small files of a lake into larger ones, while it is written and read."""

from __future__ import annotations

from typing import Annotated

import typer

from strandline.cli.common import Json, print_json
from strandline.cli.pipeline_common import DEFAULT_MASTER, Master, spark_errors, spark_for


def compact(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The lake.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="NAME", help="Only this topic. May be given several times.")
    ] = None,
    target_mb: Annotated[float, typer.Option("--target", metavar="MB", help="Size of the joined files, about.", min=1)] = 256,
    keep_h: Annotated[float, typer.Option("--keep", metavar="H", help="Delete replaced files after H hours.", min=0)] = 24,
    json: Json = False,
    master: Master = DEFAULT_MASTER,
) -> None:
    """Join small files of a lake, and its manifests. Offloads may write meanwhile, and a reader that has begun finds its files
    for --keep hours."""
    with spark_errors():
        from strandline.pipeline.jobs import compact as job
    job.check(folder)
    with spark_for("compact", master) as spark:
        done = job.compact(spark, folder, topics=topic or (), target_bytes=int(target_mb * 1_048_576), keep_s=keep_h * 3600)
    if json:
        print_json({name: getattr(done, name) for name in done.__dataclass_fields__})
    else:
        print(f"{done.files_before:,} files are {done.files_after:,} now; {done.deleted:,} that nobody needs were deleted")
