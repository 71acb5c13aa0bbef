"""The admin client's calls about partitions: elect their leaders, delete their oldest records, and ask their leaders for offsets
and producers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from strandline.client.admin.leader_offsets import OffsetQuestions
from strandline.client.admin.record_deletion import RecordDeletion
from strandline.client.admin.replica_logs import replica_logs, unclean_election
from strandline.client.admin.requests import check_code
from strandline.client.admin.topic_descriptions import TopicDescriptions
from strandline.client.admin_types import DeletedRecords, ElectionResult, PartitionProducers, ReplicaLog, UncleanElection
from strandline.client.arguments import (
    checked_by_partition,
    checked_list,
    checked_names,
    checked_offsets,
    checked_partitions,
)
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition
from strandline.client.errors import UsageError
from strandline.client.producer.producer_states import ProducerQuestions
from strandline.protocol import apis
from strandline.protocol.errors import to_code
from strandline.protocol.messages import admin as messages

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
_ELECTIONS = {"preferred": messages.PREFERRED_ELECTION, "unclean": messages.UNCLEAN_ELECTION}


class PartitionCalls(TopicDescriptions):
    """Elects leaders, deletes records, and asks the leaders of partitions. It describes topics to find the leaders."""

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        election: str = "preferred",
        leader: int = -1,
        timeout_ms: float = 30_000,
    ) -> list[ElectionResult]:
        """Elect leaders of these partitions, or of all (KIP-183, KIP-460). Each partition has a result: see its `code` and
        `message`.

        `election`: "preferred" elects the first replica of each partition, if it is in sync. "unclean" elects a replica for a
        partition without a leader: the one with the newest and longest log, or `leader`. The records that this replica does not
        have are lost; `describe_unclean_elections` returns which. UsageError for any other value; RequestTimeout."""
        if election not in _ELECTIONS:
            raise UsageError(f'an election is "preferred" or "unclean", not {election!r}')
        if leader != -1 and (election != "unclean" or partitions is None):
            raise UsageError("a leader can be named only for an unclean election of given partitions")
        places = None if partitions is None else checked_partitions(partitions)
        asked = None if places is None else [messages.ElectLeadersPartition(*tp, leader) for tp in places]
        request = messages.ElectLeadersRequest(_ELECTIONS[election], asked, round(timeout_ms))

        def check(response: messages.ElectLeadersResponse, is_retry: bool) -> None:
            check_code(response.error_code, None, "ElectLeaders")

        deadline = self._deadline(timeout_ms)
        response = await self._ask(apis.ELECT_LEADERS, request, messages.ElectLeadersResponse, check, deadline)
        return [
            ElectionResult(TopicPartition(r.topic, r.partition), to_code(r.error_code), r.error_message) for r in response.results
        ]

    async def describe_unclean_elections(
        self, topics: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> list[UncleanElection]:
        """The reports of unclean elections of these topics, or of all: the newest eight of each partition, the oldest first.
        RequestTimeout."""
        request = messages.DescribeUncleanElectionsRequest(None if topics is None else checked_names(topics))
        deadline = self._deadline(timeout_ms)
        response = await self._ask(
            apis.DESCRIBE_UNCLEAN_ELECTIONS, request, messages.DescribeUncleanElectionsResponse, None, deadline
        )
        return [unclean_election(report) for report in response.reports]

    async def describe_replica_logs(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: float = 30_000
    ) -> dict[TopicPartition, list[ReplicaLog]]:
        """By partition, the ends of its replicas' logs, in the order of the replicas (KIP-966). A replica whose broker has not
        answered within `timeout_ms`, or whose log is damaged, is left out. UnknownTopic."""
        places = checked_partitions(partitions)
        described = await self._describe(sorted({tp.topic for tp in places}), self._deadline(timeout_ms))
        return await replica_logs(self._running(), described, places, timeout_ms)

    async def delete_records(
        self, before: Mapping[TopicPartition | tuple[str, int], int], *, timeout_ms: float = 30_000
    ) -> dict[TopicPartition, DeletedRecords]:
        """Delete the records below an offset, by partition; -1: all records that are committed now (KIP-107). They can no longer
        be read, and the offset of the next record does not change. Each partition has a result: see its `code`.

        `code` OFFSET_OUT_OF_RANGE: the offset is above the high watermark. POLICY_VIOLATION: the topic is compacted. An offset
        below the first record changes nothing. The call returns when each replica that is alive, or that is an eligible leader
        replica, has deleted the records. If that takes longer than `timeout_ms` for a partition, `code` is its last error, for
        example REQUEST_TIMED_OUT, and its records may be deleted all the same. UnknownTopic for a partition that does not exist;
        RequestTimeout."""
        wanted = checked_offsets(before)
        return await RecordDeletion(self._running(), self._describe, wanted, self._deadline(timeout_ms)).run()

    async def describe_producers(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        producer_ids: Iterable[int] | None = None,
        *,
        timeout_ms: float = 30_000,
    ) -> dict[TopicPartition, PartitionProducers]:
        """By partition, the last batch of each idempotent producer that its leader knows, or only of `producer_ids` (KIP-664).

        The id of a named producer stands for its name: the newest work epoch that has written there is returned. UnknownTopic
        for a partition that does not exist; RequestTimeout if a leader has not answered within `timeout_ms`."""
        cluster = self._running()
        tps = list(dict.fromkeys(checked_partitions(partitions)))
        asked = None if producer_ids is None else checked_list("producer_ids", producer_ids)
        return await ProducerQuestions(cluster).describe(tps, asked, self._deadline(timeout_ms))

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition | tuple[str, int], int],
        *,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        timeout_ms: float = 30_000,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record at or after a time (milliseconds since 1970, UTC), or at -2 (the first record of the
        log) or -1 (after the last one that consumers of this `isolation_level` may read); None if there is no such record. A
        partition that has no leader, or whose leader has not answered within `timeout_ms`, is not in the result. UnknownTopic if
        a topic does not exist; UsageError for another isolation level."""
        if isolation_level not in ISOLATION_LEVELS:
            raise UsageError(f"isolation_level is one of {', '.join(ISOLATION_LEVELS)}, not {isolation_level!r}")
        tps, committed = checked_by_partition(wanted), isolation_level == "read_committed"
        deadline = self._deadline(timeout_ms)
        return await OffsetQuestions(self._running(), self._describe, committed=committed).ask(tps, deadline)
