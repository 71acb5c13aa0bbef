"""Reports a record whose handling has failed: as the error of `run`, in the log, and in the headers of its dead letter."""

from __future__ import annotations

from strandline.client.consumer.records import AnyRecord, TopicPartition
from strandline.client.consumer.run import headers
from strandline.client.consumer.run.handlers import Undecodable
from strandline.client.consumer.run.schedule import Delivery
from strandline.client.errors import HandlerFailed
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)


def reason_of(error: BaseException) -> str:
    """The class of the error and its text."""
    return f"{headers.name_of(error)}: {headers.text_of(error)}"


def cause_of(error: BaseException) -> BaseException:
    """The error of the handler. If a deserializer has failed before the call, its error."""
    return error.__cause__ if isinstance(error, Undecodable) and error.__cause__ is not None else error


def stopped_at(delivery: Delivery, error: BaseException, text: str | None = None) -> HandlerFailed:
    """The error with which `run` ends at this record. `text`: the reason, if it is not an error of the handler."""
    record = delivery.record
    failed = HandlerFailed(
        text or f"the handler raised {reason_of(error)}",
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        attempts=delivery.attempt,
    )
    failed.__cause__ = error
    return failed


class FailureLog:
    """Logs the failures of one run. The lines about failed attempts are limited per partition."""

    def __init__(self, group_id: str | None) -> None:
        self._group_id = group_id
        self._limits = LineLimits()

    def on_failed(self, tp: TopicPartition, delivery: Delivery, error: BaseException, now: float) -> None:
        """Log a failed call. `delivery`: its first record. `tp`: the partition that it was read from, also of the retry topic."""
        record = delivery.record
        suppressed = self._limits.admit(str(tp), now)
        if suppressed is not None:
            logger.warning(
                "consumer.handler_failed",
                group_id=self._group_id,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                attempt=delivery.attempt,
                reason=reason_of(error),
                **suppressed.fields,
            )

    def on_given_up(self, record: AnyRecord, error: BaseException, dlq: str | None) -> None:
        """Log a record that was given up. `dlq`: the dead-letter topic that it was sent to; None: it was skipped."""
        if dlq is None:
            logger.warning(
                "consumer.record_skipped",
                group_id=self._group_id,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason_of(error),
            )
        else:
            logger.warning(
                "consumer.record_dead_lettered",
                group_id=self._group_id,
                topic=record.topic,
                partition=record.partition,
                offset=record.offset,
                reason=reason_of(error),
                dlq=dlq,
            )
