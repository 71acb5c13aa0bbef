"""`AsyncCluster`: the nodes, clients, faults, waits and oracles of a cluster under test, for a caller in the same event loop.

`cluster.py` adds the cluster in a thread (`threaded.py`), which is built on this class.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from strandline.client import Admin, ConsumerRecord, NewTopic
from strandline.local_cluster import settings_by_role
from strandline.local_security import ADMIN, CONSUMER, PRODUCER, LocalSecurity, rights_of
from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_security import ClientSecurity
from strandline.reach import forget, reach, remember
from strandline.storage.files import Files, MemoryFiles, RealFiles
from strandline.testing.history import EVERY_ACK, Acks, History, Verdict
from strandline.testing.kit import oracles
from strandline.testing.kit.conditions import BROKER, Condition, caught_up, controller, epoch, leader
from strandline.testing.kit.hosted import FAST_SETTINGS, HostedNodes
from strandline.testing.kit.network import CLIENT, DELAY, DROP, RESPONSE, Rule
from strandline.testing.kit.nodes import KitError, Nodes
from strandline.testing.kit.policies import Policies
from strandline.testing.kit.recording import RecordingAdmin, RecordingConsumer, RecordingProducer, namer
from strandline.testing.kit.report import report
from strandline.testing.kit.security import KitSecurity
from strandline.testing.kit.spawned import FAST_PROCESSES, SpawnedNodes
from strandline.testing.kit.view import NodeView, PartitionView
from strandline.testing.kit.waiting import until

WITHIN_S = 10.0
CLIENTS: Literal["clients"] = "clients"


class AsyncCluster:
    """All of `Cluster` that runs in the caller's event loop. `Cluster` says how its methods wait and fail."""

    def __init__(
        self,
        *,
        brokers: int = 3,
        controllers: int = 1,
        files: Literal["memory", "disk"] = "memory",
        processes: bool = False,
        folder: str | Path | None = None,
        seed: int | None = None,
        secure: bool = False,
        kafka: bool = False,
        **settings: Any,
    ) -> None:
        """`brokers`, at least 1, have the ids 1, 2, ...; `controllers`, 1, 3 or 5, have the ids 101, 102, ...

        `files`: "memory" or "disk". `processes`: each node is an operating system process, with files on the disk. `folder`:
        the directory for files on the disk; by default a temporary one, which `close` removes. `seed`: seeds the random
        numbers of the kit and the nodes (for example which messages `drop` hits); it does not decide the order of callbacks
        in a real event loop. `secure`: with users and rights (`security.py`); the cluster's own clients are the administrator,
        and `security_of` gives the settings of another user. `kafka`: brokers have a listener for Kafka's clients, too
        (`kafka_bootstrap`). `settings`: configuration keys, with `_` for `.`: `replica_lag_time_max_ms=500`.

        UsageError: one of these values, or a setting, is not permitted.
        """
        if brokers < 1 or controllers not in (1, 3, 5):
            raise UsageError("a cluster has at least one broker, and 1, 3 or 5 controllers")
        if files not in ("memory", "disk"):
            raise UsageError(f'files is "memory" or "disk", not {files!r}')
        self.seed = secrets.randbelow(1 << 32) if seed is None else seed
        self.history = History()
        """Operations of the clients that `producer()` and `consumer()` made, except those with a history of their own."""
        self.policies = Policies()
        """The topics that are, or were, compacted, as far as the oracles and the clients of `admin()` have seen."""
        self._nodes: Nodes | None = None
        self._brokers, self._controllers = brokers, controllers
        self._on_disk, self._processes = files == "disk" or processes, processes
        self._folder = None if folder is None else Path(folder)
        self._temporary: Path | None = None
        self._secure = secure
        self._kafka = kafka
        self._security: KitSecurity | LocalSecurity | None = None
        """The users of a secure cluster that runs, or has run."""
        self._settings = self._all_settings(settings)
        """Configuration by dotted key."""
        self._name = namer()

    def _all_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        replicas = min(3, self._brokers)
        defaults = {
            "default.replication.factor": replicas,
            "min.insync.replicas": max(1, replicas - 1),
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": max(1, replicas - 1),
        }
        fast = FAST_PROCESSES if self._processes else FAST_SETTINGS
        named = {name.replace("_", "."): value for name, value in given.items()}
        settings = {"http.listener": "", **fast, **defaults, **named}
        settings_by_role(settings)  # An invalid setting is reported now, not when the cluster starts.
        return settings

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, *nodes: int, wait: bool = True, within_s: float = WITHIN_S) -> None:
        """Start these nodes on the disks that they had. Without ids: start the cluster, or, if it runs already, every node
        that is down.

        If `wait`, return when the nodes take part: every broker sees every other one, and there is an active controller.
        KitError: a node failed, or does not take part within `within_s` seconds. UsageError: a node is running already.
        """
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
            if self._security is not None:
                remember(self.bootstrap_servers, self._security.security_of(ADMIN))
                if not self._processes:
                    await self._create_rights()
        except BaseException:
            await self.close()
            raise

    async def _create_rights(self) -> None:
        async with self.admin() as admin:
            await admin.create_acls([*rights_of(PRODUCER), *rights_of(CONSUMER)])

    def security_of(self, user: str) -> ClientSecurity:
        """How a client connects as `admin`, `producer` or `consumer`, for the option `security` of a client. UsageError: the
        cluster is not a secure one."""
        if self._security is None:
            raise UsageError("the cluster has no users; start it with Cluster(secure=True)")
        return self._security.security_of(user)

    def _hosted(self) -> Nodes:
        files: Callable[[], Files] = RealFiles if self._on_disk else MemoryFiles
        folder = str(self._data_folder()) if self._on_disk else "/data"
        security = self._security = KitSecurity(f"{folder}/security") if self._secure else None
        return HostedNodes(
            brokers=self._brokers,
            controllers=self._controllers,
            files=files,
            folder=folder,
            random=random.Random(self.seed),
            settings=settings_by_role(self._settings),
            security=security,
            kafka=self._kafka,
        )

    def _spawned(self) -> Nodes:
        folder = self._data_folder()
        nodes = SpawnedNodes(
            folder,
            brokers=self._brokers,
            controllers=self._controllers,
            settings=self._settings,
            secure=self._secure,
            kafka=self._kafka,
        )
        self._security = nodes.cluster.security
        return nodes

    def _data_folder(self) -> Path:
        if self._folder is None:
            self._folder = self._temporary = Path(tempfile.mkdtemp(prefix="strandline-"))
        return self._folder

    async def close(self) -> None:
        """Kill all nodes and remove the temporary folder. A second call does nothing."""
        nodes, self._nodes = self._nodes, None
        try:
            if nodes is not None:
                forget(nodes.bootstrap)
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

    @property
    def nodes(self) -> Nodes:
        """The nodes, for tests that look inside them. UsageError: the cluster does not run."""
        if self._nodes is None:
            raise UsageError("the cluster is not running; use `async with Cluster()` or the fixture `cluster`")
        return self._nodes

    # -- clients ------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """The brokers' addresses for any client, "host:port,host:port"."""
        return self.nodes.bootstrap

    @property
    def kafka_bootstrap(self) -> str:
        """The brokers' addresses for Kafka's own clients, "host:port,host:port". UsageError: the cluster has none."""
        if not self.nodes.kafka_bootstrap:
            raise UsageError("the cluster has no listener for Kafka's clients; start it with Cluster(kafka=True)")
        return self.nodes.kafka_bootstrap

    @property
    def brokers(self) -> list[int]:
        """Ids of all brokers, ascending, whether they run or not."""
        return list(self.nodes.broker_ids)

    @property
    def controllers(self) -> list[int]:
        """Ids of all controllers, ascending, whether they run or not."""
        return list(self.nodes.controller_ids)

    def _reach(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of a client of this cluster. Those that name an identity replace that of the administrator."""
        own = reach(self.bootstrap_servers)
        if options.get("security_protocol") is not None:
            return {"bootstrap_servers": own["bootstrap_servers"], **options}
        return {**own, **options}

    def producer(self, *, history: History | None = None, **options: Any) -> RecordingProducer:
        """A `Producer` for this cluster that records its sends in `history`, by default `self.history`. `options`: as for
        `Producer`."""
        name, given = self._name("producer"), self._reach(options)
        return RecordingProducer(self.history if history is None else history, name, policies=self.policies, **given)

    def consumer(self, *topics: str, history: History | None = None, **options: Any) -> RecordingConsumer:
        """A `Consumer` for this cluster that records what it reads in `history`, by default `self.history`. It starts at the
        earliest offset unless `options`, those of `Consumer`, say otherwise."""
        defaults = self._reach({"auto_offset_reset": "earliest", **options})
        name = self._name("consumer")
        return RecordingConsumer(self.history if history is None else history, name, *topics, **defaults)

    def admin(self, **options: Any) -> Admin:
        """An `Admin` client for this cluster, which notes the topics that it creates compacted or finds compacted. `options`: as
        for `Admin`."""
        return RecordingAdmin(self.policies, self.history, **self._reach(options))

    async def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        replicas: Sequence[Sequence[int]] | None = None,
        **configs: Any,
    ) -> str:
        """Create a topic and return its name, by default a new one.

        `replication_factor`: by default the brokers' setting, which is 3, or the number of brokers if that is smaller.
        `replicas`: the broker ids of each partition, the preferred leader first; it replaces `partitions` and
        `replication_factor`. `configs`: topic settings, with `_` for `.`: `min_insync_replicas=1`. BrokerError: the cluster
        refused the topic.
        """
        name = self._name("topic") if name is None else name
        assignment = None if replicas is None else dict(enumerate(replicas))
        named = {key.replace("_", "."): value for key, value in configs.items()}
        count, factor = (-1, -1) if replicas is not None else (partitions, replication_factor)
        async with self.admin() as admin:
            await admin.create_topics([NewTopic(name, count, factor, named or None, assignment)])
        return name

    # -- roles --------------------------------------------------------------------------------------------------------

    async def describe(self, topic: str, partition: int = 0) -> PartitionView:
        """The current state of the partition: leader, leader epoch, ISR, high watermark, log ends. UsageError: it does not
        exist."""
        found = (await self.nodes.look([(topic, partition)])).partition(topic, partition)
        if found is None:
            raise UsageError(f"there is no partition {topic}-{partition}")
        return found

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        """Id of the broker that leads the partition. If there is no leader, wait for one, at most 10 seconds
        (AssertionError)."""
        await self.until(leader(topic, partition) >= 0)
        found = (await self.describe(topic, partition)).leader
        return -1 if found is None else found

    async def followers_of(self, topic: str, partition: int = 0) -> list[int]:
        """Ids of the replicas that do not lead the partition, in the order of the assignment."""
        view = await self.describe(topic, partition)
        return [replica for replica in view.replicas if replica != view.leader]

    async def active_controller(self) -> int:
        """Id of the active controller. If there is none, wait for one, at most 10 seconds (AssertionError)."""
        await self.until(controller() >= 0)
        return (await self.nodes.look()).controller() or -1

    def node(self, node: int) -> NodeView:
        """Name and state of the node. UsageError: there is no such node."""
        return self.nodes.node(node)

    # -- nodes that fail ----------------------------------------------------------------------------------------------

    async def kill(self, *nodes: int) -> None:
        """Kill the nodes like `kill -9`: connections break, leaderships are not handed over, nothing more is written. What a
        node has already written to its disk stays. UsageError: no node is named, or one is not running."""
        for node in self._named(nodes, "kill"):
            await self.nodes.kill(node)

    async def stop(self, *nodes: int) -> None:
        """Stop the nodes like SIGTERM: brokers hand over their leaderships, and files are closed cleanly. Without ids, stop all
        nodes, brokers first. KitError: a node did not stop in time."""
        up = (node for node in (*self.nodes.broker_ids, *self.nodes.controller_ids) if self.node(node).is_up)
        for node in nodes or tuple(up):
            await self.nodes.stop(node)

    async def restart(self, *nodes: int, hard: bool = False, within_s: float = WITHIN_S) -> None:
        """Restart one node after the other, as in a rolling upgrade: stop it (kill it if `hard`) if it runs, start it, and wait
        up to `within_s` seconds until it takes part. KitError: it does not."""
        for node in self._named(nodes, "restart"):
            if self.node(node).is_up:
                await (self.kill(node) if hard else self.stop(node))
            await self.start(node, within_s=within_s)

    async def pause(self, *nodes: int) -> None:
        """Suspend the nodes like SIGSTOP: they keep their connections and do nothing until `resume`."""
        for node in self._named(nodes, "pause"):
            await self.nodes.pause(node)

    async def resume(self, *nodes: int) -> None:
        """Let paused nodes continue, like SIGCONT. UsageError: a node is not paused."""
        for node in self._named(nodes, "resume"):
            await self.nodes.resume(node)

    def _named(self, nodes: tuple[int, ...], do: str) -> tuple[int, ...]:
        """The nodes, at least one: a fault on no node would change nothing, and the test that relies on it would pass."""
        if not nodes:
            raise UsageError(f"{do} needs at least one node: cluster.{do}(1), or cluster.{do}(*cluster.brokers) for all brokers")
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
        """Elect a leader for a new leader epoch and return its id: `leader`, which must be in the ISR, or by default the next
        replica in the ISR. UsageError: `leader` is not in the ISR, or the cluster consists of processes and this is not its
        preferred leader (a process cluster elects no other). KitError: the controller refused."""
        before = (await self.describe(topic, partition)).leader_epoch
        await self.nodes.elect(topic, partition, leader)
        await self.until(epoch(topic, partition) > before)
        return await self.leader_of(topic, partition)

    # -- a network that fails -----------------------------------------------------------------------------------------

    def partition(self, *groups: Iterable[int]) -> None:
        """Cut all links between nodes of different groups, until `heal`. Nodes in no group, and clients, reach every node.

        A cut link drops nothing and refuses nothing: bytes that were sent arrive after `heal`. UsageError: fewer than two
        groups, an empty group, or one node in two groups.
        """
        sets = [[self.nodes.check_id(node) for node in group] for group in groups]
        if len(sets) < 2:
            raise UsageError("a partition has at least two groups: cluster.partition([1], [2, 3])")
        if not all(sets):
            raise UsageError("a group of the partition is empty; each group must have at least one node")
        if twice := [node for node, count in Counter(chain(*map(set, sets))).items() if count > 1]:
            raise UsageError(f"node {twice[0]} is in two groups of the partition; each node may be in one group only")
        self.nodes.network.cut((a, b) for i, one in enumerate(sets) for other in sets[i + 1 :] for a in one for b in other)

    def isolate(self, node: int, *, clients: bool = False) -> None:
        """Cut all links between this node and the other nodes, and between it and clients if `clients`, until `heal`."""
        others = [other for other in (*self.nodes.broker_ids, *self.nodes.controller_ids) if other != node]
        cut_off = [*others, CLIENT] if clients else others
        self.nodes.network.cut((self.nodes.check_id(node), other) for other in cut_off)

    def isolate_controller(self, broker: int) -> None:
        """Cut the links between this broker and the controllers, until `heal`: its heartbeats are lost, while it continues to
        replicate and serve clients."""
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
        """Lose messages of this API (None: every API): responses, or with `where="request"` requests before they are handled.

        The connection breaks together with the message; if `silently`, it stays open, and the sender of the request waits.
        `at`: only requests to this node. `by`: only requests from this node, or from `"clients"`. `p`: probability per message,
        above 0 and at most 1. `times`: at most so many messages. The fault ends with `stop()`, at the end of the `with` block,
        or with `heal()`. If it met no message by the end of a `with` block, the block raises AssertionError, unless `may_miss`
        or `p` is below 1. UsageError: an unknown API or node, or a value out of range.
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
        """Delay messages of this API by `ms` milliseconds, and with them everything behind them on the same connection. The other
        arguments are those of `drop`. UsageError: an unknown API or node, or a value out of range."""
        if ms <= 0:
            raise UsageError(f"a delay must be longer than 0 ms, not {ms:g} ms")
        return self._add_rule(DELAY, api, where=where, at=at, by=by, p=p, delay_ms=ms, may_miss=may_miss)

    def _add_rule(
        self, kind: str, api: str | None, *, at: int | None, by: int | Literal["clients"] | None, **options: Any
    ) -> Rule:
        """Add the rule. UsageError: the rule could never meet a message."""
        if at is not None:
            self.nodes.check_id(at)
        return self.nodes.network.add_rule(kind, api, at=at, by=self._asker(by), **options)

    def _asker(self, by: int | Literal["clients"] | None) -> int | None:
        if by is None:
            return None
        return CLIENT if by == CLIENTS else self.nodes.check_id(by)

    def heal(self) -> None:
        """Repair the network: restore all links and end every `drop` and `delay`. Disks and nodes that are down stay as they
        are."""
        self.nodes.network.mend()

    # -- disks that fail ----------------------------------------------------------------------------------------------

    def slow_disk(self, node: int, ms: float) -> None:
        """Make each write and each fsync of the node take `ms` milliseconds longer; 0 ends the fault. UsageError: there is no
        such node, its disk cannot be controlled (`processes=True`), or `ms` is negative."""
        if ms < 0:
            raise UsageError(f"a disk can be slower by 0 ms or more, not by {ms:g} ms")
        self.nodes.disk(node).slow_s = ms / 1000

    def fill_disk(self, node: int) -> None:
        """Make every write of the node fail with ENOSPC until `free_disk`. A broker whose write fails takes its log directory
        offline and stops."""
        self.nodes.disk(node).is_full = True

    def free_disk(self, node: int) -> None:
        """End `fill_disk`. A broker that stopped because of it must be started again."""
        self.nodes.disk(node).is_full = False

    # -- all of it ----------------------------------------------------------------------------------------------------

    async def make_whole(self, *, within_s: float = WITHIN_S) -> None:
        """End every fault: repair the network and the disks, resume paused nodes, start nodes that are down. Returns when all
        nodes take part. KitError: one does not within `within_s` seconds."""
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
        """Wait until the condition holds. AssertionError: it did not hold within `within_s` seconds; the message tells the values
        that were seen last. UsageError: the condition names a node that the cluster does not have."""
        __tracebackhide__ = True
        nodes = self.nodes
        if isinstance(condition, Condition):
            for kind, ids in condition.named():
                nodes.check_any(nodes.broker_ids if kind == BROKER else nodes.controller_ids, kind, ids)
        await until(condition, nodes.look, within_s=within_s, poll_s=nodes.poll_s)

    # -- oracles ------------------------------------------------------------------------------------------------------

    async def read_all(self, topic: str, *, within_s: float = WITHIN_S) -> list[ConsumerRecord]:
        """All records of the topic from the earliest offset to the current end, sorted by partition and offset."""
        return await oracles.read_all(self.bootstrap_servers, topic, within_s, oracles.known_ends(self.history, topic))

    async def verdict(
        self,
        history: History | None = None,
        *,
        acks: Acks = EVERY_ACK,
        idempotent: bool = True,
        within_s: float = WITHIN_S,
    ) -> Verdict:
        """Read all partitions that the history mentions once more, then check the history: `verdict.good`, `verdict.judged`,
        `str(verdict)`. `acks` and `idempotent`: as for `check`.

        `acks`: the acknowledgements after which a record must not be lost; `"all"` permits the loss of records that were
        acknowledged with acks=1. In a topic that is or was compacted, a record may be missing if a newer one of its key was
        sent.
        """
        judged = self.history if history is None else history
        return await oracles.final_verdict(
            self.bootstrap_servers, judged, self.policies, within_s, acks=acks, idempotent=idempotent
        )

    async def assert_no_acked_loss(
        self,
        acked: History | Iterable[oracles.Acked] | None = None,
        *,
        acks: Acks = EVERY_ACK,
        at_least: int = 1,
        within_s: float = WITHIN_S,
    ) -> None:
        """Assert that every acknowledged record is still in the cluster, and with a history also every record that was read.

        `acked`: a history (by default `self.history`), or pairs of the metadata that a producer received and the value that it
        sent. `acks`: the acknowledgements of a history that count; by default all, with acks=all or acks=1. `acks="all"` is
        weaker: a record with acks=1 may be lost with its leader, as in Kafka. `at_least`: the number of acknowledgements that
        must have been checked, so that a test in which nothing was acknowledged fails. AssertionError: records were lost (it
        names up to 20), or too few were checked. UsageError: `acks` was given with pairs. KitError: the partitions could not be
        read within `within_s` seconds.
        """
        __tracebackhide__ = True
        if acked is None or isinstance(acked, History):
            history = self.history if acked is None else acked
            verdict = await self.verdict(history, acks=acks, within_s=within_s)
            found = [str(a) for a in verdict.anomalies if a.name in ("lost-write", "inconsistent-offsets")]
            too_few = oracles.too_few(verdict.judged, at_least, history)
        else:
            if acks is not EVERY_ACK:
                raise UsageError("acks=... is only for a history: with pairs of metadata and value, every pair is checked")
            pairs = list(acked)
            topics = sorted({metadata.topic for metadata, _ in pairs})
            await oracles.look_up(self.bootstrap_servers, self.policies, topics, self.history)
            found = await oracles.missing(self.bootstrap_servers, pairs, self.policies, within_s)
            too_few = oracles.too_few(len(pairs), at_least, None)
        if found:
            more = f"\n  ... and {len(found) - 20} more" if len(found) > 20 else ""
            shown = "\n  ".join(found[:20])
            raise AssertionError(f"acknowledged records were lost:\n  {shown}{more}")
        if too_few:
            raise AssertionError(too_few)

    async def assert_logs_identical(self, topic: str, *, within_s: float = WITHIN_S) -> None:
        """Wait until all replicas of the topic have caught up, then assert that all replicas of a partition hold the same bytes.
        If the topic is or was compacted, each replica is cleaned by itself: then two replicas must have the same record at each
        offset that both have, and all must have the same last value of each key.

        AssertionError: they differ, or there was nothing to compare: no record in the topic, one replica only, or a replica
        whose log could not be read. UsageError: there is no such topic.
        """
        __tracebackhide__ = True
        partitions = {p.partition: p.replicas for p in (await self.nodes.look()).partitions() if p.topic == topic}
        if not partitions:
            raise UsageError(f"there is no topic {topic!r}")
        await oracles.look_up(self.bootstrap_servers, self.policies, [topic], self.history)
        is_compacted = topic in self.policies
        starts = await oracles.log_starts(self.bootstrap_servers, topic, within_s) if is_compacted else {}
        size = 0
        for partition, replicas in partitions.items():
            await self.until(caught_up(topic, partition), within_s=within_s)
            logs = await self.nodes.logs(topic, partition)
            different = oracles.differences(topic, partition, logs, starts.get(partition) if is_compacted else None)
            if different := different or oracles.not_compared(topic, partition, replicas, logs):
                raise AssertionError(different)
            size += sum(map(len, logs.values()))
        if not size:
            raise AssertionError(f"no log was compared: no replica of {topic} has a record")

    # -- reporting ----------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> list[str]:
        """Descriptions of the network faults that are active."""
        if self._processes:
            return []
        network = self.nodes.network
        return [*(f"cut link: {cut}" for cut in network.cuts), *map(str, network.rules)]

    def report(self) -> str:
        """A summary of half a page: states of the nodes, leaders of the partitions, active faults, last log lines."""
        return report(self.nodes, self.seed, self.faults)

    def __repr__(self) -> str:
        return f"<Cluster of {self._brokers} brokers and {self._controllers} controllers>"
