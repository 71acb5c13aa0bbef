"""Fails a producer's records: one batch, all batches of a partition, or all records.

The rows of a named producer are written in order: when a batch fails, all later batches of its partition fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from strandline.client.errors import (
    ClientClosed,
    ClientError,
    DeliveryFailed,
    DeliveryTimeout,
    OffsetConflict,
    ProducerFenced,
    TokenFenced,
    delivery_failed,
    describe,
)
from strandline.client.producer.record_errors import ErrorOf, InvalidRecords
from strandline.client.producer.undelivered import (
    Undelivered,
    may_be_written,
    no_metadata,
    partition_of,
    stopped,
    stopped_before,
)
from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    from strandline.client.cluster.cluster import Cluster
    from strandline.client.options import ProducerOptions
    from strandline.client.producer.accumulator import Accumulator
    from strandline.client.producer.batch import Batch
    from strandline.client.producer.partition_queue import PartitionQueue
    from strandline.client.producer.room import RoomWaiters

logger = get_logger(__name__)

_ROWS_ELSEWHERE = {
    ErrorCode.DUPLICATE_SEQUENCE_NUMBER: "another attempt has written these rows; call written() to learn where to continue",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "rows before these are not in the log; call written() to learn where to continue",
    ErrorCode.UNKNOWN_PRODUCER_ID: "the log holds no row of this work epoch; call written() to learn where to continue",
}
"""The meaning of these errors for the rows of a named producer."""


class DeliveryFailures:
    """Fails batches and parked records, gives back their memory, and counts and logs the lost records."""

    def __init__(self, options: ProducerOptions, accumulator: Accumulator, cluster: Cluster, room: RoomWaiters) -> None:
        self._options = options
        self._accumulator = accumulator
        self._cluster = cluster
        self._room = room
        self.records = 0
        """The number of records that failed while they were in a batch or parked."""
        self.last_error: str | None = None
        self.fatal: ClientError | None = None
        """The error because of which nothing more is sent: a bug of the producer, or the cluster rejects this named or
        transactional producer."""
        self.on_failed: Callable[[Exception], None] = lambda error: None
        """Called with the error when records fail, which may belong to a transaction."""
        self._is_broken = False
        """A bug of the producer has stopped the sender, and the queues are in an unknown state."""
        self._broken_records = 0
        """The number of records in batches that failed because of the bug. `stop` reports them by partition."""

    # -- one batch ----------------------------------------------------------------------------------------------------

    def fail_rejected(
        self,
        queue: PartitionQueue,
        batch: Batch,
        code: ErrorCode,
        message: str | None,
        now: float,
        invalid: InvalidRecords | None = None,
    ) -> None:
        """A broker rejected the batch for good, and it is no longer in its queue. `invalid`: the records that caused it, if the
        broker names them."""
        facts, text = self._facts(batch, now), describe(code, message)
        if batch.in_doubt:
            text += "; an earlier attempt was not answered, and may be in the log"
        error_of = None if invalid is None else self._error_of(invalid, code, text, facts)
        if not queue.named:
            self._fail(batch, delivery_failed(text, **facts, code=code), error_of)
        elif code == ErrorCode.INVALID_PRODUCER_EPOCH:
            fenced = ProducerFenced(text, **facts, code=code)
            self._fail(batch, fenced)
            self.reject_all(fenced)
        else:
            text = f"{text}: {_ROWS_ELSEWHERE[code]}" if code in _ROWS_ELSEWHERE else text
            error = delivery_failed(text, **facts, code=code)
            self._fail(batch, error, error_of)
            self.fail_rows_behind(queue, error)

    @staticmethod
    def _error_of(invalid: InvalidRecords, code: ErrorCode, summary: str, facts: dict[str, Any]) -> ErrorOf:
        def make(text: str) -> DeliveryFailed:
            return DeliveryFailed(text, **facts, code=code)

        return lambda index: invalid.error_of(index, summary, make)

    def fail_conflict(self, batch: Batch, log_end_offset: int, now: float) -> None:
        """The leader rejected a conditional append, and the batch is no longer in its queue. The program has asked for this
        answer, so it is not logged, and the records do not count as failed."""
        facts = self._facts(batch, now)
        expected_offset = batch.conditions.expected_offset
        batch.fail(OffsetConflict(expected_offset=expected_offset, log_end_offset=log_end_offset, **facts))
        self._release(batch)

    def fail_fenced(self, batch: Batch, highest_token: int, now: float) -> None:
        """The leader rejected a batch for its fencing token, and the batch is no longer in its queue."""
        facts, token = self._facts(batch, now), batch.conditions.fencing_token
        self._fail(batch, TokenFenced(fencing_token=token, highest_token=highest_token, **facts))

    def fail_expired(self, batch: Batch, reason: str, now: float) -> None:
        """The batch's delivery timeout has passed, and it is no longer in its queue."""
        text = f"delivery_timeout_ms has passed; {reason}"
        self._fail(batch, DeliveryTimeout(text, **self._facts(batch, now), code=batch.last_code))

    def fail_topic(self, topic: str, error_of: Callable[[dict[str, Any]], ClientError], now: float) -> None:
        """Fail all batches of a topic. `error_of` creates the error from the facts about a batch."""
        for batch, queue in [(batch, queue) for batch, queue in self._accumulator.incomplete.items() if queue.topic == topic]:
            self._accumulator.give_up(queue, batch)
            self._fail(batch, error_of(self._facts(batch, now)))

    def _facts(self, batch: Batch, now: float) -> dict[str, Any]:
        return {
            "topic": batch.topic,
            "partition": batch.partition,
            "broker_id": batch.last_broker_id,
            "attempts": batch.attempts,
            "elapsed_ms": (now - batch.created_at) * 1000,
        }

    def _fail(self, batch: Batch, error: ClientError, error_of: ErrorOf | None = None) -> None:
        batch.fail(error, error_of)
        self._log(batch.topic, batch.partition, batch.count, error)
        self._release(batch)
        self.on_failed(error)

    def _release(self, batch: Batch) -> None:
        self._accumulator.release(batch)
        self._room.wake_next()

    def _log(self, topic: str, partition: int, records: int, error: Exception) -> None:
        self.records += records
        self.last_error = str(error)
        logger.warning("producer.delivery_failed", topic=topic, partition=partition, records=records, reason=str(error))

    # -- one partition ------------------------------------------------------------------------------------------------

    def fail_rows_behind(self, queue: PartitionQueue, error: DeliveryFailed) -> None:
        """A batch of a named producer failed with this error: fail all batches behind it in its partition."""
        text = f"the rows before these were not delivered: {error}"
        self.fail_queue(queue, DeliveryFailed(text, topic=queue.topic, partition=queue.partition))

    def fail_queue(self, queue: PartitionQueue, error: DeliveryFailed) -> None:
        """Fail all batches of the queue. New ones fail, too, until the queue is resumed."""
        queue.fail_until_resumed(error)
        failed = [batch for batch, its_queue in self._accumulator.incomplete.items() if its_queue is queue]
        for batch in failed:
            self._accumulator.give_up(queue, batch)
            batch.fail(error)
            self._release(batch)
        if failed:
            self._log(queue.topic, queue.partition, sum(batch.count for batch in failed), error)

    def fail_parked(self, topic: str, error: Exception, parked_before: float) -> None:
        """Fail the records of an unknown topic that were parked until `parked_before` (on the loop's clock)."""
        self.records += self._accumulator.fail_parked(topic, error, parked_before)
        logger.warning("producer.delivery_failed", topic=topic, reason=str(error))
        self._room.wake_next()
        self.on_failed(error)

    # -- everything ---------------------------------------------------------------------------------------------------

    def fail_waiting(self, reason: str) -> None:
        """The transaction is aborted: fail all waiting records, without logging or counting them."""
        now = asyncio.get_running_loop().time()
        self._fail_all(
            lambda batch: DeliveryFailed(reason, **self._facts(batch, now)), lambda topic: DeliveryFailed(reason, topic=topic)
        )

    def fail_denied(self, error: ClientError) -> None:
        """The cluster rejected the client's authentication, or the request for a producer id: fail all waiting records with this
        error. Records that are handed over later cause a new attempt."""
        failed = self._fail_all(lambda batch: error, lambda topic: error)
        if failed:
            self.records += failed
            self.last_error = str(error)
            logger.warning("producer.delivery_failed", records=failed, reason=str(error))
            self.on_failed(error)

    def reject_all(self, error: ClientError) -> None:
        """The cluster rejects this named or transactional producer: fail all waiting records, and those that are handed over
        later."""
        name = self._options.producer_name or self._options.transactional_id
        logger.warning("producer.rejected", reason=f"{name}: {error}")
        if not self._is_broken:
            self.fatal = error
            self.records += self._fail_all(lambda batch: error, lambda topic: error)

    def break_down(self, bug: Exception) -> None:
        """Called with an unexpected exception that no caller would see: fail all waiting records, and those that are handed over
        later."""
        logger.error("producer.crashed", exc_info=bug)
        self._is_broken = True
        self.fatal = error = DeliveryFailed(f"an error inside the producer, which can send nothing more: {bug!r}")
        self._accumulator.forget_open_batches()
        for batch in list(self._accumulator.incomplete):
            if not batch.done:
                batch.fail(error)
                self.records += batch.count
                self._broken_records += batch.count
        for name in list(self._accumulator.parked):
            self.records += self._accumulator.fail_parked(name, error)
        self._room.wake_all()

    @property
    def failed_records(self) -> int:
        """The number of records that failed, including parked ones that could not be appended."""
        return self.records + self._accumulator.refused_records

    def stop(self, reason_of: Callable[[Batch], str]) -> Undelivered:
        """The producer stops: fail all waiting records, with an error that says whether the record may be in the log.

        `reason_of`: why a batch was not delivered."""
        undelivered = Undelivered(failed=self.failed_records - self._broken_records)
        if self._is_broken:
            for batch in self._accumulator.incomplete:
                undelivered.add(partition_of(batch), len(batch), str(self.fatal), may_be_written=batch.attempts > 0)
            return undelivered
        reason = no_metadata(self._cluster.metadata.last_error)
        for name, lot in self._accumulator.parked.items():
            undelivered.add(name, len(lot.records), reason, may_be_written=False)
        for batch in self._accumulator.incomplete:
            undelivered.add(partition_of(batch), len(batch), reason_of(batch), may_be_written=may_be_written(batch))
        self._fail_all(stopped_before, lambda topic: stopped(topic, may_be_written=False))
        return undelivered

    def _fail_all(
        self,
        error_of: Callable[[Batch], ClientError | ClientClosed],
        error_of_parked: Callable[[str], ClientError | ClientClosed],
    ) -> int:
        """Fail all waiting records. Returns their number."""
        failed = self._accumulator.waiting_records
        for name in list(self._accumulator.parked):
            self._accumulator.fail_parked(name, error_of_parked(name))
        for batch, queue in list(self._accumulator.incomplete.items()):
            error = error_of(batch)
            self._accumulator.give_up(queue, batch)
            batch.fail(error)
            self._accumulator.release(batch)
        self._room.wake_all()
        return failed
