"""A Strandline cluster in a simulated world: the production servers and clients on simulated machines.

Controllers are numbered from 101, brokers from 1, clients from 201. Each has a machine of its own at a fixed address. Only the
outside of a process is simulated; `BrokerServer`, `ControllerServer`, `Producer`, `Consumer` and `Admin` are the production
classes.

A node's process lives as under `strandline.node`: it starts; SIGTERM stops it in order, or ends its start; a second SIGTERM ends
it at once; and when its server reports that it cannot continue (`failure`) it stops, too. Only the story starts it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from strandline.broker.config import BrokerConfig
from strandline.broker.partition.partition import Partition
from strandline.broker.process.server import BrokerServer
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.features import SUPPORTED, Levels
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.server import ControllerServer
from strandline.protocol.doors import Doors
from strandline.protocol.errors import StrandlineError
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.testing.simulation.cluster.identities import Identities, user_of
from strandline.testing.simulation.kernel.loop import NodeLoop
from strandline.testing.simulation.kernel.machine import Machine
from strandline.testing.simulation.kernel.world import ProcessGone, World

T = TypeVar("T")

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
CLUSTER_ID = "simulated-cluster"
STOP_S = 120.0


class ObservedProducer(Producer):
    """A `Producer` that shows the id of the topic that it writes to."""

    def topic_id(self, topic: str) -> bytes | None:
        """The id of the topic in the producer's metadata; None if the metadata has no such topic."""
        info = None if self._cluster is None else self._cluster.cache.topics.get(topic)
        return None if info is None else info.topic_id


class Client:
    """A process of a user: its code runs on its own machine, with its own clock."""

    def __init__(self, cluster: SimCluster, machine: Machine, user: str) -> None:
        self.cluster = cluster
        self.machine = machine
        self.user = user
        """The user as which it logs in, in a cluster with security."""
        self.loop, self.doors, _ = machine.boot()

    @property
    def security(self) -> ClientSecurity:
        """The security settings with which this client connects."""
        identities = self.cluster.identities
        return NO_SECURITY if identities is None else identities.client(self.user, self.doors.secure_random)

    @property
    def _common(self) -> dict[str, Any]:
        secured = {} if self.cluster.identities is None else {"security": self.security}
        return {"bootstrap_servers": self.cluster.bootstrap_servers, **secured}

    def producer(self, **options: Any) -> ObservedProducer:
        """A producer that is connected to this cluster and reads the clock of this client's machine. Start it in code that runs
        on the machine (`spawn`, `run`). `options` are those of `Producer`."""
        return ObservedProducer(doors=self.doors, **{**self._common, **options})

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        return Consumer(*topics, doors=self.doors, **{**self._common, **options})

    def admin(self, **options: Any) -> Admin:
        return Admin(doors=self.doors, **{**self._common, **options})

    def spawn(self, coroutine: Any, name: str | None = None) -> asyncio.Task[Any]:
        return self.machine.spawn(coroutine, name)

    async def run(self, coroutine: Any) -> Any:
        """Run the coroutine on this machine and wait for its result; called by stories."""
        return await self.cluster.world.join(self.spawn(coroutine))


