"""The batches of one partition, in order: what may be sent now, and what an answer means. Pure.

    open  ->  ready  ->  unresolved (in flight, or waiting to be sent again)  ->  done

Order and exactly-once rest on five rules:

1. A batch gets its sequence number when it is first sent. `unresolved` holds the sent and not yet settled batches in
   sequence order. A broker remembers the last five batches of a producer: so none is sent that stands five places or
   more behind the first unresolved one, also when some between them are settled. Else the first could be forgotten.
2. After any failure the partition *recovers*: nothing is sent until no attempt is outstanding, then everything
   unresolved goes again, in sequence order. What was appended before is answered as a duplicate with its offset.
3. OUT_OF_ORDER_SEQUENCE_NUMBER for a batch that is not the first unresolved one only means "not yet". For the first
   one it means that the log holds neither it nor anything after it (a predecessor was given up, or the broker lost
   state): the producer epoch of *this partition* is bumped and the unresolved batches are numbered from 0 again. A
   delayed copy of a given-up batch is then refused for its old epoch.
4. A batch is only ever given a new number when rule 3 has shown that it is not in the log.
5. A broker that knows nothing of a producer takes its first batch with any sequence number. So until a batch of this
   producer id was acknowledged here (in this very topic: a name may come back with a new id), only one is in flight: a
   second one cannot slip in before a first that failed.
6. DUPLICATE_SEQUENCE_NUMBER is no acknowledgement. By rule 1 the broker knows the place of whatever we may send again; if
   it does not, a later batch was taken before this one. The batch fails: neither "written" nor "not written" is known.

A *named* producer's sequences are the row numbers of its work epoch, and are never changed: rules 3 and 4 do not apply to it.
What a broker refuses for its sequence or epoch has failed for good, and with it all rows behind it (`failed`), until its
owner has asked the log where to go on (`resume`). Rule 5 does not either: nobody takes a first batch with any number.

After a batch was given up, copies of *later* batches that a broken connection still holds could arrive between the refusal
of rule 3 and the renumbered resend. A broker that has heard us on a newer connection does not take them any more
(`broker/produce/producer_connections.py`). One weakness remains, as in Kafka: a copy at a broker that we have left, and
that leads again before it hears from us.
"""

from __future__ import annotations

from collections import deque

from strandline.client.errors import DeliveryFailed
from strandline.client.producer.batch import Batch
from strandline.protocol.errors import ERRORS, ErrorCode

IN_FLIGHT_MAX = 5
SEQUENCE_MASK = 0x7FFFFFFF
PRODUCER_EPOCH_MAX = 0x7FFF

_NOT_IN_THE_LOG = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH}
)


_IN_DOUBT = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


