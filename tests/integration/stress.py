"""A cluster in one process under random faults, with real clients; run by hand, for as long as one likes:

    python tests/integration/stress.py --seed 1 --seeds 20 --rounds 12

Every option comes from the seed and is printed; the interleaving does not (the sockets are real), so a seed that failed
may have to be run several times. What is judged: the clients' histories, and that at the end all replicas agree in
bytes, epochs, producers and high watermarks, and that nobody waits for anything any more.

The budget (what acks=all with min.insync.replicas = 2 promises to survive): any number of processes that die and keep their
page cache; one power cut between two moments at which every ISR is full, and never of the last member of an ISR. What
else goes wrong is not limited: brokers that hear neither metadata nor controllers for a while, late metadata, lost or late
answers to ISR proposals, late fetch responses, broken connections, elections, reads that are not in the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import re
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import structlog

sys.path.insert(0, str(Path(__file__).parent))

from cluster import CLUSTER_ID, Cluster, wait_until

from strandline.broker.process.server import BrokerServer
from strandline.broker.replication.fetcher_shell import Fetcher
from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.controller.config import ControllerConfig
from strandline.controller.server import ControllerServer
from strandline.protocol import apis
from strandline.protocol.doors import real_doors
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError
from strandline.protocol.records.batch import check_crc, iter_headers
from strandline.storage.disk import ColdRead, DiskError
from strandline.storage.files import MemoryFiles
from strandline.storage.memory.memory_files import MemoryFile
from strandline.testing.history import History, Send, check

BROKERS, REPLICAS, PARTITIONS = 4, 3, 4
HEAL_S = 30
TOPIC = "orders"
random = Random()
"""For the small decisions of the nemesis inside callbacks; set from the seed."""


# -- a disk whose machine may die -------------------------------------------------------------------------------------


class MortalFile(MemoryFile):
    __slots__ = ()

    def pread(self, size: int, position: int, *, may_block: bool = True) -> memoryview:
        files = self._files
        assert isinstance(files, MortalFiles)
        if not may_block and random.random() < files.cold:
            raise ColdRead(files, self.path, size, position)
        return super().pread(size, position, may_block=may_block)


class MortalFiles(MemoryFiles):
    """Threads of a process that died must not write any more: every operation of theirs fails."""

    cold = 0.0

    def __init__(self, random: Random | None = None) -> None:
        super().__init__(random)
        self.lives = threading.local()
        self._lock = threading.Lock()

    def open(self, path: str, *, create: bool) -> MemoryFile:
        file = super().open(path, create=create)
        file.__class__ = MortalFile
        return file

    def exclusive(self) -> Any:
        return self._lock


class Incarnation:
    """One process's view of its machine's files; dead with it."""

    def __init__(self, files: MortalFiles) -> None:
        self._files = files
        self._alive = True

    def die(self) -> None:
        with self._files._lock:  # a checkpoint that a thread is writing is written or not, never half by the dead
            self._alive = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._files, name)
        if not callable(value):
            return value

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            if not self._alive and name not in ("exclusive",):
                raise DiskError(name, "the files of a process that died", errno.EBADF)
            return value(*arguments, **keywords)

        return guarded


# -- a cluster that can be tormented ----------------------------------------------------------------------------------


class StressCluster(Cluster):
    def __init__(self, options: dict[str, Any], seed: int) -> None:
        seeds = Random(seed)
        super().__init__(
            controllers=3, brokers=BROKERS, files=lambda: MortalFiles(Random(seeds.getrandbits(32))), **options["broker"]
        )
        self.options = options
        self.lives: dict[int, Incarnation] = {}
        self.deaf: dict[int, Callable[[], None]] = {}

    async def start(self, node: int) -> None:
        if node > 100:
            config = ControllerConfig.from_mapping(
                {
                    "node.id": node,
                    "cluster.id": CLUSTER_ID,
                    "log.dirs": f"{self.data}/controller-{node}",
                    "controller.quorum.voters": self.voters,
                    "broker.session.timeout.ms": self.options["broker"]["broker_session_timeout_ms"],
                }
            )
            controller = ControllerServer(config, real_doors(), self.files[node])
            await controller.start()
            self.controllers[node] = controller
            return
        files = self.files[node]
        assert isinstance(files, MortalFiles)
        files.cold = self.options["cold"]
        life = self.lives[node] = Incarnation(files)
        broker = BrokerServer(self.broker_config(node), real_doors(), life)  # type: ignore[arg-type]
        torment(broker, self.options)
        await broker.start()
        self.brokers[node], self.ports[node] = broker, broker.port

    async def kill(self, node: int) -> None:
        broker = self.brokers.pop(node)
        self.deaf.pop(node, lambda: None)
        self.lives[node].die()
        connection = self._connections.pop(node, None)
        if connection is not None:
            connection.close()
        try:
            await broker.kill()
        except DiskError:
            pass

    async def stop(self, node: int) -> None:
        hear = self.deaf.pop(node, None)
        if hear is not None:
            hear()
        await super().stop(node)

    def image(self) -> Any:
        """The metadata as the active controller has it."""
        images = [c.controller.image for c in self.controllers.values() if c.controller.active is not None]
        return max(images or [c.controller.image for c in self.controllers.values()], key=lambda image: image.offset)

    def registrations(self, topic_id: bytes) -> list[Any]:
        image = self.image()
        found = [image.partition((topic_id, p)) for p in range(PARTITIONS)]
        return [r for r in found if r is not None]


def torment(broker: BrokerServer, options: dict[str, Any]) -> None:
    """Late metadata, and answers to ISR proposals that are late or lost."""
    publish, lag_s = broker.metadata._publish, options["metadata_lag_s"]
    waiting: list[Any] = []

    def release() -> None:
        publish(waiting.pop(0))

    def publish_later(delta: Any) -> None:
        if lag_s == 0 or delta.before.offset < 0:
            publish(delta)
            return
        loop = asyncio.get_running_loop()
        due = max(loop.time() + random.uniform(0, lag_s), getattr(broker, "_due", 0.0))
        broker._due = due  # type: ignore[attr-defined]
        waiting.append(delta)
        loop.call_at(due, release)

    broker.metadata._publish = publish_later  # type: ignore[method-assign]
    ask, unsure = broker.channel.request, options["alter_partition_lost"]

    async def request(api_key: int, body: Any, timeout_ms: int) -> Any:
        answer = await ask(api_key, body, timeout_ms)
        if api_key == apis.ALTER_PARTITION and random.random() < unsure:
            await asyncio.sleep(random.uniform(0, 0.3))
            if random.random() < 0.5:
                raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        return answer

    broker.channel.request = request  # type: ignore[method-assign]


@contextmanager
def late_fetch_responses(lag_s: float) -> Iterator[None]:
    original = Fetcher._on_response

    def on_response(self: Fetcher, plan: Any, response: Any) -> None:
        loop, now = self._loop, self._loop.time()
        due = max(getattr(self.core, "_due", 0.0), now + random.uniform(0, lag_s) * (random.random() < 0.3))
        self.core._due = due  # type: ignore[attr-defined]
        loop.call_at(due, original, self, plan, response)

    if lag_s:
        Fetcher._on_response = on_response  # type: ignore[method-assign]
    try:
        yield
    finally:
        Fetcher._on_response = original  # type: ignore[method-assign]


def make_deaf(cluster: StressCluster, node: int) -> None:
    """No metadata comes in and no heartbeat goes out: the controller fences it, and it does not know."""
    broker = cluster.brokers[node]
    publish, beat = broker.metadata._publish, broker.lifecycle._beat
    held: list[Any] = []
    open_again = asyncio.Event()

    async def no_beat() -> None:
        await open_again.wait()
        await beat()

    def hear() -> None:
        broker.metadata._publish = publish  # type: ignore[method-assign]
        broker.lifecycle._beat = beat  # type: ignore[method-assign]
        for delta in held:
            publish(delta)
        open_again.set()

    broker.metadata._publish = held.append  # type: ignore[method-assign]
    broker.lifecycle._beat = no_beat  # type: ignore[method-assign]
    cluster.deaf[node] = hear


# -- the load ---------------------------------------------------------------------------------------------------------


class Load:
    def __init__(self, cluster: StressCluster, options: dict[str, Any]) -> None:
        self.cluster, self.options = cluster, options
        self.history = History()
        self.going = True
        self.acked = self.given_up = self.number = self.no_offset = 0
        self.problems: list[str] = []
        self.settling: set[asyncio.Task[None]] = set()
        self.tasks: list[asyncio.Task[None]] = []

    @property
    def bootstrap(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.cluster.ports.values()]

    def begin(self) -> None:
        run = asyncio.get_running_loop().create_task
        self.tasks = [run(self.guarded(self.produce(f"p{n}", n))) for n in range(self.options["producers"])]
        self.tasks += [run(self.guarded(self.follow("tail")))]

    async def guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception as e:
            self.problems.append(f"a client broke: {e!r}")
            structlog.get_logger().exception("client.broke")

    async def end(self) -> None:
        self.going = False
        await asyncio.gather(*self.tasks)
        await asyncio.gather(*self.settling)

    async def produce(self, name: str, seed: int) -> None:
        draw = Random(seed)
        async with Producer(bootstrap_servers=self.bootstrap, acks="all", **self.options["producer"]) as producer:
            while self.going:
                for _ in range(draw.choice((1, 1, 5, 40))):
                    value = b"%s %d %s" % (name.encode(), self.number, b"x" * draw.choice((0, 10, 400)))
                    self.number += 1
                    partition = draw.randrange(PARTITIONS)
                    try:
                        receipt = producer.send_nowait(TOPIC, value, partition=partition)
                    except StrandlineError:
                        break
                    send = self.history.invoke(name, partition, value)
                    task = asyncio.get_running_loop().create_task(self.settle(send, receipt))
                    self.settling.add(task)
                    task.add_done_callback(self.settling.discard)
                await asyncio.sleep(draw.choice((0, 0.002, 0.01)))

    async def settle(self, send: Send, receipt: Awaitable[Any]) -> None:
        try:
            metadata = await receipt
        except StrandlineError:
            self.given_up += 1
            send.info()
            return
        if metadata.offset < 0:
            self.no_offset += 1
            send.info()
            return
        self.acked += 1
        send.ok(metadata.offset)

    def consumer(self) -> Consumer:
        return Consumer(bootstrap_servers=self.bootstrap, auto_offset_reset="error", request_timeout_ms=2000)

    async def follow(self, name: str) -> None:
        async with self.consumer() as consumer:
            await consumer.assign([(TOPIC, p) for p in range(PARTITIONS)])
            for p in range(PARTITIONS):
                consumer.seek((TOPIC, p), 0)
            while self.going:
                for place, records in (await consumer.getmany(timeout_ms=100)).items():
                    self.history.poll(name, place.partition, [(r.offset, bytes(r.value or b"")) for r in records])

    async def read_all(self) -> None:
        async with self.consumer() as consumer:
            places = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
            await consumer.assign(places)
            for place in places:
                consumer.seek(place, 0)
            ends = await consumer.end_offsets(places)
            left = {place for place, end in ends.items() if end > 0}
            async with asyncio.timeout(30):
                while left:
                    for place, records in (await consumer.getmany(timeout_ms=500)).items():
                        pairs = [(r.offset, bytes(r.value or b"")) for r in records]
                        self.history.poll("final", place.partition, pairs, final=True)
                        if records[-1].offset + 1 >= ends[place]:
                            left.discard(place)


# -- the nemesis ------------------------------------------------------------------------------------------------------


class Nemesis:
    def __init__(self, cluster: StressCluster, topic_id: bytes, draw: Random) -> None:
        self.cluster, self.topic_id, self.draw = cluster, topic_id, draw
        self.down: list[int] = []
        self.cut_since_full = False
        self.events: list[str] = []
        self.problems: list[str] = []
        self.churned = 0

    def say(self, text: str) -> None:
        self.events.append(text)

    def isrs_are_full(self) -> bool:
        registrations = self.cluster.registrations(self.topic_id)
        return len(registrations) == PARTITIONS and all(len(r.isr) == REPLICAS for r in registrations)

    def may_lose_power(self, node: int) -> bool:
        if self.cut_since_full and not self.isrs_are_full():
            return False
        others = [set(r.isr) - {node} for r in self.cluster.registrations(self.topic_id) if node in r.replicas]
        # Who is deaf may be fenced before the controller notices the crash: then the broken one is the last of the ISR.
        return all(any(member in self.cluster.brokers and member not in self.cluster.deaf for member in isr) for isr in others)

    async def one(self) -> None:
        draw, cluster = self.draw, self.cluster
        often = ["crash", "power", "deaf"]
        kind = draw.choice([*often, *often, "stop", "controller", "connections", "fetchers", "elect", "start", "disk", "churn"])
        up = sorted(cluster.brokers)
        if kind == "start" or (len(self.down) >= 2 and kind in ("crash", "power", "stop")):
            await self.restart_one()
        elif kind in ("crash", "power"):
            await self.crash(draw.choice(up), kind == "power")
        elif kind == "stop":
            node = draw.choice(up)
            self.say(f"stop {node}")
            await cluster.stop(node)
            self.down.append(node)
        elif kind == "controller":
            node = draw.choice(sorted(cluster.controllers))
            self.say(f"controller {node}")
            await cluster.stop(node)
            await asyncio.sleep(draw.uniform(0, 0.3))
            await cluster.start(node)
        elif kind == "deaf":
            await self.deafen(draw.choice(up))
        elif kind == "connections":
            node = draw.choice(up)
            self.say(f"connections of {node}")
            for server in cluster.brokers[node]._servers:
                for connection in list(server.connections.values()):
                    connection.close()
        elif kind == "fetchers":
            node = draw.choice(up)
            self.say(f"fetchers of {node}")
            for fetcher in list(cluster.brokers[node].fetchers._fetchers.values()):
                if fetcher._connection is not None:
                    fetcher._connection.close()
        elif kind == "elect":
            await self.elect()
        elif kind == "disk" and len(self.down) < 2:
            await self.break_disk(draw.choice(up))
        elif kind == "churn":
            await self.churn()

    async def elect(self) -> None:
        self.say("elect")
        bootstrap = [f"127.0.0.1:{self.cluster.ports[node]}" for node in self.cluster.brokers]
        try:
            async with Admin(bootstrap_servers=bootstrap, request_timeout_ms=1000) as admin:
                await admin.elect_leaders()
        except StrandlineError:
            pass

    async def break_disk(self, node: int) -> None:
        """The disk fails once; the broker says that it can not go on, and is started anew."""
        operation, error = self.draw.choice(
            [("write", errno.ENOSPC), ("write", errno.EIO), ("fsync", errno.EIO), ("read", errno.EIO)]
        )
        pattern = self.draw.choice(["*.log", "*checkpoint*", "*"])
        self.say(f"disk of {node}: {operation} {pattern}")
        broker, files = self.cluster.brokers[node], self.cluster.files[node]
        assert isinstance(files, MemoryFiles)
        files.fail_next(operation, pattern, error)
        try:
            await wait_until(broker.failure.done, 3)
        except AssertionError:
            if files._faults:
                files._faults.clear()  # nobody did that
                return
            await wait_until(broker.failure.done, 3, "a broker whose disk failed says so")
        await self.crash(node, False)

    async def churn(self) -> None:
        """A topic that comes and goes under one name: what is read is always its present self."""
        self.say("churn")
        self.churned += 1
        bootstrap = [f"127.0.0.1:{self.cluster.ports[node]}" for node in self.cluster.brokers]
        patience = {"bootstrap_servers": bootstrap, "request_timeout_ms": 1000, "max_block_ms": 2000}
        try:
            async with Admin(**patience) as admin, Producer(**patience, delivery_timeout_ms=2000) as producer:
                if "side" in await admin.list_topics(timeout_ms=2000):
                    await admin.delete_topics(["side"], timeout_ms=2000)
                await admin.create_topics([NewTopic("side", partitions=2, replication_factor=3)], timeout_ms=2000)
                for number in range(5):
                    receipt = await producer.send_and_wait("side", b"%d %d" % (self.churned, number), partition=0)
                    if receipt.offset != number:
                        self.problems.append(f"record {number} of the new side topic is at {receipt.offset}")
                async with Consumer(**patience, auto_offset_reset="earliest") as consumer:
                    await consumer.assign([("side", 0)])
                    first = await consumer.getone(timeout_ms=2000)
                    if not first.value.startswith(b"%d " % self.churned):
                        self.problems.append(f"the new side topic holds {first.value!r}")
        except (StrandlineError, TimeoutError):
            pass

    async def crash(self, node: int, power: bool) -> None:
        cluster = self.cluster
        await cluster.kill(node)
        await asyncio.sleep(0.02)
        lossy = power and self.may_lose_power(node)
        self.cut_since_full |= lossy
        self.say(f"{'power' if lossy else 'crash'} {node}")
        files = cluster.files[node]
        assert isinstance(files, MemoryFiles)
        files.crash(lossy=lossy)
        self.down.append(node)
        if self.draw.random() < 0.5:
            await asyncio.sleep(self.draw.uniform(0, 0.2))
            await self.restart_one(node)

    async def restart_one(self, node: int | None = None) -> None:
        if not self.down:
            return
        node = node if node in self.down else self.down[0]
        assert node is not None
        self.say(f"start {node}")
        self.down.remove(node)
        await self.cluster.start(node)

    async def deafen(self, node: int) -> None:
        cluster = self.cluster
        if node in cluster.deaf:
            cluster.deaf.pop(node)()
            self.say(f"hear {node}")
        elif len(cluster.deaf) + len(self.down) < 2:
            make_deaf(cluster, node)
            self.say(f"deaf {node}")

    async def heal(self) -> None:
        for node in list(self.cluster.deaf):
            self.cluster.deaf.pop(node)()
        while self.down:
            await self.restart_one()
        await self.cluster.ready()


# -- one run ----------------------------------------------------------------------------------------------------------


def draw_options(seed: int) -> dict[str, Any]:
    draw = Random(seed)
    pick = draw.choice
    return {
        "broker": {
            "broker_session_timeout_ms": pick((500, 1000)),
            "broker_heartbeat_interval_ms": 100,
            "replica_lag_time_max_ms": pick((1000, 3000)),
            "replica_fetch_max_bytes": pick((5000, 1 << 20)),
            "replica_fetch_wait_max_ms": pick((50, 400)),
            "num_replica_fetchers": pick((1, 2)),
            "replica_high_watermark_checkpoint_interval_ms": pick((30, 300, 5000)),
            "log_flush_offset_checkpoint_interval_ms": pick((30, 300, 60000)),
            "max_incremental_fetch_session_cache_slots": pick((1, 4, 1000)),
            "controlled_shutdown_timeout_ms": 2000,
        },
        "topic": {
            "min_insync_replicas": "2",
            "segment_bytes": pick(("20000", "60000", "1000000")),
            "index_interval_bytes": pick(("0", "100", "4096")),
            "flush_messages": pick(("1", "50", str(2**63 - 1), str(2**63 - 1))),
        },
        "producer": {
            "linger_ms": pick((0, 0, 5)),
            "batch_size": pick((200, 2000, 16384)),
            "request_timeout_ms": pick((200, 1000, 10000)),
            "delivery_timeout_ms": pick((700, 3000, 60000)),
            "retry_backoff_ms": pick((10, 100)),
        },
        "producers": pick((1, 3)),
        "cold": pick((0.0, 0.0, 0.3)),
        "metadata_lag_s": pick((0.0, 0.02, 0.3)),
        "alter_partition_lost": pick((0.0, 0.3)),
        "fetch_lag_s": pick((0.0, 0.01, 0.1)),
    }


async def run(seed: int, rounds: int, say: Callable[[str], None]) -> list[str]:
    random.seed(seed)
    options, draw = draw_options(seed), Random(seed + 1)
    say(f"seed {seed}: {options}")
    async with StressCluster(options, seed) as cluster:
        topic = await cluster.create_topic(TOPIC, partitions=PARTITIONS, replication=REPLICAS, **options["topic"])
        load, nemesis = Load(cluster, options), Nemesis(cluster, topic.topic_id, draw)
        load.begin()
        try:
            for _ in range(rounds):
                await asyncio.sleep(draw.choice((0, 0.02, 0.1, 0.4, 1.0)))
                async with asyncio.timeout(HEAL_S):
                    await nemesis.one()
                if draw.random() < 0.25:
                    async with asyncio.timeout(HEAL_S):
                        await nemesis.heal()
                    await wait_until(nemesis.isrs_are_full, HEAL_S, "every ISR is full again")
                    nemesis.cut_since_full = False
            async with asyncio.timeout(HEAL_S):
                await nemesis.heal()
            await wait_until(nemesis.isrs_are_full, HEAL_S, "every ISR is full again")
            before = load.acked
            await wait_until(lambda: load.acked > before, HEAL_S, "records are acknowledged again")
            async with asyncio.timeout(HEAL_S + options["producer"]["delivery_timeout_ms"] / 1000):
                await load.end()
            await load.read_all()
            problems = load.problems + nemesis.problems + await judge(cluster, topic.topic_id)
        except (AssertionError, TimeoutError, StrandlineError) as e:
            load.going = False
            for task in load.tasks:
                task.cancel()
            where = traceback.format_exc().splitlines()[-40:]
            return [f"{e!r}", f"events: {nemesis.events}", *where, *tasks(), *state_of(cluster, topic.topic_id)]
        verdict = check(load.history)
        if load.no_offset:
            problems.append(f"{load.no_offset} records were acknowledged without an offset")
        say(f"  {verdict}; given up {load.given_up}; {len(nemesis.events)} events")
        if not verdict.good:
            problems.append(str(verdict))
        if problems:
            problems.append(f"events: {nemesis.events}")
        return problems


def tasks() -> list[str]:
    """What everybody waits for."""
    frames = [(task.get_name(), task.get_stack(limit=1)) for task in asyncio.all_tasks()]
    return [f"task {name}: {stack[0].f_code.co_qualname} line {stack[0].f_lineno}" for name, stack in frames if stack]


def state_of(cluster: StressCluster, topic_id: bytes) -> list[str]:
    lines = [f"controller: {r}" for r in cluster.registrations(topic_id)]
    for node, broker in sorted(cluster.brokers.items()):
        for _, p in sorted(broker.replicas.partitions.items()):
            lead = p.leader_state
            replicas = {} if lead is None else {b: (r.log_end_offset, r.broker_epoch) for b, r in lead.replicas.items()}
            lines.append(f"{node}: {p!r} {p.log!r} epochs {p.log.epochs.entries[-4:]} isr {lead and lead.isr} {replicas}")
    return lines


def whole_log(log: Any) -> bytes:
    """All its bytes, however it was cut into segments."""
    offset, parts = log.log_start_offset, []
    while offset < log.log_end_offset:
        buffers = log.read(offset, 1 << 30, log.log_end_offset).buffers
        parts += [bytes(buffer) for buffer in buffers]
        offset = [header.next_offset for buffer in buffers for _, header in iter_headers(buffer)][-1]
    return b"".join(parts)


def describe(log: Any) -> str:
    """Where its segments lie, and what the disk holds at the damage."""
    text = f"{log!r} recovery point {log.recovery_point} corrupt at {log.corrupt_at} epochs {log.epochs.entries}"
    if log.corrupt_at is None:
        return text
    segment = log.segments[log.segment_for(log.corrupt_at)]
    data = bytes(segment.file.pread(segment.size, 0))
    durable = bytes(log.files._inode("look", segment.file.path).durable)
    at, good = 0, []
    while at + 61 <= len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        if not 61 <= size <= len(data) - at or not check_crc(data, at, size):
            break
        good.append((int.from_bytes(data[at : at + 8], "big"), at, size))
        at += size
    return (
        f"{text}; segment {segment.base_offset} of {[s.base_offset for s in log.segments][-5:]} size {segment.size} file"
        f" {len(data)} durable {len(durable)} same {data == durable}; last good {good[-2:]}, then at {at}: {data[at : at + 90]!r}"
    )


async def judge(cluster: StressCluster, topic_id: bytes) -> list[str]:
    """Do all replicas agree, and does nobody wait?"""
    problems = []
    for p, registration in enumerate(cluster.registrations(topic_id)):
        nodes = list(registration.replicas)
        logs = [cluster.brokers[n].replicas.partitions[topic_id, p].log for n in nodes]

        def in_step(logs: list[Any] = logs) -> bool:
            ends = {(log.log_end_offset, log.high_watermark) for log in logs}
            return len(ends) == 1 and len(set(ends.pop())) == 1

        await wait_until(in_step, HEAL_S, f"the replicas of partition {p} are in step")
        try:
            if len({whole_log(log) for log in logs}) > 1:
                problems.append(f"partition {p}: the replicas differ")
        except BrokerError as e:
            problems += [f"partition {p}: {e}", *(f"{n}: {describe(log)}" for n, log in zip(nodes, logs, strict=True))]
        problems += [f"partition {p}: producers differ" for log in logs[1:] if log.producers != logs[0].producers]
        for log in logs:
            epochs = [e for e, _ in log.epochs.entries]
            starts = [s for _, s in log.epochs.entries]
            if epochs != sorted(set(epochs)) or starts != sorted(starts):
                problems.append(f"partition {p}: epochs {log.epochs.entries}")
            if not log.log_start_offset <= log.high_watermark <= log.log_end_offset or log.recovery_point > log.log_end_offset:
                problems.append(f"partition {p}: {log}")
        leader = cluster.brokers[registration.leader].replicas.partitions[topic_id, p]
        if len(leader.waiters):
            problems.append(f"partition {p}: {len(leader.waiters)} still wait")
    for node, broker in cluster.brokers.items():
        known = {
            f"{t.name}-{i}"
            for t in broker.metadata.image.topics_by_id.values()
            for i, p in t.partitions.items()
            if node in p.replicas
        }
        found = {name for name in broker._files.list(f"/data/broker-{node}") if re.fullmatch(r"[a-z]+-\d+", name)}
        if found != known or len(broker.replicas.partitions) != len(known):
            problems.append(f"broker {node} holds {sorted(found)}, the cluster gave it {sorted(known)}")

        def nobody_waits_but_sessions(replicas: Any = broker.replicas) -> bool:
            parked = sum(session.parked is not None for session in replicas.sessions._sessions.values())
            return len(replicas.purgatory) <= parked

        if cluster.options["broker"]["max_incremental_fetch_session_cache_slots"] == 1000:  # else some have no session
            await wait_until(nobody_waits_but_sessions, 5, f"at broker {node} only fetches of sessions wait")
    return problems


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many, from the first on")
    parser.add_argument("--rounds", type=int, default=12, help="faults per seed")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args(arguments)
    bad = []
    for seed in range(options.seed, options.seed + options.seeds):
        log: list[dict[str, Any]] = []

        def keep(_logger: Any, level: str, event: dict[str, Any], log: list[dict[str, Any]] = log) -> dict[str, Any]:
            log.append({**event, "log_level": level, "at": time.monotonic()})
            raise structlog.DropEvent

        structlog.configure(processors=[structlog.processors.format_exc_info, keep], cache_logger_on_first_use=False)
        problems = asyncio.run(run(seed, options.rounds, lambda text: print(text, flush=True)))
        problems += [f"logged: {e['event']} {e['exception'][-1500:]}" for e in log if e.get("exception")]
        if problems:
            bad.append(seed)
            print(f"seed {seed} FAILED", *problems, sep="\n  ", flush=True)
            if options.verbose:
                for e in log:
                    print("   ", {k: v for k, v in e.items() if k != "exception"}, flush=True)
    print(f"{options.seeds} seeds, failed: {bad or 'none'}")
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
