"""The clients of a run: production producers, consumers and admins on machines of their own, and the history that they write.

Every record has a unique value; a tombstone has none, so it has a unique header instead. A record is *ok* if its receipt contains
its offset, and *unknown* if the receipt fails, or if its process dies first. It has *failed* only if it was rejected before the
producer accepted it.

There is one history, and each send is judged by its promise: with acks=all its record stays, with idempotence it exists once,
with acks=1 and 0 it may be lost until a consumer has read it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from strandline.client import NewTopic, OffsetOutOfRange, TopicPartition
from strandline.client.consumer.partition_state import EARLIEST, LATEST
from strandline.client.errors import CorruptRecords, LogTruncated, RequestFailed, StrandlineError, UnknownTopic
from strandline.controller.metadata.records import LEVEL_MAX
from strandline.protocol.apis import BROKER, CONTROLLER
from strandline.protocol.errors import ErrorCode
from strandline.testing.history import History, Send
from strandline.testing.simulation.cluster import fuzzing_client
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, CONTROLLER_PORT, Client, SimCluster
from strandline.testing.simulation.cluster.config_changes import draw_change
from strandline.testing.simulation.cluster.groups.work import GroupWork
from strandline.testing.simulation.cluster.holder import Holder, Lock
from strandline.testing.simulation.cluster.identities import user_of
from strandline.testing.simulation.cluster.intruder import Intruder
from strandline.testing.simulation.cluster.log_mover import LogMover
from strandline.testing.simulation.cluster.racer import Racer
from strandline.testing.simulation.cluster.reassigner import Reassigner
from strandline.testing.simulation.cluster.transactions.work import TransactionWork
from strandline.testing.simulation.cluster.warden import Warden
from strandline.testing.simulation.invariants import groups
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.kernel.machine import EPOCH_MS
from strandline.testing.simulation.kernel.scheduler import Entry, cancel
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import RECOVER, ConsumerPlan, Options, ProducerPlan, TopicPlan

RETRY_S = 0.2
FINAL_POLL_MS = 500
LIES_AT_ONCE = 5
"""Number of lies between two requests for the facts of the cluster: few, so that most lies come close to the truth."""
LIAR_PATIENCE_S = 0.3
ID_HEADER = "id"
SOON_TRUE = "a topic that exists"
"""This lie may be true, if the topic was deleted meanwhile."""


class Workload:
    def __init__(self, cluster: SimCluster, options: Options, budget: Budget, invariants: Invariants) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.options = options
        self.history = History(clock=self.world.scheduler.clock)
        self.sent = self.acked = self.unknown = 0
        self.problems: list[str] = []
        """Observations that no client may ever make."""
        self.positions: dict[str, dict[tuple[str, int], int]] = {}
        """Running consumer -> (topic, partition) -> the offset after the last record that it has read."""
        self.deleted_below: dict[tuple[str, int], int] = {}
        """(topic, partition) -> the highest low watermark in an answer to a DeleteRecords request."""
        self.reassigner = Reassigner(self.world, options, budget, invariants.ghosts.metadata.targets)
        self.log_mover = LogMover(self.world, options, self.problems)
        self.warden = Warden(cluster, options, self.world.stream("changes of security"), self.restart)
        self.intruder = Intruder(cluster, options, self.problems, self.world.stream("attacks"))
        self.groups = GroupWork(cluster, options, self.problems, lambda: self.going, invariants)
        self.transactions = TransactionWork(
            cluster,
            options,
            self.problems,
            produces=lambda: self.produces,
            going=lambda: self.going,
            started=self._started,
            committed=partial(groups.committed, invariants.ghosts),
        )
        self.produces = True
        self.going = True
        self._works: dict[str, Callable[[Client, str], Any]] = {}
        """Name of a client -> its work."""
        self._crashes: list[Entry] = []
        """Scheduled deaths of clients."""
        self._tasks: dict[str, tuple[Client, asyncio.Task[Any]]] = {}

    # -- life of the clients ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        for number, producer in enumerate(self.options.producers, 1):
            self._begin(f"p{number}", partial(self._produce, plan=producer), producer.crash_at_s)
        for number, consumer in enumerate(self.options.consumers, 1):
            self._begin(f"c{number}", partial(self._consume, plan=consumer), consumer.crash_at_s)
        for number in range(1, self.options.readers + 1):
            self._begin(f"r{number}", self._read_offsets, 0.0)
        for number in range(1, self.options.racers + 1):
            self._begin(f"p-racer{number}", self._race, 0.0)
        if self.options.holders:
            lock = Lock(self.options, self.world.stream("lock"))
            for number in range(1, self.options.holders + 1):
                self._begin(f"p-holder{number}", partial(self._hold, lock=lock), 0.0)
        self._declare_compaction()
        if self.options.lies:
            self._begin("liar", self._lie, 0.0)
        if self.options.admin:
            self._begin("admin", self._administer, 0.0)
        if self.options.trims:
            self._begin("trimmer", self._trim, 0.0)
        if self.options.upgrades:
            self._begin("upgrader", self._upgrade, 0.0)
        if self.options.reconfigures:
            self._begin("reconfigurer", self._reconfigure, 0.0)
        if self.options.reassigns or self.options.drains:
            self._begin("reassigner", partial(self._disturb, by=self.reassigner), 0.0)
        if self.options.moves_logs:
            self._begin("mover", partial(self._disturb, by=self.log_mover), 0.0)
        if self.options.security is not None:
            self._begin("warden", partial(self._disturb, by=self.warden), 0.0)
            self._begin("intruder", self._intrude, 0.0)
        self.groups.begin(self._begin)
        self.transactions.begin(self._begin)

    def _declare_compaction(self) -> None:
        """Pass to the history which partitions are compacted, and for how long they keep tombstones. This time is not exact,
        because clocks run wrong by up to a twentieth, or jump by up to an hour."""
        are_right = "clock_jump" not in self.options.kinds
        for topic in self.options.topics:
            if topic.is_compacted:
                kept_s = 0.0009 * topic.configs["delete.retention.ms"] if are_right else 0.0
                for place in topic.places:
                    self.history.compacted(place, delete_retention_s=kept_s)

    def _begin(self, name: str, work: Callable[[Client, str], Any], crash_at_s: float) -> None:
        client = self.cluster.client(name)
        self._works[name] = work
        task = client.spawn(self._guarded(name, work(client, name)), name)
        self._tasks[name] = (client, task)
        if crash_at_s:
            self._crashes.append(self.world.scheduler.after(crash_at_s, self._crash, name, work))

    def _crash(self, name: str, work: Callable[[Client, str], Any]) -> None:
        """Kill the process with everything in flight; another one replaces it, under another name."""
        if name not in self._tasks:  # it was replaced before
            return
        client, _ = self._tasks.pop(name)
        self.positions.pop(name, None)
        if self.going and client.machine.loop is not None:
            client.machine.crash()
            self._begin(f"{name}'", work, 0.0)

    def restart(self, user: str) -> None:
        """End the process of the client with this user, and start another one."""
        for name in [name for name in self._tasks if user_of(name) == user]:
            self._crash(name, self._works[name])

    async def _guarded(self, name: str, work: Any) -> None:
        try:
            await work
        except StrandlineError as e:
            self.problems.append(f"{name} ended with {type(e).__name__}: {e}")
        except Exception as e:  # else a client with a bug would be missing from the rest of the run, and the run would pass
            self.problems.append(f"{name} ended with a bug: {type(e).__name__}: {e}")
            raise

    async def stop_producing(self, within_s: float) -> None:
        """Send no new records; those in flight are acknowledged or fail."""
        self.warden.is_over = True
        await self._join("warden", within_s)  # it may still replace a client, or give back a right
        self.produces = False
        for crash in self._crashes:
            cancel(crash)
        await self._join("p", within_s)

    async def stop_moving(self, within_s: float) -> None:
        """Stop reassigning, draining, moving and cordoning. Returns when the last request of these kinds was answered, so that
        the caller can undo it."""
        await self._join("reassigner", within_s)
        await self._join("mover", within_s)

    async def stop(self, within_s: float) -> None:
        self.going = False
        await self._join("", within_s)

    async def _join(self, prefix: str, within_s: float) -> None:
        tasks = {name: task for name, (_, task) in self._tasks.items() if name.startswith(prefix)}
        left = list(tasks.values())

        def are_over() -> bool:
            while left and left[-1].done():
                left.pop()
            return not left

        await self.world.until(are_over, within_s, f"the end of {' '.join(tasks)}")

    def behind(self, ends: dict[tuple[str, int], int]) -> list[str]:
        """Consumers that have not read up to these ends. A consumer that has read nothing counts as having begun there."""
        return [
            f"{name} has read {place[0]}-{place[1]} up to {position} of {ends[place]}"
            for name, positions in self.positions.items()
            for place, position in positions.items()
            if position < ends[place]
        ]

    # -- producers ----------------------------------------------------------------------------------------------------

    async def _produce(self, client: Client, name: str, plan: ProducerPlan) -> None:
        draw = self.world.stream(f"producer/{name}")
        producer = await self._started(lambda: client.producer(**plan.options))
        if producer is None:
            return
        number = 0
        settling: dict[asyncio.Task[None], None] = {}
        try:
            while self.produces:
                count = draw.randint(1, plan.burst_max)
                task = asyncio.get_running_loop().create_task(self._burst(producer, name, plan, draw, number, count))
                settling[task] = None
                task.add_done_callback(lambda task: settling.pop(task, None))
                number += count
                await asyncio.sleep(draw.uniform(0, 2 * plan.pause_s))
            for task in list(settling):
                await task
        finally:
            await producer.stop()

    async def _burst(self, producer: Any, name: str, plan: ProducerPlan, draw: Random, first: int, count: int) -> None:
        acks, idempotent = plan.options["acks"], plan.options["acks"] == "all" and plan.options.get("enable_idempotence", True)
        topic = next(t for t in self.options.topics if t.name == plan.topic)
        partitions = topic.partitions
        partition = draw.randrange(partitions)
        under_way = []
        for number in range(first, first + count):
            value = b"%s.%d %s" % (name.encode(), number, b"x" * draw.randint(0, plan.size_max))
            keyed: dict[str, Any] = {}
            if topic.keys:
                keyed = _draw_key(draw, topic)
                value = b"%s/%s" % (keyed["key"], value)
            if draw.random() < 0.2:
                partition = draw.randrange(partitions)
            send = self.history.invoke(name, (plan.topic, partition), value, acks=acks, idempotent=idempotent, **keyed)
            self.sent += 1
            try:
                under_way.append((send, producer.send_nowait(plan.topic, partition=partition, **_record(send))))
            except StrandlineError:
                send.fail()
        for send, receipt in under_way:
            try:
                metadata = await receipt
            except StrandlineError:
                self.unknown += 1
                send.info()
                continue
            self.acked += 1
            send.ok(metadata.offset)

    async def _race(self, client: Client, name: str) -> None:
        await self._work(client, Racer(name, self.history, self.options, self.problems, self.world.stream(name)))

    async def _hold(self, client: Client, name: str, lock: Lock) -> None:
        await self._work(client, Holder(name, lock, self.history, self.options, self.problems, self.world.stream(name)))

    async def _work(self, client: Client, worker: Racer | Holder) -> None:
        producer = await self._started(
            lambda: client.producer(request_timeout_ms=1000, max_block_ms=1000, delivery_timeout_ms=3000)
        )
        if producer is None:
            return
        try:
            await worker.work(producer, lambda: self.produces)
        finally:
            await producer.stop()

    async def _started(self, make: Callable[[], Any], going: Callable[[], bool] | None = None) -> Any:
        """Start a client, again and again until a broker answers. None if the run is over before, or `going` says so."""
        while self.going and (going is None or going()):
            client = make()
            try:
                await client.start()
            except StrandlineError:
                await asyncio.sleep(RETRY_S)
            else:
                return client
        return None

    # -- consumers ----------------------------------------------------------------------------------------------------

    async def _consume(self, client: Client, name: str, plan: ConsumerPlan) -> None:
        consumer = await self._started(lambda: client.consumer(**plan.options))
        if consumer is None:
            return
        try:
            if await self._assigned(consumer, plan):
                self.positions[name] = {}
                while self.going:
                    await self._poll(consumer, name, plan)
        finally:
            await consumer.stop()

    async def _assigned(self, consumer: Any, plan: ConsumerPlan) -> bool:
        if plan.subscribes:
            consumer.subscribe(plan.topic)
            return self.going
        places = next(t.places for t in self.options.topics if t.name == plan.topic)
        while self.going:
            try:
                await consumer.assign(places)
            except StrandlineError:
                await asyncio.sleep(RETRY_S)
            else:
                return True
        return False

    async def _poll(self, consumer: Any, name: str, plan: ConsumerPlan) -> None:
        try:
            began_at = self.world.now
            polled = await consumer.getmany(timeout_ms=plan.poll_ms)
        except (OffsetOutOfRange, LogTruncated, CorruptRecords) as e:
            if not self.options.loss_permitted:
                self.problems.append(f"{name}: {type(e).__name__}: {e}")
            await self._recover(consumer, name, e)
            return
        except UnknownTopic as e:
            self.problems.append(f"{name}: {type(e).__name__}: {e}")
            self.going = False
            return
        except StrandlineError:
            await asyncio.sleep(RETRY_S)
            return
        for place, records in polled.items():
            pairs = [(r.offset, self._value_of(r)) for r in records]
            self.history.poll(name, (place.topic, place.partition), pairs, began_at=began_at)
            self.positions[name][place.topic, place.partition] = pairs[-1][0] + 1
        topic = next(t for t in self.options.topics if t.name == plan.topic)
        if topic.is_compacted or topic.has_retention or self.options.trims:
            await self._look_at_positions(consumer, name)

    async def _look_at_positions(self, consumer: Any, name: str) -> None:
        """Take the positions from the consumer. The last records of a partition may have been removed, so the consumer reaches
        the end of the partition without reading them."""
        for topic, index in self.positions[name]:
            with contextlib.suppress(StrandlineError):  # a leader has not answered where the records begin
                self.positions[name][topic, index] = await consumer.position(TopicPartition(topic, index))

    def _value_of(self, record: Any) -> bytes:
        """The unique value (or header) of the record, which identifies it in the history. If it names another key than that of
        the record, this is a problem."""
        if record.value is not None:
            value = bytes(record.value)
        else:
            value = next((bytes(text) for name, text in record.headers if name == ID_HEADER and text is not None), b"")
        if record.key is not None and not value.startswith(b"%s/" % record.key):
            self.problems.append(f"the record {value[:40]!r} at offset {record.offset} has the key {record.key!r}")
        return value

    async def _recover(self, consumer: Any, name: str, error: StrandlineError) -> None:
        """Handle an error of a consumer, after a pause. If records that it has read were truncated, it returns to the offset at
        which the logs diverge."""
        if isinstance(error, LogTruncated):
            place = TopicPartition(error.topic or "", error.partition or 0)
            self.history.seek(name, (place.topic, place.partition))
            consumer.seek(place, max(0, error.diverging_offset))
        await asyncio.sleep(RETRY_S)

    async def _read_offsets(self, client: Client, name: str) -> None:
        """Record the latest offsets that this client gets: they must never decrease. This is not compared between clients: one
        may ask a leader that was replaced and does not know it, which still answers, with committed records only."""
        consumer = await self._started(client.consumer)
        if consumer is None:
            return
        places = [TopicPartition(*place) for topic in self.options.topics for place in topic.places]
        try:
            while self.going:
                await asyncio.sleep(0.3)
                try:
                    ends = await asyncio.wait_for(consumer.end_offsets(places), 5)
                except (StrandlineError, TimeoutError):
                    continue
                for place, end in ends.items():
                    self.history.latest(name, (place.topic, place.partition), end)
        finally:
            await consumer.stop()

    # -- the administrator --------------------------------------------------------------------------------------------

    async def _administer(self, client: Client, name: str) -> None:
        draw = self.world.stream("admin")
        patience = {"request_timeout_ms": 1000, "max_block_ms": 1000, "connect_timeout_ms": 500}
        admin = await self._started(lambda: client.admin(**patience))
        if admin is None:
            return
        side = SideTopic(self, client, patience)
        try:
            while self.going:
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                what = draw.choice(self.options.admin)
                try:
                    await (side.churn(admin) if what == "churn" else self._ask(admin, what, draw))
                except (StrandlineError, TimeoutError) as e:
                    self.world.trace.emit("client.gave_up", client.machine.id, what=what, reason=str(e))
        finally:
            await admin.stop()

    async def _ask(self, admin: Any, what: str, draw: Random) -> None:
        topic = draw.choice(self.options.topics)
        if what == "min_isr":
            least = draw.randint(1, topic.replication_factor)
            await admin.alter_configs("topic", topic.name, {"min.insync.replicas": least}, timeout_ms=2000)
        elif what == "grow":
            count = next(t.partitions for t in self.options.topics if t.name == topic.name) + draw.randint(1, 2)
            await admin.create_partitions(topic.name, count, timeout_ms=2000)
        elif what == "elect":
            await admin.elect_leaders(timeout_ms=2000)
        elif what == RECOVER:
            await self._recover_partitions(admin, draw)
        else:
            await admin.describe_cluster(timeout_ms=1000)
            await admin.describe_topics([topic.name], timeout_ms=1000)
            await admin.describe_configs("topic", topic.name, timeout_ms=1000)
            await admin.describe_quorum(timeout_ms=1000)

    async def _recover_partitions(self, admin: Any, draw: Random) -> None:
        """Elect leaders uncleanly for the partitions that have none: the best ones, or any replica of one partition."""
        if draw.random() < 0.5:
            await admin.elect_leaders(election="unclean", timeout_ms=2000)
            return
        place = draw.choice([place for topic in self.options.topics for place in topic.places])
        leader = draw.choice(self.cluster.broker_ids)
        await admin.elect_leaders([place], election="unclean", leader=leader, timeout_ms=2000)

    # -- the deleter of records ---------------------------------------------------------------------------------------

    async def _trim(self, client: Client, name: str) -> None:
        """Delete the oldest records of a partition, up to any offset. The deletions are in the trace (`log.start_moved`)."""
        draw = self.world.stream(name)
        admin = await self._started(lambda: client.admin(request_timeout_ms=1000, max_block_ms=1000, connect_timeout_ms=500))
        if admin is None:
            return
        places = [TopicPartition(*place) for topic in self.options.topics for place in topic.places]
        try:
            while self.going:
                await asyncio.sleep(draw.uniform(0.2, 1.5))
                try:
                    await self._trim_once(admin, draw, draw.choice(places))
                except (StrandlineError, TimeoutError) as e:
                    self.world.trace.emit("client.gave_up", client.machine.id, what="trim", reason=str(e))
        finally:
            await admin.stop()

    async def _trim_once(self, admin: Any, draw: Random, place: TopicPartition) -> None:
        starts = await admin.list_offsets({place: EARLIEST}, timeout_ms=1000)
        ends = await admin.list_offsets({place: LATEST}, timeout_ms=1000)
        low, high = (found[place].offset if found.get(place) else 0 for found in (starts, ends))
        offset = draw.choice((-1, draw.randint(low, max(low, high)), draw.randint(low, max(low, high)), high + 1))
        result = (await admin.delete_records({place: offset}, timeout_ms=2000))[place]
        if not result.code:
            known = self.deleted_below.get((place.topic, place.partition), 0)
            self.deleted_below[place.topic, place.partition] = max(known, result.low_watermark)
        if not result.code and result.low_watermark < offset:
            text = f"records of {place.topic}-{place.partition} below {offset} were deleted, but the low watermark is"
            self.problems.append(f"{text} {result.low_watermark}")

    # -- the upgrade --------------------------------------------------------------------------------------------------

    async def _upgrade(self, client: Client, name: str) -> None:
        """Raise the level of the metadata once, in the middle of the faults. While a node is down, the controller refuses it."""
        draw = self.world.stream(name)
        admin = await self._started(lambda: client.admin(request_timeout_ms=3000, max_block_ms=1000, connect_timeout_ms=500))
        if admin is None:
            return
        try:
            while self.going:
                await asyncio.sleep(draw.uniform(0.2, 1.0))
                try:
                    await admin.update_features(LEVEL_MAX, timeout_ms=4000)
                except RequestFailed as e:
                    if e.code != ErrorCode.FEATURE_UPDATE_FAILED:
                        self.problems.append(f"every node supports the level, but its upgrade is refused: {e}")
                        return
                except (StrandlineError, TimeoutError) as e:
                    self.world.trace.emit("client.gave_up", client.machine.id, what="upgrade", reason=str(e))
                else:
                    return
        finally:
            await admin.stop()

    # -- replicas that move -------------------------------------------------------------------------------------------

    async def _disturb(self, client: Client, name: str, by: Reassigner | LogMover | Warden) -> None:
        admin = await self._started(lambda: client.admin(request_timeout_ms=1000, max_block_ms=1000, connect_timeout_ms=500))
        if admin is None:
            return
        try:
            await by.work(client, admin, self.world.stream(name))
        finally:
            await admin.stop()

    def end_disturbances(self) -> None:
        """Begin no more reassignments, moves of logs, attacks, or changes of security, of groups and of their topics."""
        self.reassigner.going = self.log_mover.going = self.warden.going = False
        self.groups.end_disturbances()
        self.transactions.end_disturbances()

    # -- the intruder -------------------------------------------------------------------------------------------------

    async def _intrude(self, client: Client, name: str) -> None:
        await self.intruder.work(client, lambda: self.warden.going)

    # -- the configuration of brokers ---------------------------------------------------------------------------------

    async def _reconfigure(self, client: Client, name: str) -> None:
        """Change dynamic keys of the brokers, for all of them or for one. Every change is valid, so none may be refused."""
        draw = self.world.stream(name)
        admin = await self._started(lambda: client.admin(request_timeout_ms=1000, max_block_ms=1000, connect_timeout_ms=500))
        if admin is None:
            return
        try:
            while self.going:
                await asyncio.sleep(draw.uniform(0.1, 1.0))
                broker, changes = draw_change(draw, self.options.brokers)
                try:
                    await admin.alter_configs("broker", broker, changes, timeout_ms=2000)
                except RequestFailed as e:
                    if e.code == ErrorCode.INVALID_CONFIG:
                        self.problems.append(f"a valid change of the brokers' configuration is refused: {e}")
                    self.world.trace.emit("client.gave_up", client.machine.id, what="reconfigure", reason=str(e))
                except (StrandlineError, TimeoutError) as e:
                    self.world.trace.emit("client.gave_up", client.machine.id, what="reconfigure", reason=str(e))
        finally:
            await admin.stop()

    # -- the liar -----------------------------------------------------------------------------------------------------

    async def _lie(self, client: Client, name: str) -> None:
        """Send requests that no peer may send. It is a problem if one is accepted. A record that it leaves in a log is not in the
        history, so a consumer that reads the record reveals it, too."""
        draw, connect = self.world.stream(name), asyncio.get_running_loop().create_connection
        left = self.options.lies
        while self.going and left > 0:
            await asyncio.sleep(draw.uniform(0.1, 0.6))
            findings = await fuzzing_client.run(
                connect, draw, self._listeners(), lies=LIES_AT_ONCE, pause_s=0.02, now_ms=EPOCH_MS, patience_s=LIAR_PATIENCE_S
            )
            left -= LIES_AT_ONCE
            for accepted in findings.accepted:
                if not accepted.lie.endswith(SOON_TRUE):
                    self.problems.append(
                        f"a malformed or forged request succeeded: {accepted.lie} at {accepted.target}: {accepted.response}"
                    )

    def _listeners(self) -> list[fuzzing_client.Target]:
        machines = self.cluster.machines
        brokers = [fuzzing_client.Target(machines[n].address, BROKER_PORT, BROKER) for n in self.cluster.broker_ids]
        controllers = [
            fuzzing_client.Target(machines[n].address, CONTROLLER_PORT, CONTROLLER) for n in self.cluster.controller_ids
        ]
        return brokers + controllers

    # -- the last read ------------------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Read all records once more, with a new client."""
        client = self.cluster.client("final")
        await client.run(self._read_all(client))
        await client.run(self.transactions.read_all(client))
        client.machine.end()

    async def _read_all(self, client: Client) -> None:
        async with client.consumer(auto_offset_reset="earliest", fetch_max_wait_ms=20) as consumer:
            places = [TopicPartition(*place) for topic in self.options.topics for place in topic.places]
            await consumer.assign(places)
            ends = await consumer.end_offsets(places)
            left = [place for place in places if ends[place] > 0]
            while left:
                for place, records in (await consumer.getmany(timeout_ms=FINAL_POLL_MS)).items():
                    pairs = [(r.offset, self._value_of(r)) for r in records]
                    self.history.poll("final", (place.topic, place.partition), pairs, final=True)
                left = [place for place in left if await consumer.position(place) < ends[place]]


