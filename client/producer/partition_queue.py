"""The batches of one partition, in order: decides which may be sent now, and applies the responses. Pure.

    open  ->  ready  ->  in flight (sent at least once, and not settled)  ->  done

Order and exactly-once rest on seven rules:

1. A batch gets its sequence number when it is first sent. `in_flight` holds the batches that were sent and are not settled, in
   sequence order. A broker remembers the last five batches of a producer, so no batch is sent that is five or more places
   behind the first one in `in_flight`, even if batches between them are settled. Otherwise the broker could forget the first.
2. After any failure the partition *recovers*: nothing is sent until no response is expected. Then all batches in `in_flight` are
   sent again, in sequence order. The broker answers those that it has appended already as duplicates, with their offsets.
3. OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that is not the first in flight means "not yet". For the first one it means that the
   log holds neither it nor anything after it, because the producer gave up a batch before it or the broker lost its state.
   Then the producer epoch of *this partition* is bumped, and the batches in flight are numbered from 0 again. A delayed copy of
   a batch that was given up is rejected for its old epoch.
4. A batch gets a new number only after rule 3 has shown that it is not in the log.
5. A broker without state of a producer accepts the producer's first batch with any sequence number. So until the first batch of
   this producer id is acknowledged in this topic (a topic's name may come back with a new topic id), only one batch is in flight.
   Otherwise a second batch could be appended before the first one, if that failed.
6. DUPLICATE_SEQUENCE_NUMBER is no acknowledgement. By rule 1 the broker remembers each batch that may be sent again; if it does
   not, it has appended a later batch before this one. The batch fails, and it is not known whether it was written.
7. A batch that is rejected because one of its conditions does not hold (`on_condition_failed`) was not appended. If it was the
   last batch with a number, and no attempt is in doubt, the next batch gets its number: rejections are common, and rule 3 would
   cost a round trip for each.

The sequences of a *named* producer are the row numbers of its work epoch and never change, so rules 3 and 4 do not apply. When a
broker rejects a batch for its sequence or epoch, that batch and all rows behind it have failed (`failed`), until the producer
has read from the log how many rows there are (`resume`). Rule 5 does not apply either: no broker accepts a first row with any
number.

The queue of a *transactional* producer gets an epoch for each transaction (TV2 of KIP-890), and begins at sequence 0 with it
(`end_transaction`). Rules 3 and 4 do not apply: a batch that is not in the log fails, and the transaction fails with it. Its
abort makes all remaining batches harmless.

After a batch was given up, copies of *later* batches that a broken connection still holds could arrive between the rejection of
rule 3 and the renumbered retry. A broker that has a newer connection from this producer rejects them
(`broker/produce/producer_connections.py`). One weakness remains, as in Kafka: a copy at a broker that this producer has left,
if that broker becomes the leader again before the producer connects to it.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from strandline.client.errors import DeliveryFailed
from strandline.client.producer.batch import Batch, BatchState
from strandline.protocol.errors import ERRORS, ErrorCode
from strandline.protocol.records.compression import Compression

IN_FLIGHT_MAX = 5
SEQUENCE_MASK = 0x7FFFFFFF
PRODUCER_EPOCH_MAX = 0x7FFF

_NOT_IN_THE_LOG = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""Errors that mean, for the first batch in flight, that neither it nor a later batch is in the log (rule 3)."""

