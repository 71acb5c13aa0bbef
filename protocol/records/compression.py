"""Compressed batches are refused: by the leader that is to append them, and by the reader of a log that an older version wrote.

Checking or reading the records of a compressed batch needs the codec, and none is built yet.
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
