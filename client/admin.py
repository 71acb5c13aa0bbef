"""The admin client: topics, configs, the cluster, the quorum, elections.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("orders", partitions=3, replication_factor=3)])

Any broker accepts any of these requests. A request that fails for a moment (there is no controller yet, a connection was lost) is
repeated until `timeout_ms`. One that is rejected raises RequestFailed with the code, the broker's message, and the topic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from strandline.client.admin_types import (
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    ElectionResult,
    LogDirDescription,
    NewTopic,
    PartitionDescription,
    PartitionProducers,
    QuorumDescription,
    QuorumReplica,
    ReplicaInfo,
    TopicDescription,
)
from strandline.client.arguments import checked_by_partition, checked_list, checked_name, checked_names, checked_partitions
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.leader_offsets import OffsetQuestions
from strandline.client.consumer.records import OffsetAndTimestamp, TopicPartition
from strandline.client.errors import (
    ClientClosed,
    NoBrokersAvailable,
    RequestFailed,
    RequestTimeout,
    UnknownTopic,
    UsageError,
    describe,
)
from strandline.client.home import Home
from strandline.client.option_docs import documents
from strandline.client.options import AdminOptions, ClientKeywords, parse_options
from strandline.client.producer.producer_states import ProducerQuestions
from strandline.protocol import apis
from strandline.protocol.doors import Doors, real_doors
from strandline.protocol.errors import ErrorCode, StrandlineError, to_code
from strandline.protocol.messages import admin as messages
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse, QuorumReplicaState
from strandline.protocol.messages.common import Message

RETRY_S = 0.05
RETRY_MAX_S = 0.5

_RESOURCE_TYPES = {"topic": messages.RESOURCE_TOPIC, "broker": messages.RESOURCE_BROKER}
_SOURCES = {
    messages.CONFIG_SOURCE_DYNAMIC_TOPIC: "topic",
    messages.CONFIG_SOURCE_DYNAMIC_BROKER: "broker",
    messages.CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER: "cluster",
    messages.CONFIG_SOURCE_STATIC_BROKER: "static",
    messages.CONFIG_SOURCE_DEFAULT: "default",
}
_ELECTIONS = {"preferred": messages.PREFERRED_ELECTION, "unclean": messages.UNCLEAN_ELECTION}

_READS = frozenset({apis.METADATA, apis.DESCRIBE_CONFIGS, apis.DESCRIBE_CLUSTER, apis.DESCRIBE_QUORUM})

R = TypeVar("R", bound=Message)


@documents(AdminOptions)
class Admin:
    """Creates, describes, changes and deletes topics and configuration, and describes the cluster and its quorum.

        async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
            await admin.create_topics([NewTopic("orders", partitions=6, replication_factor=3)])

    Start it with `async with`, or with `await start()` and `await stop()`. A call is sent again until it succeeds, its error is
    not retriable, or `timeout_ms` has passed (RequestTimeout)."""

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ClientKeywords]) -> None:
        self.options = parse_options(AdminOptions, options)
        self._doors = doors or real_doors()
        self._cluster: Cluster | None = None
        self._home: Home | None = None
        self._stopped = False

    async def start(self) -> None:
        """Find the cluster; NoBrokersAvailable if no bootstrap server answers within `connect_timeout_ms`."""
        if self._cluster is not None or self._stopped:
            raise UsageError("an admin client is started once")
        self._home = Home("admin client")
        self._cluster = Cluster(self.options, self._doors.random)
        try:
            await self._cluster.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the connections."""
        if not self._stopped:
            self._check_caller()
            self._stopped = True
            if self._cluster is not None:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    # -- topics -------------------------------------------------------------------------------------------------------

    async def create_topics(
        self, topics: Iterable[NewTopic | str], *, validate_only: bool = False, timeout_ms: float = 30_000
    ) -> list[TopicDescription]:
        """Create topics (a name alone gets the cluster's defaults), and wait until the brokers know them and each partition has a
        leader. RequestFailed with `code` TOPIC_ALREADY_EXISTS, INVALID_REPLICATION_FACTOR and others; RequestTimeout.
        `validate_only`: check the request, create nothing, return an empty list."""
        given = checked_list("topics", topics)
        wanted = [topic if isinstance(topic, NewTopic) else NewTopic(checked_name(topic)) for topic in given]
        request = messages.CreateTopicsRequest([_creatable(topic) for topic in wanted], round(timeout_ms), validate_only)

        def check(response: messages.CreateTopicsResponse, is_retry: bool) -> None:
            for result in response.topics:
                # If the response to an earlier attempt was lost, the topic exists because of that attempt.
                if not is_retry or result.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                    _check(result.error_code, result.error_message, "CreateTopics", topic=result.name)

        deadline = self._deadline(timeout_ms)
        await self._ask(apis.CREATE_TOPICS, request, messages.CreateTopicsResponse, check, deadline)
        if validate_only:
            return []
        return await self._wait_for_topics([topic.name for topic in wanted], deadline)

    async def _wait_for_topics(self, names: Sequence[str], deadline: float) -> list[TopicDescription]:
        while True:
            found = await self._describe(names, deadline, missing_ok=True)
            if len(found) == len(names) and all(p.leader_id >= 0 for topic in found for p in topic.partitions):
                return found
            if self._loop_time() >= deadline:
                raise RequestTimeout("the topics were created, but not every partition has a leader yet", topic=", ".join(names))
            await asyncio.sleep(RETRY_S)

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float = 30_000) -> None:
        """Delete topics and all of their records. UnknownTopic if one does not exist; the others are deleted all the same.
        Returns when the controllers have deleted them; a broker may know them for a moment longer."""
        request = messages.DeleteTopicsRequest(
            [messages.DeleteTopicState(name) for name in checked_names(names)], round(timeout_ms)
        )

        def check(response: messages.DeleteTopicsResponse, is_retry: bool) -> None:
            for result in response.topics:
                if not is_retry or result.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _check(result.error_code, result.error_message, "DeleteTopics", topic=result.name)

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
        key may belong to another partition than before."""
        added = None if assignments is None else [list(replicas) for replicas in assignments]
        item = messages.CreatePartitionsTopic(checked_name(topic), total_count, added)
        request = messages.CreatePartitionsRequest([item], round(timeout_ms), validate_only)

        def check(response: messages.CreatePartitionsResponse, is_retry: bool) -> None:
            for result in response.results:
                _check(result.error_code, result.error_message, "CreatePartitions", topic=result.name)

        deadline = self._deadline(timeout_ms)
        await self._ask(apis.CREATE_PARTITIONS, request, messages.CreatePartitionsResponse, check, deadline)
        while not validate_only:
            (found,) = await self._describe([topic], deadline)
            if len(found.partitions) >= total_count and all(p.leader_id >= 0 for p in found.partitions):
                return
            if self._loop_time() >= deadline:
                raise RequestTimeout("the partitions were added, but not every one has a leader yet", topic=topic)
            await asyncio.sleep(RETRY_S)

    async def list_topics(self, *, timeout_ms: float = 30_000) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in await self.describe_topics(timeout_ms=timeout_ms))

    async def describe_topics(self, names: Iterable[str] | None = None, *, timeout_ms: float = 30_000) -> list[TopicDescription]:
        """Partitions, leaders and replicas of these topics, or of all, sorted by name. UnknownTopic if one does not exist."""
        return await self._describe(None if names is None else checked_names(names), self._deadline(timeout_ms))

    async def _describe(
        self, names: Sequence[str] | None, deadline: float, *, missing_ok: bool = False
    ) -> list[TopicDescription]:
        asked = None if names is None else [messages.MetadataTopicRequest(name) for name in names]
        response = await self._ask(apis.METADATA, messages.MetadataRequest(asked), messages.MetadataResponse, None, deadline)
        found = []
        for topic in response.topics:
            if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                if missing_ok:
                    continue
                raise UnknownTopic("the topic does not exist", topic=topic.name)
            if topic.error_code not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                _check(topic.error_code, None, "Metadata", topic=topic.name)
            found.append(_topic_description(topic))
        return sorted(found, key=lambda topic: topic.name)

    async def describe_producers(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]],
        producer_ids: Iterable[int] | None = None,
        *,
        timeout_ms: float = 30_000,
    ) -> dict[TopicPartition, PartitionProducers]:
        """By partition, the last batch of each idempotent producer that its leader knows, or of `producer_ids` only (KIP-664).

        The id of a named producer stands for its name: the newest work epoch that has written there is returned. UnknownTopic
        for a partition that does not exist; RequestTimeout if a leader has not answered within `timeout_ms`."""
        cluster = self._running()
        tps = list(dict.fromkeys(checked_partitions(partitions)))
        asked = None if producer_ids is None else checked_list("producer_ids", producer_ids)
        return await ProducerQuestions(cluster).describe(tps, asked, self._deadline(timeout_ms))

    async def list_offsets(
        self, wanted: Mapping[TopicPartition | tuple[str, int], int], *, timeout_ms: float = 30_000
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """By partition, the first record at or after a time (milliseconds since 1970, UTC), or at -2 (the first record of the
        log) or -1 (after the last one that consumers may read); None if there is no such record. A partition whose leader has not
        answered within `timeout_ms`, or that has none, is not in the result. UnknownTopic if a topic does not exist."""
        tps = checked_by_partition(wanted)
        deadline = self._deadline(timeout_ms)
        return await OffsetQuestions(self._running(), self._describe).ask(tps, deadline)

    async def describe_log_dirs(
        self, broker_ids: Iterable[int], topics: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> dict[int, list[LogDirDescription]]:
        """By broker, its log directories with the replicas of these topics, or of all (KIP-113). A broker that has not answered
        within `timeout_ms` is not in the result."""
        asked = None if topics is None else [messages.DescribableLogDirTopic(name) for name in checked_names(topics)]
        cluster, request = self._running(), messages.DescribeLogDirsRequest(asked)

        async def ask(broker_id: int) -> list[LogDirDescription] | None:
            try:
                response = await cluster.request(broker_id, apis.DESCRIBE_LOG_DIRS, request, timeout_ms)
            except StrandlineError:
                return None
            assert isinstance(response, messages.DescribeLogDirsResponse)
            return [_log_dir(result) for result in response.results]

        ids = list(dict.fromkeys(checked_list("broker_ids", broker_ids)))
        answers = await asyncio.gather(*map(ask, ids))
        return {broker_id: found for broker_id, found in zip(ids, answers, strict=True) if found is not None}

    # -- configs ------------------------------------------------------------------------------------------------------

    async def describe_configs(
        self, resource_type: str, name: str | int, keys: Iterable[str] | None = None, *, timeout_ms: float = 30_000
    ) -> list[ConfigEntry]:
        """The configuration of a resource, or these keys of it, with the source of each value. `resource_type`: "topic" or
        "broker"; `name`: the topic's name, or the broker's id ("" for the default of all brokers). The request about a broker
        goes to that broker, because no other node knows its file. UnknownTopic; RequestFailed with `code`
        BROKER_ID_NOT_REGISTERED."""
        resource = messages.DescribeConfigsResource(
            _resource(resource_type), str(name), None if keys is None else checked_list("keys", keys)
        )
        request = messages.DescribeConfigsRequest([resource], include_documentation=True)

        def check(response: messages.DescribeConfigsResponse, is_retry: bool) -> None:
            for result in response.results:
                _check(result.error_code, result.error_message, "DescribeConfigs", topic=result.resource_name)

        deadline = self._deadline(timeout_ms)
        broker_id = self._known_broker(name) if resource_type == "broker" and name != "" else None
        kind = messages.DescribeConfigsResponse
        response = await self._ask(apis.DESCRIBE_CONFIGS, request, kind, check, deadline, broker_id)
        return [_config_entry(config) for result in response.results for config in result.configs]

    async def alter_configs(
        self,
        resource_type: str,
        name: str | int,
        configs: Mapping[str, str | int | float | bool | None],
        *,
        validate_only: bool = False,
        timeout_ms: float = 30_000,
    ) -> None:
        """Set these keys and leave the others as they are (KIP-339); None removes a key, so that its default applies again.
        Resources are named as for `describe_configs`. RequestFailed with `code` INVALID_CONFIG. `validate_only`: check the
        request and change nothing."""
        changes = [
            messages.AlterableConfig(key, messages.CONFIG_DELETE if value is None else messages.CONFIG_SET, _config_text(value))
            for key, value in configs.items()
        ]
        resource = messages.AlterConfigsResource(_resource(resource_type), str(name), changes)
        request = messages.IncrementalAlterConfigsRequest([resource], validate_only)

        def check(response: messages.IncrementalAlterConfigsResponse, is_retry: bool) -> None:
            for result in response.responses:
                _check(result.error_code, result.error_message, "IncrementalAlterConfigs", topic=result.resource_name)

        deadline = self._deadline(timeout_ms)
        await self._ask(apis.INCREMENTAL_ALTER_CONFIGS, request, messages.IncrementalAlterConfigsResponse, check, deadline)

    # -- cluster ------------------------------------------------------------------------------------------------------

    async def describe_cluster(self, *, timeout_ms: float = 30_000) -> ClusterDescription:
        """The cluster's id, its active controller, and its brokers with their addresses."""

        def check(response: messages.DescribeClusterResponse, is_retry: bool) -> None:
            _check(response.error_code, response.error_message, "DescribeCluster")

        deadline = self._deadline(timeout_ms)
        request = messages.DescribeClusterRequest()
        response = await self._ask(apis.DESCRIBE_CLUSTER, request, messages.DescribeClusterResponse, check, deadline)
        brokers = [
            BrokerDescription(b.broker_id, b.host, b.port, b.rack, b.is_fenced, b.broker_epoch, b.in_controlled_shutdown)
            for b in sorted(response.brokers, key=lambda b: b.broker_id)
        ]
        return ClusterDescription(response.cluster_id, response.controller_id, brokers)

    async def describe_quorum(self, *, timeout_ms: float = 30_000) -> QuorumDescription:
        """The quorum of controllers: its leader, epoch and high watermark, and the log end offset of each voter and observer
        (KIP-595, KIP-836)."""

        def check(response: DescribeQuorumResponse, is_retry: bool) -> None:
            _check(response.error_code, response.error_message, "DescribeQuorum")

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

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        election: str = "preferred",
        timeout_ms: float = 30_000,
    ) -> list[ElectionResult]:
        """Elect leaders of these partitions, or of all (KIP-183, KIP-460). Each has a result: see its `code` and `message`.

        `election`: "preferred" elects the first replica of each partition, if it is in sync. "unclean" elects any replica that is
        alive, for a partition without a leader; the records that this replica does not have are lost."""
        if election not in _ELECTIONS:
            raise UsageError(f'an election is "preferred" or "unclean", not {election!r}')
        asked = None if partitions is None else [messages.ElectLeadersPartition(*tp) for tp in checked_partitions(partitions)]
        request = messages.ElectLeadersRequest(_ELECTIONS[election], asked, round(timeout_ms))

        def check(response: messages.ElectLeadersResponse, is_retry: bool) -> None:
            _check(response.error_code, None, "ElectLeaders")

        deadline = self._deadline(timeout_ms)
        response = await self._ask(apis.ELECT_LEADERS, request, messages.ElectLeadersResponse, check, deadline)
        return [
            ElectionResult(TopicPartition(r.topic, r.partition), to_code(r.error_code), r.error_message) for r in response.results
        ]

    def health(self) -> dict[str, Any]:
        """`state` ("not started", "stopped", "ok" or "degraded"), `brokers_connected` and `last_error`."""
        if self._stopped or self._cluster is None:
            return {"state": "stopped" if self._stopped else "not started"}
        error = self._cluster.last_error
        return {
            "state": "ok" if error is None else "degraded",
            "brokers_connected": self._cluster.brokers_connected,
            "last_error": None if error is None else str(error),
        }

    # -- asking -------------------------------------------------------------------------------------------------------

    def _loop_time(self) -> float:
        return asyncio.get_running_loop().time()

    def _deadline(self, timeout_ms: float) -> float:
        return self._loop_time() + timeout_ms / 1000

    def _check_caller(self) -> None:
        """UsageError for a call from another thread or event loop than that of `start`."""
        if self._home is not None:
            self._home.check()

    def _running(self) -> Cluster:
        self._check_caller()
        if self._stopped or self._cluster is None:
            raise ClientClosed("the admin client was stopped" if self._stopped else "the admin client was not started")
        return self._cluster

    def _known_broker(self, name: str | int) -> int:
        """The id of an unfenced broker; RequestFailed if the cluster has none with this id."""
        cluster = self._running()
        if not str(name).isdecimal():
            raise UsageError(f"a broker is named by its id, a number, not {name!r}")
        if cluster.connection_state(int(name)) is None:
            known = ", ".join(map(str, sorted(cluster.cache.brokers))) or "none"
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
            text = f"the cluster has no broker {name} that is unfenced; it has: {known}"
            raise RequestFailed(text, api="DescribeConfigs", code=code)
        return int(name)

    async def _ask(
        self,
        api_key: int,
        body: Message,
        kind: type[R],
        check: Callable[[R, bool], None] | None,
        deadline: float,
        broker_id: int | None = None,
    ) -> R:
        """Ask this broker, or any, until an answer passes `check`, an error is not retriable, or the deadline (on the loop's
        clock) is reached."""
        cluster = self._running()
        ask: Callable[[int, Message, float], Awaitable[Message]]
        ask = cluster.ask_any if api_key in _READS else cluster.ask_one
        if broker_id is not None:
            ask = partial(cluster.request, broker_id)
        started = self._loop_time()
        attempts, delay_s = 0, RETRY_S
        while True:
            timeout_ms = max(1.0, min((deadline - self._loop_time()) * 1000, self.options.request_timeout_ms))
            attempts += 1
            try:
                answer = await ask(api_key, body, timeout_ms)
                assert isinstance(answer, kind)
                if check is not None:
                    check(answer, attempts > 1)
                return answer
            except StrandlineError as e:
                if not e.retriable or self._loop_time() + delay_s >= deadline:
                    raise self._finally(e, api_key, attempts, (self._loop_time() - started) * 1000) from e
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, RETRY_MAX_S)

    @staticmethod
    def _finally(error: StrandlineError, api_key: int, attempts: int, elapsed_ms: float) -> StrandlineError:
        if isinstance(error, NoBrokersAvailable) or not error.retriable or attempts == 1:
            return error
        text = f"each attempt failed, the last one with: {error}"
        return RequestTimeout(text, api=apis.api_name(api_key), attempts=attempts, elapsed_ms=elapsed_ms)


