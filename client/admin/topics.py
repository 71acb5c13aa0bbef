"""The admin client's calls about topics: create, delete, grow, describe.

A call that creates something returns when the brokers know it, so that the next call finds it. Because a response may be lost and
the request repeated, "exists already" counts as success for a repeated attempt to create a topic, "does not exist" for a repeated
attempt to delete one, and "has as many partitions already" for a repeated attempt to add partitions if their number is the wanted
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from strandline.client.admin.configs import config_text
from strandline.client.admin.requests import RETRY_S, check_code
from strandline.client.admin.topic_descriptions import TopicDescriptions
from strandline.client.admin_types import NewTopic, TopicDescription
from strandline.client.arguments import checked_list, checked_name, checked_names
from strandline.client.errors import RequestFailed, RequestTimeout
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import admin as messages


class TopicCalls(TopicDescriptions):
    """Creates, deletes, grows and describes topics."""

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_ms: float = 30_000
    ) -> list[TopicDescription]:
        """Create topics (a name alone gets the cluster's defaults), and wait until the brokers know them and each partition has a
        leader. Returns their descriptions, sorted by name, with `warnings` about them.

        `validate_only`: check the request, create nothing, return an empty list. RequestFailed with `code` TOPIC_ALREADY_EXISTS,
        INVALID_TOPIC_EXCEPTION, INVALID_PARTITIONS, INVALID_REPLICATION_FACTOR, INVALID_CONFIG and others; RequestTimeout if a
        partition has no leader within `timeout_ms`; the topics are created nevertheless."""
        given = checked_list("topics", topics)
        wanted = [topic if isinstance(topic, NewTopic) else NewTopic(checked_name(topic)) for topic in given]
        request = messages.CreateTopicsRequest([_creatable(topic) for topic in wanted], round(timeout_ms), validate_only)

        def check(response: messages.CreateTopicsResponse, is_retry: bool) -> None:
            for result in response.topics:
                # If the response to an earlier attempt was lost, the topic exists because of that attempt.
                is_done = is_retry and not validate_only and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
                if not is_done:
                    check_code(result.error_code, result.error_message, "CreateTopics", topic=result.name)

        deadline = self._deadline(timeout_ms)
        response = await self._ask(apis.CREATE_TOPICS, request, messages.CreateTopicsResponse, check, deadline)
        if validate_only:
            return []
        warnings = {result.name: tuple(result.warnings) for result in response.topics}
        found = await self._wait_for_topics([topic.name for topic in wanted], deadline)
        return [replace(topic, warnings=warnings.get(topic.name, ())) for topic in found]

    async def _wait_for_topics(self, names: Sequence[str], deadline: float) -> list[TopicDescription]:
        while True:
            found = await self._describe(names, deadline, missing_ok=True)
            if len(found) == len(names) and all(p.leader_id >= 0 for topic in found for p in topic.partitions):
                return found
            if self._loop_time() >= deadline:
                raise RequestTimeout("the topics were created, but not every partition has a leader yet", topic=", ".join(names))
            await asyncio.sleep(RETRY_S)

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float = 30_000) -> None:
        """Delete topics and all of their records. Returns when the controllers have deleted them; a broker may know them for a
        moment longer. UnknownTopic if one does not exist (the others are deleted all the same); RequestTimeout."""
        request = messages.DeleteTopicsRequest(
            [messages.DeleteTopicState(name) for name in checked_names(names)], round(timeout_ms)
        )

        def check(response: messages.DeleteTopicsResponse, is_retry: bool) -> None:
            for result in response.topics:
                if not is_retry or result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    check_code(result.error_code, result.error_message, "DeleteTopics", topic=result.name)

        await self._ask(apis.DELETE_TOPICS, request, messages.DeleteTopicsResponse, check, self._deadline(timeout_ms))

    async def create_partitions(
        self,
        topic: str,
        total_count: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout_ms: float = 30_000,
    ) -> None:
        """Grow a topic to `total_count` partitions (KIP-195), and wait until each has a leader. `assignments`: for each added
        partition the ids of the brokers that get a replica. From then on keys are hashed over the new number of partitions, so a
        key may belong to another partition than before. `validate_only`: check the request and change nothing.

        UnknownTopic; RequestFailed with `code` INVALID_PARTITIONS if the topic has as many partitions already,
        INVALID_REPLICA_ASSIGNMENT and others; RequestTimeout if a partition has no leader within `timeout_ms`; the partitions are
        added nevertheless."""
        added = None if assignments is None else [list(replicas) for replicas in assignments]
        item = messages.CreatePartitionsTopic(checked_name(topic), total_count, added)
        request = messages.CreatePartitionsRequest([item], round(timeout_ms), validate_only)
        refusal: RequestFailed | None = None  # of a repeated attempt: an earlier one may have added the partitions

        def check(response: messages.CreatePartitionsResponse, is_retry: bool) -> None:
            nonlocal refusal
            for result in response.results:
                try:
                    check_code(result.error_code, result.error_message, "CreatePartitions", topic=result.name)
                except RequestFailed as e:
                    if validate_only or not is_retry or e.code != ErrorCode.INVALID_PARTITIONS:
                        raise
                    refusal = e

        deadline = self._deadline(timeout_ms)
        await self._ask(apis.CREATE_PARTITIONS, request, messages.CreatePartitionsResponse, check, deadline)
        if not validate_only:
            await self._wait_for_partitions(topic, total_count, deadline, refusal)

    async def _wait_for_partitions(self, topic: str, count: int, deadline: float, refusal: RequestFailed | None) -> None:
        """Wait until the brokers know `count` partitions and each has a leader. Raises `refusal` unless the topic gets exactly
        this many."""
        while True:
            (found,) = await self._describe([topic], deadline)
            if refusal is not None and len(found.partitions) > count:
                raise refusal
            if len(found.partitions) >= count and all(p.leader_id >= 0 for p in found.partitions):
                return
            if self._loop_time() >= deadline:
                text = "the partitions were added, but not every one has a leader yet"
                raise refusal or RequestTimeout(text, topic=topic)
            await asyncio.sleep(RETRY_S)

    async def list_topics(self, *, timeout_ms: float = 30_000) -> list[str]:
        """The names of all topics, sorted. RequestTimeout."""
        return sorted(topic.name for topic in await self.describe_topics(timeout_ms=timeout_ms))

    async def describe_topics(self, names: Iterable[str] | None = None, *, timeout_ms: float = 30_000) -> list[TopicDescription]:
        """Partitions, leaders, ISR and replicas of these topics, or of all, sorted by name. UnknownTopic if one does not exist;
        RequestTimeout."""
        return await self._describe(None if names is None else checked_names(names), self._deadline(timeout_ms))


def _creatable(topic: NewTopic) -> messages.CreatableTopic:
    assignments = [
        messages.CreatableReplicaAssignment(index, list(replicas))
        for index, replicas in sorted((topic.replica_assignments or {}).items())
    ]
    return messages.CreatableTopic(
        topic.name,
        -1 if assignments else topic.partitions,
        -1 if assignments else topic.replication_factor,
        assignments,
        [messages.TopicConfig(key, config_text(value)) for key, value in (topic.configs or {}).items()],
    )
