"""Takes fetched records and batches from the partitions' buffers, up to the limits of one call."""

from __future__ import annotations

from strandline.client.arguments import checked_whole
from strandline.client.consumer.batches import FetchedBatch
from strandline.client.consumer.partition_state import Decoder, DecoderOf, PartitionState
from strandline.client.consumer.records import AnyRecord
from strandline.protocol.records.batch import BatchHeader

NO_LIMIT = 1 << 62


class Room:
    """The records and bytes that one call of `fetch_batches` may still return."""

    __slots__ = ("bytes", "is_untouched", "records")

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self.records = max_records
        self.bytes = max_bytes
        self.is_untouched = True

    def holds(self, header: BatchHeader) -> bool:
        """Whether the batch may be returned. The first batch always may: otherwise a limit below its size would block the
        partition."""
        return self.is_untouched or (header.record_count <= self.records and header.size <= self.bytes)

    def take(self, header: BatchHeader) -> None:
        """Count a batch that is returned."""
        self.records -= header.record_count
        self.bytes -= header.size
        self.is_untouched = False


def pull_records(state: PartitionState, decode: Decoder, left: int, *, whole: bool) -> list[AnyRecord]:
    """Up to `left` records of one partition. With `whole`, only whole batches, so that nothing is sliced twice; the last one may
    exceed `left`."""
    records: list[AnyRecord] = []
    while left > 0:
        more = state.pull(decode, NO_LIMIT if whole else left)
        if not more:
            break
        left -= len(more)
        if records:
            records.extend(more)
        else:
            records = more
    return records


def pull_batches(state: PartitionState, decode: DecoderOf[FetchedBatch], room: Room) -> tuple[list[FetchedBatch], bool]:
    """The batches that there is room for, and whether any batch was taken from the buffer (a batch may have no rows for the
    program)."""
    batches: list[FetchedBatch] = []
    taken = False
    while (header := state.next_header()) is not None and room.holds(header):
        taken = True
        batch = state.pull_batch(decode)
        if batch is not None:
            room.take(header)
            batches.append(batch)
    return batches, taken


def checked_limit(name: str, limit: int | None) -> int | None:
    """The limit; None means no limit. UsageError if it is no whole number of at least 1; `name` is its name in the message."""
    return None if limit is None else checked_whole(name, limit, 1, NO_LIMIT)
