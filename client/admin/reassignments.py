"""The admin client's calls about reassignments: move the replicas of partitions to other brokers (KIP-455)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.admin_types import PartitionReassignment, ReassignmentResult
from strandline.client.arguments import checked_list, checked_partition, checked_partitions, checked_whole
from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import UsageError
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, to_code
from strandline.protocol.messages import admin as messages

RATE_MAX = 2**62


class ReassignmentCalls(AdminRequests):
    """Begins, cancels and lists reassignments."""

    async def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition | tuple[str, int], Sequence[int] | None],
        *,
        throttle_rate: int | None = None,
        allow_replication_factor_change: bool = True,
        timeout_ms: float = 30_000,
    ) -> list[ReassignmentResult]:
        """Move each partition to these brokers, the preferred leader first, or cancel its reassignment (None) (KIP-455). The call
        returns when the moves have begun; `list_partition_reassignments` lists those that are not complete. A new target replaces
        that of a running reassignment.

        `throttle_rate`: bytes per second that each broker may send, and receive, for these reassignments. It ends with them.
        `allow_replication_factor_change` False: a target with more or fewer replicas is INVALID_REPLICATION_FACTOR.

        Each partition has a result: see its `code`. INVALID_REPLICA_ASSIGNMENT: a target is empty, names a broker twice, or names
        a broker that is not registered. NO_REASSIGNMENT_IN_PROGRESS: there is nothing to cancel. RequestFailed with `code`
        UNSUPPORTED_VERSION if the metadata has level 0; RequestTimeout."""
        rate = 0 if throttle_rate is None else checked_whole("throttle_rate", throttle_rate, 1, RATE_MAX)
        request = messages.AlterPartitionReassignmentsRequest(
            _topics(_checked_targets(targets)), round(timeout_ms), allow_replication_factor_change, rate
        )
        repeated = False

        def check(response: messages.AlterPartitionReassignmentsResponse, is_retry: bool) -> None:
            nonlocal repeated
            repeated = is_retry
            check_code(response.error_code, response.error_message, "AlterPartitionReassignments")

        kind = messages.AlterPartitionReassignmentsResponse
        deadline = self._deadline(timeout_ms)
        response = await self._ask(apis.ALTER_PARTITION_REASSIGNMENTS, request, kind, check, deadline)
        return [_result(topic.name, p, repeated) for topic in response.responses for p in topic.partitions]

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None, *, timeout_ms: float = 30_000
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The reassignments of these partitions, or of all, that are not complete (KIP-455), by topic and partition. A partition
        that is not reassigned is not in the result. RequestTimeout."""
        asked = None
        if partitions is not None:
            grouped = groupby(sorted(set(checked_partitions(partitions))), key=lambda tp: tp.topic)
            asked = [messages.ListPartitionReassignmentsTopic(name, [tp.partition for tp in tps]) for name, tps in grouped]
        request = messages.ListPartitionReassignmentsRequest(asked, round(timeout_ms))

        def check(response: messages.ListPartitionReassignmentsResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "ListPartitionReassignments")

        kind = messages.ListPartitionReassignmentsResponse
        response = await self._ask(apis.LIST_PARTITION_REASSIGNMENTS, request, kind, check, self._deadline(timeout_ms))
        return {
            TopicPartition(topic.name, p.partition_index): PartitionReassignment(
                tuple(p.replicas),
                tuple(p.adding_replicas),
                tuple(p.removing_replicas),
                tuple(p.original_replicas),
                p.throttle_rate or None,
            )
            for topic in response.topics
            for p in topic.partitions
        }


def _checked_targets(targets: object) -> dict[TopicPartition, list[int] | None]:
    if not isinstance(targets, Mapping):
        raise UsageError(f'reassignments are given by a mapping such as {{("orders", 0): [1, 2, 3]}}, not {targets!r}')
    return {
        checked_partition(tp): None
        if replicas is None
        else [checked_whole("a broker's id", broker_id) for broker_id in checked_list("the replicas of a partition", replicas)]
        for tp, replicas in targets.items()
    }


def _topics(targets: Mapping[TopicPartition, list[int] | None]) -> list[messages.ReassignableTopic]:
    return [
        messages.ReassignableTopic(name, [messages.ReassignablePartition(tp.partition, targets[tp]) for tp in tps])
        for name, tps in groupby(sorted(targets), key=lambda tp: tp.topic)
    ]


def _result(topic: str, result: messages.ReassignablePartitionResult, is_retry: bool) -> ReassignmentResult:
    code = to_code(result.error_code)
    if is_retry and code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS:
        code = ErrorCode.NONE  # the attempt whose response was lost has cancelled it
    return ReassignmentResult(TopicPartition(topic, result.partition_index), code, result.error_message if code else None)
