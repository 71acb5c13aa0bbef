"""The newest connection of each producer: batches that arrive on an older one are late copies, and are refused.

A producer that gives up a connection sends its unanswered batches again on a new one. If the old connection was slow and not
dead, its copies arrive later. They are harmless as long as the sequence numbers are the same. But if the producer has given up a
batch, and learned on the new connection that the batches after it are not in the log, it assigns new sequence numbers to them. A
late copy with the old numbers would then be appended before them, and the log would hold both.

So a batch on a connection older than the producer's newest one is refused, and that connection is closed: the producer no longer
waits for its answers. A producer must use one connection per broker.

A batch counts only if it is valid: one with a wrong checksum may name any producer id, and must not close the connection of the
producer that has this id. So the batch is checked in full (`is_whole`) before its producer id counts; but only if it arrives on
another connection than the producer's newest one: once per connection, not once per batch.

A named producer never assigns new sequence numbers: its sequences are row numbers, so a late copy of a row is a duplicate or
follows a gap, whenever it arrives. Several producers may write under one name at once, each on its own connection, until their
epochs show which is the newest.

**Where this is weak**: a broker does not recognise a late copy if it lost the leadership, leads again, and the producer has not
connected to it since.
"""

from __future__ import annotations

from typing import Protocol

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import PRODUCER_ID_POS, read_header
from strandline.storage.log.validation import check_batch

PRODUCERS_MAX = 10_000
"""Beyond this number, the producer that was seen first is forgotten."""
_PRODUCER_ID = slice(PRODUCER_ID_POS, PRODUCER_ID_POS + 8)
"""The bytes of the producer id in a batch's header."""


class Numbered(Protocol):
    """A connection. `id` ascends in the order in which the broker accepts connections, on all its listeners together."""

    id: int
    listener_name: str


class ProducerConnections:
    """The newest connection of each idempotent producer that has no name."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], int] = {}
        """(listener name, producer id) -> number of the newest connection on which the producer sent a valid batch."""

    def is_late(self, records: memoryview, connection: Numbered, is_known: bool | None = None) -> bool:
        """Whether the producer of these records has used a newer connection. If not, remember this connection as the newest.
        `is_known`: whether the records are valid, if they were checked before.

        False for a malformed batch: the append refuses it."""
        producer_id = bytes(records[_PRODUCER_ID])
        if len(producer_id) < 8 or producer_id[0] & 0xC0:
            return False  # not idempotent, so there is no id to compare; or a named producer
        key = (connection.listener_name, producer_id)
        newest = self._newest.get(key, -1)
        if connection.id == newest or not (is_whole(records) if is_known is None else is_known):
            return False
        if connection.id < newest:
            return True
        if newest < 0 and len(self._newest) >= PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[key] = connection.id
        return False


def is_whole(records: memoryview) -> bool:
    """Whether the first batch is valid: checksum, header and records."""
    try:
        check_batch(records, 0, read_header(records))
    except BrokerError:
        return False
    return True
