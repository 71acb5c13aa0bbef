"""Where to read: offsets by timestamp (ListOffsets), and the validation of a position against a new leader's epochs (KIP-320).

Both ask the partition's leader, with all partitions of one leader in one request, and are repeated until an answer settles them.
A background task lives only while a question is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_fan_out import ANSWER_TIMEOUT_MS, ask_leaders, by_leader
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition, by_topic
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import LogTruncated, RequestFailed, RequestTimeout, describe
from strandline.client.options import ConsumerOptions
from strandline.protocol.apis import LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import (
    EpochEndOffsetPartition,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
)
from strandline.protocol.partitions import TopicIdPartition

logger = get_logger(__name__)

RETRY_S = 0.02


def truncated(state: PartitionState, epoch: int, end_offset: int) -> LogTruncated:
    """The error for a log that no longer holds the records before the position."""
    tp = state.tp
    known = f"the log ends at offset {end_offset} in epoch {epoch}" if end_offset >= 0 else "the log knows no such epoch"
    return LogTruncated(
        f"records before position {state.position} (leader epoch {state.position_epoch}) are gone: {known}",
        topic=tp.topic,
        partition=tp.partition,
        position=state.position,
        position_epoch=state.position_epoch,
        diverging_offset=end_offset,
        diverging_epoch=epoch,
    )


class OffsetFetcher:
    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        subscription: Subscription,
        check_soon: Callable[[PartitionState], None],
        wake: Callable[[], None],
    ) -> None:
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._check_soon = check_soon
        self._wake = wake
        self._isolation = int(options.isolation_level == "read_committed")
        self._questions: dict[int, dict[PartitionState, None]] = {}
        """By leader, the states to ask about, collected during one iteration of the event loop."""
        self._tasks: dict[asyncio.Task[None], None] = {}

    # -- in the background --------------------------------------------------------------------------------------------

    def ask_soon(self, state: PartitionState, leader_id: int) -> None:
        """Look up or validate the state's position."""
        if state.asking:
            return
        state.asking = True
        if not self._questions:
            asyncio.get_running_loop().call_soon(self._ask_all)
        self._questions.setdefault(leader_id, {})[state] = None

    def _ask_all(self) -> None:
        questions, self._questions = self._questions, {}
        for leader_id, states in questions.items():
            task = asyncio.get_running_loop().create_task(self._ask(leader_id, list(states)))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _ask(self, leader_id: int, states: list[PartitionState]) -> None:
        """Ask once. A state that this does not settle is checked and asked about again."""
        try:
            await self._look_up(leader_id, [state for state in states if state.reset is not None])
            await self._validate(leader_id, [state for state in states if state.reset is None and state.needs_validation])
        except StrandlineError as e:
            logger.debug("consumer.position_lookup_failed", broker_id=leader_id, reason=str(e))
            self._cluster.suspect(leader_id)
            await asyncio.sleep(RETRY_S)
        finally:
            for state in states:
                state.asking = False
                self._check_soon(state)
        self._wake()

    async def _look_up(self, leader_id: int, states: list[PartitionState]) -> None:
        if not states:
            return
        asked = {state: state.reset for state in states}
        answers = await self._list_offsets(
            leader_id, [ListOffsetsPartition(*s.key, s.leader_epoch, t) for s, t in asked.items() if t is not None]
        )
        for state, timestamp in asked.items():
            answer = answers.get(state.key)
            if state.reset != timestamp or answer is None:
                continue  # A seek came first.
            code = to_code(answer.error_code)
            if code == ErrorCode.NONE:
                state.seek(answer.offset if answer.offset >= 0 else 0, -1)
            else:
                await self._on_error(leader_id, state, code)

    async def _validate(self, leader_id: int, states: list[PartitionState]) -> None:
        if not states:
            return
        asked = {state.key: (state, state.fetch_offset, state.fetch_epoch) for state in states}
        partitions = [OffsetForLeaderPartition(*key, s.leader_epoch, epoch) for key, (s, _, epoch) in asked.items()]
        request = OffsetForLeaderEpochRequest(-1, partitions)
        response = await self._cluster.request(leader_id, OFFSET_FOR_LEADER_EPOCH, request, self._timeout_ms())
        assert isinstance(response, OffsetForLeaderEpochResponse)
        for answer in response.partitions:
            state, offset, epoch = asked.get((answer.topic_id, answer.partition), (None, -1, -1))
            if state is None or (state.fetch_offset, state.fetch_epoch) != (offset, epoch) or not state.needs_validation:
                continue
            code = to_code(answer.error_code)
            if code == ErrorCode.NONE:
                self._on_end_offset(state, answer)
            else:
                await self._on_error(leader_id, state, code)

    def _on_end_offset(self, state: PartitionState, answer: EpochEndOffsetPartition) -> None:
        if 0 <= state.fetch_offset <= answer.end_offset:
            state.needs_validation = False
        elif state.drop_prefetched() and state.fetch_epoch >= 0:
            pass  # The records that the user got may still be in the log: validate that position next.
        elif state.fetch_epoch < 0:
            state.needs_validation = False
        else:
            state.needs_validation = False
            state.fail(truncated(state, answer.leader_epoch, answer.end_offset))

    async def _on_error(self, leader_id: int, state: PartitionState, code: ErrorCode) -> None:
        tp = state.tp
        if ERRORS[code].refresh_metadata:
            if self._cluster.cache.is_current(tp.topic, state.topic_id):
                self._cluster.cache.forget_leader(tp.topic, tp.partition, leader_id)
        elif ERRORS[code].retriable:
            await asyncio.sleep(RETRY_S)
        else:
            state.fail(RequestFailed(describe(code), topic=tp.topic, partition=tp.partition, broker_id=leader_id, code=code))

    # -- for the caller -----------------------------------------------------------------------------------------------

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offsets by timestamp (or LATEST, EARLIEST), within `max_block_ms`. None: no record is at or after the timestamp."""
        return {
            tp: None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
            for tp, answer in (await self.look_up(wanted)).items()
        }

    async def look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        """`offsets` as the leaders' answers, which have the id of the topic that they are about. RequestTimeout after
        `max_block_ms`."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + self._options.max_block_ms / 1000
        found: dict[TopicPartition, ListOffsetsPartitionResponse] = {}
        last: StrandlineError | None = None
        attempts = 0
        await self._know_topics(wanted, deadline)
        while missing := [tp for tp in wanted if tp not in found]:
            if loop.time() >= deadline:
                text = f"offsets were not answered; {last}" if last else "offsets were not answered"
                elapsed_ms = (loop.time() - started) * 1000
                tp = missing[0]
                raise RequestTimeout(text, topic=tp.topic, partition=tp.partition, attempts=attempts, elapsed_ms=elapsed_ms)
            attempts += 1
            last = await self._offsets_round({tp: wanted[tp] for tp in missing}, found, deadline)
            if len(found) < len(wanted):
                await asyncio.sleep(RETRY_S)
                try:
                    await self._cluster.refresh(max(1.0, (deadline - loop.time()) * 1000))
                except StrandlineError as e:
                    last = e
                    continue
                await self._know_topics([tp for tp in wanted if tp not in found], deadline)
        return found

    async def _know_topics(self, wanted: Iterable[TopicPartition], deadline: float) -> None:
        """UnknownTopic if one of the partitions does not exist, or no longer exists."""
        loop = asyncio.get_running_loop()
        for topic, partitions in by_topic(wanted).items():
            await self._cluster.topic(topic, max(1.0, (deadline - loop.time()) * 1000), partitions)

    async def _offsets_round(
        self,
        wanted: Mapping[TopicPartition, int],
        found: dict[TopicPartition, ListOffsetsPartitionResponse],
        deadline: float,
    ) -> StrandlineError | None:
        """Ask each leader once, and add the answers to `found`. Returns the last retriable error; other errors are raised."""
        cache = self._cluster.cache
        unknown = [partition for partition in wanted if cache.partition(*partition) is None]
        last: StrandlineError | None = self._cluster.unknown_topic(unknown[-1].topic, 0) if unknown else None
        leaders = by_leader(cache, wanted)
        left_ms = max(1.0, (deadline - asyncio.get_running_loop().time()) * 1000)
        questions = {
            leader_id: [ListOffsetsPartition(*key, -1, wanted[partition]) for key, partition in partitions.items()]
            for leader_id, partitions in leaders.items()
        }
        for leader_id, answers in (await ask_leaders(questions, partial(self._list_offsets, timeout_ms=left_ms))).items():
            if isinstance(answers, StrandlineError):
                last = answers
                continue
            for key, partition in leaders[leader_id].items():
                answer = answers.get(key)
                if answer is not None:
                    last = self._take_answer(partition, leader_id, answer, found) or last
        return last

    def _take_answer(
        self,
        tp: TopicPartition,
        leader_id: int,
        answer: ListOffsetsPartitionResponse,
        found: dict[TopicPartition, ListOffsetsPartitionResponse],
    ) -> StrandlineError | None:
        code = to_code(answer.error_code)
        if code == ErrorCode.NONE:
            found[tp] = answer
            return None
        error = RequestFailed(describe(code), topic=tp.topic, partition=tp.partition, broker_id=leader_id, code=code)
        if not error.retriable:
            raise error
        return error

    async def _list_offsets(
        self, leader_id: int, partitions: list[ListOffsetsPartition], timeout_ms: float | None = None
    ) -> dict[TopicIdPartition, ListOffsetsPartitionResponse]:
        request = ListOffsetsRequest(-1, self._isolation, partitions)
        response = await self._cluster.request(leader_id, LIST_OFFSETS, request, self._timeout_ms(timeout_ms))
        assert isinstance(response, ListOffsetsResponse)
        return {(answer.topic_id, answer.partition): answer for answer in response.partitions}

    def _timeout_ms(self, wanted_ms: float | None = None) -> float:
        timeout_ms = min(ANSWER_TIMEOUT_MS, self._options.request_timeout_ms)
        return timeout_ms if wanted_ms is None else min(timeout_ms, wanted_ms)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
