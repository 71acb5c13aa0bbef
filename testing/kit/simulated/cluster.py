"""The kit's `Cluster` in a simulated world. It has the same calls, so a test can be moved here unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Sequence
from random import Random
from typing import Any

from strandline.client import ConsumerRecord
from strandline.local_cluster import settings_by_role
from strandline.testing.history import EVERY_ACK, Acks, History, Verdict
from strandline.testing.kit import oracles
from strandline.testing.kit.async_cluster import WITHIN_S
from strandline.testing.kit.cluster import Cluster
from strandline.testing.kit.nodes import KitError, Nodes
from strandline.testing.kit.simulated.nodes import POLL_S, SimulatedNodes
from strandline.testing.kit.simulated.weather import Draw, Weather
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.kernel.disk import Latency
from strandline.testing.simulation.kernel.world import World

REST_S = 60.0
SHELTER_S = 10.0
"""Maximum virtual time that a call of the test waits for the nodes that the weather took down."""
SETTINGS = {
    "broker_heartbeat_interval_ms": 200,
    "replica_fetch_wait_max_ms": 500,
    "log_retention_check_interval_ms": 1000,
    "log_cleaner_backoff_ms": 1000,
}
"""Longer intervals than in real time. Idle requests cost almost nothing there, but half of a seed's time here."""


class Rest:
    """The result of `heal()`, which has ended the faults already. Awaiting it waits until the cluster has come to rest."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def __await__(self) -> Generator[Any, None, None]:
        return self._cluster.come_to_rest().__await__()


class SimulatedCluster(Cluster):
    def __init__(self, world: World, seed: int, draw: Draw, weather_kinds: dict[str, float], **options: Any) -> None:
        is_gentle = options.pop("is_gentle", True)
        super().__init__(seed=seed, **{**SETTINGS, **options})
        self.world = world
        world.network.delay_s, world.network.jitter_s = draw.delay_ms / 1000, draw.jitter_ms / 1000
        by_role = settings_by_role(self._settings)
        self.simulated = SimCluster(
            world,
            brokers=self._brokers,
            controllers=self._controllers,
            settings=by_role["broker"],
            controller_settings=by_role["controller"],
        )
        if draw.disks_take_time:
            for machine in self.simulated.machines.values():
                machine.files.take_time(Latency())
        self.weather = Weather(self.simulated, draw, weather_kinds, is_gentle=is_gentle)
        self.client: Client = self.simulated.client("test")
        """The simulated machine on which the test runs."""
        self.history = History(clock=lambda: world.now)
        self.policies.clocks_are_right = "clock_jump" not in weather_kinds

    def _hosted(self) -> Nodes:
        return SimulatedNodes(self.simulated, self.weather, Random(f"{self.seed}/rules"), self.client.machine.id)

    @property
    def timeout_s_max(self) -> float:
        """The longest timeout in the cluster's settings, in seconds."""
        names = ("session.timeout.ms", "lag.time.max.ms", "fetch.timeout.ms", "request.timeout.ms", "election.timeout.ms")
        return max(float(value) for name, value in self._settings.items() if name.endswith(names)) / 1000

    # -- calm ---------------------------------------------------------------------------------------------------------

    def heal(self) -> Rest:  # type: ignore[override]
        """Repair the network and end the drawn faults for good. `await cluster.heal()` also waits until the cluster has come to
        rest."""
        super().heal()
        return Rest(self)

    async def come_to_rest(self) -> None:
        """Wait until every node that is up takes part and all its replicas are in their ISRs. KitError: not within REST_S."""
        deadline = self.world.now + REST_S
        while reasons := self._unrest():
            if self.world.now >= deadline:
                raise KitError(f"the cluster did not come to rest within {REST_S:g} s: {'; '.join(reasons[:5])}")
            await asyncio.sleep(POLL_S)

    def _unrest(self) -> list[str]:
        nodes = self.nodes
        assert isinstance(nodes, SimulatedNodes)
        if nodes.controller() is None:
            return ["there is no active controller"]
        views = [view for view in nodes.views if view.is_up and view.state != "paused"]
        reasons = [f"{view.name} does not take part" for view in views if not nodes.takes_part(view.id)]
        up = {view.id for view in views}
        for partition in nodes.partitions():
            behind = sorted((set(partition.replicas) & up) - partition.isr)
            reasons += [f"broker {node} is not in the ISR of {partition.topic}-{partition.partition}" for node in behind]
        return reasons

    async def _sheltered(self) -> None:
        """Wait until the nodes that the weather took down are back, at most SHELTER_S."""
        deadline = self.world.now + SHELTER_S
        while self.world.now < deadline:
            if all(view.state != "starting" for view in self.nodes.views):
                return
            await asyncio.sleep(POLL_S)

    # -- calls of the kit that run without drawn faults ---------------------------------------------------------------

    async def create_topic(
        self,
        name: str | None = None,
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        replicas: Sequence[Sequence[int]] | None = None,
        **configs: Any,
    ) -> str:
        with self.weather.shelter():
            await self._sheltered()
            return await super().create_topic(
                name, partitions=partitions, replication_factor=replication_factor, replicas=replicas, **configs
            )

    async def force_election(self, topic: str, partition: int = 0, leader: int | None = None) -> int:
        with self.weather.shelter():
            await self._sheltered()
            return await super().force_election(topic, partition, leader)

    async def read_all(self, topic: str, *, within_s: float = WITHIN_S) -> list[ConsumerRecord]:
        with self.weather.shelter():
            await self._sheltered()
            return await super().read_all(topic, within_s=within_s)

    async def verdict(
        self,
        history: History | None = None,
        *,
        acks: Acks = EVERY_ACK,
        idempotent: bool = True,
        within_s: float = WITHIN_S,
    ) -> Verdict:
        with self.weather.shelter():
            await self._sheltered()
            return await super().verdict(history, acks=acks, idempotent=idempotent, within_s=within_s)

    async def assert_no_acked_loss(
        self,
        acked: History | Iterable[oracles.Acked] | None = None,
        *,
        acks: Acks = EVERY_ACK,
        at_least: int = 1,
        within_s: float = WITHIN_S,
    ) -> None:
        __tracebackhide__ = True
        with self.weather.shelter():
            await self._sheltered()
            await super().assert_no_acked_loss(acked, acks=acks, at_least=at_least, within_s=within_s)

    async def assert_logs_identical(self, topic: str, *, within_s: float = WITHIN_S) -> None:
        __tracebackhide__ = True
        with self.weather.shelter():
            await self._sheltered()
            await super().assert_logs_identical(topic, within_s=within_s)

    def __repr__(self) -> str:
        return f"<simulated {super().__repr__().strip('<>')}>"
