"""A member whose program hands its records to a handler (`Consumer.run`), which fails for some of them.

Whether a record fails, and whether always or once, follows from its place, so it is the same for every member. Checked here:

- I36: a call of the handler begins only for a partition that the member owns, in its session, and not while another member owns
  the partition; and if another member owns it when the call ends, the call was cancelled.
- I36: the records of a lane (a partition, or a key of it) are handled in order. A record begins when the one before it is
  finished, dead-lettered, or sent to the retry topic.
- I39: each record below the committed offset was handled by a member without an error, or is in the dead-letter topic. That
  topic has only records that a handler fails for.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple
from zlib import crc32

from strandline.client import Backoff, NewTopic, OffsetOutOfRange, TopicPartition, attempt_of
from strandline.client.consumer.run import headers
from strandline.client.errors import CorruptRecords, GroupMembershipFailed, LogTruncated
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.cluster.cluster import Client
from strandline.testing.simulation.cluster.groups.ledger import Stay
from strandline.testing.simulation.cluster.groups.program import RETRY_S, Surroundings
from strandline.testing.simulation.cluster.groups.reader import Reader
from strandline.testing.simulation.group_plans import DEAD_LETTERS, IDLE, LEAVE, RETRIES, SWITCH, MemberPlan

ADMIN = {"request_timeout_ms": 1000, "max_block_ms": 1000, "connect_timeout_ms": 500}
LOOK_S = 0.02
FAILS_FOR_EVER, FAILS_ONCE = 2, 4
"""Percent of the records whose handler fails always, and once."""
LONG_SHARE, SHORT_S = 0.03, 0.002
"""Share of the calls that may take as long as the plan says; the others take `SHORT_S` at most."""
DRAIN_MS = 500


class Failed(Exception):
    """The error of a handler that fails on purpose."""


class Origin(NamedTuple):
    """The topic, partition and offset at which a record was first written."""

    topic: str
    partition: int
    offset: int


class Lane(NamedTuple):
    """The newest record of a lane for which the handler was called."""

    offset: int
    is_over: bool
    """The record needs no further attempt by this member."""


def fails(group: str, origin: Origin, attempt: int) -> bool:
    return attempt <= failures_of(group, origin)


def failures_of(group: str, origin: Origin) -> int:
    """The number of attempts of this record that fail."""
    draw = crc32(repr((group, *origin)).encode()) % 100
    return 1 << 30 if draw < FAILS_FOR_EVER else 1 if draw < FAILS_FOR_EVER + FAILS_ONCE else 0


class Handling(Reader):
    def __init__(self, around: Surroundings, client: Client, name: str, plan: MemberPlan) -> None:
        super().__init__(around, client, name, plan)
        self._lanes: dict[tuple[TopicPartition, bytes | None], Lane] = {}
        """The lanes of the present call of `Consumer.run`."""

    async def stay(self) -> bool:
        if await self._topics_exist():
            return await super().stay()
        await asyncio.sleep(RETRY_S)
        return False

    async def _topics_exist(self) -> bool:
        """Create the topics for failed records, unless they exist."""
        image, brokers = self.around.cluster.image(), self.around.options.brokers
        missing = [name for name in (DEAD_LETTERS, RETRIES) if image.topic(name) is None]
        if not missing:
            return True
        admin = await self.around.started(lambda: self.client.admin(**ADMIN))
        if admin is None:
            return False
        try:
            await admin.create_topics([NewTopic(name, 2, min(brokers, 3)) for name in missing], timeout_ms=1500)
        except (StrandlineError, TimeoutError) as e:
            self.around.gave_up(self.client, "topics for failed records", e)
        finally:
            await admin.stop()
        return False

    def subscribe(self, stay: Stay) -> None:
        if self.plan.run["retry_topic"] and RETRIES not in stay.topics:
            stay.topics = (*stay.topics, RETRIES)
        super().subscribe(stay)

    async def on_assigned(self, stay: Stay, partitions: list[TopicPartition]) -> None:
        await super().on_assigned(stay, partitions)
        self._forget(partitions)

    async def on_gone(self, stay: Stay, partitions: list[TopicPartition]) -> None:
        await super().on_gone(stay, partitions)
        self._forget(partitions)

    def _forget(self, partitions: list[TopicPartition]) -> None:
        gone = set(partitions)
        self._lanes = {lane: state for lane, state in self._lanes.items() if lane[0] not in gone}

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def _read(self, stay: Stay) -> bool:
        while self.going:
            event = await self._run(stay)
            if event == LEAVE:
                return True
            if event == SWITCH:
                stay.topics, stay.pattern = self.plan.later_topics, ""
                self.subscribe(stay)
        return False

    async def _run(self, stay: Stay) -> str:
        """Hand records to the handler until an event of the plan is due, which is returned; empty if the run has ended first."""
        self._lanes = {}
        plan = self.plan.run

        async def handle(record: Any) -> None:
            await self._handle(stay, record)

        running = asyncio.get_running_loop().create_task(
            stay.consumer.run(
                handle,
                concurrency=plan["concurrency"],
                retry=Backoff(first_ms=plan["first_ms"], max_ms=10 * plan["first_ms"], attempts=plan["attempts"]),
                retry_topic=RETRIES if plan["retry_topic"] else None,
                dlq=DEAD_LETTERS,
                max_in_flight=plan["max_in_flight"],
                drain_timeout_ms=DRAIN_MS,
            )
        )
        event = ""
        try:
            while self.going and not event and not running.done():
                await asyncio.wait([running], timeout=LOOK_S)
                event = next((event for event in (LEAVE, SWITCH) if self.happens(event)), "")
            stay.consumer.end_run()
            await running
        except GroupMembershipFailed:
            raise
        except (OffsetOutOfRange, LogTruncated, CorruptRecords) as e:
            await self._recover(stay, e)
        except StrandlineError as e:
            self.around.gave_up(self.client, "a run", e)
            await asyncio.sleep(RETRY_S)
        finally:
            running.cancel()
        return event

    # -- one record ---------------------------------------------------------------------------------------------------

    async def _handle(self, stay: Stay, record: Any) -> None:
        origin, attempt = Origin(record.topic, record.partition, record.offset), attempt_of(record)
        is_retried = any(name == headers.TOPIC for name, _ in record.headers)
        if not is_retried:
            self._begin(stay, record)
        if self.happens(IDLE):
            await asyncio.sleep(self.plan.event_for_s)
        await asyncio.sleep(self.draw.uniform(0, self.plan.work_ms / 1000 if self.draw.random() < LONG_SHARE else SHORT_S))
        has_failed = fails(self.plan.group, origin, attempt)
        if not is_retried:
            self._end(stay, record, is_over=not has_failed or self._is_given_up(attempt))
        if has_failed:
            raise Failed(f"attempt {attempt}")
        topic = self.around.cluster.image().topic(origin.topic)
        if topic is not None:
            stay.finish({(bytes(topic.topic_id), origin.partition): [origin.offset]})

    def _is_given_up(self, attempt: int) -> bool:
        """Whether a record that has failed is not handled again before the next one of its lane."""
        return bool(self.plan.run["retry_topic"]) or attempt >= self.plan.run["attempts"]

    def _begin(self, stay: Stay, record: Any) -> None:
        """I36: this member begins to handle the record."""
        tp = TopicPartition(record.topic, record.partition)
        stay.handed(tp, record.offset)
        lane = self._lane(record)
        before = self._lanes.get(lane)
        self._lanes[lane] = Lane(record.offset, False)
        if before is None or not self._is_judged_in_order(record.topic):
            return
        if record.offset < before.offset or (record.offset > before.offset and not before.is_over):
            state = "is finished" if before.is_over else "is not finished"
            text = f"{stay.identity} handles {tp} at {record.offset} after {before.offset}, which {state}"
            stay.ledger.violated("I36", text, stay)

    def _end(self, stay: Stay, record: Any, *, is_over: bool) -> None:
        stay.handled(TopicPartition(record.topic, record.partition), record.offset)
        lane = self._lane(record)
        if lane in self._lanes and self._lanes[lane].offset == record.offset:
            self._lanes[lane] = Lane(record.offset, is_over)

    def _lane(self, record: Any) -> tuple[TopicPartition, bytes | None]:
        key = record.key if self.plan.run["concurrency"] == "key" else None
        return TopicPartition(record.topic, record.partition), key

    def _is_judged_in_order(self, name: str) -> bool:
        """Whether the order of the records of this topic is judged. If its records may be deleted or lost, a position may skip
        some of them."""
        options = self.around.options
        is_deleted = any(topic.name == name and topic.has_retention for topic in options.topics)
        return not (options.loss_permitted or options.trims or is_deleted)