class _Process:
    """A node's process from its start to its exit, as `strandline.node` runs it."""

    def __init__(self, cluster: SimCluster, node_id: int, loop: NodeLoop, server: BrokerServer | ControllerServer) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.loop = loop
        self.server = server
        self.has_exited = False
        """It has exited: it was not killed by a crash."""
        self.left: list[str] = []
        """Tasks that the server has left behind."""
        self._asked: asyncio.Future[None] = loop.create_future()
        self._is_signal_pending = False

    @property
    def is_asked(self) -> bool:
        """SIGTERM was sent; a paused process sees it when it continues."""
        return self._is_signal_pending or self._asked.done()

    def terminate(self) -> None:
        if not self._is_signal_pending:  # two waits for a paused process count as one
            self._is_signal_pending = True
            self.loop.io(self._on_signal)

    def _on_signal(self) -> None:
        self._is_signal_pending = False
        if self._asked.done():
            self.cluster.crash(self.node_id)
        else:
            self._asked.set_result(None)

    async def live(self) -> None:
        error: StrandlineError | OSError | None = None
        try:
            error = await self._run()
        except (StrandlineError, OSError) as e:
            error = e
        except Exception as e:
            self.loop.call_exception_handler({"message": "the process failed", "exception": e})
            raise
        self._look_for_tasks()
        self.has_exited = True
        self.cluster.exited(self.node_id, error)

    async def _run(self) -> StrandlineError | None:
        server, asked = self.server, self._asked
        start = self.loop.create_task(server.start(), name=f"start {self.node_id}")
        await asyncio.wait([start, asked], return_when=asyncio.FIRST_COMPLETED)
        if not start.done():
            start.cancel()
            await asyncio.wait([start])
            if not start.cancelled():
                start.exception()  # retrieved, so that asyncio does not report it
            return None
        start.result()
        failure = server.failure
        assert failure is not None
        waited: list[asyncio.Future[Any]] = [asked, failure]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        await server.stop()
        return None if asked.done() else failure.result()

    def _look_for_tasks(self) -> None:
        own = asyncio.current_task()
        self.left = [task.get_name() for task in self.loop.unfinished if task is not own and not task.cancelling()]


