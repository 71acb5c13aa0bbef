"""Asks leaders for offsets by timestamp (ListOffsets), and validates positions against a new leader's epochs (KIP-320).

One request asks a leader about all its partitions. Requests in the background are repeated until an answer settles them, after
pauses that double from 20 ms to a second. Look-ups for a call are repeated until `max_block_ms`. A background task exists only
while a request is in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_fan_out import ANSWER_TIMEOUT_MS, ask_leaders, by_leader
from strandline.client.consumer.fetch_state import AwaitReset, FetchState
from strandline.client.consumer.partition_state import PartitionState
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition, by_topic
from strandline.client.consumer.subscription import Subscription
from strandline.client.errors import AuthenticationFailed, LogTruncated, RequestFailed, RequestTimeout, describe, request_failed
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
RETRY_S_MAX = 1.0
WARN_AFTER = 8
"""A position whose look-up has failed this many times in a row is logged as a warning. With one leader, that takes at least two
seconds."""


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


def _left_out(leader_id: int, state: PartitionState) -> RequestFailed:
    tp, reason = state.tp, "the response leaves the partition out"
    return RequestFailed(reason, topic=tp.topic, partition=tp.partition, broker_id=leader_id)


class OffsetFetcher:
    """Looks up and validates positions in the background, and looks up offsets for calls of the consumer."""

    def __init__(
        self,
        options: ConsumerOptions,
        cluster: Cluster,
        subscription: Subscription,
        check_soon: Callable[[PartitionState], None],
        wake: Callable[[], None],
        on_failed: Callable[[PartitionState], None],
    ) -> None:
        """`on_failed` is called when a partition has failed, because its leader has rejected a look-up for good."""
        self._options = options
        self._cluster = cluster
        self._subscription = subscription
        self._check_soon = check_soon
        self._wake = wake
        self._on_failed = on_failed
        self._isolation = int(options.isolation_level == "read_committed")
        self._questions: dict[int, dict[PartitionState, None]] = {}
        """The states to ask about, by leader, collected during one iteration of the event loop."""
        self._asking: dict[PartitionState, None] = {}
        """The states in `_questions`, and those that a request in flight asks about."""
        self._tasks: dict[asyncio.Task[None], None] = {}

    # -- in the background --------------------------------------------------------------------------------------------

    def ask_soon(self, state: PartitionState, leader_id: int) -> None:
        """Look up or validate the state's position."""
        if state in self._asking:
            return
        self._asking[state] = None
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
        """Look up and validate these positions once. A state that needs another attempt is checked again."""
        failures = {state: state.lookup_failures for state in states}
        try:
            await self._look_up(leader_id, states)
            await self._validate(leader_id, states)
        except StrandlineError as e:
            for state in states:
                if state.needs_position:
                    state.on_lookup_failed(e)
            self._cluster.suspect(leader_id)
        finally:
            for state in states:
                del self._asking[state]
                self._check_again(state, leader_id, failures[state])
        self._wake()

    def _check_again(self, state: PartitionState, leader_id: int, failures_before: int) -> None:
        """Check the state soon, or after a pause if the request failed and the leader is still the same. A new leader is asked
        without that pause: it is found by a refresh of the metadata, and refreshes are paused already."""
        if not state.needs_position:
            state.on_lookup_settled()
        tp, failures = state.tp, state.lookup_failures
        has_failed = state.needs_position and failures != failures_before
        if has_failed:
            self._log_failure(state, leader_id)
        if has_failed and self._cluster.cache.leader(tp.topic, tp.partition) == leader_id:
            pause_s = min(RETRY_S * 2 ** min(failures - 1, 20), RETRY_S_MAX)
            asyncio.get_running_loop().call_later(pause_s, self._check_soon, state)
        else:
            self._check_soon(state)

    def _log_failure(self, state: PartitionState, leader_id: int) -> None:
        """Warn once per series of failures."""
        topic, partition, reason = state.tp.topic, state.tp.partition, str(state.lookup_error)
        if state.lookup_failures == WARN_AFTER:
            logger.warning(
                "consumer.position_lookup_failed", topic=topic, partition=partition, broker_id=leader_id, reason=reason
            )
        else:
            logger.debug("consumer.position_lookup_failed", topic=topic, partition=partition, broker_id=leader_id, reason=reason)

    async def _look_up(self, leader_id: int, states: list[PartitionState]) -> None:
        """Ask for the positions of those states that have none."""
        resets = {state: state.fetch_state for state in states}
        asked = {state: reset for state, reset in resets.items() if isinstance(reset, AwaitReset)}
        if not asked:
            return
        answers = await self._list_offsets(
            leader_id, [ListOffsetsPartition(*s.key, s.leader_epoch, reset.timestamp) for s, reset in asked.items()]
        )
        for state, reset in asked.items():
            answer = answers.get(state.key)
            if state.fetch_state != reset:
                continue  # The position was moved meanwhile.
            if answer is None:
                state.on_lookup_failed(_left_out(leader_id, state))
            elif (code := to_code(answer.error_code)) == ErrorCode.NONE:
                state.seek(answer.offset if answer.offset >= 0 else 0, -1)
            else:
                self._on_error(leader_id, state, code)

    async def _validate(self, leader_id: int, states: list[PartitionState]) -> None:
        """Validate the positions of those states that have a new leader."""
        asked = {
            state.key: (state, state.fetch_offset, state.fetch_epoch)
            for state in states
            if state.fetch_state is FetchState.AWAIT_VALIDATION
        }
        if not asked:
            return
        partitions = [OffsetForLeaderPartition(*key, s.leader_epoch, epoch) for key, (s, _, epoch) in asked.items()]
        request = OffsetForLeaderEpochRequest(-1, partitions)
        response = await self._cluster.connections.request(leader_id, OFFSET_FOR_LEADER_EPOCH, request, self._timeout_ms())
        assert isinstance(response, OffsetForLeaderEpochResponse)
        answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        for key, (state, offset, epoch) in asked.items():
            if (state.fetch_offset, state.fetch_epoch) != (offset, epoch):
                continue
            if state.fetch_state is not FetchState.AWAIT_VALIDATION:
                continue
            answer = answers.get(key)
            if answer is None:
                state.on_lookup_failed(_left_out(leader_id, state))
            elif (code := to_code(answer.error_code)) == ErrorCode.NONE:
                self.on_end_offset(state, answer)
            else:
                self._on_error(leader_id, state, code)

    def on_end_offset(self, state: PartitionState, answer: EpochEndOffsetPartition) -> None:
        """Compare the position with the end of its epoch at the leader. A position beyond that end was truncated."""
        if 0 <= state.fetch_offset <= answer.end_offset:
            state.on_validated()
        elif state.drop_prefetched() and state.fetch_epoch >= 0:
            pass  # The records that the program got may still be in the log: validate that position next.
        elif state.fetch_epoch < 0:
            state.on_validated()
        else:
            state.on_validated()
            state.fail(truncated(state, answer.leader_epoch, answer.end_offset))

    def _on_error(self, leader_id: int, state: PartitionState, code: ErrorCode) -> None:
        tp = state.tp
        error = request_failed(describe(code), topic=tp.topic, partition=tp.partition, broker_id=leader_id, code=code)
        if ERRORS[code].refresh_metadata:
            state.on_lookup_failed(error)
            if self._cluster.cache.is_current(tp.topic, state.topic_id):
                self._cluster.cache.forget_leader(tp.topic, tp.partition, leader_id)
        elif ERRORS[code].retriable:
            state.on_lookup_failed(error)
        else:
            state.fail(error)
            self._on_failed(state)

    # -- for the caller -----------------------------------------------------------------------------------------------

    async def offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Offsets by timestamp (or LATEST, EARLIEST); None if no record is at or after the timestamp. RequestTimeout after
        `max_block_ms`."""
        return {
            tp: None if answer.offset < 0 else OffsetAndTimestamp(answer.offset, answer.timestamp, answer.leader_epoch)
            for tp, answer in (await self.look_up(wanted)).items()
        }

    async def look_up(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListOffsetsPartitionResponse]:
        """The same as `offsets`, but in the form of the leaders' answers, which contain the topic's id. RequestTimeout after
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
                    await self._cluster.metadata.refresh(max(1.0, (deadline - loop.time()) * 1000))
                except AuthenticationFailed:
                    raise
                except StrandlineError as e:
                    last = e
                    continue
                await self._know_topics([tp for tp in wanted if tp not in found], deadline)
        return found

    async def _know_topics(self, wanted: Iterable[TopicPartition], deadline: float) -> None:
        """Wait for the metadata of these topics; UnknownTopic if one of the partitions does not exist, or no longer exists."""
        loop = asyncio.get_running_loop()
        for topic, partitions in by_topic(wanted).items():
            await self._cluster.metadata.topic(topic, max(1.0, (deadline - loop.time()) * 1000), partitions)

    async def _offsets_round(
        self,
        wanted: Mapping[TopicPartition, int],
        found: dict[TopicPartition, ListOffsetsPartitionResponse],
        deadline: float,
    ) -> StrandlineError | None:
        """Ask each leader once, and add the answers to `found`. Returns the last retriable error; other errors are raised."""
        cache = self._cluster.cache
        unknown = [partition for partition in wanted if cache.partition(*partition) is None]
        last: StrandlineError | None = self._cluster.cache.unknown_topic(unknown[-1].topic, 0) if unknown else None
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
        error = request_failed(describe(code), topic=tp.topic, partition=tp.partition, broker_id=leader_id, code=code)
        if not error.retriable:
            raise error
        return error

    async def _list_offsets(
        self, leader_id: int, partitions: list[ListOffsetsPartition], timeout_ms: float | None = None
    ) -> dict[TopicIdPartition, ListOffsetsPartitionResponse]:
        request = ListOffsetsRequest(-1, self._isolation, partitions)
        response = await self._cluster.connections.request(leader_id, LIST_OFFSETS, request, self._timeout_ms(timeout_ms))
        assert isinstance(response, ListOffsetsResponse)
        return {(answer.topic_id, answer.partition): answer for answer in response.partitions}

    def _timeout_ms(self, wanted_ms: float | None = None) -> float:
        timeout_ms = min(ANSWER_TIMEOUT_MS, self._options.request_timeout_ms)
        return timeout_ms if wanted_ms is None else min(timeout_ms, wanted_ms)

    async def close(self) -> None:
        """Cancel the requests in the background."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
