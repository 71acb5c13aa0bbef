"""`Cluster`: a whole cluster for a test. Nodes, faults, waits and oracles.

    async with Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders")
        async with cluster.producer() as producer:
            await producer.send_and_wait("orders", b"1")
            await cluster.kill(await cluster.leader_of("orders"))
            await producer.send_and_wait("orders", b"2")
        await cluster.assert_no_acked_loss()

All of it runs in the test's own process and event loop: the brokers and controllers are the production classes, on real
sockets, with files in memory or on the disk. With `processes=True` each node is a process of its own; then a SIGKILL is a
real one, and what is done to the network and the disks is out of reach (`nodes.py`).

Brokers are numbered from 1, controllers from 101.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from strandline.client import Admin, ConsumerRecord, NewTopic
from strandline.local_cluster import settings_by_role
from strandline.protocol.errors import UsageError
from strandline.storage.files import Files, MemoryFiles, RealFiles
from strandline.testing.history import EVERY_ACK, Acks, History, Verdict
from strandline.testing.kit import oracles
from strandline.testing.kit.conditions import BROKER, Condition, caught_up, controller, epoch, leader
from strandline.testing.kit.disks import Disk
from strandline.testing.kit.hosted import FAST_SETTINGS, HostedNodes
from strandline.testing.kit.network import CLIENT, DELAY, DROP, RESPONSE, Rule
from strandline.testing.kit.nodes import KitError, Nodes
from strandline.testing.kit.recording import RecordingConsumer, RecordingProducer, namer
from strandline.testing.kit.report import report
from strandline.testing.kit.spawned import FAST_PROCESSES, SpawnedNodes
from strandline.testing.kit.view import NodeView, PartitionView
from strandline.testing.kit.waiting import until

if TYPE_CHECKING:
    from strandline.testing.kit.threaded import ThreadedCluster

WITHIN_S = 10.0
CLIENTS: Literal["clients"] = "clients"


class Cluster:
    """`settings` are configuration keys, with `_` for `.`: `replica_lag_time_max_ms=500`."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 1,
        files: Literal["memory", "disk"] = "memory",
        processes: bool = False,
        folder: str | Path | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> None:
        """`folder`: where files lie, if not in memory; without it in one that goes with the cluster. `seed`: of what is drawn
        here (whom `drop` hits); the order of things in a real event loop it does not settle."""
        if brokers < 1 or controllers not in (1, 3, 5):
            raise UsageError("a cluster has at least one broker, and 1, 3 or 5 controllers")
        if files not in ("memory", "disk"):
            raise UsageError(f'files is "memory" or "disk", not {files!r}')
        self.seed = secrets.randbelow(1 << 32) if seed is None else seed
        self.history = History()
        """What the clients of `producer()` and `consumer()` did and saw, unless they were given another one."""
        self._nodes: Nodes | None = None
        self._brokers, self._controllers = brokers, controllers
        self._on_disk, self._processes = files == "disk" or processes, processes
        self._folder = None if folder is None else Path(folder)
        self._temporary: Path | None = None
        self._settings = self._all_settings(settings)
        """By their dotted names."""
        self._name = namer()

    def _all_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        replicas = min(3, self._brokers)
        defaults = {"default.replication.factor": replicas, "min.insync.replicas": max(1, replicas - 1)}
        fast = FAST_PROCESSES if self._processes else FAST_SETTINGS
        named = {name.replace("_", "."): value for name, value in given.items()}
        settings = {"http.listener": "", **fast, **defaults, **named}
        settings_by_role(settings)  # What is wrong with them is said at once.
        return settings

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, *nodes: int, wait: bool = True, within_s: float = WITHIN_S) -> None:
        """Start these nodes, on the disks that they had; without any, the cluster, or in one that runs all that are down.
        Returns when they take part, unless it is told not to `wait`: every broker sees every other one, and there is an
        active controller."""
        if self._nodes is None:
            await self._start_all()
            return
        chosen = nodes or tuple(view.id for view in self._nodes.views if not view.is_up)
        for node in chosen:
            await self._nodes.start(node)
        if wait:
            await self._until_ready(chosen, within_s)

    async def _start_all(self) -> None:
        self._nodes = self._spawned() if self._processes else self._hosted()
        try:
            await self._nodes.start_all()
        except BaseException:
            await self.close()
            raise

    def _hosted(self) -> Nodes:
        files: Callable[[], Files] = RealFiles if self._on_disk else MemoryFiles
        return HostedNodes(
            brokers=self._brokers,
            controllers=self._controllers,
            files=files,
            folder=str(self._data_folder()) if self._on_disk else "/data",
            random=random.Random(self.seed),
            settings=settings_by_role(self._settings),
        )

    def _spawned(self) -> Nodes:
        folder = self._data_folder()
        return SpawnedNodes(folder, brokers=self._brokers, controllers=self._controllers, settings=self._settings)

    def _data_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._temporary = Path(tempfile.mkdtemp(prefix="strandline-"))
        return self._folder

    async def close(self) -> None:
        """Everything ends at once, as if it were killed; a second call does nothing."""
        nodes, self._nodes = self._nodes, None
        try:
            if nodes is not None:
                await nodes.close()
        finally:
            temporary, self._temporary = self._temporary, None
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(e, Exception) and self._nodes is not None:
            e.add_note(self.report())
        await self.close()

    @staticmethod
    def running_in_thread(**options: Any) -> AbstractContextManager[ThreadedCluster]:
        """For tests without asyncio: the cluster in an event loop on a thread of its own, and plain calls to it."""
        from strandline.testing.kit.threaded import running_in_thread

        return running_in_thread(lambda: Cluster(**options))

    @property
    def nodes(self) -> Nodes:
        """The nodes themselves, for who wants to look inside."""
        if self._nodes is None:
            raise UsageError("the cluster does not run: `async with Cluster()`, or the fixture `cluster`")
        return self._nodes

    # -- clients ------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """For any client, "host:port,host:port"."""
        return self.nodes.bootstrap

    @property
    def brokers(self) -> list[int]:
        return list(self.nodes.broker_ids)

    @property
    def controllers(self) -> list[int]:
        return list(self.nodes.controller_ids)

    def producer(self, *, history: History | None = None, **options: Any) -> RecordingProducer:
        """A `Producer` of this cluster that writes down what it does, in `history`; the rest are its own options."""
        name = self._name("producer")
        return RecordingProducer(
            self.history if history is None else history, name, **{"bootstrap_servers": self.bootstrap_servers, **options}
        )

    def consumer(self, *topics: str, history: History | None = None, **options: Any) -> RecordingConsumer:
        """A `Consumer` of this cluster, from the beginning unless it is told otherwise, that writes down what it reads."""
        defaults = {"bootstrap_servers": self.bootstrap_servers, "auto_offset_reset": "earliest"}
        name = self._name("consumer")
        return RecordingConsumer(self.history if history is None else history, name, *topics, **{**defaults, **options})

    def admin(self, **options: Any) -> Admin:
        return Admin(**{"bootstrap_servers": self.bootstrap_servers, **options})

    async def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        replicas: Sequence[Sequence[int]] | None = None,
        **configs: Any,
    ) -> str:
        """A topic, by default with a name of its own and three replicas, and its name. `replicas`: of each partition, the
        preferred leader first. `configs` with `_` for `.`: `min_insync_replicas=1`."""
        name = self._name("topic") if name is None else name
        assignment = None if replicas is None else dict(enumerate(replicas))
        named = {key.replace("_", "."): value for key, value in configs.items()}
        count, factor = (-1, -1) if replicas is not None else (partitions, replication_factor)
        async with self.admin() as admin:
            await admin.create_topics([NewTopic(name, count, factor, named or None, assignment)])
        return name

    # -- who is who ---------------------------------------------------------------------------------------------------

    async def describe(self, topic: str, partition: int = 0) -> PartitionView:
        """The partition as it is now: leader, leader epoch, ISR, high watermark, log ends."""
        found = (await self.nodes.look([(topic, partition)])).partition(topic, partition)
        if found is None:
            raise UsageError(f"there is no partition {topic}-{partition}")
        return found

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        """The broker that leads the partition; waits for one if nobody does at present."""
        await self.until(leader(topic, partition) >= 0)
        found = (await self.describe(topic, partition)).leader
        return -1 if found is None else found

    async def followers_of(self, topic: str, partition: int = 0) -> list[int]:
        """The other replicas, in their order of preference."""
        view = await self.describe(topic, partition)
        return [replica for replica in view.replicas if replica != view.leader]

    async def active_controller(self) -> int:
        await self.until(controller() >= 0)
        return (await self.nodes.look()).controller() or -1

    def node(self, node: int) -> NodeView:
        """Its name and state."""
        return self.nodes.node(node)

    # -- nodes that fail ----------------------------------------------------------------------------------------------

    async def kill(self, *nodes: int) -> None:
        """As `kill -9`: connections break, nothing is handed over or written any more."""
        for node in self._named(nodes, "kill"):
            await self.nodes.kill(node)

    async def stop(self, *nodes: int) -> None:
        """As SIGTERM: leaders are handed over, files are closed in order. Without any named, all nodes, brokers first."""
        up = (node for node in (*self.nodes.broker_ids, *self.nodes.controller_ids) if self.node(node).is_up)
        for node in nodes or tuple(up):
            await self.nodes.stop(node)

    async def restart(self, *nodes: int, hard: bool = False, within_s: float = WITHIN_S) -> None:
        """Stop, or kill if `hard`, what runs, and start it: one node after the other, as in an upgrade."""
        for node in self._named(nodes, "restart"):
            if self.node(node).is_up:
                await (self.kill(node) if hard else self.stop(node))
            await self.start(node, within_s=within_s)

    async def pause(self, *nodes: int) -> None:
        """As SIGSTOP: it keeps its connections and does nothing."""
        for node in self._named(nodes, "pause"):
            await self.nodes.pause(node)

    async def resume(self, *nodes: int) -> None:
        for node in self._named(nodes, "resume"):
            await self.nodes.resume(node)

    def _named(self, nodes: tuple[int, ...], do: str) -> tuple[int, ...]:
        """A fault on no node would be none, and a test that relies on it green."""
        if not nodes:
            raise UsageError(f"{do} which node? cluster.{do}(1), or cluster.{do}(*cluster.brokers) for all brokers")
        return nodes

    async def _until_ready(self, nodes: Iterable[int], within_s: float) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + within_s
        for node in nodes:
            while not await self.nodes.is_ready(node):
                view = self.node(node)
                if not view.is_up:
                    raise KitError(f"{view.name} {view.state}{f': {view.note}' if view.note else ''}")
                if now() >= deadline:
                    raise KitError(f"{view.name} did not take part within {within_s:g} s")
                await asyncio.sleep(self.nodes.poll_s)

    async def force_election(self, topic: str, partition: int = 0, leader: int | None = None) -> int:
        """A new leader epoch, led by `leader`, who has to be in the ISR; without one by the next of them. Returns who leads."""
        before = (await self.describe(topic, partition)).leader_epoch
        await self.nodes.elect(topic, partition, leader)
        await self.until(epoch(topic, partition) > before)
        return await self.leader_of(topic, partition)

    # -- a network that fails -----------------------------------------------------------------------------------------

    def partition(self, *groups: Iterable[int]) -> None:
        """Nodes of different groups do not hear each other. A node in no group hears everybody, as clients do."""
        sets = [[self.nodes.check_id(node) for node in group] for group in groups]
        if len(sets) < 2:
            raise UsageError("a partition has at least two groups: cluster.partition([1], [2, 3])")
        if not all(sets):
            raise UsageError("each group of a partition has a node; an empty one cuts off nothing")
        if twice := [node for node, count in Counter(chain(*map(set, sets))).items() if count > 1]:
            raise UsageError(f"node {twice[0]} is in two groups of the partition, and cannot be cut off from itself")
        self.nodes.network.cut((a, b) for i, one in enumerate(sets) for other in sets[i + 1 :] for a in one for b in other)

    def isolate(self, node: int, *, clients: bool = False) -> None:
        """Cut the node off all others; off the clients, too, if you say so."""
        others = [other for other in (*self.nodes.broker_ids, *self.nodes.controller_ids) if other != node]
        cut_off = [*others, CLIENT] if clients else others
        self.nodes.network.cut((self.nodes.check_id(node), other) for other in cut_off)

    def isolate_controller(self, broker: int) -> None:
        """Cut the broker off the controllers alone: it cannot tell that it lives, and goes on replicating."""
        self.nodes.network.cut((self.nodes.check_broker(broker), other) for other in self.nodes.controller_ids)

    def drop(
        self,
        api: str | None = None,
        *,
        p: float = 1.0,
        where: Literal["request", "response"] = RESPONSE,  # type: ignore[assignment]
        at: int | None = None,
        by: int | Literal["clients"] | None = None,
        times: int | None = None,
        silently: bool = False,
        may_miss: bool = False,
    ) -> Rule:
        """Lose requests of this API before they are carried out, or (`where="response"`) what was answered to them.

        The connection breaks with it; `silently`: it does not, and whoever asked waits. `at`: at this node alone; `by`: only
        what this node, or the clients, ask. `p`: how likely; `times`: how often at most. Ends with `stop()`, with the `with`
        block, or with `heal()`. At the end of a `with` block AssertionError says that the fault met no message, unless it
        `may_miss` or `p` is below 1.
        """
        more = {"times": times, "silently": silently, "may_miss": may_miss}
        return self._add_rule(DROP, api, where=where, at=at, by=by, p=p, **more)

    def delay(
        self,
        api: str | None = None,
        *,
        ms: float,
        where: Literal["request", "response"] = RESPONSE,  # type: ignore[assignment]
        at: int | None = None,
        by: int | Literal["clients"] | None = None,
        p: float = 1.0,
        may_miss: bool = False,
    ) -> Rule:
        """Hold them up for so long, and what comes behind them on the same connection. The rest as with `drop`."""
        if ms <= 0:
            raise UsageError(f"a delay of {ms:g} ms is none")
        return self._add_rule(DELAY, api, where=where, at=at, by=by, p=p, delay_ms=ms, may_miss=may_miss)

    def _add_rule(
        self, kind: str, api: str | None, *, at: int | None, by: int | Literal["clients"] | None, **options: Any
    ) -> Rule:
        """A rule that could meet no message at all is refused."""
        if at is not None:
            self.nodes.check_id(at)
        return self.nodes.network.add_rule(kind, api, at=at, by=self._asker(by), **options)

    def _asker(self, by: int | Literal["clients"] | None) -> int | None:
        if by is None:
            return None
        return CLIENT if by == CLIENTS else self.nodes.check_id(by)

    def heal(self) -> None:
        """The network is whole again: all links, nothing dropped, nothing delayed. Disks and dead nodes stay as they are."""
        self.nodes.network.mend()

    # -- disks that fail ----------------------------------------------------------------------------------------------

    def slow_disk(self, node: int, ms: float) -> None:
        """Each write and each fsync of the node takes so much longer; 0: as fast as ever."""
        if ms < 0:
            raise UsageError(f"a disk cannot be slower by {ms:g} ms")
        self.nodes.disk(node).slow_s = ms / 1000

    def fill_disk(self, node: int) -> None:
        """Not a byte fits any more. A broker that meets this gives up its logs, and ends."""
        self.nodes.disk(node).is_full = True

    def free_disk(self, node: int) -> None:
        """There is room again. A broker that ended has to be started."""
        self.nodes.disk(node).is_full = False

    # -- all of it ----------------------------------------------------------------------------------------------------

    async def make_whole(self, *, within_s: float = WITHIN_S) -> None:
        """Undo every fault: the network, the disks, who stands still, who is down. Ready when this returns."""
        nodes = self.nodes
        if not self._processes:
            self.heal()
            for node in nodes.views:
                nodes.disk(node.id).slow_s, nodes.disk(node.id).is_full = 0.0, False
        for node in nodes.views:
            if node.state == "paused":
                await nodes.resume(node.id)
        down = [node.id for node in nodes.views if not node.is_up]
        for node_id in down:
            await nodes.start(node_id)
        await self._until_ready((*nodes.controller_ids, *nodes.broker_ids), within_s)

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def until(self, condition: Condition, *, within_s: float = WITHIN_S) -> None:
        """Until it holds; AssertionError, with what was seen instead, when it does not in time. UsageError for a condition about
        a node that the cluster does not have."""
        __tracebackhide__ = True
        nodes = self.nodes
        if isinstance(condition, Condition):
            for kind, ids in condition.named():
                nodes.check_any(nodes.broker_ids if kind == BROKER else nodes.controller_ids, kind, ids)
        await until(condition, nodes.look, within_s=within_s, poll_s=nodes.poll_s)

    # -- oracles ------------------------------------------------------------------------------------------------------

    async def read_all(self, topic: str, *, within_s: float = WITHIN_S) -> list[ConsumerRecord]:
        """Everything in the topic from the beginning to what is its end now, by partition and offset."""
        return await oracles.read_all(self.bootstrap_servers, topic, within_s, oracles.known_ends(self.history, topic))

    async def verdict(
        self,
        history: History | None = None,
        *,
        acks: Acks = EVERY_ACK,
        idempotent: bool = True,
        within_s: float = WITHIN_S,
    ) -> Verdict:
        """Read everything that the history speaks of once more, and judge it: `verdict.good`, `verdict.judged`, `str(verdict)`.

        `acks`: which acknowledgements bind; `"all"` permits that records acknowledged with acks=1 are lost.
        """
        judged = self.history if history is None else history
        return await oracles.final_verdict(self.bootstrap_servers, judged, within_s, acks=acks, idempotent=idempotent)

    async def assert_no_acked_loss(
        self,
        acked: History | Iterable[oracles.Acked] | None = None,
        *,
        acks: Acks = EVERY_ACK,
        at_least: int = 1,
        within_s: float = WITHIN_S,
    ) -> None:
        """Every record that was acknowledged is there, by the history, or by pairs of the metadata that a producer was given
        and the value that it had sent. A record that was read once is there as well.

        `acks`: which acknowledgements of a history bind. By default every one, with acks=all or acks=1; `acks="all"` is the
        weaker judge, for which a record with acks=1 may be lost with its leader, as in Kafka. `at_least`: how many
        acknowledgements must have been judged, so that a test in which nothing was acknowledged fails. AssertionError names
        what was lost.
        """
        __tracebackhide__ = True
        if acked is None or isinstance(acked, History):
            history = self.history if acked is None else acked
            verdict = await self.verdict(history, acks=acks, within_s=within_s)
            found = [str(a) for a in verdict.anomalies if a.name in ("lost-write", "inconsistent-offsets")]
            too_few = oracles.too_few(verdict.judged, at_least, history)
        else:
            if acks is not EVERY_ACK:
                raise UsageError("acks=... is for a history; of pairs of metadata and value, each one is judged")
            pairs = list(acked)
            found = await oracles.missing(self.bootstrap_servers, pairs, within_s)
            too_few = oracles.too_few(len(pairs), at_least, None)
        if found:
            more = f"\n  ... and {len(found) - 20} more" if len(found) > 20 else ""
            shown = "\n  ".join(found[:20])
            raise AssertionError(f"acknowledged records were lost:\n  {shown}{more}")
        if too_few:
            raise AssertionError(too_few)

    async def assert_logs_identical(self, topic: str, *, within_s: float = WITHIN_S) -> None:
        """Once its replicas have caught up, every replica of every partition holds the same bytes.

        AssertionError also when there was nothing to compare: no record in the topic, one replica, or a replica's log that
        could not be read.
        """
        __tracebackhide__ = True
        partitions = {p.partition: p.replicas for p in (await self.nodes.look()).partitions() if p.topic == topic}
        if not partitions:
            raise UsageError(f"there is no topic {topic!r}")
        size = 0
        for partition, replicas in partitions.items():
            await self.until(caught_up(topic, partition), within_s=within_s)
            logs = await self.nodes.logs(topic, partition)
            different = oracles.differences(topic, partition, logs) or oracles.not_compared(topic, partition, replicas, logs)
            if different:
                raise AssertionError(different)
            size += sum(map(len, logs.values()))
        if not size:
            raise AssertionError(f"nothing was compared: no replica of {topic} has a record")

    # -- saying -------------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> list[str]:
        """What is broken on purpose in the network."""
        if self._processes:
            return []
        network = self.nodes.network
        return [*(f"no way between {cut}" for cut in network.cuts), *map(str, network.rules)]

    def report(self) -> str:
        """The cluster on half a page: who lives, who leads, what is broken, what was logged last."""
        return report(self.nodes, self.seed, self.faults)

    def __repr__(self) -> str:
        return f"<Cluster of {self._brokers} brokers and {self._controllers} controllers>"


__all__ = ["Cluster", "Disk"]
