"""What a task does: one range of one partition, from the log into Arrow batches.

Every record in the range is handed out, or the task fails: with `DataLoss` when the log no longer has them, with the
client's error when the leader could not be reached in time. Offsets without a record (control records, compaction) are
legal gaps. Rows are made from whole record batches, without a Python object per record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from strandline.client import Consumer, LogTruncated, OffsetOutOfRange, RequestTimeout, TopicRecreated, UnknownTopic
from strandline.client.batches import FetchedBatch, arrow_batches
from strandline.pipeline.errors import DataLoss, recreated
from strandline.pipeline.offsets import UNKNOWN_ID
from strandline.pipeline.planning import Range
from strandline.pipeline.session import Session, session
from strandline.protocol.loggers import get_logger

if TYPE_CHECKING:
    import pyarrow

log = get_logger(__name__)

TOPIC_RETRY_S, TOPIC_GRACE_S = 0.05, 2.0
"""Within this time all brokers know of a topic that was recreated, unless one is cut off."""
FETCH_WAIT_MS = 1000
"""How long one step of the loop waits; the task's own bound is `read_timeout_ms`."""


@dataclass(frozen=True, slots=True)
class TaskReader:
    """Pickled with each task, so it holds plain values."""

    client: Mapping[str, Any]
    include_headers: bool
    fail_on_data_loss: bool
    read_timeout_ms: int
    rows_per_batch: int

    def read(self, wanted: Range) -> Iterator[pyarrow.RecordBatch]:
        """Arrow batches of about `rows_per_batch` rows, in the order of the log."""
        here = session()
        with here.client(Consumer, {**self.client, "auto_offset_reset": "error"}) as consumer:
            here.run(consumer.assign([wanted.place]))
            if self._is_the_topic(here, consumer, wanted):
                consumer.seek(wanted.place, wanted.start, wanted.leader_epoch)
            elif not self._go_on(here, consumer, wanted, wanted.start, _recreated(consumer, wanted)):
                return
            batches = self._batches(here, consumer, wanted)
            yield from arrow_batches(batches, rows=self.rows_per_batch, include_headers=self.include_headers)

    def _is_the_topic(self, here: Session, consumer: Consumer, wanted: Range) -> bool:
        """Whether the consumer reads the topic that the range was planned for. A broker that is behind may name an older topic,
        so the consumer asks again for a moment."""
        deadline = here.loop.time() + TOPIC_GRACE_S
        while wanted.topic_id not in (UNKNOWN_ID, consumer.topic_id(wanted.place)):
            if here.loop.time() > deadline:
                return False
            here.run(asyncio.sleep(TOPIC_RETRY_S))
            here.run(consumer.refresh_metadata())
            here.run(consumer.assign([wanted.place]))
        return True

    def _batches(self, here: Session, consumer: Consumer, wanted: Range) -> Iterator[FetchedBatch]:
        silent_since = here.loop.time()
        while (position := here.run(consumer.position(wanted.place))) < wanted.end:
            try:
                polled = here.run(consumer.fetch_batches(timeout_ms=min(FETCH_WAIT_MS, self.read_timeout_ms)))
            except (OffsetOutOfRange, LogTruncated, TopicRecreated, UnknownTopic) as e:
                if not self._go_on(here, consumer, wanted, position, e):
                    return
                continue
            for batch in polled.get(wanted.place, ()):
                yield batch.clip(wanted.start, wanted.end)
            if polled or here.run(consumer.position(wanted.place)) > position:
                silent_since = here.loop.time()
            elif here.loop.time() - silent_since > self.read_timeout_ms / 1000:
                raise RequestTimeout(
                    f"no records came from offset {position} on, of {wanted}: is its leader up? (option readTimeoutMs)",
                    topic=wanted.topic,
                    partition=wanted.partition,
                    elapsed_ms=self.read_timeout_ms,
                )

    def _go_on(self, here: Session, consumer: Consumer, wanted: Range, position: int, error: Exception) -> bool:
        """Behind what is gone, where the user wants that; False when nothing of the range is left."""
        place = wanted.place
        earliest = latest = -1
        if not isinstance(error, UnknownTopic):
            earliest = here.run(consumer.beginning_offsets([place]))[place]
            latest = here.run(consumer.end_offsets([place]))[place]
        if self.fail_on_data_loss:
            raise DataLoss(
                _what_is_gone(wanted, position, earliest, latest, error), topic=place.topic, partition=place.partition
            ) from error
        go_on_at = max(position, earliest)
        log.warning(
            "pipeline.data_lost", topic=place.topic, partition=place.partition, position=position, log_start_offset=earliest,
            log_end_offset=latest,
        )  # fmt: skip
        if go_on_at >= min(wanted.end, latest):
            return False
        consumer.seek(place, go_on_at)
        return True


def _recreated(consumer: Consumer, wanted: Range) -> TopicRecreated:
    found = consumer.topic_id(wanted.place)
    return TopicRecreated(topic=wanted.topic, partition=wanted.partition, position=wanted.start, topic_id=found)


def _what_is_gone(wanted: Range, position: int, earliest: int, latest: int, error: Exception) -> str:
    if isinstance(error, LogTruncated):
        return f"the log of {wanted.place} is not the one that was read before: {error}"
    if isinstance(error, UnknownTopic):
        return f"{wanted.place} was read up to offset {position} when its topic was deleted"
    if isinstance(error, TopicRecreated):
        return f"{recreated(wanted.place, position)} (it holds {earliest} to {latest})"
    if position < earliest:
        return f"offset {position} of {wanted.place} was expected, and the earliest that is left is {earliest}"
    return f"offset {position} of {wanted.place} was expected, and the log ends at {latest}"
