"""Compressed batches: stored and replicated as they are, and refused where their records are wanted.

A broker treats the records of a batch as opaque, so a compressed batch of another client passes through. Reading its
records needs the codec, and none is built yet.
"""

from __future__ import annotations

from typing import NoReturn

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import COMPRESSION_NAMES


def refuse_compression(codec: int) -> NoReturn:
    """The records of a batch with this codec (1..7) cannot be read here."""
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"number {codec}"
    raise BrokerError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"the batch is compressed with codec {name}, which this version cannot read"
    )
