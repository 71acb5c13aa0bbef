"""On which connection a producer writes: the newest that it was heard on.

A producer that gives a connection up sends what was on its way once more, on a new one. The old one may have been slow, not
dead: then its copies arrive later. As long as the sequence numbers are the same that does no harm. But when a producer has
given a batch up, and heard (on the new connection) that what follows it is not in the log, it numbers that anew; a late copy
under the old numbers would be appended before it, and both stand in the log.

So what comes on a connection older than the newest one on which this producer was heard is refused, and the connection
closed: nobody waits for its answers any more. It is a producer's own affair to have one connection per broker.

A batch counts only if it is whole: one with a wrong checksum may name any producer id, and must not close the connection of the
producer that has it. So the batch is checked in full (`is_whole`) before its producer id is believed, and only when the
connection is not the one on which the producer was last heard: once per connection, not once per batch.

A named producer never numbers anything anew: its sequences are row numbers, and a late copy of a row is a duplicate or
stands behind a gap, whenever it comes. Several may write under one name at once, each on a connection of its own, until
their epochs tell which of them is the last.

**Where this is weak**: a copy that is late at a broker which the producer has left and not come back to yet, and which
leads again by then.
"""

from __future__ import annotations

from typing import Protocol

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import PRODUCER_ID_POS, read_header
from strandline.storage.log.validation import check_batch

PRODUCERS_MAX = 10_000
"""Of the producers that were heard first, the oldest are forgotten beyond that."""
_PRODUCER_ID = slice(PRODUCER_ID_POS, PRODUCER_ID_POS + 8)
"""In a batch's header."""


class Numbered(Protocol):
    id: int
    listener_name: str


class ProducerConnections:
    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], int] = {}
        """Listener and producer id -> number of the connection; those of one listener are numbered as they are accepted."""

    def is_late(self, records: memoryview, connection: Numbered) -> bool:
        """Whether the producer of these records was heard on a newer connection; if not, remember this one.

        False for records that are no whole batch: the append refuses them."""
        producer_id = bytes(records[_PRODUCER_ID])
        if len(producer_id) < 8 or producer_id[0] & 0xC0:
            return False  # not idempotent: nothing is promised, and nobody can say whose it is; or it has a name
        key = (connection.listener_name, producer_id)
        newest = self._newest.get(key, -1)
        if connection.id == newest or not is_whole(records):
            return False
        if connection.id < newest:
            return True
        if newest < 0 and len(self._newest) >= PRODUCERS_MAX:
            del self._newest[next(iter(self._newest))]
        self._newest[key] = connection.id
        return False


def is_whole(records: memoryview) -> bool:
    """Whether the first batch is as a producer builds it: checksum, header and records."""
    try:
        check_batch(records, 0, read_header(records))
    except BrokerError:
        return False
    return True