class SimCluster:
    def __init__(
        self,
        world: World,
        *,
        controllers: int = 3,
        brokers: int = 3,
        settings: dict[str, Any] | None = None,
        controller_settings: dict[str, Any] | None = None,
        names: bool = False,
        racks: Sequence[str] = (),
        identities: Identities | None = None,
        broker_settings: Mapping[int, dict[str, Any]] | None = None,
    ) -> None:
        self.world = world
        self.identities = identities
        """The users of nodes and clients; None: everyone may do everything."""
        self.racks = racks
        """The rack of each broker; empty: they have none."""
        self.names = names
        """Nodes and clients find each other by names (`broker-1`), which are looked up, instead of addresses."""
        self.settings = settings or {}
        """Settings of every broker, under Kafka's keys."""
        self.broker_settings = dict(broker_settings or {})
        """Broker id -> settings in its file that replace those of `settings`."""
        self.controller_settings = controller_settings or {}
        self.controller_ids = [101 + n for n in range(controllers)]
        self.broker_ids = [1 + n for n in range(brokers)]
        self.machines: dict[int, Machine] = {}
        for node_id in self.controller_ids:
            self.machines[node_id] = world.add_machine(node_id, f"controller-{node_id}")
        for node_id in self.broker_ids:
            self.machines[node_id] = world.add_machine(node_id, f"broker-{node_id}")
        for node_id, machine in self.machines.items():
            machine.on_death = partial(self.crash, node_id)
            if identities is not None:
                machine.files.deployed.update(identities.files(node_id))
        self.voters = ",".join(f"{n}@{self.host(n)}:{CONTROLLER_PORT}" for n in self.controller_ids)
        self.brokers: dict[int, BrokerServer] = {}
        """The servers of the processes that run now, whether started or starting."""
        self.controllers: dict[int, ControllerServer] = {}
        self._image: Any = MetadataImage.EMPTY
        self.failures: list[tuple[float, int, StrandlineError | OSError]] = []
        """Processes that ended because they could not continue: time, node, error."""
        self.on_boot: list[Callable[[int, BrokerServer | ControllerServer], object]] = []
        """Called with each server object when it is created, before it starts."""
        self.levels: dict[int, Levels] = {}
        """Node -> the levels of the metadata that its next process supports, as if it ran another version."""
        self._clients = 0
        self._processes: dict[int, _Process] = {}
        """The last process of each node."""

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{self.host(n)}:{BROKER_PORT}" for n in self.broker_ids)

    def host(self, node_id: int) -> str:
        """The name or address under which other nodes find it."""
        machine = self.machines[node_id]
        return machine.name if self.names else machine.address

    # -- life of nodes ------------------------------------------------------------------------------------------------

    def start(self, node_id: int, *, wiped: bool = False) -> None:
        """Start its process, on an empty disk if `wiped`. Returns at once; `ready` and `failures` show the outcome."""
        machine = self.machines[node_id]
        if wiped:
            machine.files.wipe()
        loop, doors, files = machine.boot()
        self.world.trace.emit("node.started", node_id)
        with self.world.within(loop):
            server = self._make(node_id, doors, files)
            process = self._processes[node_id] = _Process(self, node_id, loop, server)
            for callback in self.on_boot:
                callback(node_id, server)
            machine.spawn(process.live(), f"node {node_id}")

    def _make(self, node_id: int, doors: Doors, files: Any) -> BrokerServer | ControllerServer:
        levels = self.levels.get(node_id, SUPPORTED)
        if node_id in self.controller_ids:
            controller = ControllerServer(self.controller_config(node_id), doors, files, levels=levels)
            self.controllers[node_id] = controller
            return controller
        broker = BrokerServer(self.broker_config(node_id), doors, files, levels=levels)
        self.brokers[node_id] = broker
        return broker

    def crash(self, node_id: int, *, lossy: bool = False) -> None:
        """Kill its process. `lossy`: the machine loses its power, and gets it back with the next `start`."""
        self._forget(node_id)
        if lossy:
            self.machines[node_id].power_cut()
        else:
            self.machines[node_id].crash()

    def terminate(self, node_id: int) -> None:
        """Send SIGTERM. A second one ends the process at once."""
        if self.machines[node_id].is_up:
            self._processes[node_id].terminate()

    async def stop(self, node_id: int) -> None:
        """Send SIGTERM and wait for the end; raises `ProcessGone` if the process ends in another way meanwhile."""
        machine = self.machines[node_id]
        if machine.loop is None:
            return
        process = self._processes[node_id]
        if process.loop is not machine.loop:
            return
        if not process.is_asked:
            self.terminate(node_id)
        await self.world.until(lambda: process.loop.is_dead, STOP_S, f"the end of {machine.name}")
        if not process.has_exited:
            raise ProcessGone(f"{machine.name} ended before it had stopped")

    def exited(self, node_id: int, error: StrandlineError | OSError | None) -> None:
        """Record that its process has exited: after an orderly stop, or because of `error`."""
        if error is not None:
            self.failures.append((self.world.now, node_id, error))
            self.world.trace.emit("node.failed", node_id, reason=str(error))
        else:
            self.world.trace.emit("node.stopped", node_id)
        self._forget(node_id)
        self.machines[node_id].end()

    def leaks(self, node_id: int) -> list[str]:
        """Tasks that the server of its last process had not ended after an orderly stop. Must be empty (I23)."""
        process = self._processes.get(node_id)
        return [] if process is None else process.left

    def _forget(self, node_id: int) -> None:
        self.brokers.pop(node_id, None)
        self.controllers.pop(node_id, None)

    def broker_config(self, node_id: int) -> BrokerConfig:
        return BrokerConfig.from_mapping(
            {
                "node.id": node_id,
                "cluster.id": CLUSTER_ID,
                "listeners": f"PLAINTEXT://{self.host(node_id)}:{BROKER_PORT}",
                "log.dirs": "/data",
                "controller.quorum.voters": self.voters,
                **self._security(node_id),
                **({"broker.rack": self.racks[node_id - 1]} if self.racks else {}),
                **self.settings,
                **self.broker_settings.get(node_id, {}),
            }
        )

    def controller_config(self, node_id: int) -> ControllerConfig:
        return ControllerConfig.from_mapping(
            {
                "node.id": node_id,
                "cluster.id": CLUSTER_ID,
                "log.dirs": "/data",
                "controller.quorum.voters": self.voters,
                **self._security(node_id),
                **self.controller_settings,
            }
        )

    def _security(self, node_id: int) -> dict[str, Any]:
        return {} if self.identities is None else self.identities.settings(node_id)

    async def start_all(self, within_s: float = 30.0) -> None:
        for node_id in [*self.controller_ids, *self.broker_ids]:
            self.start(node_id)
        await self.ready(within_s)

    async def ready(self, within_s: float = 30.0) -> None:
        """Wait until every running broker is ready and sees all running brokers as unfenced."""
        await self.world.until(self.is_ready, within_s, "every broker sees every broker")

    async def support_all_levels(self, within_s: float = 30.0) -> None:
        """Let every controller support the levels of this version from now on, as after a rolling restart with new software."""
        wanted = set(self.controller_ids)
        await self.world.until(
            lambda: {n for n, server in self.controllers.items() if server.has_quorum and server.listening} == wanted,
            within_s,
            "every controller runs",
        )
        self.levels.clear()
        for controller in self.controllers.values():
            controller.controller.levels = SUPPORTED
            for server in controller.servers:
                server.supported_features = SUPPORTED.features

    def is_ready(self) -> bool:
        return bool(self.brokers) and all(self._sees_all(broker) for broker in self.brokers.values())

    def _sees_all(self, broker: BrokerServer) -> bool:
        known = broker.metadata.image.brokers
        return broker.ready.is_set() and all(n in known and not known[n].fenced for n in self.brokers)

    # -- faults of the network ----------------------------------------------------------------------------------------

    def isolate(self, node_id: int, others: Iterable[int] | None = None, *, inbound: bool = True, outbound: bool = True) -> None:
        """Cut the links of one node to some or all others."""
        for other in self.world.machines if others is None else others:
            if other not in (node_id, 0):
                if outbound:
                    self.world.network.cut(node_id, other)
                if inbound:
                    self.world.network.cut(other, node_id)

    def rejoin(self, node_id: int, others: Iterable[int] | None = None, *, inbound: bool = True, outbound: bool = True) -> None:
        """The inverse of `isolate` with the same arguments."""
        for other in self.world.machines if others is None else others:
            if other not in (node_id, 0):
                if outbound:
                    self.world.network.mend(node_id, other)
                if inbound:
                    self.world.network.mend(other, node_id)

    # -- clients ------------------------------------------------------------------------------------------------------

    def client(self, name: str = "", user: str | None = None) -> Client:
        """A new client. `user`: the user as which it logs in, in a cluster with security; None: the user that belongs to this
        name."""
        self._clients += 1
        node_id = 200 + self._clients
        return Client(self, self.world.add_machine(node_id, name or f"client-{node_id}"), user or user_of(name))

    async def create_topic(self, name: str, **options: Any) -> None:
        """Create a topic, with a client of its own."""
        client = self.client()

        async def create() -> None:
            async with client.admin() as admin:
                await admin.create_topics([NewTopic(name, **options)])

        await client.run(create())

    # -- looking inside -----------------------------------------------------------------------------------------------

    @property
    def active_controller(self) -> ControllerServer | None:
        """The active controller of the highest epoch."""
        best, highest = None, -1
        for server in self.controllers.values():  # A loop, because conditions call this after each step.
            active = server.controller.active if server.has_quorum else None
            if active is not None and active.epoch > highest:
                best, highest = server, active.epoch
        return best

    def image(self) -> Any:
        """The newest metadata image of any node: the active controller's, or the longest of the brokers'."""
        active = self.active_controller
        if active is not None:
            self._image = active.controller.image
            return self._image
        images = [b.metadata.image for b in self.brokers.values()]
        images += [c.controller.image for c in self.controllers.values() if c.has_quorum]
        return max(images, key=lambda image: image.offset, default=self._image)  # while no node runs, the last known image

    def topic_id(self, topic: str) -> bytes:
        return bytes(self.image().topics_by_name[topic])

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition | None:
        """The partition object on a broker, if the broker has the replica."""
        broker = self.brokers.get(node_id)
        if broker is None or not broker.has_logs:
            return None
        topic_id = self.image().topics_by_name.get(topic)
        return None if topic_id is None else broker.replicas.partitions.get((bytes(topic_id), index))


async def gather(*awaitables: Awaitable[T]) -> list[T]:
    return list(await asyncio.gather(*awaitables))
