"""Fences: batches without records, each of which stores the fencing token of a partition.

The leader writes a fence right before the first batch that carries a higher token than all earlier ones, in the same write. So no
replica has that batch without the fence, and the fence is truncated, replicated, recovered and kept as every other batch. It
takes one offset.

    attributes           control
    last offset delta    0
    timestamps           -1, so that indexes by time find records only
    producer id          2^62 | (2^31 - 1) << 31 | token >> 31        the number that no producer name gets
    producer epoch       0
    base sequence        token & (2^31 - 1)
    record count         0

The token stands in the header because a replica rebuilds its state from headers alone. In Kafka's format a fence is an emptied
control batch of a producer. Kafka's cleaner leaves such batches where it has removed the marker of a transaction, so Kafka's
consumers, brokers and tools step over it.
"""

from __future__ import annotations

from strandline.protocol.producer_names import NUMBER_MAX, named_producer_id
from strandline.protocol.records import batch as v2
from strandline.protocol.records.batch import BatchHeader

FENCING_TOKEN_MAX = 2**62 - 1
NO_TOKEN = -1
_TOKEN_LOW_BITS = 31
_TOKEN_LOW = (1 << _TOKEN_LOW_BITS) - 1
FIRST_FENCE = named_producer_id(NUMBER_MAX, _TOKEN_LOW) + 1
"""The producer id of fences with tokens below 2^31, and the smallest one of fences: all ids from here on are those of fences."""
_NO_TIMESTAMP = -1


def make_fence(token: int, base_offset: int, leader_epoch: int) -> bytes:
    """The fence of this token, which is within 0 .. FENCING_TOKEN_MAX."""
    return v2.assemble(
        [],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=v2.CONTROL_MASK,
        last_offset_delta=0,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=_NO_TIMESTAMP,
        producer_id=producer_id_of(token),
        producer_epoch=0,
        base_sequence=sequence_of(token),
        record_count=0,
    )


def producer_id_of(token: int) -> int:
    """The producer id in the fence of this token."""
    return FIRST_FENCE + (token >> _TOKEN_LOW_BITS)


def sequence_of(token: int) -> int:
    """The base sequence in the fence of this token."""
    return token & _TOKEN_LOW


def token_of(producer_id: int, sequence: int) -> int:
    """The token of the fence with this producer id and base sequence."""
    return (producer_id - FIRST_FENCE) << _TOKEN_LOW_BITS | sequence


def is_fence(header: BatchHeader) -> bool:
    return header.producer_id >= FIRST_FENCE
