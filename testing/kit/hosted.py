"""Nodes in the test's own process and event loop: the production servers, each in its own `ProcessLoop` on its own `Disk`.

A node's *process* is one incarnation: a server, its loop, its access to the network, its open files. Killing the process drops
the loop, breaks the connections and closes the files, as the kernel would; no code of it runs any more, not even a `finally`.
The node keeps its disk and its port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from strandline.broker.config import BrokerConfig
from strandline.broker.process.server import BrokerServer
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.features import SUPPORTED
from strandline.controller.server import ControllerServer
from strandline.protocol.doors import Doors, real_doors
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.storage.disk import Files
from strandline.testing.kit.disks import Disk, ProcessFiles
from strandline.testing.kit.door import Door
from strandline.testing.kit.inside import InsideNodes
from strandline.testing.kit.lines import Line, Lines, Speaker, begin_routing, end_routing
from strandline.testing.kit.network import Network
from strandline.testing.kit.nodes import FIRST_CONTROLLER, KitError
from strandline.testing.kit.ports import HOST, ReservedPort
from strandline.testing.kit.process_loop import ProcessLoop, carry_over
from strandline.testing.kit.security import KitSecurity
from strandline.testing.kit.view import NodeView

T = TypeVar("T")

READY_WITHIN_S = 10.0
STOP_WITHIN_S = 10.0
CLOSE_WITHIN_S = 2.0
THREADS = 4
POLL_S = 0.001

FAST_SETTINGS: Mapping[str, Any] = {
    "broker.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 100,
    "broker.connection.loss.grace.ms": 20,
    "controlled.shutdown.timeout.ms": 3000,
    "log.cleaner.backoff.ms": 50,
    "replica.fetch.wait.max.ms": 200,
    "replica.lag.time.max.ms": 1000,
    "controller.quorum.fetch.timeout.ms": 500,
    "controller.quorum.election.timeout.ms": 300,
    "controller.quorum.election.backoff.max.ms": 50,
}
"""Short timeouts, because tests wait for them and all nodes are on one machine. A test that blocks the event loop for longer
does no harm: it blocks all nodes together, and they notice it."""


@dataclass(slots=True)
class Process:
    """One incarnation of a node."""

    loop: ProcessLoop
    door: Door
    files: ProcessFiles
    main: asyncio.Task[None] | None = None
    server: BrokerServer | ControllerServer | None = None
    """Set when it is constructed; it may still be starting."""
    has_started: bool = False
    ended: list[asyncio.Future[None]] = field(default_factory=list)
    """Futures of the real loop that become done when the process ends."""

    def end(self) -> None:
        """End the process at once: none of its code runs after that, and its connections and files are closed."""
        if self.loop.is_dead:
            return
        self.loop.kill()
        self.door.close()
        self.files.sever()
        for future in self.ended:
            if not future.done():
                future.set_result(None)


class HostedNode:
    """One node: its disk and port, which outlive its processes, and its latest process."""

    def __init__(self, nodes: HostedNodes, node: int, files: Files, settings: Mapping[str, Any]) -> None:
        self.id = node
        self.is_broker = node < FIRST_CONTROLLER
        self.name = f"{'broker' if self.is_broker else 'controller'}-{node}"
        self.disk = Disk(files)
        self.port = ReservedPort()
        self.kafka_port = ReservedPort() if nodes.kafka and self.is_broker else None
        """The port of the broker's listener for Kafka's clients."""
        self.state = "stopped"
        self.note = ""
        self.levels = SUPPORTED
        """The levels of the metadata that the next process supports; a test can set those of another software version."""
        self.process: Process | None = None
        """The latest process; it may be dead."""
        self.speaker = Speaker(self.name, nodes.log)
        self._nodes = nodes
        self._settings = settings

    @property
    def server(self) -> Any:
        """The node's server; None if its process does not run or has not started."""
        process = self.process
        return process.server if process is not None and process.has_started and not process.loop.is_dead else None

    @property
    def is_up(self) -> bool:
        """Whether a process of the node runs. One that has failed ends soon, in the next iteration of the loop."""
        return self.process is not None and not self.process.loop.is_dead and self.state != "failed"

    @property
    def is_awake(self) -> bool:
        return self.server is not None and self.state != "paused"

    def config(self) -> dict[str, Any]:
        listener = "PLAINTEXT" if self.is_broker else "CONTROLLER"
        config = {
            "node.id": self.id,
            "cluster.id": self._nodes.cluster_id,
            "listeners": f"{listener}://{HOST}:{self.port.port}",
            "log.dirs": f"{self._nodes.folder}/{self.name}",
            "controller.quorum.voters": self._nodes.voters,
            **self._security(),
            **self._settings,
        }
        if self.kafka_port is not None:
            config["listeners"] += f",KAFKA://{HOST}:{self.kafka_port.port}"
        return config

    def _security(self) -> dict[str, Any]:
        security, nodes = self._nodes.security, [node.name for node in self._nodes.nodes.values()]
        address = f"{HOST}:{self.port.port}"
        return {} if security is None else security.config(self.name, is_broker=self.is_broker, address=address, nodes=nodes)

    # -- life

    def start(self) -> None:
        """Start a new process of the node. UsageError: it is already running."""
        if self.is_up:
            raise UsageError(f"{self.name} is already running")
        if self.process is not None:
            self.process.end()
        nodes = self._nodes
        door = Door(nodes.network, self.id, nodes.real)
        loop = door.loop = ProcessLoop(nodes.real, nodes.threads, self.speaker, door)  # type: ignore[abstract]
        process = self.process = Process(loop, door, ProcessFiles(self.disk, loop))
        nodes.remains.append(loop)
        self.state, self.note = "starting", ""
        process.main = loop.create_task(self._live(process), name=self.name)

    async def _live(self, process: Process) -> None:
        """The main task of the process: start the server and run until it fails or is stopped."""
        try:
            server = process.server = self._make(process.files)
            await server.start()
            process.has_started = True
            if self.state == "starting":
                self.state = "running"
            assert server.failure is not None
            reason: Exception = await asyncio.shield(server.failure)
            await server.stop()
        except asyncio.CancelledError:
            return  # It is being stopped.
        except Exception as e:
            reason = e
        self.state = "failed"
        self.note = str(reason) if isinstance(reason, StrandlineError) else f"{type(reason).__name__}: {reason}"
        process.loop.call_soon(process.end)

    def _make(self, files: ProcessFiles) -> BrokerServer | ControllerServer:
        doors = Doors(real_doors().wall_clock_ms, Random(self._nodes.random.getrandbits(64)))
        if self.is_broker:
            return BrokerServer(BrokerConfig.from_mapping(self.config()), doors, files, levels=self.levels)
        return ControllerServer(ControllerConfig.from_mapping(self.config()), doors, files, levels=self.levels)

    async def stop(self) -> None:
        """Stop the node cleanly; a paused one is resumed first. UsageError: it is not running. KitError: it did not stop in time,
        and was killed."""
        process = self._running()
        if self.state == "paused":
            self.resume()
        try:
            async with asyncio.timeout(STOP_WITHIN_S):
                await self.call(lambda: self._stop(process))
        except TimeoutError:
            raise KitError(f"{self.name} did not stop within {STOP_WITHIN_S:g} s; kill it instead") from None
        finally:
            if not process.loop.is_dead:
                process.end()
                self.state = "stopped"

    async def _stop(self, process: Process) -> None:
        assert process.main is not None
        if process.has_started and process.server is not None:
            await process.server.stop()
        process.main.cancel()
        await asyncio.wait([process.main])

    def kill(self) -> None:
        """End the process at once. UsageError: it is not running."""
        self._running().end()
        self.state = "killed"

    def pause(self) -> None:
        """Suspend the process: its callbacks wait until `resume`. UsageError: it is not running, or already paused."""
        process = self._running()
        if self.state == "paused":
            raise UsageError(f"{self.name} is already paused")
        self.state = "paused"
        process.loop.pause()
        process.door.update()

    def resume(self) -> None:
        """End `pause`. UsageError: it is not running, or not paused."""
        process = self._running()
        if self.state != "paused":
            raise UsageError(f"{self.name} is not paused")
        self.state = "running" if process.has_started else "starting"
        process.loop.resume()
        process.door.update()

    def _running(self) -> Process:
        if self.process is None or self.process.loop.is_dead:
            raise UsageError(f"{self.name} is not running ({self.state}{f': {self.note}' if self.note else ''})")
        return self.process

    # -- from the test's loop

    async def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` in the process and wait for its result in the test's own loop. KitError: the process ended meanwhile."""
        process, real = self._running(), self._nodes.real
        done: asyncio.Future[T] = real.create_future()
        ended: asyncio.Future[None] = real.create_future()
        process.ended.append(ended)

        async def run() -> T:
            return await work()

        task = process.loop.create_task(run())
        task.add_done_callback(lambda task: carry_over(task, done))
        try:
            waited: list[asyncio.Future[Any]] = [done, ended]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise KitError(f"{self.name} ended during the call ({self.state}{f': {self.note}' if self.note else ''})")
            return done.result()
        finally:
            process.ended.remove(ended)
            done.cancel()
            ended.cancel()
            task.cancel()


class HostedNodes(InsideNodes):
    kind = "in this process"
    poll_s = POLL_S

    def __init__(
        self,
        *,
        brokers: int,
        controllers: int,
        files: Callable[[], Files],
        folder: str,
        random: Random,
        settings: Mapping[str, Mapping[str, Any]],
        security: KitSecurity | None = None,
        kafka: bool = False,
    ) -> None:
        """`settings`: configuration by role, "broker" or "controller". `files` makes the disk of one node. `kafka`: brokers have
        a listener for Kafka's clients."""
        self.security = security
        self.kafka = kafka
        self.real = asyncio.get_running_loop()
        self.random = random
        self.folder = folder
        self.cluster_id = "test-cluster"
        self.log = Lines()
        self.threads = ThreadPoolExecutor(THREADS, thread_name_prefix="strandline")
        self.remains: list[ProcessLoop] = []
        """The loops of all processes, dead ones included."""
        self._network = Network(Random(random.getrandbits(64)))
        ids = [*range(FIRST_CONTROLLER, FIRST_CONTROLLER + controllers), *range(1, brokers + 1)]
        roles = {node: "broker" if node < FIRST_CONTROLLER else "controller" for node in ids}
        self.nodes = {node: HostedNode(self, node, files(), settings[roles[node]]) for node in ids}
        self.voters = ",".join(f"{n.id}@{HOST}:{n.port.port}" for n in self.nodes.values() if not n.is_broker)
        begin_routing()

    @property
    def broker_ids(self) -> Sequence[int]:
        return [node for node in self.nodes if node < FIRST_CONTROLLER]

    @property
    def controller_ids(self) -> Sequence[int]:
        return [node for node in self.nodes if node >= FIRST_CONTROLLER]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{HOST}:{self.nodes[node].port.port}" for node in self.broker_ids)

    @property
    def kafka_bootstrap(self) -> str:
        ports = [self.nodes[node].kafka_port for node in self.broker_ids]
        return ",".join(f"{HOST}:{port.port}" for port in ports if port is not None)

    @property
    def network(self) -> Network:
        return self._network

    def disk(self, node: int) -> Disk:
        return self.nodes[self.check_id(node)].disk

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start_all(self) -> None:
        """Start every node and wait until all take part. KitError, with the reasons: a node failed, or they did not within
        READY_WITHIN_S."""
        if self.security is not None:
            self.security.write({node.name: node.disk.files for node in self.nodes.values()})
        for node in self.nodes.values():
            node.start()
        deadline = self.real.time() + READY_WITHIN_S
        while not all(map(self.takes_part, self.nodes)):
            failed = [f"{node.name}: {node.note}" for node in self.nodes.values() if node.state == "failed"]
            if failed:
                raise KitError(f"the cluster did not start: {'; '.join(failed)}")
            if self.real.time() > deadline:
                states = ", ".join(f"{node.name} {node.state}" for node in self.nodes.values())
                raise KitError(f"the cluster was not ready within {READY_WITHIN_S:g} s: {states}")
            await asyncio.sleep(POLL_S)

    async def close(self) -> None:
        for node in self.nodes.values():
            if node.process is not None:
                node.process.end()
            node.port.release()
            if node.kafka_port is not None:
                node.kafka_port.release()
        await self._network.until_quiet(CLOSE_WITHIN_S)
        await asyncio.sleep(0)  # asyncio closes the sockets of listeners and transports one iteration after `close()`.
        for loop in self.remains:
            loop.bury()
        self.remains.clear()
        self.threads.shutdown()
        end_routing()

    async def start(self, node: int) -> None:
        self.nodes[self.check_id(node)].start()

    async def stop(self, node: int) -> None:
        await self.nodes[self.check_id(node)].stop()

    async def kill(self, node: int) -> None:
        self.nodes[self.check_id(node)].kill()
        await asyncio.sleep(0)

    async def pause(self, node: int) -> None:
        self.nodes[self.check_id(node)].pause()

    async def resume(self, node: int) -> None:
        self.nodes[self.check_id(node)].resume()

    # -- looking ------------------------------------------------------------------------------------------------------

    def node(self, node: int) -> NodeView:
        found = self.nodes[self.check_id(node)]
        return NodeView(found.id, found.name, found.state, ", ".join(filter(None, (found.note, found.disk.trouble))))

    def server(self, node: int) -> Any:
        return self.nodes[node].server

    def is_awake(self, node: int) -> bool:
        return self.nodes[node].is_awake

    async def call(self, node: int, work: Callable[[], Awaitable[T]]) -> T:
        return await self.nodes[node].call(work)

    def lines(self, count: int) -> Sequence[Line]:
        return self.log.last(count)