def _draw_key(draw: Random, topic: TopicPlan) -> dict[str, Any]:
    """Key and kind of a record; the small numbers are drawn most often."""
    number = int(topic.keys * draw.random() * draw.random())
    return {"key": b"k%d" % number, "tombstone": draw.random() < topic.tombstones}


def _record(send: Send) -> dict[str, Any]:
    """The record of a send, as arguments of the producer."""
    assert isinstance(send.value, bytes)
    if send.tombstone:
        return {"value": None, "key": send.key, "headers": [(ID_HEADER, send.value)]}
    return {"value": send.value, "key": send.key}


class SideTopic:
    """A topic that is deleted and recreated under one name. Clients must read only the present generation of the topic, so each
    record names its own."""

    NAME = "side"
    RECORDS = 5

    def __init__(self, workload: Workload, client: Client, patience: dict[str, Any]) -> None:
        self.workload = workload
        self.client = client
        self.patience = patience
        self.generation = 0
        self._met: set[bytes] = set()
        """Topic ids of all generations."""

    async def churn(self, admin: Any) -> None:
        """Delete the previous generation of the topic; create, write and read the next one. A `StrandlineError` ends this at
        once."""
        self.generation += 1
        if self.NAME in await admin.list_topics(timeout_ms=2000):
            await admin.delete_topics([self.NAME], timeout_ms=2000)
        replicas = min(self.workload.options.brokers, 3)
        made = await admin.create_topics([NewTopic(self.NAME, partitions=2, replication_factor=replicas)], timeout_ms=2000)
        if made[0].topic_id in self._met:
            return  # a broker with old metadata did not list the topic; after a lost response the retry took it for created
        self._met.add(made[0].topic_id)
        if await self._write(made[0].topic_id):
            await self._read(made[0].topic_id)

    async def _write(self, topic_id: bytes) -> bool:
        """Write the records of this generation. False if a broker with old metadata returned the id of the deleted topic, so that
        records were, or may have been, sent to that one."""
        async with self.client.producer(**self.patience, delivery_timeout_ms=2000) as producer:
            await producer.partitions_for(self.NAME)

            for number in range(self.RECORDS):
                known = {producer.topic_id(self.NAME)}
                receipt = await producer.send_and_wait(self.NAME, b"%d %d" % (self.generation, number), partition=0)
                known.add(producer.topic_id(self.NAME))
                if known != {topic_id}:
                    return False
                if receipt.offset != number:
                    self._problem(f"record {number} is at {receipt.offset}")
        return True

    async def _read(self, topic_id: bytes) -> None:
        """Check the first record. A broker with old metadata may still serve the deleted topic, with the id of that topic."""
        async with self.client.consumer(**self.patience, auto_offset_reset="earliest") as consumer:
            await consumer.assign([(self.NAME, 0)])
            first = await consumer.getone(timeout_ms=2000)
            is_read = consumer.topic_id(TopicPartition(self.NAME, 0)) == topic_id
            if first.value != b"%d 0" % self.generation and is_read:
                self._problem(f"its first record is {first.value!r}")

    def _problem(self, text: str) -> None:
        if not self.workload.options.loss_permitted:
            self.workload.problems.append(f"generation {self.generation} of topic {self.NAME}: {text}")
