"""Deletes the oldest records of partitions (DeleteRecords, KIP-107): requests to each leader are repeated until it has answered.

A request may be sent twice, because its response may be lost. So the client asks for the end of a partition once, and sends that
offset: if it sent "up to the high watermark" again, that would delete records that were written after the call. A request
contains the topic's id from the beginning of the call, so that a topic that was recreated meanwhile loses nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from strandline.client.admin.leader_offsets import RETRY_S, Describe, OffsetQuestions
from strandline.client.admin_types import DeletedRecords, TopicDescription
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_fan_out import ANSWER_TIMEOUT_MS, ask_leaders
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import ClientError, UnknownTopic, describe, no_such_partition
from strandline.protocol.apis import DELETE_RECORDS
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError, to_code
from strandline.protocol.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

END = -1
"""Stands for an offset: delete all records that are committed when the call begins."""
LEADER_TIMEOUT_MS = 5_000
"""Longer than the default of `broker.session.timeout.ms`, after which a leader that hangs has lost the leadership. A leader that
waits for slow replicas is asked again."""
MARGIN_MS = 500
"""A leader is asked to answer this much earlier than the client stops waiting, so that the answer arrives in time."""

Results = dict[TopicPartition, DeletedRecords]


class RecordDeletion:
    """One call: the wanted offsets, and the results so far."""

    def __init__(
        self, cluster: Cluster, describe_topics: Describe, wanted: Mapping[TopicPartition, int], deadline: float
    ) -> None:
        self._cluster = cluster
        self._describe_topics = describe_topics
        self._deadline = deadline
        """When the call ends at the latest, on the loop's clock."""
        self._names = sorted({tp.topic for tp in wanted})
        self._before = dict(wanted)
        self._ids: dict[str, bytes] = {}
        """The topic ids when the call began."""
        self._found: Results = {}
        self._last: Results = {}
        """The last retriable error of each partition."""

    async def run(self) -> Results:
        """The result of each partition. If its leader has not succeeded by the deadline, that is the last error."""
        loop, topics = asyncio.get_running_loop(), await self._describe_topics(self._names, self._deadline)
        self._ids = {topic.name: topic.topic_id for topic in topics}
        self._check_partitions(topics)
        while True:
            await self._resolve_ends()
            await self._ask_leaders(topics)
            if len(self._found) == len(self._before) or loop.time() + RETRY_S >= self._deadline:
                return {tp: self._found.get(tp) or self._last.get(tp) or _NO_LEADER for tp in self._before}
            await asyncio.sleep(RETRY_S)
            topics = await self._describe_topics(self._names, self._deadline)
            self._drop_recreated(topics)

    def _check_partitions(self, topics: Sequence[TopicDescription]) -> None:
        counts = {topic.name: len(topic.partitions) for topic in topics}
        for tp in self._before:
            if tp.partition >= counts[tp.topic]:
                raise UnknownTopic(no_such_partition(counts[tp.topic]), topic=tp.topic, partition=tp.partition)

    def _drop_recreated(self, topics: Sequence[TopicDescription]) -> None:
        for topic in topics:
            if topic.topic_id != self._ids[topic.name]:
                text = "the topic was deleted and created again; the new topic was left as it is"
                gone = DeletedRecords(code=ErrorCode.UNKNOWN_TOPIC_ID, message=text)
                self._found |= {tp: gone for tp in self._before if tp.topic == topic.name and tp not in self._found}

    async def _resolve_ends(self) -> None:
        """Replace END by the present end of the partition, once."""
        ends = {tp: END for tp, offset in self._before.items() if offset == END and tp not in self._found}
        if ends:
            until = min(self._deadline, asyncio.get_running_loop().time() + ANSWER_TIMEOUT_MS / 1000)
            answers = await OffsetQuestions(self._cluster, self._describe_topics).ask(ends, until)
            self._before |= {tp: answer.offset for tp, answer in answers.items() if answer is not None}

    async def _ask_leaders(self, topics: Sequence[TopicDescription]) -> None:
        """Ask each leader once."""
        by_leader: dict[int, dict[TopicPartition, DeleteRecordsPartition]] = {}
        for topic in topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition)
                offset = self._before.get(tp, END)
                if offset != END and tp not in self._found and p.leader_id >= 0:
                    item = DeleteRecordsPartition(self._ids[topic.name], p.partition, offset)
                    by_leader.setdefault(p.leader_id, {})[tp] = item
        left_ms = (self._deadline - asyncio.get_running_loop().time()) * 1000
        timeout_ms = max(1.0, min(left_ms, LEADER_TIMEOUT_MS, self._cluster.options.request_timeout_ms))
        for leader_id, answers in (await ask_leaders(by_leader, partial(self._ask, timeout_ms=timeout_ms))).items():
            if isinstance(answers, StrandlineError):
                self._on_failure(by_leader[leader_id], answers)
                continue
            for tp, answer in answers.items():
                self._take(tp, answer)

    async def _ask(
        self, leader_id: int, asked: Mapping[TopicPartition, DeleteRecordsPartition], timeout_ms: float
    ) -> dict[TopicPartition, DeleteRecordsPartitionResponse]:
        request = DeleteRecordsRequest(list(asked.values()), max(1, round(timeout_ms - min(MARGIN_MS, timeout_ms / 4))))
        response = await self._cluster.connections.request(leader_id, DELETE_RECORDS, request, timeout_ms)
        assert isinstance(response, DeleteRecordsResponse)
        answers = {(answer.topic_id, answer.partition): answer for answer in response.partitions}
        return {tp: answers[item.topic_id, item.partition] for tp, item in asked.items()}

    def _take(self, tp: TopicPartition, answer: DeleteRecordsPartitionResponse) -> None:
        code = to_code(answer.error_code)
        if code == ErrorCode.NONE:
            self._found[tp] = DeletedRecords(answer.low_watermark)
            return
        result = DeletedRecords(code=code, message=describe(code, answer.error_message))
        if ERRORS[code].retriable:
            self._last[tp] = result
        else:
            self._found[tp] = result

    def _on_failure(self, asked: Mapping[TopicPartition, DeleteRecordsPartition], error: StrandlineError) -> None:
        """The leader did not answer, and may have deleted the records; or it could not be reached (an error without a code)."""
        if not error.retriable:
            raise error
        known = error.code if isinstance(error, ClientError) else None
        code = ErrorCode.NETWORK_EXCEPTION if known is None else known
        self._last |= dict.fromkeys(asked, DeletedRecords(code=code, message=str(error)))


_NO_LEADER = DeletedRecords(code=ErrorCode.LEADER_NOT_AVAILABLE, message="the partition has no leader that answers")
