"""The verbs of a story about a consumer group: its coordinator, and members that act only when the story calls them.

    group = await open_group(stage, partitions=2)
    first = group.member("first")
    await first.beat()                       # joins, and gets its assignment
    answer = await first.commit({0: 5})

A member sends one request for each verb, to the coordinator or to the broker that the story names, and keeps the epoch and the
assignment of the answer. It has a connection of its own to each broker; `reconnect` replaces them, and `late` requests go over
the old ones. A verb raises the `BrokerError` of a request that is refused as a whole; `answered` repeats it after errors that
pass.

`Program` is a production consumer on a machine of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from strandline.client import Consumer, TopicPartition
from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages import groups as messages
from strandline.protocol.messages.admin import RESOURCE_GROUP
from strandline.protocol.rpc.connection import Connection
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, Client
from strandline.testing.simulation.invariants import group_memory
from strandline.testing.simulation.scenarios.stage import Stage

TOPIC = "orders"
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.consumer.session.timeout.ms": 2000,
    "group.consumer.connection.loss.grace.ms": 300,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 100,
    "offsets.commit.timeout.ms": 2000,
}
PATIENCE_MS = 10_000


async def open_group(
    stage: Stage,
    *,
    partitions: int = 2,
    coordinators: Sequence[int] = (1, 2, 3),
    settings: Mapping[str, Any] | None = None,
    of_groups: Mapping[str, Any] | None = None,
    of_brokers: Mapping[int, dict[str, Any]] | None = None,
    **configs: str,
) -> Group:
    """Start a cluster with a topic, and with one partition of `__consumer_offsets` on these brokers; the first one coordinates.
    `configs` are those of the internal topic. `of_groups`: keys of brokers and controllers about groups' configurations;
    `of_brokers`: broker id -> keys in its file that replace them."""
    await stage.open(
        topic=TOPIC,
        replicas=[[1, 2, 3]] * partitions,
        settings={**SETTINGS, **(settings or {}), **(of_groups or {})},
        controller_settings=dict(of_groups or {}),
        before=lambda cluster: cluster.broker_settings.update(of_brokers or {}),
    )
    await stage.create(OFFSETS_TOPIC, [coordinators], configs={"cleanup_policy": "compact", **configs})
    group = Group(stage)
    await stage.until(lambda: group.coordinates(coordinators[0]), what="the coordinator serves")
    return group


class Group:
    """A consumer group, by default `g`, and the state of its coordinator."""

    def __init__(self, stage: Stage, name: str = "g") -> None:
        self.stage = stage
        self.name = name

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def registration(self) -> Any:
        return self.stage.cluster.image().topic(OFFSETS_TOPIC).partitions[0]

    @property
    def coordinator(self) -> int:
        return int(self.registration().leader)

    def shard(self, broker: int) -> Any:
        """The broker's shard, with the state of its load; None if it has none."""
        server = self.stage.cluster.brokers.get(broker)
        opened = None if server is None else server.opened
        return None if opened is None else opened.groups.shards.get(0)

    def coordinates(self, broker: int) -> bool:
        """Whether the broker leads and has loaded the groups."""
        active = self.shard(broker)
        return active is not None and active.is_current and active.loader is None and self.coordinator == broker

    @property
    def joining(self) -> list[str]:
        """The members of a classic group that wait for its rebalance."""
        active = self.shard(self.coordinator)
        found = None if active is None else active.shard.groups.get(self.name)
        return list(getattr(found, "joining", ()))

    def log(self, broker: int) -> Any:
        """The broker's replica of the internal topic."""
        found = self.stage.cluster.partition(broker, OFFSETS_TOPIC)
        assert found is not None
        return found.log

    def isr(self) -> list[int]:
        """The ISR that the coordinator knows."""
        found = self.stage.cluster.partition(self.coordinator, OFFSETS_TOPIC)
        return [] if found is None or found.leader_state is None else sorted(found.leader_state.isr.isr)

    async def moved_to(self, broker: int) -> None:
        await self.stage.until(lambda: self.coordinates(broker), what=f"broker {broker} coordinates")

    async def all_in_sync(self) -> None:
        await self.stage.until(lambda: len(self.registration().isr) == 3, what="all replicas are in the ISR")

    async def ask(self, api_key: int, body: Any, broker: int | None = None) -> Any:
        """Send a request as an administrator, by default to the coordinator."""
        return await self.stage.ask(self.coordinator if broker is None else broker, api_key, body)

    async def describe(self) -> messages.DescribedConsumerGroup:
        response = await self.ask(apis.CONSUMER_GROUP_DESCRIBE, messages.ConsumerGroupDescribeRequest([self.name]))
        described: messages.DescribedConsumerGroup = response.groups[0]
        return described

    async def committed(self, *partitions: int, broker: int | None = None) -> list[int]:
        """The committed offsets, requested as an administrator; -1: there is none. Raises the error of the answer."""
        wanted = [messages.GroupTopicPartitions(self.topic_id, list(partitions))]
        request = messages.OffsetFetchRequest([messages.OffsetFetchGroup(self.name, topics=wanted)])
        return _offsets(await self.ask(apis.OFFSET_FETCH, request, broker))

    async def configure(self, **values: int | None) -> None:
        """Set keys of the group's configuration (`session_timeout_ms=2000`), or remove them, and wait until all running brokers
        have the change."""
        changes = {f"consumer.{name.replace('_', '.')}": value for name, value in values.items()}

        async def alter() -> None:
            async with self.stage.client.admin() as admin:
                await admin.alter_configs("group", self.name, changes)

        def is_known() -> bool:
            found = [server.metadata.image.config(RESOURCE_GROUP, self.name) for server in self.stage.cluster.brokers.values()]
            texts = {key: None if value is None else str(value) for key, value in changes.items()}
            return all(own.get(key) == text for own in found for key, text in texts.items())

        await self.stage.client.run(alter())
        await self.stage.until(is_known, what="all brokers have applied the configuration")

    async def members(self) -> list[str]:
        return [member.member_id for member in (await self.describe()).members]

    @property
    def topic_id(self) -> bytes:
        return self.stage.cluster.topic_id(TOPIC)

    async def settled(self, *members: Member) -> None:
        """Send heartbeats of the members, in which they own what is assigned to them, until each has its share."""
        count = len(self.stage.cluster.image().topic(TOPIC).partitions)
        while not self._is_shared(members, count):
            for member in members:
                await self.answered(lambda m=member: m.beat(m.assigned if m.epoch > 0 else None))  # type: ignore[misc]
            await asyncio.sleep(0.02)

    @staticmethod
    def _is_shared(members: Sequence[Member], count: int) -> bool:
        owned = [number for member in members for number in member.assigned]
        is_complete = sorted(owned) == list(range(count)) and all(member.assigned for member in members)
        return is_complete and len({member.epoch for member in members}) == 1

    def resign(self, broker: int) -> None:
        """Let the broker ask to be fenced for a moment, so that another one coordinates. Its process continues."""
        server = self.stage.cluster.brokers[broker]
        self.stage.cluster.machines[broker].call(server.lifecycle.step_down)

    async def resigns(self) -> int:
        """Let the coordinator resign, and wait until the next one serves. Returns the next one."""
        before = self.coordinator
        await self.all_in_sync()
        self.resign(before)
        await self.stage.until(lambda: self.coordinator not in (before, -1), what="another broker leads")
        await self.moved_to(self.coordinator)
        return self.coordinator

    async def remembers(self) -> None:
        """I40: the memory of the coordinator agrees with its log, and with the logs of all replicas."""

        def in_step() -> bool:
            ends = {(log.log_end_offset, log.high_watermark) for log in map(self.log, self.registration().replicas)}
            return len(ends) == 1 and all(end == high_watermark for end, high_watermark in ends)

        await self.stage.until(in_step, what="all replicas of the internal topic are in step")
        if self.stage.invariants is not None:
            group_memory.check(self.stage.invariants.ghosts)

    async def answered(self, attempt: Callable[[], Awaitable[Any]], within_s: float = 10.0) -> Any:
        """Repeat the attempt after errors that pass: the coordinator moves, loads, or waits for its followers."""
        return await self.stage.retried(attempt, within_s)

    def member(self, name: str, **more: Any) -> Member:
        return Member(self, name, **more)

    def program(self, name: str, **options: Any) -> Program:
        return Program(self, name, **options)


