"""The refusal of compressed batches, by a leader before an append, and by a reader of a log that an older version wrote.

The records of a compressed batch cannot be checked or read without the codec, and no codec is implemented yet.
"""

from __future__ import annotations

from typing import NoReturn

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.records.batch import COMPRESSION_NAMES


def refuse_compression(codec: int) -> NoReturn:
    """Raise UNSUPPORTED_COMPRESSION_TYPE for a batch with this codec (1..7)."""
    name = COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else f"number {codec}"
    raise BrokerError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"the batch is compressed with codec {name}, which this version cannot read"
    )
