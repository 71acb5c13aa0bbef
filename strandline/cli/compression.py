"""The options of commands that send records: the codec of their batches, and its level."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from strandline.protocol.errors import UsageError


class Codec(StrEnum):
    none = "none"
    gzip = "gzip"
    snappy = "snappy"
    lz4 = "lz4"
    zstd = "zstd"


CodecOption = Annotated[
    Codec, typer.Option("--compression", "-z", metavar="none|gzip|snappy|lz4|zstd", help="The codec that compresses batches.")
]
LevelOption = Annotated[
    int | None,
    typer.Option(
        "--compression-level",
        metavar="N",
        show_default="the codec's default",
        help="How hard the codec tries: gzip 1 to 9, lz4 1 to 17, zstd -131072 to 22.",
    ),
]


def check_level(codec: Codec, level: int | None) -> None:
    """UsageError if the codec does not have this level."""
    if level is None:
        return
    from strandline.protocol.records import compression

    lowest, highest, _ = compression.LEVELS.get(compression.Codec[codec.name.upper()], (0, 0, 0))
    if not lowest < highest:
        raise UsageError(f"--compression-level needs a codec with levels: --compression gzip, lz4 or zstd, not {codec}")
    if not lowest <= level <= highest:
        raise UsageError(f"--compression-level of {codec} must be from {lowest} to {highest}, not {level}")