class Member:
    """A member of the newer protocol, which sends a request only when the story calls its verb."""

    def __init__(
        self,
        group: Group,
        name: str,
        *,
        topics: Sequence[str] = (TOPIC,),
        instance_id: str | None = None,
        rebalance_timeout_ms: int = 5000,
    ) -> None:
        self.group = group
        self.member_id = name
        self.topics = topics
        self.instance_id = instance_id
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.epoch = 0
        self.assigned: list[int] = []
        """The partitions of the last assignment."""
        self._client: Client = group.stage.cluster.client(name)
        self._connections: dict[int, Connection] = {}
        self._given_up: dict[int, Connection] = {}

    async def ask(self, api_key: int, body: Any, *, broker: int | None = None, late: bool = False) -> Any:
        """Send a request over the member's connection to the broker; `late`: over the one that it has given up."""
        return await self._client.run(self._ask(api_key, body, self.group.coordinator if broker is None else broker, late))

    async def _ask(self, api_key: int, body: Any, broker: int, late: bool) -> Any:
        connections = self._given_up if late else self._connections
        if broker not in connections or connections[broker].closed:
            address = self.group.stage.cluster.machines[broker].address
            connections[broker] = await Connection.connect(address, BROKER_PORT, client_id=self.member_id)
        return await connections[broker].request(api_key, body, timeout_ms=PATIENCE_MS)

    def reconnect(self) -> None:
        """Use new connections from now on. The old ones stay open, as if the network had not delivered their end yet."""
        self._given_up, self._connections = self._connections, {}

    def start(self, attempt: Awaitable[Any]) -> asyncio.Task[Any]:
        """Begin a verb. The task ends with its result or error."""
        task = asyncio.ensure_future(attempt)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a story that ended early never awaits it
        return task

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def beat(
        self, owned: Iterable[int] | None = None, *, epoch: int | None = None, broker: int | None = None, late: bool = False
    ) -> messages.ConsumerGroupHeartbeatResponse:
        """Send a heartbeat, with all fields if it joins. `owned`: the partitions that it reports as its own; None: no change."""
        sent = self.epoch if epoch is None else epoch
        response = await self.ask(apis.CONSUMER_GROUP_HEARTBEAT, self.heartbeat(owned, sent), broker=broker, late=late)
        if response.error_code:
            raise BrokerError(to_code(response.error_code), response.error_message)
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = sorted(number for topic in response.assignment for number in topic.partitions)
        assert isinstance(response, messages.ConsumerGroupHeartbeatResponse)
        return response

    def heartbeat(self, owned: Iterable[int] | None, epoch: int) -> messages.ConsumerGroupHeartbeatRequest:
        request = messages.ConsumerGroupHeartbeatRequest(self.group.name, self.member_id, epoch, self.instance_id)
        if epoch == 0:
            request.rebalance_timeout_ms = self.rebalance_timeout_ms
            request.subscribed_topic_names = list(self.topics)
            owned = ()
        if owned is not None:
            numbers = sorted(owned)
            request.topic_partitions = [messages.GroupTopicPartitions(self.group.topic_id, numbers)] if numbers else []
        return request

    async def leave(self, epoch: int = -1) -> None:
        await self.beat(epoch=epoch)

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[int, int], *, epoch: int | None = None, broker: int | None = None, late: bool = False
    ) -> dict[int, ErrorCode]:
        """Commit these offsets, by partition. Returns the error code of each."""
        wanted = [messages.OffsetCommitPartition(self.group.topic_id, number, offset) for number, offset in offsets.items()]
        sent = self.epoch if epoch is None else epoch
        request = messages.OffsetCommitRequest(self.group.name, sent, self.member_id, self.instance_id, wanted)
        response = await self.ask(apis.OFFSET_COMMIT, request, broker=broker, late=late)
        return {answer.partition: to_code(answer.error_code) for answer in response.partitions}

    async def store(self, number: int, offset: int) -> None:
        """Commit one offset, which must be accepted."""
        codes = await self.group.answered(lambda: self.commit({number: offset}))
        self.group.stage.must(codes == {number: ErrorCode.NONE}, f"{self.member_id} commits {offset} of partition {number}")

    async def committed(self, *partitions: int) -> list[int]:
        """The committed offsets, requested as a member."""
        wanted = [messages.GroupTopicPartitions(self.group.topic_id, list(partitions))]
        asked = messages.OffsetFetchGroup(self.group.name, self.member_id, self.epoch, wanted)
        return _offsets(await self.ask(apis.OFFSET_FETCH, messages.OffsetFetchRequest([asked])))