_IN_DOUBT = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors after which the batch may be in the log."""

_IN_FLIGHT = BatchState.IN_FLIGHT


class QueueState(Enum):
    """Whether new batches of the partition are sent (SENDING), or earlier ones must be settled first."""

    SENDING = "sending"
    RECOVERING = "recovering"
    """An attempt failed: nothing is sent until no response is expected (rule 2)."""
    RENUMBERING = "renumbering"
    """Recovering, and the first batch in flight is known not to be in the log (rule 3)."""


_SENDING = QueueState.SENDING


class PartitionQueue:
    """The batches of one partition that are not settled, and the producer identity under which they are sent."""

    __slots__ = (
        "_compression",
        "failed",
        "first_batch_acknowledged",
        "idempotent",
        "in_flight",
        "known_producer_id",
        "named",
        "next_index",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "ready",
        "retry_at",
        "state",
        "topic",
        "topic_id",
        "transactional",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        idempotent: bool,
        named: bool = False,
        transactional: bool = False,
        compression: Compression | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = b""
        """Id of the topic that the last batch was sent to; empty before the first batch."""
        self.partition = partition
        self.idempotent = idempotent
        self.named = named
        self.transactional = transactional
        self.failed: DeliveryFailed | None = None
        """Why a named producer cannot write a row to this partition until `resume`."""
        self._compression = compression
        self.open: Batch | None = None
        """The batch that accepts records: the last in order, which was never sent."""
        self.ready: deque[Batch] = deque()
        """Closed batches that were never sent."""
        self.in_flight: list[Batch] = []
        """Batches that were sent at least once and are not settled. While SENDING, those that expect a response are a prefix."""
        self.state = _SENDING
        self.retry_at = 0.0
        """Nothing is sent before this time, on the loop's clock."""
        self.first_batch_acknowledged = not idempotent or named
        """The broker knows this producer id (rule 5)."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.known_producer_id = -1
        """The producer id of earlier transactions, if the broker knows it (rule 5); -1 otherwise."""
        self.next_sequence = 0
        self.next_index = 0
        """Number of batches that were numbered under this producer epoch."""

    @property
    def idle(self) -> bool:
        """Whether the queue has no batch that is open, ready or in flight: every batch has been acknowledged or has failed."""
        return self.open is None and not self.ready and not self.in_flight

    @property
    def needs_producer_id(self) -> bool:
        """Whether the queue has no producer id, or has used up the epochs of its id. False while a response is expected, because
        that batch may be appended under the old id. False while the queue is idle, because the next batch may belong to another
        transaction than the present id."""
        is_used_up = self.state is QueueState.RENUMBERING and self.producer_epoch >= PRODUCER_EPOCH_MAX
        if not self.idempotent or (self.producer_id >= 0 and not is_used_up) or self.idle:
            return False
        return not self._expects_responses()

    def _expects_responses(self) -> bool:
        return any(batch.state is _IN_FLIGHT for batch in self.in_flight)

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Use another producer id. The batches in flight under the old id are known not to be in the log."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.first_batch_acknowledged = self.named or producer_id == self.known_producer_id
        self._number_again()

    def end_transaction(self) -> None:
        """The transaction has ended: the next batch belongs to another one, and needs the producer's next epoch.

        Only while the queue is idle."""
        assert self.idle, "a batch would be left for the next transaction"
        if self.first_batch_acknowledged:
            self.known_producer_id = self.producer_id
        self.producer_id = self.producer_epoch = -1
        self.next_sequence = self.next_index = 0
        self.state, self.retry_at = _SENDING, 0.0

    def resume(self, producer_id: int, producer_epoch: int, next_sequence: int) -> None:
        """The log holds `next_sequence` rows of this named producer's work epoch, so that is the number of the next record.

        Only while the queue is idle."""
        assert self.named, "only a named producer's sequences are row numbers"
        assert self.idle, "records that were handed over earlier would get row numbers that are taken"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence, self.failed, self.state = next_sequence, None, _SENDING

    def set_topic_id(self, topic_id: bytes) -> None:
        """The id of the topic that the next batch is sent to. In a recreated topic no broker knows this producer (rule 5)."""
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self.first_batch_acknowledged = not self.idempotent or self.named

    def fail_until_resumed(self, error: DeliveryFailed) -> None:
        """Send nothing until `resume`: a row of this named producer was not delivered, so no later row may be written."""
        self.failed = error

    # -- sending ------------------------------------------------------------------------------------------------------

    def begin(self, batch: Batch) -> None:
        """Make this new batch the open one. Only while there is no open batch."""
        self.open = batch

    def close_open(self) -> Batch | None:
        """Accept no more records in the open batch: it is ready to be sent. Returns it."""
        batch, self.open = self.open, None
        if batch is not None:
            self.ready.append(batch)
        return batch

    def take(self, now: float, partial: bool, broker_id: int | None = None) -> Batch | None:
        """Return the next batch to send to this broker, marked as in flight, or None if nothing may be sent now.

        `partial`: the open batch may be sent as it is."""
        if now < self.retry_at or (self.state is not _SENDING and not self.maybe_recover()):
            return None
        in_flight_max = IN_FLIGHT_MAX if self.first_batch_acknowledged else 1
        end = self.in_flight[0].index_in_epoch + in_flight_max if self.in_flight else self.next_index + 1
        for batch in self.in_flight:
            if batch.state is not _IN_FLIGHT:
                if batch.index_in_epoch >= end:
                    return None
                batch.on_sent(broker_id)
                return batch
        if self.next_index >= end:
            return None
        following = self._take_new(partial)
        if following is not None:
            self._number(following)
            following.on_sent(broker_id)
        return following

    def _take_new(self, partial: bool) -> Batch | None:
        """The next batch that was never sent. None if there is none, or if it needs more row numbers than there are."""
        if self.ready:
            batch = self.ready.popleft()
        elif partial and self.open is not None:
            batch, self.open = self.open, None
        else:
            return None
        if self.named and self._exceeds_row_numbers(batch):
            self.ready.appendleft(batch)
            return None
        return batch

    def _exceeds_row_numbers(self, batch: Batch) -> bool:
        """Whether the batch needs more row numbers than there are, because they do not wrap around. Then `failed` is set."""
        if self.next_sequence + len(batch) <= SEQUENCE_MASK + 1:
            return False
        text = f"a work epoch has at most {SEQUENCE_MASK + 1} rows in a partition; begin a higher one"
        self.failed = DeliveryFailed(text, topic=self.topic, partition=self.partition)
        return True

    def _number(self, batch: Batch) -> None:
        sequence = self.next_sequence if self.idempotent else -1
        identity = self.producer_id, self.producer_epoch
        batch.encode(*identity, sequence, self.next_index, self._compression, self.transactional)
        if self.idempotent:
            following = sequence + batch.count
            self.next_sequence = following if self.named else following & SEQUENCE_MASK
        self.next_index += 1
        self.in_flight.append(batch)

    def next_size_max(self) -> int:
        """An upper bound of the bytes of the batch that is sent next; 0 if there is none."""
        for batch in self.in_flight:
            if batch.state is not _IN_FLIGHT:
                return len(batch.data or b"")
        following = self.ready[0] if self.ready else self.open
        return 0 if following is None else following.reserved - following.room

    def has_unsent(self) -> bool:
        """Whether a batch waits to be sent or sent again, even if it may not be sent now."""
        return self.open is not None or bool(self.ready) or any(batch.state is not _IN_FLIGHT for batch in self.in_flight)

    def may_have_more(self) -> bool:
        """Whether, after one batch was taken, another one may be sent."""
        return bool(self.ready) or self.open is not None or len(self.in_flight) > 1

    def maybe_recover(self) -> bool:
        """After a failure, go back to SENDING if no batch in flight expects a response. Returns False if one still does."""
        if self._expects_responses():
            return False
        if self.state is QueueState.RENUMBERING:
            self.bump_epoch()
        self.state = _SENDING
        return True

    def bump_epoch(self) -> None:
        """Begin a new producer epoch for this partition, and number the batches in flight again."""
        self.producer_epoch += 1
        self._number_again()

    def _number_again(self) -> None:
        if self.state is QueueState.RENUMBERING:
            self.state = QueueState.RECOVERING
        sequence = 0
        for index, batch in enumerate(self.in_flight):
            batch.restamp(self.producer_id, self.producer_epoch, sequence, index)
            sequence = (sequence + batch.count) & SEQUENCE_MASK
        self.next_sequence = sequence
        self.next_index = len(self.in_flight)

    # -- responses ----------------------------------------------------------------------------------------------------

    def on_acked(self, batch: Batch) -> None:
        """The leader has appended the batch, now or (a duplicate) before."""
        self.in_flight.remove(batch)
        self.first_batch_acknowledged = True

    def on_failed(self, batch: Batch, code: ErrorCode, retry_at: float) -> bool:
        """One attempt failed. True: the batch will be sent again. False: the rejection is final, and the batch is removed."""
        batch.on_attempt_failed(code, in_doubt=code in _IN_DOUBT)
        if self.idempotent and code in _NOT_IN_THE_LOG:
            is_first = self.in_flight[0] is batch
            if (self.named or self.transactional) and (is_first or code == ErrorCode.INVALID_PRODUCER_EPOCH):
                self.remove(batch)
                return False
            if is_first:
                self.state = QueueState.RENUMBERING
        elif ERRORS[code].retriable:
            self.retry_at = max(self.retry_at, retry_at)
        else:
            self.remove(batch)
            return False
        self._recover()
        return True

    def on_condition_failed(self, batch: Batch) -> None:
        """The leader rejected the batch, because the log does not end at the expected offset, or the fencing token is too low
        (rule 7)."""
        is_number_free = self.in_flight[-1] is batch and not batch.in_doubt
        self.remove(batch)
        if is_number_free:
            self.next_sequence, self.next_index = batch.sequence, batch.index_in_epoch

    def _recover(self) -> None:
        if self.state is _SENDING:
            self.state = QueueState.RECOVERING

    def may_split(self, batch: Batch) -> bool:
        """Whether the halves of the batch may be sent instead of it. False if the batch is in doubt: a broker recognises a
        duplicate by its first and last sequence number, so it would append the halves once more. False if it expects an offset,
        because all its records must be written or none."""
        return batch.count > 1 and not batch.in_doubt and batch.conditions.expected_offset < 0

    def split(self, batch: Batch) -> tuple[Batch, Batch]:
        """Replace a batch that is too large for its topic by its halves, which have its sequence numbers."""
        halves = batch.split()
        position = self.in_flight.index(batch)
        self.in_flight[position : position + 1] = halves
        for behind in self.in_flight[position + 2 :]:
            behind.move_back()
        self.next_index += 1
        self._recover()
        return halves

    def abandon_attempts(self) -> None:
        """The partition has a new leader: ignore the responses of the old one. Only with idempotence, which makes a retry
        harmless."""
        for batch in self.in_flight:
            if batch.state is _IN_FLIGHT:
                batch.abandon_attempt()
                self._recover()

    def remove(self, batch: Batch) -> None:
        """Give up the batch (it expired or was rejected). The next batch shows whether it is in the log (rule 3)."""
        if batch is self.open:
            self.open = None
        elif batch in self.in_flight:
            self.in_flight.remove(batch)
            if not self.in_flight and self.state is QueueState.RECOVERING:
                self.state = _SENDING
        else:
            self.ready.remove(batch)
