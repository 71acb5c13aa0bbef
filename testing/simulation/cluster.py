"""A Strandline cluster in a simulated world: the production servers and clients on simulated machines.

Controllers are numbered from 101, brokers from 1, clients from 201, each on a machine of its own, at a fixed address. Only
the outside of a process is simulated; `BrokerServer`, `ControllerServer`, `Producer`, `Consumer` and `Admin` are the
production classes.

A node's process ends when its server says that it cannot go on (`failure`), as `strandline.node` ends it; nobody starts it
again but the story.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from strandline.broker.config import BrokerConfig
from strandline.broker.partition import Partition
from strandline.broker.server import BrokerServer
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.controller.config import ControllerConfig
from strandline.controller.server import ControllerServer
from strandline.protocol.doors import Doors
from strandline.protocol.errors import StrandlineError
from strandline.testing.simulation.machine import Machine
from strandline.testing.simulation.world import World

T = TypeVar("T")

BROKER_PORT, CONTROLLER_PORT = 9092, 9093
CLUSTER_ID = "simulated-cluster"
STOP_S = 120.0


class Client:
    """A process of a user: what runs in it runs on its own machine, with its own clock."""

    def __init__(self, cluster: SimCluster, machine: Machine) -> None:
        self.cluster = cluster
        self.machine = machine
        self.loop, self.doors, _ = machine.boot()

    def producer(self, **options: Any) -> Producer:
        """To be used by code that runs on this machine (`spawn`)."""
        return Producer(doors=self.doors, **{"bootstrap_servers": self.cluster.bootstrap_servers, **options})

    def consumer(self, *topics: str, **options: Any) -> Consumer:
        return Consumer(*topics, doors=self.doors, **{"bootstrap_servers": self.cluster.bootstrap_servers, **options})

    def admin(self, **options: Any) -> Admin:
        return Admin(doors=self.doors, **{"bootstrap_servers": self.cluster.bootstrap_servers, **options})

    def spawn(self, coroutine: Any, name: str | None = None) -> asyncio.Task[Any]:
        return self.machine.spawn(coroutine, name)

    async def run(self, coroutine: Any) -> Any:
        """From a story: run it on this machine and wait for its result."""
        return await self.cluster.world.join(self.spawn(coroutine))


class SimCluster:
    def __init__(
        self,
        world: World,
        *,
        controllers: int = 3,
        brokers: int = 3,
        settings: dict[str, Any] | None = None,
        controller_settings: dict[str, Any] | None = None,
    ) -> None:
        self.world = world
        self.settings = settings or {}
        """Kafka's keys, for every broker."""
        self.controller_settings = controller_settings or {}
        self.controller_ids = [101 + n for n in range(controllers)]
        self.broker_ids = [1 + n for n in range(brokers)]
        self.machines: dict[int, Machine] = {}
        for node_id in self.controller_ids:
            self.machines[node_id] = world.add_machine(node_id, f"controller-{node_id}")
        for node_id in self.broker_ids:
            self.machines[node_id] = world.add_machine(node_id, f"broker-{node_id}")
        for node_id, machine in self.machines.items():
            machine.on_death = lambda node_id=node_id: self.crash(node_id)
        self.voters = ",".join(f"{n}@{self.machines[n].address}:{CONTROLLER_PORT}" for n in self.controller_ids)
        self.brokers: dict[int, BrokerServer] = {}
        """Of the processes that run now, started or starting."""
        self.controllers: dict[int, ControllerServer] = {}
        self.failures: list[tuple[float, int, StrandlineError]] = []
        """Processes that ended because they could not go on: when, which, why."""
        self.on_boot: list[Callable[[int, BrokerServer | ControllerServer], object]] = []
        """Told of each server object as it is made, before it starts."""
        self._clients = 0
        self._starts: dict[int, asyncio.Task[None]] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{self.machines[n].address}:{BROKER_PORT}" for n in self.broker_ids)

    # -- life of nodes ------------------------------------------------------------------------------------------------

    def start(self, node_id: int) -> None:
        """Start its process; what becomes of it is seen later (`ready`, `failures`)."""
        machine = self.machines[node_id]
        loop, doors, files = machine.boot()
        self.world.trace.emit("node.started", node_id)
        with self.world.within(loop):
            server = self._make(node_id, doors, files)
            for told in self.on_boot:
                told(node_id, server)
            self._starts[node_id] = machine.spawn(self._live(node_id, server), f"node {node_id}")

    def _make(self, node_id: int, doors: Doors, files: Any) -> BrokerServer | ControllerServer:
        if node_id in self.controller_ids:
            controller = ControllerServer(self.controller_config(node_id), doors, files)
            self.controllers[node_id] = controller
            return controller
        broker = BrokerServer(self.broker_config(node_id), doors, files)
        self.brokers[node_id] = broker
        return broker

    async def _live(self, node_id: int, server: BrokerServer | ControllerServer) -> None:
        """What `strandline.node` does: start, then wait for a failure."""
        try:
            await server.start()
        except StrandlineError as e:
            self._give_up(node_id, e)
            return
        assert server.failure is not None
        failure = await server.failure
        await server.stop()
        self._give_up(node_id, failure)

    def _give_up(self, node_id: int, error: StrandlineError) -> None:
        self.failures.append((self.world.now, node_id, error))
        self.world.trace.emit("node.failed", node_id, reason=str(error))
        self.world.scheduler.after(0.0, self._forget, node_id)

    def _forget(self, node_id: int) -> None:
        self.brokers.pop(node_id, None)
        self.controllers.pop(node_id, None)
        self.machines[node_id].end()

    def broker_config(self, node_id: int) -> BrokerConfig:
        address = self.machines[node_id].address
        return BrokerConfig.from_mapping(
            {
                "node.id": node_id,
                "cluster.id": CLUSTER_ID,
                "listeners": f"PLAINTEXT://{address}:{BROKER_PORT}",
                "log.dirs": "/data",
                "controller.quorum.voters": self.voters,
                **self.settings,
            }
        )

    def controller_config(self, node_id: int) -> ControllerConfig:
        return ControllerConfig.from_mapping(
            {
                "node.id": node_id,
                "cluster.id": CLUSTER_ID,
                "log.dirs": "/data",
                "controller.quorum.voters": self.voters,
                **self.controller_settings,
            }
        )

    def crash(self, node_id: int, *, lossy: bool = False) -> None:
        """`lossy`: the machine loses its power, and comes back with the next `start`."""
        self.brokers.pop(node_id, None)
        self.controllers.pop(node_id, None)
        if lossy:
            self.machines[node_id].power_cut()
        else:
            self.machines[node_id].crash()

    async def stop(self, node_id: int) -> None:
        """SIGTERM, and wait for its end."""
        machine = self.machines[node_id]
        server = self.brokers.get(node_id) or self.controllers.get(node_id)
        if server is None or machine.loop is None:
            return
        await self.world.join(machine.spawn(server.stop(), f"stop {node_id}"))
        if machine.loop is not None and (self.brokers.get(node_id) or self.controllers.get(node_id)) is server:
            self.world.trace.emit("node.stopped", node_id)
            self._forget(node_id)

    async def start_all(self, within_s: float = 30.0) -> None:
        for node_id in [*self.controller_ids, *self.broker_ids]:
            self.start(node_id)
        await self.ready(within_s)

    async def ready(self, within_s: float = 30.0) -> None:
        """Every broker that runs is unfenced, and every broker knows so."""
        await self.world.until(self.is_ready, within_s, "every broker sees every broker")

    def is_ready(self) -> bool:
        return bool(self.brokers) and all(self._sees_all(broker) for broker in self.brokers.values())

    def _sees_all(self, broker: BrokerServer) -> bool:
        known = broker.metadata.image.brokers
        return all(n in known and not known[n].fenced for n in self.brokers) and broker.ready.is_set()

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
        """The opposite of `isolate` with the same arguments."""
        for other in self.world.machines if others is None else others:
            if other not in (node_id, 0):
                if outbound:
                    self.world.network.mend(node_id, other)
                if inbound:
                    self.world.network.mend(other, node_id)

    # -- clients ------------------------------------------------------------------------------------------------------

    def client(self, name: str = "") -> Client:
        self._clients += 1
        node_id = 200 + self._clients
        return Client(self, self.world.add_machine(node_id, name or f"client-{node_id}"))

    async def create_topic(self, name: str, **options: Any) -> None:
        """By a client of its own."""
        client = self.client()

        async def create() -> None:
            async with client.admin() as admin:
                await admin.create_topics([NewTopic(name, **options)])

        await client.run(create())

    # -- looking inside -----------------------------------------------------------------------------------------------

    @property
    def active_controller(self) -> ControllerServer | None:
        """The one that leads in the highest epoch."""
        leading = [c for c in self.controllers.values() if c.has_quorum and c.controller.active is not None]
        return max(leading, key=lambda c: c.controller.active.epoch if c.controller.active else -1, default=None)

    def image(self) -> Any:
        """The newest metadata image that anybody has: the active controller's, or the longest of the brokers'."""
        active = self.active_controller
        if active is not None:
            return active.controller.image
        return max((b.metadata.image for b in self.brokers.values()), key=lambda image: image.offset)

    def topic_id(self, topic: str) -> bytes:
        return bytes(self.image().topics_by_name[topic])

    def partition(self, node_id: int, topic: str, index: int = 0) -> Partition | None:
        """The replica's partition object on a broker, if it has one."""
        broker = self.brokers.get(node_id)
        if broker is None or not broker.has_logs:
            return None
        image = self.image()
        return broker.replicas.partitions.get((bytes(image.topics_by_name[topic]), index))


async def gather(*awaitables: Awaitable[T]) -> list[T]:
    return list(await asyncio.gather(*awaitables))