class PartitionQueue:
    __slots__ = (
        "established",
        "failed",
        "flushing",
        "idempotent",
        "in_flight_max",
        "named",
        "next_place",
        "next_sequence",
        "open",
        "partition",
        "producer_epoch",
        "producer_id",
        "ready",
        "recovering",
        "renumber",
        "retry_at",
        "topic",
        "topic_id",
        "unresolved",
    )

    def __init__(
        self, topic: str, partition: int, *, idempotent: bool, named: bool = False, in_flight_max: int = IN_FLIGHT_MAX
    ) -> None:
        self.topic = topic
        self.topic_id = b""
        """The topic that was sent to last; empty before the first batch."""
        self.partition = partition
        self.idempotent = idempotent
        self.named = named
        self.failed: DeliveryFailed | None = None
        """Of a named producer: why no row can be written here until `resume`."""
        self.in_flight_max = min(in_flight_max, IN_FLIGHT_MAX)
        self.open: Batch | None = None
        """The batch that takes records; never sent before, the last in order."""
        self.ready: deque[Batch] = deque()
        """Closed and never sent."""
        self.unresolved: list[Batch] = []
        """Sent at least once. When not recovering, the outstanding ones are a prefix."""
        self.recovering = False
        self.renumber = False
        """The first unresolved batch is known not to be in the log (rule 3)."""
        self.retry_at = 0.0
        """Nothing is sent before this time."""
        self.flushing = False
        """The open batch may go without lingering."""
        self.established = not idempotent or named
        """The broker knows this producer id (rule 5)."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.next_sequence = 0
        self.next_place = 0
        """Counts the batches that were numbered under this producer epoch."""

    @property
    def idle(self) -> bool:
        return self.open is None and not self.ready and not self.unresolved

    @property
    def needs_producer_id(self) -> bool:
        if not self.idempotent or (self.producer_id >= 0 and not (self.renumber and self.producer_epoch >= PRODUCER_EPOCH_MAX)):
            return False
        return not any(batch.outstanding for batch in self.unresolved)

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """A new identity; what is unresolved under an old one was shown not to be in the log."""
        self.producer_id, self.producer_epoch, self.established = producer_id, producer_epoch, self.named
        self._number_again()

    def resume(self, producer_id: int, producer_epoch: int, next_sequence: int) -> None:
        """Of a named producer, while nothing waits: the log holds this many rows, and the next record is the one behind."""
        assert self.named, "only row numbers can be taken up again"
        assert self.idle, "records that were handed over before the question belong in front of what the log holds"
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence, self.failed, self.recovering = next_sequence, None, False

    def set_topic_id(self, topic_id: bytes) -> None:
        """Where the next batch goes: in a new topic of the old name nobody knows this producer (rule 5)."""
        if topic_id != self.topic_id:
            self.topic_id = topic_id
            self.established = not self.idempotent or self.named

    # -- sending ------------------------------------------------------------------------------------------------------

    def take(self, now: float, partial: bool) -> Batch | None:
        """The next batch to send, marked outstanding; None: nothing may go now. `partial`: the open batch may go too."""
        if now < self.retry_at or (self.recovering and not self._recovered()):
            return None
        in_flight_max = self.in_flight_max if self.established else 1
        end = self.unresolved[0].place + in_flight_max if self.unresolved else self.next_place + 1
        for batch in self.unresolved:
            if not batch.outstanding:
                return self._sent(batch) if batch.place < end else None
        if self.next_place >= end:
            return None
        if self.renumber:
            self._bump_epoch()
        batch_or_none = self._take_new(partial)
        if batch_or_none is None or self._uses_up_the_rows(batch_or_none):
            return None
        sequence = self.next_sequence if self.idempotent else -1
        batch_or_none.encode(self.producer_id, self.producer_epoch, sequence)
        if self.idempotent:
            following = sequence + batch_or_none.count
            self.next_sequence = following if self.named else following & SEQUENCE_MASK
        batch_or_none.place = self.next_place
        self.next_place += 1
        self.unresolved.append(batch_or_none)
        return self._sent(batch_or_none)

    def next_size_max(self) -> int:
        """An upper bound of the bytes of the batch that is sent next; 0: there is none."""
        for batch in self.unresolved:
            if not batch.outstanding:
                return len(batch.data or b"")
        following = self.ready[0] if self.ready else self.open
        return 0 if following is None else following.reserved - following.room

    def _uses_up_the_rows(self, batch: Batch) -> bool:
        """Row numbers do not begin again: the rest of the queue fails."""
        if not self.named or self.next_sequence + len(batch) <= SEQUENCE_MASK + 1:
            return False
        self.ready.appendleft(batch)
        text = f"a work epoch has {SEQUENCE_MASK + 1} rows in a partition at most; begin a higher one"
        self.failed = DeliveryFailed(text, topic=self.topic, partition=self.partition)
        return True

    def has_unsent(self) -> bool:
        """Something waits to be sent (again), whether or not it may go now."""
        return self.open is not None or bool(self.ready) or any(not batch.outstanding for batch in self.unresolved)

    def _take_new(self, partial: bool) -> Batch | None:
        if self.ready:
            return self.ready.popleft()
        if partial and self.open is not None:
            batch, self.open = self.open, None
            return batch
        return None

    def _sent(self, batch: Batch) -> Batch:
        batch.attempts += 1
        batch.outstanding = True
        return batch

    def _recovered(self) -> bool:
        if any(batch.outstanding for batch in self.unresolved):
            return False
        self.recovering = False
        if self.renumber:
            self._bump_epoch()
        return True

    def _bump_epoch(self) -> None:
        self.producer_epoch += 1
        self._number_again()

    def _number_again(self) -> None:
        self.renumber = False
        sequence = 0
        for place, batch in enumerate(self.unresolved):
            batch.restamp(self.producer_id, self.producer_epoch, sequence)
            batch.place = place
            sequence = (sequence + batch.count) & SEQUENCE_MASK
        self.next_sequence = sequence
        self.next_place = len(self.unresolved)

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_acked(self, batch: Batch) -> None:
        """Written (now or, as a duplicate, before)."""
        self.unresolved.remove(batch)
        self.established = True

    def on_failed(self, batch: Batch, code: ErrorCode, retry_at: float) -> bool:
        """One attempt failed. True: the batch stays and is sent again; False: it was refused for good, and is removed."""
        batch.outstanding = False
        batch.last_code = code
        batch.in_doubt = batch.in_doubt or code in _IN_DOUBT
        if self.idempotent and code in _NOT_IN_THE_LOG:
            is_first = self.unresolved[0] is batch
            if self.named and (is_first or code == ErrorCode.INVALID_PRODUCER_EPOCH):
                self.remove(batch)
                return False
            self.renumber |= is_first
        elif ERRORS[code].retriable:
            self.retry_at = max(self.retry_at, retry_at)
        else:
            self.remove(batch)
            return False
        self.recovering = True
        return True

    def may_split(self, batch: Batch) -> bool:
        """A batch in doubt keeps its shape: a broker knows a duplicate by its first and last sequence number."""
        return batch.count > 1 and not batch.in_doubt

    def split(self, batch: Batch) -> tuple[Batch, Batch]:
        """The batch was refused as too large for its topic: its halves take its place, with its sequence numbers."""
        halves = batch.split()
        index = self.unresolved.index(batch)
        self.unresolved[index : index + 1] = halves
        halves[0].place = batch.place
        for behind in self.unresolved[index + 2 :]:
            behind.place += 1
        halves[1].place = batch.place + 1
        self.next_place += 1
        self.recovering = True
        return halves

    def abandon_attempts(self) -> None:
        """The leader moved: answers of the old one no longer count. Only with idempotence, which makes a resend harmless."""
        for batch in self.unresolved:
            if batch.outstanding:
                batch.outstanding = False
                batch.in_doubt = True
                self.recovering = True

    def remove(self, batch: Batch) -> None:
        """Give the batch up (expired, refused). Whether it is in the log the broker will say: rule 3."""
        if batch is self.open:
            self.open = None
        elif batch in self.unresolved:
            self.unresolved.remove(batch)
            if not self.unresolved:
                self.recovering = False
        else:
            self.ready.remove(batch)