def _offsets(response: messages.OffsetFetchResponse) -> list[int]:
    group = response.groups[0]
    if group.error_code:
        raise BrokerError(to_code(group.error_code), group.error_message)
    return [answer.committed_offset for answer in group.partitions]


async def code_of(attempt: Awaitable[Any]) -> ErrorCode:
    """The error of a request that is refused as a whole; NONE if it is not."""
    try:
        await attempt
    except BrokerError as e:
        return e.code
    return ErrorCode.NONE


class Program:
    """A production consumer of the group on a machine of its own. It polls in the background, and notes the records it gets."""

    def __init__(
        self,
        group: Group,
        name: str,
        *,
        pattern: str | None = None,
        callback_s: Mapping[str, float] | None = None,
        **options: Any,
    ) -> None:
        """`callback_s`: name of a callback -> the seconds that it takes."""
        self.group = group
        self._callback_s = callback_s or {}
        self.name = name
        self.seen: dict[TopicPartition, list[int]] = {}
        """The offsets of the records, by partition."""
        self.calls: list[tuple[str, list[int]]] = []
        """The callbacks, and the partitions in them."""
        self.is_going = True
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self.client: Client = group.stage.cluster.client(name)
        defaults = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 100, "rebalance_timeout_ms": 2000}
        self.consumer: Consumer = self.client.consumer(group_id=group.name, **{**defaults, **options})
        self.task = self.client.spawn(self._live(pattern), name)

    async def _live(self, pattern: str | None) -> None:
        async with self.consumer as consumer:
            callbacks = {name: self._noting(name) for name in ("on_assigned", "on_revoked", "on_lost")}
            if pattern is None:
                consumer.subscribe(TOPIC, **callbacks)  # type: ignore[arg-type]
            else:
                consumer.subscribe(pattern=pattern, **callbacks)
            while self.is_going:
                polled = await consumer.getmany(timeout_ms=50)
                for tp, records in polled.items():
                    self.seen.setdefault(tp, []).extend(record.offset for record in records)
                if polled:
                    await self._may_ask.wait()

    def _noting(self, name: str) -> Callable[[list[TopicPartition]], Awaitable[None]]:
        async def note(tps: list[TopicPartition]) -> None:
            self.calls.append((name.removeprefix("on_"), [tp.partition for tp in tps]))
            if name in self._callback_s:
                await asyncio.sleep(self._callback_s[name])

        return note

    @property
    def owned(self) -> list[int]:
        """The partitions between `on_assigned` and `on_revoked` or `on_lost`."""
        found: dict[int, None] = {}
        for name, partitions in self.calls:
            if name == "assigned":
                found.update(dict.fromkeys(partitions))
            else:
                for number in partitions:
                    found.pop(number, None)
        return sorted(found)

    def offsets(self, number: int) -> list[int]:
        return self.seen.get(TopicPartition(TOPIC, number), [])

    @property
    def state(self) -> str:
        """The state of the membership in `health()`."""
        return str(self.client.machine.call(self.consumer.health)["group"]["state"])

    def works_on(self) -> None:
        """Let it work on the next records that it gets, and ask for no more until `asks_again`."""
        self.client.machine.call(self._may_ask.clear)

    def asks_again(self) -> None:
        self.client.machine.call(self._may_ask.set)

    async def owns(self, *partitions: int) -> None:
        await self.group.stage.until(lambda: self.owned == sorted(partitions), what=f"{self.name} owns {list(partitions)}")

    async def stop(self) -> None:
        self.is_going = False
        await self.group.stage.world.join(self.task)
