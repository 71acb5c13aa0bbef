"""The stage of a directed scenario: a small cluster, and the verbs that a story needs.

A scenario is a coroutine function that reads as a story:

    @scenario("S03", "Fast fail-over fork: the leader lacks the asked epoch", source="KIP-279, KAFKA-6361")
    async def s03(stage: Stage) -> None:
        await stage.open(topic="orders", replicas=[1, 2, 3])
        stage.says("Broker 1 leads. Ten records are on all replicas.")
        ...
        stage.must(stage.end(2) == 10, "broker 2 keeps nothing of its fork")

`says` writes the headings of the page, `must` states a condition that must hold. The invariants are also checked after every
step, without a word in the story.

Every scenario is also played with **perturbations**: other delays, clocks and turns, and one random fault at a random moment.
With other delays, every condition must still hold. A fault may change the course of the story (another broker is elected than the
story expects). Then a failed `must` or wait is no violation and ends the story; the invariants must still hold, and the cluster
must heal without a loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from strandline.broker.partition.partition import Partition
from strandline.client import NewTopic
from strandline.controller.metadata.records import NO_LEADER
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
)
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.reader import iter_records
from strandline.protocol.rpc.connection import Connection
from strandline.storage.log.log import Log
from strandline.storage.log.log_config import LogConfig
from strandline.testing.comparison import cleaned_logs_differ
from strandline.testing.history import History
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, Client, SimCluster
from strandline.testing.simulation.cluster.identities import Identities
from strandline.testing.simulation.invariants.ghosts import PartitionGhost
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.paths import Path, Tree
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.network import Hold, Message
from strandline.testing.simulation.kernel.scheduler import OutOfTime
from strandline.testing.simulation.kernel.world import World

Story = Callable[["Stage"], Awaitable[None]]
LATEST, EARLIEST = -1, -2
ANY_RACK = "any"


@dataclass(frozen=True, slots=True)
class Scenario:
    number: str
    """The number of the scenario, such as "S03"."""
    title: str
    source: str
    """The origin of the story: an issue or a KIP of Kafka or another system, or `own: ...`."""
    story: Story

    @property
    def place(self) -> int:
        """Its place in a list: S99 is before S100."""
        return int(self.number[1:])


SCENARIOS: dict[str, Scenario] = {}
"""Number -> scenario, in the order of the files."""
WAITING: dict[str, str] = {}
"""Scenarios that cannot be played yet: number -> the feature that they need."""


def scenario(number: str, title: str, *, source: str) -> Callable[[Story], Story]:
    def enter(story: Story) -> Story:
        if number in SCENARIOS:
            raise ValueError(f"two scenarios are called {number}")
        SCENARIOS[number] = Scenario(number, title, source, story)
        return story

    return enter


class Broken(AssertionError):
    """A `must` of the scenario does not hold."""


class Stage:
    """One run of a scenario."""

    def __init__(self, world: World, *, perturbed: bool = False) -> None:
        self.world = world
        self.perturbed = perturbed
        """Whether a random fault happens in addition to those of the story."""
        self.history = History()
        self.cluster: SimCluster
        self.topic = ""
        """The topic that the verbs use."""
        self.topics: list[str] = []
        """All existing topics; a story that deletes one removes it here."""
        self.sent = 0
        """Number of records sent by `append`, which makes each value unique."""
        self.acked: dict[tuple[str, int], dict[int, bytes]] = {}
        """(topic, partition) -> offset -> value of each record that a successful acks=all response acknowledged."""
        self.min_insync = 0
        self.may_lose = False
        """Whether records may be lost: a power cut has struck a topic for which one copy is enough. As written, the story knows
        which copy that was; with a random fault it may have been the only one."""
        self.invariants: Invariants | None = None
        """The invariants of the run. If a story writes a log itself (`forge`), their ghosts drop the records of the partition."""
        self._patches: list[tuple[Any, str, Any]] = []
        self.on_machines: Callable[[Iterable[Machine]], object] = lambda _: None
        """Called with the cluster's machines before they boot."""
        self._client: Client
        self._connections: dict[int, Connection] = {}

    # -- headings and conditions --------------------------------------------------------------------------------------

    def says(self, text: str) -> None:
        """Write a heading of the story's page: what happens now, and why."""
        self.world.trace.emit("scenario.says", 0, text=text)

    def must(self, holds: object, text: str) -> None:
        """State a condition that must hold at this point of the story. Raises `Broken` if it does not."""
        self.world.trace.emit("scenario.must", 0, text=text, holds=bool(holds))
        if not holds:
            raise Broken(text)

    # -- setting ------------------------------------------------------------------------------------------------------

    async def open(
        self,
        topic: str = "orders",
        *,
        replicas: Sequence[Any] = (1, 2, 3),
        brokers: int = 3,
        controllers: int = 1,
        min_insync: int = 2,
        settings: dict[str, Any] | None = None,
        controller_settings: dict[str, Any] | None = None,
        racks: Sequence[str] = (),
        secured: bool = False,
        security: dict[str, Any] | None = None,
        before: Callable[[SimCluster], object] = lambda _: None,
        **configs: str,
    ) -> None:
        """Start a cluster with one topic. `replicas` are those of its only partition (or one list per partition); the first one
        leads.

        Leaders do not return by themselves, unless `controller_settings` enables it: a story says itself which broker leads."""
        nodes = [*(101 + n for n in range(controllers)), *(1 + n for n in range(brokers))]
        identities = Identities(nodes, settings=security) if secured else None
        self.cluster = SimCluster(
            self.world,
            controllers=controllers,
            brokers=brokers,
            settings=settings,
            controller_settings={"auto.leader.rebalance.enable": False, **(controller_settings or {})},
            racks=racks,
            identities=identities,
        )
        before(self.cluster)
        self.min_insync = min_insync
        self.on_machines(self.cluster.machines.values())
        await self.cluster.start_all()
        self._client = self.cluster.client("story-client")
        each = [list(replicas)] if isinstance(replicas[0], int) else [list(one) for one in replicas]
        await self.create(topic, each, min_insync=min_insync, configs=configs)
        self.topic = topic

    async def create(
        self,
        topic: str,
        replicas: Sequence[Sequence[Any]],
        *,
        min_insync: int = 2,
        missing: Sequence[int] = (),
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic with these replicas; `missing` are down."""
        settings = {
            "min.insync.replicas": str(min_insync),
            **{key.replace("_", "."): value for key, value in (configs or {}).items()},
        }

        async def create() -> None:
            async with self._client.admin() as admin:
                await admin.create_topics([NewTopic(topic, replica_assignments=dict(enumerate(replicas)), configs=settings)])

        await self._client.run(create())
        self.topics.append(topic)
        await self.until(lambda: self._is_led(topic, replicas, missing), what=f"the replicas of {topic} stand")

    def _is_led(self, topic: str, replicas: Sequence[Sequence[Any]], missing: Sequence[int]) -> bool:
        """Whether every broker has its replicas, and the leaders act as such. A client would retry until then."""
        held = [
            [self.cluster.partition(broker, topic, index) for broker in each if broker not in missing]
            for index, each in enumerate(replicas)
        ]
        return all(None not in each and any(p and p.leader_state is not None for p in each) for each in held)

    @property
    def client(self) -> Client:
        return self._client

    def patch(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace production code until the end of the story, to show what a broken peer would do and no network fault can."""
        self._patches.append((owner, name, vars(owner)[name]))
        setattr(owner, name, replacement)

    def undo(self) -> None:
        while self._patches:
            setattr(*self._patches.pop())

    # -- requests to single brokers ----------------------------------------------------------------------------------------

    async def ask(self, broker: int, api_key: int, body: Any, records: Any = None, timeout_ms: int = 30_000) -> Any:
        """Send one request to one broker, from the story's client. Raises `BrokerError` if the broker refuses it."""

        async def asking() -> Any:
            connection = self._connections.get(broker)
            if connection is None or connection.closed:
                address = self.cluster.machines[broker].address
                connection = await Connection.connect(address, BROKER_PORT, client_id="story", security=self.client.security)
                self._connections[broker] = connection
            return await connection.request(api_key, body, records, timeout_ms=timeout_ms)

        return await self._client.run(asking())

    def start_produce(self, broker: int, *values: bytes, acks: int = -1, index: int = 0, timeout_ms: int = 20_000) -> Any:
        """Begin to write to one broker. The task ends with the response (`ProducePartitionResponse`) or a `BrokerError`."""
        task = asyncio.get_running_loop().create_task(
            self.produce(broker, *values, acks=acks, index=index, timeout_ms=timeout_ms), name=f"produce to {broker}"
        )
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a story that ended early never awaits it
        return task

    async def produce(
        self,
        broker: int,
        *values: bytes,
        acks: int = -1,
        index: int = 0,
        timeout_ms: int = 20_000,
        producer: tuple[int, int] = (-1, -1),
        sequence: int = -1,
    ) -> ProducePartitionResponse:
        """Send one batch to one broker, without a retry; returns the response, success or error. `producer` is id and epoch."""
        producer_id, producer_epoch = producer
        batch = encode_batch(
            [(None, value, [], self.world.machine.wall_clock_ms()) for value in values],
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        topic_id = self.cluster.topic_id(self.topic)
        request = ProduceRequest(None, acks, timeout_ms, [ProducePartition(topic_id, index)], [])
        response: ProduceResponse = await self.ask(broker, apis.PRODUCE, request, [[batch]], timeout_ms + 10_000)
        answer = response.partitions[0]
        if acks == -1 and not answer.error_code:
            acked = self.acked.setdefault((self.topic, index), {})
            acked.update({answer.base_offset + n: value for n, value in enumerate(values)})
        return answer

    async def init_producer(self, broker: int = 1) -> tuple[int, int]:
        """Request a new producer id; returns the id and its epoch."""
        answer = await self.ask(broker, apis.INIT_PRODUCER_ID, InitProducerIdRequest())
        self.must(not answer.error_code, "there is a producer id")
        return answer.producer_id, answer.producer_epoch

    async def append(self, count: int, *, acks: int = -1, index: int = 0, broker: int | None = None) -> int:
        """Append `count` records, one batch each, through the leader (or this broker); returns the last offset. Every batch must
        be accepted."""
        last = -1
        for _ in range(count):
            self.sent += 1
            leader = self.leader(index) if broker is None else broker
            answer = await self.produce(leader, b"r%d" % self.sent, acks=acks, index=index)
            if answer.error_code:
                self.must(
                    False, f"broker {leader} accepts record r{self.sent} (the response is {ErrorCode(answer.error_code).name})"
                )
            last = answer.base_offset
        return last

    async def fetch_session(
        self, broker: int, session_id: int, session_epoch: int, wanted: Sequence[tuple[int, int, int]] = ()
    ) -> FetchResponse:
        """Send one fetch of a session, as a consumer, without waiting. `wanted` lists (partition, offset, leader epoch)."""
        topic_id = self.cluster.topic_id(self.topic)
        partitions = [FetchPartition(topic_id, index, epoch, offset, -1, -1, 1 << 20) for index, offset, epoch in wanted]
        request = FetchRequest(-1, -1, 0, 0, 1 << 20, 0, session_id, session_epoch, partitions)
        response: FetchResponse = await self.ask(broker, apis.FETCH, request)
        return response

    async def fetch_as(self, follower: int, broker: int, offset: int, epoch: int, *, index: int = 0) -> Any:
        """The response to a follower with this log end offset that expects this leader epoch."""
        topic_id, known = self.cluster.topic_id(self.topic), self.cluster.image().brokers[follower]
        wanted = FetchPartition(topic_id, index, epoch, offset, epoch, 0, 1 << 20)
        request = FetchRequest(follower, known.broker_epoch, 0, 0, 1 << 20, 0, 0, -1, [wanted])
        response: FetchResponse = await self.ask(broker, apis.FETCH, request)
        return response.partitions[0]

    async def fetch(
        self,
        broker: int,
        offset: int,
        *,
        index: int = 0,
        max_wait_ms: int = 0,
        epoch: int = -1,
        last_epoch: int = -1,
        rack: str = ANY_RACK,
    ) -> tuple[Any, list[tuple[int, bytes]]]:
        """Fetch as a consumer that names a rack, so that followers serve it. Returns the response for the partition, and the
        records as (offset, value)."""
        wanted = FetchPartition(self.cluster.topic_id(self.topic), index, epoch, offset, last_epoch, -1, 1 << 20)
        request = FetchRequest(-1, -1, max_wait_ms, 1, 1 << 20, 0, 0, -1, [wanted], rack_id=rack)
        response: FetchResponse = await self.ask(broker, apis.FETCH, request)
        found = [
            (r.offset, bytes(r.value or b"")) for records in response.records for r in iter_records(records) if r.offset >= offset
        ]
        return response.partitions[0], found

    async def latest(self, broker: int, *, index: int = 0) -> Any:
        """The response to a ListOffsets request for the latest offset."""
        question = ListOffsetsPartition(self.cluster.topic_id(self.topic), index, LATEST, -1)
        response = await self.ask(broker, apis.LIST_OFFSETS, ListOffsetsRequest(-1, 0, [question]))
        return response.partitions[0]

    # -- faults -------------------------------------------------------------------------------------------------------

    def crash(self, node: int, *, lossy: bool = False) -> None:
        if lossy and self.min_insync < 2:
            self.may_lose = True
            if self.perturbed and self.invariants is not None:
                self.invariants.ghosts.permit_loss("a power cut, and a topic with min.insync.replicas=1")
        self.cluster.crash(node, lossy=lossy)

    def permit_loss(self, reason: str) -> None:
        """Permit from here on that committed records are lost, in every partition."""
        self.may_lose = True
        if self.invariants is not None:
            self.invariants.ghosts.permit_loss(reason)

    def lost(self, start: int, index: int = 0) -> None:
        """Note that the acknowledged records from this offset on are lost, as the story expects."""
        acked = self.acked.get((self.topic, index), {})
        for offset in [offset for offset in acked if offset >= start]:
            del acked[offset]

    def wipe(self, node: int) -> None:
        """Replace its disk by an empty one. No process may run there."""
        machine = self.cluster.machines[node]
        self.world.trace.emit("fault.begin", node, fault="wiped disk")
        machine.files.wipe()

    def start(self, node: int) -> None:
        self.cluster.start(node)

    async def stop(self, node: int) -> None:
        await self.cluster.stop(node)

    def pause(self, node: int) -> None:
        self.cluster.machines[node].pause()

    def resume(self, node: int) -> None:
        self.cluster.machines[node].resume()

    def cut(self, node: int, others: Iterable[int] | None = None, **ways: bool) -> None:
        """Cut the links between the node and the others (all by default); `inbound=False` or `outbound=False` for one
        direction."""
        others = None if others is None else list(others)
        self.world.trace.emit("fault.begin", node, fault="cut", others=others, **ways)
        self.cluster.isolate(node, others, **ways)

    def mend(self, node: int, others: Iterable[int] | None = None, **ways: bool) -> None:
        others = None if others is None else list(others)
        self.world.trace.emit("fault.end", node, fault="cut", others=others, **ways)
        self.cluster.rejoin(node, others, **ways)

    def hold(
        self,
        api: str,
        *,
        source: int | None = None,
        target: int | None = None,
        response: bool = False,
        where: Callable[[Message], bool] | None = None,
        limit: int = -1,
    ) -> Hold:
        """Hold back requests (or responses) of this API between these nodes until `release`."""

        def matches(message: Message) -> bool:
            return (
                message.api == api
                and message.is_request is not response
                and (source is None or message.source == source)
                and (target is None or message.target == target)
                and (where is None or where(message))
            )

        return self.world.network.hold(matches, limit)

    # -- waiting and looking ------------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], within_s: float = 30.0, what: str = "") -> None:
        await self.world.until(condition, within_s, what)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def replica(self, broker: int, index: int = 0) -> Partition:
        found = self.cluster.partition(broker, self.topic, index)
        if found is None:
            raise OutOfTime(f"broker {broker} has no replica of {self.topic}-{index}")
        return found

    def has(self, broker: int, index: int = 0) -> bool:
        return self.cluster.partition(broker, self.topic, index) is not None

    def end(self, broker: int, index: int = 0) -> int:
        """The log end offset of the broker's replica; -1 if it has none (it is down, or starting)."""
        found = self.cluster.partition(broker, self.topic, index)
        return -1 if found is None else found.log.log_end_offset

    def hw(self, broker: int, index: int = 0) -> int:
        found = self.cluster.partition(broker, self.topic, index)
        return -1 if found is None else found.log.high_watermark

    def registration(self, index: int = 0) -> Any:
        """The partition in the newest metadata: leader, leader_epoch, partition_epoch, isr, ..."""
        image = self.cluster.image()
        return image.topic(self.topic).partitions[index]

    def leader(self, index: int = 0) -> int:
        """The leader in the newest metadata; -1 for none."""
        return int(self.registration(index).leader)

    def active_controller(self) -> int:
        """The id of the active controller; -1 if there is none."""
        server = self.cluster.active_controller
        return -1 if server is None else server.config.node_id

    def isr(self, index: int = 0) -> set[int]:
        return set(self.registration(index).isr)

    def reports(self, index: int = 0) -> list[Any]:
        """The reports of the partition's unclean elections in the newest metadata, the oldest first."""
        return list(self.cluster.image().unclean_elections.get((self.cluster.topic_id(self.topic), index), ()))

    def knows_isr(self, broker: int, isr: set[int], index: int = 0) -> bool:
        """Whether the broker leads, and this is the committed ISR that it knows."""
        found = self.cluster.partition(broker, self.topic, index)
        return found is not None and found.leader_state is not None and set(found.leader_state.isr.isr) == isr

    def epochs(self, broker: int, index: int = 0) -> list[tuple[int, int]]:
        """The broker's leader-epoch cache: (epoch, start offset)."""
        return list(self.replica(broker, index).log.epochs.entries)

    def leads(self, broker: int, index: int = 0) -> bool:
        """Whether the broker acts as leader."""
        found = self.cluster.partition(broker, self.topic, index)
        return found is not None and found.leader_state is not None

    def log_bytes(self, broker: int, index: int = 0, start: int = 0) -> bytes:
        """The bytes of the broker's replica, from this offset (or the log start) on."""
        log = self.replica(broker, index).log
        start = max(start, log.log_start_offset)
        found: list[bytes] = []
        while start < log.log_end_offset:  # a read ends with its segment
            batches = b"".join(bytes(b) for b in log.read(start, 1 << 30, log.log_end_offset).buffers)
            *_, (_, last) = iter_headers(batches)
            start = last.last_offset + 1
            found.append(batches)
        return b"".join(found)

    def values(self, broker: int, index: int = 0) -> dict[int, bytes]:
        """offset -> value of every record of the broker's replica."""
        return {r.offset: bytes(r.value or b"") for r in iter_records(self.log_bytes(broker, index))}

    def always(self, holds: Callable[[], object], text: str) -> None:
        """Check after every step of the world, from here to the end of the story, that this holds."""

        def check() -> None:
            if not holds():
                self.world.scheduler.fail(Broken(text))

        self.world.scheduler.after_step.append(check)

    # -- logs that a story of a few seconds cannot produce ---------------------------------------------------------------

    async def raise_epoch(self, epoch: int, leader: int, other: int) -> None:
        """Let the two brokers lead in turns until the leader epoch is at least this, `leader` leads, and both are in the ISR."""
        while self.registration().leader_epoch < epoch or self.leader() != leader:
            leading = self.leader()
            following = other if leading == leader else leader
            await self.until(lambda: self.isr() >= {leader, other}, what="both are in the ISR")
            self.crash(leading)
            await self.until(partial(self._is_led_by, following), what=f"broker {following} leads")
            self.start(leading)
        await self.until(lambda: self.isr() >= {leader, other}, what="both are in the ISR")

    def _is_led_by(self, broker: int) -> bool:
        return self.leader() == broker and self.leads(broker)

    async def leaderless(self) -> None:
        """Wait until the partition has no leader."""
        await self.until(lambda: self.leader() == NO_LEADER, what="the partition has no leader")

    async def end_both(self, leader: int, other: int) -> None:
        """Kill both processes. The leader is then the only member of the ISR, so that no other broker will lead."""
        self.crash(other)
        await self.until(lambda: self.isr() == {leader}, what=f"broker {leader} is alone in the ISR")
        self.crash(leader)
        await self.leaderless()

    async def start_both(self, leader: int, other: int, within_s: float = 30.0) -> None:
        """Start both brokers after `end_both`: first the leader, then the other, which must be in the ISR within this time."""
        self.start(leader)
        await self.until(lambda: self.leads(leader), what=f"broker {leader} leads")
        self.start(other)
        await self.until(lambda: self.isr() == {leader, other}, within_s, f"broker {other} is in the ISR")

    def forge(
        self, broker: int, runs: Sequence[tuple[int, int]], *, start: int = 0, high_watermark: int = 0, empty_epoch: int = -1
    ) -> None:
        """Write the log of a broker that is down: `runs` of (leader epoch, number of records), from offset `start` on. The value
        of a record consists of its epoch and offset, so two forged logs agree where their runs agree. `empty_epoch` is an epoch
        that begins at the log end, without records."""
        files = self.cluster.machines[broker].files
        if self.invariants is not None:  # For the invariants, this log has always had this content.
            _forget_records(self.invariants.ghosts.partitions[self.cluster.topic_id(self.topic), 0])
        log = Log.open(
            files,
            f"/data/{self.topic}-0",
            topic=self.topic,
            partition=0,
            topic_id=self.cluster.topic_id(self.topic),
            config=LogConfig(),
            clean_shutdown=False,
            now_ms=self.world.machine.wall_clock_ms(),
        )
        log.truncate_fully_and_start_at(start)
        for epoch, count in runs:
            for _ in range(count):
                offset = log.log_end_offset
                value = b"%d@e%d" % (offset, epoch)
                batch = encode_batch([(None, value, [], 1_700_000_000_000)], base_offset=offset, leader_epoch=epoch)
                log.append_as_follower(bytearray(batch), epoch)
        if empty_epoch >= 0:
            log.assign_epoch_start_offset(empty_epoch, log.log_end_offset)
        if high_watermark:
            log.update_high_watermark(high_watermark)
        log.flush()
        log.save_epochs()
        log.close()
        text = f"0 1 {self.topic} 0 {high_watermark}".replace(" ", "\n", 2) + "\n"
        files.write_atomic("/data/replication-offset-checkpoint", text.encode())

    # -- endings ------------------------------------------------------------------------------------------------------

    async def at_rest(self, brokers: Iterable[int] = (1, 2, 3), index: int = 0, within_s: float = 60.0) -> None:
        """Wait until all these replicas are in the ISR with the same bytes, and check that no acknowledged record is missing."""
        nodes = list(brokers)

        def same() -> bool:
            ends = {(self.end(n, index), self.hw(n, index)) for n in nodes}
            return len(ends) == 1 and all(end == hw and end >= 0 for end, hw in ends) and self.isr(index) >= set(nodes)

        await self.until(same, within_s, f"replicas {nodes} are in step and in the ISR")
        # each replica deletes by age on its own
        start = max(self.replica(n, index).log.log_start_offset for n in nodes)
        logs = {n: self.log_bytes(n, index, start) for n in nodes}
        if self.is_cleaned(index):
            self.must(not (text := cleaned_logs_differ(logs, start)), f"all replicas hold the same records {text}".rstrip())
        else:
            self.must(len(set(logs.values())) == 1, "all replicas hold the same bytes")
        self.must_have_all(nodes[0], index)

    def is_cleaned(self, index: int = 0) -> bool:
        """Whether a cleaner has changed a log of the partition."""
        key = (self.cluster.topic_id(self.topic), index)
        return self.invariants is not None and self.invariants.ghosts.partitions[key].originals is not None

    def must_have_all(self, broker: int, index: int = 0) -> None:
        """Check that every acknowledged record is on this replica, at its offset."""
        held = self.values(broker, index)
        start = self.replica(broker, index).log.log_start_offset
        acked = self.acked.get((self.topic, index), {})
        if self.perturbed and self.may_lose:
            return
        missing = [offset for offset, value in acked.items() if offset >= start and held.get(offset) != value]
        but = f" but those at {missing}" if missing else ""
        self.must(not missing, f"broker {broker} has every record that acks=all acknowledged{but}")

    async def retried(self, attempt: Callable[[], Awaitable[Any]], within_s: float = 30.0) -> Any:
        """Repeat the attempt after retriable errors, as a client does."""
        deadline = self.world.now + within_s
        while True:
            try:
                return await attempt()
            except BrokerError as e:
                if not e.retriable or self.world.now > deadline:
                    raise
                await asyncio.sleep(0.05)


def _forget_records(partition: PartitionGhost) -> None:
    """Let the ghost of the partition keep the elections and drop the records: those in the logs count as original ones."""
    partition.tree, partition.committed, partition.originals = Tree(), Path(), None
    partition.replicas, partition.read, partition.applied, partition.producers = {}, {}, {}, {}
    partition.high_watermark_max = partition.acked_end = partition.read_end = partition.deleted_below = 0
