"""The admin client's calls about the nodes: the brokers, their log directories, and the quorum of controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from strandline.client.admin.requests import AdminRequests, check_code
from strandline.client.admin_types import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    LogDirMoveResult,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
)
from strandline.client.arguments import check_encodes, checked_list, checked_names, checked_partition, checked_whole
from strandline.client.consumer.records import TopicPartition
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, StrandlineError, UsageError, to_code
from strandline.protocol.messages import admin as messages
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse, QuorumReplicaState


class NodeCalls(AdminRequests):
    """Describes brokers and controllers, and unregisters brokers."""

    async def describe_cluster(self, *, timeout_ms: float = 30_000) -> ClusterDescription:
        """The cluster's id, its active controller, and its brokers with their addresses, sorted by id (KIP-700).
        RequestTimeout."""

        def check(response: messages.DescribeClusterResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "DescribeCluster")

        deadline = self._deadline(timeout_ms)
        request = messages.DescribeClusterRequest()
        response = await self._ask(apis.DESCRIBE_CLUSTER, request, messages.DescribeClusterResponse, check, deadline)
        brokers = [
            BrokerDescription(
                b.broker_id,
                b.host,
                b.port,
                b.rack,
                b.is_fenced,
                b.broker_epoch,
                b.in_controlled_shutdown,
                b.is_draining,
                b.is_cordoned,
            )
            for b in sorted(response.brokers, key=lambda b: b.broker_id)
        ]
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def unregister_broker(self, broker_id: int, *, timeout_ms: float = 30_000) -> None:
        """Remove the registration of a broker that has stopped for good (KIP-631). If it starts again, it registers again.

        RequestFailed with `code` INVALID_REQUEST while the broker is alive or hosts replicas, or BROKER_ID_NOT_REGISTERED;
        RequestTimeout."""
        checked_whole("broker_id", broker_id)

        def check(response: messages.UnregisterBrokerResponse, is_retry: bool) -> None:
            if not is_retry or response.error_code != ErrorCode.BROKER_ID_NOT_REGISTERED:
                check_code(response.error_code, response.error_message, "UnregisterBroker")

        request = messages.UnregisterBrokerRequest(broker_id)
        deadline = self._deadline(timeout_ms)
        await self._ask(apis.UNREGISTER_BROKER, request, messages.UnregisterBrokerResponse, check, deadline)

    async def describe_quorum(self, *, timeout_ms: float = 30_000) -> QuorumDescription:
        """The quorum of controllers: its leader, epoch and high watermark, and the log end offset of each voter and observer
        (KIP-595, KIP-836). RequestTimeout if the quorum has no leader within `timeout_ms`."""

        def check(response: DescribeQuorumResponse, is_retry: bool) -> None:
            check_code(response.error_code, response.error_message, "DescribeQuorum")

        deadline = self._deadline(timeout_ms)
        r = await self._ask(apis.DESCRIBE_QUORUM, DescribeQuorumRequest(), DescribeQuorumResponse, check, deadline)
        return QuorumDescription(
            leader_id=r.leader_id,
            leader_epoch=r.leader_epoch,
            high_watermark=r.high_watermark,
            log_start_offset=r.log_start_offset,
            voters=_replicas(r, r.current_voters),
            observers=_replicas(r, r.observers),
        )

    async def alter_replica_log_dirs(
        self,
        broker_id: int,
        targets: Mapping[TopicPartition | tuple[str, int], str],
        *,
        timeout_ms: float = 30_000,
    ) -> list[LogDirMoveResult]:
        """Move replicas of a broker to other log directories of that broker, by their paths (KIP-113). The call returns when the
        moves have begun; `describe_log_dirs` shows the copies and the records that they lack. Each replica is served from its
        present directory until its copy has caught up. A move continues after a restart of the broker; the path of the present
        directory cancels it.

        Each partition has a result: see its `code`. LOG_DIR_NOT_FOUND: the broker has no such directory. KAFKA_STORAGE_ERROR: the
        directory or the replica is offline. INVALID_REPLICA_ASSIGNMENT: the directory is cordoned, or has no room for the copy.
        REPLICA_NOT_AVAILABLE: the broker has no such replica. NoBrokersAvailable if there is no such broker; RequestTimeout;
        RequestFailed."""
        checked_whole("broker_id", broker_id)
        if not isinstance(targets, Mapping):
            raise UsageError(f"targets must be a mapping from partitions to paths, not {targets!r}")
        wanted = {checked_partition(tp): _checked_path(path) for tp, path in targets.items()}
        request = messages.AlterReplicaLogDirsRequest(_requested_dirs(wanted))
        connections = self._running().connections
        response = await connections.request(broker_id, apis.ALTER_REPLICA_LOG_DIRS, request, timeout_ms)
        assert isinstance(response, messages.AlterReplicaLogDirsResponse)
        return [
            LogDirMoveResult(TopicPartition(topic.topic_name, p.partition_index), to_code(p.error_code), p.error_message)
            for topic in response.results
            for p in topic.partitions
        ]

    async def describe_log_dirs(
        self, broker_ids: Iterable[int], topics: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> dict[int, list[LogDirDescription]]:
        """The log directories of each broker, with the replicas of these topics, or of all (KIP-113). A broker that has not
        answered within `timeout_ms` is not in the result."""
        asked = None if topics is None else [messages.DescribableLogDirTopic(name) for name in checked_names(topics)]
        cluster, request = self._running(), messages.DescribeLogDirsRequest(asked)

        async def ask(broker_id: int) -> list[LogDirDescription] | None:
            try:
                response = await cluster.connections.request(broker_id, apis.DESCRIBE_LOG_DIRS, request, timeout_ms)
            except StrandlineError:
                return None
            assert isinstance(response, messages.DescribeLogDirsResponse)
            return [_log_dir(result) for result in response.results]

        ids = list(dict.fromkeys(checked_list("broker_ids", broker_ids)))
        answers = await asyncio.gather(*map(ask, ids))
        return {broker_id: found for broker_id, found in zip(ids, answers, strict=True) if found is not None}


def _log_dir(result: messages.DescribeLogDirsResult) -> LogDirDescription:
    replicas, futures = dict[TopicPartition, ReplicaInfo](), dict[TopicPartition, ReplicaInfo]()
    for topic in result.topics:
        for p in topic.partitions:
            found = futures if p.is_future_key else replicas
            found[TopicPartition(topic.name, p.partition_index)] = ReplicaInfo(p.partition_size, p.offset_lag)
    return LogDirDescription(result.log_dir, replicas, to_code(result.error_code), futures, result.is_cordoned)


def _requested_dirs(targets: Mapping[TopicPartition, str]) -> list[messages.AlterReplicaLogDir]:
    by_path: dict[str, dict[str, list[int]]] = {}
    for tp, path in targets.items():
        by_path.setdefault(path, {}).setdefault(tp.topic, []).append(tp.partition)
    return [
        messages.AlterReplicaLogDir(path, [messages.AlterReplicaLogDirTopic(name, found) for name, found in topics.items()])
        for path, topics in by_path.items()
    ]


def _checked_path(path: object) -> str:
    if not isinstance(path, str) or not path:
        raise UsageError(f"a log directory is named by its path, a non-empty str, not {path!r}")
    check_encodes("the path of a log directory", path)
    return path


def _replicas(response: DescribeQuorumResponse, states: Sequence[QuorumReplicaState]) -> list[QuorumReplica]:
    addresses = {node.node_id: (node.host, node.port) for node in response.nodes}
    return [
        QuorumReplica(
            s.replica_id,
            *addresses.get(s.replica_id, ("", -1)),
            s.log_end_offset,
            s.last_fetch_age_ms,
            s.last_caught_up_age_ms,
        )
        for s in sorted(states, key=lambda s: s.replica_id)
    ]