def _check(error_code: int, message: str | None, api: str, topic: str | None = None) -> None:
    if error_code:
        code = to_code(error_code)
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Retriable for producers, which wait for metadata. Here the controller has answered, so it is final.
            raise _NotFound(describe(code, message) if message else "the topic does not exist", topic=topic, api=api, code=code)
        raise RequestFailed(describe(code, message), api=api, topic=topic, code=code)


class _NotFound(UnknownTopic):
    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.retriable = False


def _resource(resource_type: str) -> int:
    if resource_type not in _RESOURCE_TYPES:
        raise UsageError(f'a config resource is a "topic" or a "broker", not {resource_type!r}')
    return _RESOURCE_TYPES[resource_type]


def _config_text(value: str | int | float | bool | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


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
        [messages.TopicConfig(key, _config_text(value)) for key, value in (topic.configs or {}).items()],
    )


def _topic_description(topic: messages.MetadataTopic) -> TopicDescription:
    partitions = [
        PartitionDescription(
            partition=p.partition,
            leader_id=p.leader_id,
            leader_epoch=p.leader_epoch,
            partition_epoch=p.partition_epoch,
            replicas=tuple(p.replica_nodes),
            isr=tuple(p.isr_nodes),
            offline_replicas=tuple(p.offline_replicas),
            eligible_leader_replicas=tuple(p.eligible_leader_replicas),
        )
        for p in sorted(topic.partitions, key=lambda p: p.partition)
    ]
    return TopicDescription(topic.name or "", topic.topic_id, partitions, topic.is_internal)


def _log_dir(result: messages.DescribeLogDirsResult) -> LogDirDescription:
    replicas = {
        TopicPartition(topic.name, p.partition_index): ReplicaInfo(p.partition_size, p.offset_lag)
        for topic in result.topics
        for p in topic.partitions
    }
    return LogDirDescription(result.log_dir, replicas, to_code(result.error_code))


def _config_entry(config: messages.DescribedConfig) -> ConfigEntry:
    return ConfigEntry(
        name=config.name,
        value=config.value,
        source=_SOURCES.get(config.config_source, "unknown"),
        read_only=config.read_only,
        is_sensitive=config.is_sensitive,
        type=config.config_type,
        documentation=config.documentation,
    )


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
