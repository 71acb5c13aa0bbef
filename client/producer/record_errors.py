"""The errors of the records of a batch that was rejected because of some of them (KIP-467)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from strandline.client.errors import DeliveryFailed

if TYPE_CHECKING:
    from strandline.protocol.messages.data import ProducePartitionResponse

ErrorOf = Callable[[int], DeliveryFailed]
"""Returns the error of a record, by its index in the batch."""


class InvalidRecords(NamedTuple):
    """The records of a batch that a broker found invalid."""

    messages: Mapping[int, str | None]
    """The broker's message about each record, by its index in the batch; it may leave out the last records."""
    total: int
    """The number of invalid records, including those that `messages` leaves out."""

    @classmethod
    def of(cls, answer: ProducePartitionResponse) -> InvalidRecords | None:
        """The invalid records that a response names; None if it names none."""
        if not answer.record_errors:
            return None
        return cls({error.batch_index: error.message for error in answer.record_errors}, answer.invalid_records)

    def error_of(self, index: int, summary: str, make: Callable[[str], DeliveryFailed]) -> DeliveryFailed:
        """The error of one record. `summary`: the broker's message about the batch."""
        if index in self.messages:
            error = make(self.messages[index] or summary)
            error.is_invalid_record = True
        elif len(self.messages) < self.total and index > max(self.messages):
            error = make(f"the broker rejected the batch of this record, and names only its first invalid records: {summary}")
        else:
            error = make(f"the record is valid, but its batch was rejected because of other records: {summary}")
            error.is_invalid_record = False
        return error
