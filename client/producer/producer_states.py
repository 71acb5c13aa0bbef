"""Asks the partitions' leaders for their producer state (DescribeProducers, KIP-664).

A new attempt of a named producer reads from this state how many rows of its work epoch are written. It may rely on rows only
after they are committed: the high watermark has passed the last offset that was found, in the leader epoch in which it was found.
Otherwise a new leader may not have them. The attempt does not wait for rows that another attempt appends meanwhile: the rows that
it sends itself are then rejected as duplicates, and the leaders are asked again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from strandline.client.admin_types import PartitionProducers, ProducerDescription
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_fan_out import ANSWER_TIMEOUT_MS, ask_leaders, by_leader
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ProducerFenced, RequestTimeout, UnknownTopic, describe, no_such_partition, request_failed
from strandline.protocol.apis import DESCRIBE_PRODUCERS
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.messages.data import (
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.producer_names import work_epoch_of
from strandline.protocol.records.fence import FIRST_FENCE, token_of

RETRY_S = 0.02

Answers = dict[TopicPartition, PartitionProducers]


class ProducerQuestions:
    """Asks the leaders of partitions about producers, until each has answered."""

    def __init__(self, cluster: Cluster, oldest_epoch: int = -1) -> None:
        self._cluster = cluster
        self._oldest_epoch = oldest_epoch
        """A leader answers only after it has begun to reject batches of the named producer's epochs before this one; -1: each
        leader answers at once."""

    async def describe(self, tps: Sequence[TopicPartition], producer_ids: list[int] | None, deadline: float) -> Answers:
        """Ask the leader of each partition for its state of the producers with these ids (None: of all producers). Leaders that
        do not answer are asked again; RequestTimeout, with the last error, at the deadline (on the loop's clock). UnknownTopic if
        a topic or partition does not exist."""
        loop = asyncio.get_running_loop()
        started, attempts, found = loop.time(), 0, Answers()
        await self._check_known(tps, deadline)
        while True:
            attempts += 1
            missing = [tp for tp in tps if tp not in found]
            last = await self._ask_leaders(missing, producer_ids, found, deadline)
            if len(found) == len(tps):
                return found
            if loop.time() + RETRY_S >= deadline:
                tp = next(tp for tp in tps if tp not in found)
                raise RequestTimeout(
                    f"no answer about producers; {last}" if last else "no answer about producers",
                    topic=tp.topic,
                    partition=tp.partition,
                    attempts=attempts,
                    elapsed_ms=(loop.time() - started) * 1000,
                )
            await asyncio.sleep(RETRY_S)
            await self._refresh(deadline)

    async def _check_known(self, tps: Sequence[TopicPartition], deadline: float) -> None:
        for name in dict.fromkeys(tp.topic for tp in tps):
            topic = await self._cluster.metadata.topic(name, self._left_ms(deadline))
            for tp in tps:
                if tp.topic == name and tp.partition not in topic.partitions:
                    raise UnknownTopic(no_such_partition(len(topic.partitions)), topic=name, partition=tp.partition)

    async def _refresh(self, deadline: float) -> None:
        try:
            await self._cluster.metadata.refresh(self._left_ms(deadline))
        except StrandlineError:
            pass  # The next round reports the error.

    async def _ask_leaders(
        self, tps: Sequence[TopicPartition], producer_ids: list[int] | None, found: Answers, deadline: float
    ) -> StrandlineError | None:
        """Ask each leader once, and add the answers to `found`. Returns the last retriable error; other errors are raised."""
        timeout_ms = min(ANSWER_TIMEOUT_MS, self._cluster.options.request_timeout_ms, self._left_ms(deadline))
        ask = partial(self._ask, producer_ids=producer_ids, timeout_ms=timeout_ms)
        last: StrandlineError | None = None
        for leader_id, answers in (await ask_leaders(by_leader(self._cluster.cache, tps), ask)).items():
            if isinstance(answers, StrandlineError):
                self._cluster.suspect(leader_id)
                last = answers
                continue
            for tp, answer in answers.items():
                last = self._take(tp, leader_id, answer, found) or last
        return last

    async def _ask(
        self,
        leader_id: int,
        asked: Mapping[TopicIdPartition, TopicPartition],
        producer_ids: list[int] | None,
        timeout_ms: float,
    ) -> dict[TopicPartition, DescribeProducersPartitionResponse]:
        request = DescribeProducersRequest([DescribeProducersPartition(*key) for key in asked], producer_ids, self._oldest_epoch)
        response = await self._cluster.connections.request(leader_id, DESCRIBE_PRODUCERS, request, timeout_ms)
        assert isinstance(response, DescribeProducersResponse)
        answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        return {tp: answers[key] for key, tp in asked.items() if key in answers}

    def _take(
        self, tp: TopicPartition, leader_id: int, answer: DescribeProducersPartitionResponse, found: Answers
    ) -> StrandlineError | None:
        code = to_code(answer.error_code)
        if code == ErrorCode.NONE:
            found[tp] = _description(tp, leader_id, answer)
            return None
        if ERRORS[code].refresh_metadata:
            self._cluster.cache.forget_leader(tp.topic, tp.partition, leader_id)
        text = describe(code, answer.error_message)
        error = request_failed(text, topic=tp.topic, partition=tp.partition, broker_id=leader_id, code=code)
        if not error.retriable:
            raise error
        return error

    @staticmethod
    def _left_ms(deadline: float) -> float:
        return max(1.0, (deadline - asyncio.get_running_loop().time()) * 1000)


def _description(tp: TopicPartition, leader_id: int, answer: DescribeProducersPartitionResponse) -> PartitionProducers:
    producers = [
        ProducerDescription(
            p.producer_id,
            p.producer_epoch,
            p.last_sequence,
            p.last_offset,
            p.last_timestamp,
            p.name,
            p.coordinator_epoch,
            None if p.current_txn_start_offset < 0 else p.current_txn_start_offset,
        )
        for p in answer.active_producers
        if p.producer_id < FIRST_FENCE
    ]
    tokens = [token_of(p.producer_id, p.last_sequence) for p in answer.active_producers if p.producer_id >= FIRST_FENCE]
    token = max(tokens, default=None)
    return PartitionProducers(tp, leader_id, answer.leader_epoch, answer.high_watermark, producers, token)


async def committed_rows(
    questions: ProducerQuestions,
    tps: Sequence[TopicPartition],
    producer_id: int,
    producer_epoch: int,
    deadline: float,
) -> dict[TopicPartition, int]:
    """By partition, the number of committed rows of this named producer's work epoch.

    ProducerFenced if a later epoch or work epoch has written to one of the partitions. RequestTimeout at the deadline, if the
    rows that were found in a partition are not committed yet, or a leader has not answered.
    """
    loop = asyncio.get_running_loop()
    rows: dict[TopicPartition, int] = {}
    awaited: dict[TopicPartition, tuple[int, ProducerDescription]] = {}
    """By partition, the leader epoch, and the first description of the producer that was found in it."""
    while True:
        left = [tp for tp in tps if tp not in rows]
        for tp, answer in (await questions.describe(left, [producer_id], deadline)).items():
            known = _rows_of(answer, producer_id, producer_epoch)
            if known is None:
                rows[tp] = 0
                continue
            leader_epoch, first = awaited.get(tp, (answer.leader_epoch, known))
            if leader_epoch != answer.leader_epoch:
                leader_epoch, first = answer.leader_epoch, known
            awaited[tp] = leader_epoch, first
            if answer.high_watermark > first.last_offset:
                rows[tp] = first.last_sequence + 1
        left = [tp for tp in left if tp not in rows]
        if not left:
            return {tp: rows[tp] for tp in tps}
        if loop.time() + RETRY_S >= deadline:
            offset = awaited[left[0]][1].last_offset
            text = f"the rows that earlier attempts have written up to offset {offset} are not committed yet"
            raise RequestTimeout(text, topic=left[0].topic, partition=left[0].partition)
        await asyncio.sleep(RETRY_S)


def _rows_of(answer: PartitionProducers, producer_id: int, producer_epoch: int) -> ProducerDescription | None:
    """The producer's entry in the answer; None if its work epoch has written nothing there. ProducerFenced if a later epoch or
    work epoch has."""
    known = next(iter(answer.producers), None)
    if known is None or work_epoch_of(known.producer_id) < work_epoch_of(producer_id):
        return None
    if known.producer_id != producer_id or known.producer_epoch > producer_epoch:
        own = f"this producer is of work epoch {work_epoch_of(producer_id)}, epoch {producer_epoch}"
        text = f"work epoch {known.work_epoch}, epoch {known.producer_epoch} of this name has written here; {own}"
        tp = answer.partition
        raise ProducerFenced(text, topic=tp.topic, partition=tp.partition, code=ErrorCode.PRODUCER_FENCED)
    return known
