"""Whole clusters run under the invariants: correct clusters pass, and clusters without a guard are caught.

The bench shows each check a history that breaks it. Here the production code creates the histories. So these tests also show that
the probes are in the right places, and that no effect of a fault on a sound cluster is mistaken for a bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

import pytest
from invariant_bench import EmittedOnly
from waiting import until
from wire_cluster import WireCluster

from strandline.broker.fetch.fetch_handler import Fetch
from strandline.protocol.records.builder import encode_batch
from strandline.storage.log.log import Log
from strandline.testing.simulation.campaign.mutations import applied
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.world import World
from strandline.testing.simulation.observation import probes as probes_module
from strandline.testing.simulation.observation.probes import Probes, node_of

SETTINGS = {
    "broker.session.timeout.ms": 1000,
    "broker.heartbeat.interval.ms": 200,
    "replica.lag.time.max.ms": 1000,
    "log.segment.bytes": 2000,
}


class Watched:
    """A simulated cluster with one topic, and the invariants on it."""

    def __init__(self, seed: int, *, brokers: int = 3, controllers: int = 3) -> None:
        self.world = World(seed)
        self.invariants = Invariants(self.world.trace, on_violation=self.world.scheduler.fail)
        self.world.scheduler.after_step.append(self.invariants.after_step)
        controller_settings = {"broker.session.timeout.ms": 1000}
        self.cluster = SimCluster(
            self.world, brokers=brokers, controllers=controllers, settings=SETTINGS, controller_settings=controller_settings
        )

    def run(self, story: Callable[[Watched], Awaitable[None]], *, mutation: str | None = None) -> None:
        async def play() -> None:
            await self.cluster.start_all()
            await self.cluster.create_topic("orders", partitions=1, replication_factor=3, configs={"min.insync.replicas": 2})
            await story(self)

        with ExitStack() as stack:
            if mutation is not None:
                stack.enter_context(applied(mutation))
            stack.enter_context(Probes(self.invariants))
            try:
                self.world.run(play(), limit_s=300.0)
            finally:
                self.world.close()

    @property
    def leader(self) -> int:
        return int(self.cluster.image().topic("orders").partitions[0].leader)

    def others(self) -> list[int]:
        return [node for node in self.cluster.broker_ids if node != self.leader]

    async def produce(self, count: int, acks: str | int = "all", timeout_ms: int = 30_000) -> None:
        client = self.cluster.client()

        async def send() -> None:
            options = {} if acks == "all" else {"enable_idempotence": False}
            async with client.producer(acks=acks, delivery_timeout_ms=timeout_ms, request_timeout_ms=1000, **options) as producer:
                for number in range(count):
                    try:
                        await producer.send_nowait("orders", b"%d" % number + bytes(200))
                    except Exception:
                        return

        await client.run(send())

    async def consume(self, seconds: float) -> None:
        client = self.cluster.client()

        async def read() -> None:
            async with client.consumer("orders", auto_offset_reset="earliest") as consumer:
                deadline = asyncio.get_running_loop().time() + seconds
                while asyncio.get_running_loop().time() < deadline:
                    await consumer.getmany(timeout_ms=50)

        await client.run(read())

    async def rest(self) -> None:
        await self.world.until(lambda: not self.invariants.unsettled(), 60.0, "the cluster is at rest")
        self.invariants.at_rest()


# -- sound clusters -----------------------------------------------------------------------------------------------------


async def crashes_and_power_cuts(at: Watched) -> None:
    """Each broker loses its power once, another one is killed, the leader is paused, and a controller dies."""
    cluster = at.cluster
    load = asyncio.ensure_future(at.produce(200))
    reading = asyncio.ensure_future(at.consume(20.0))
    for node in cluster.broker_ids:
        await asyncio.sleep(0.3)
        cluster.crash(node, lossy=True)
        await asyncio.sleep(0.3)
        cluster.start(node)
        await at.world.until(lambda: not at.invariants.unsettled() or not load.done(), 60.0)
        await at.world.until(lambda: len(cluster.image().topic("orders").partitions[0].isr) == 3, 60.0, "a full ISR")
    leader = at.leader
    cluster.machines[leader].pause()
    cluster.crash(102)
    await asyncio.sleep(3.0)
    cluster.machines[leader].resume()
    cluster.start(102)
    await cluster.stop(at.leader)
    await asyncio.sleep(0.5)
    for node in cluster.broker_ids:
        if not cluster.machines[node].is_up:
            cluster.start(node)
    await cluster.ready(60.0)
    await load
    await reading
    await at.rest()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_sound_cluster_under_faults_is_not_blamed(seed: int):
    at = Watched(seed)
    at.run(crashes_and_power_cuts)
    ghosts = at.invariants.ghosts
    assert ghosts.named("orders-0").acked_end > 100
    assert len(ghosts.named("orders-0").actors) > 2, "several brokers have led"
    assert len(ghosts.metadata.entries) > 10


async def test_real_sockets_are_watched_as_well():
    """No simulated loop identifies a process here: a broker is killed and started again."""
    invariants = Invariants(EmittedOnly())
    with Probes(invariants):
        async with WireCluster(brokers=3, replica_lag_time_max_ms=1000) as cluster:
            topic = await cluster.create("orders", replication_factor=3, min_insync_replicas="2")
            for number in range(20):
                await cluster.produce(topic, f"v{number}")
            leader = (await cluster.partition_of("orders")).leader_id
            await cluster.kill(leader)
            for number in range(20, 40):
                await cluster.produce(topic, f"v{number}")
            await cluster.start(leader)
            await until(lambda: not invariants.unsettled(), "at rest", 20)
            _, values = await cluster.fetch(cluster.running[0], topic.topic_id)
            assert len(values) == 40
            invariants.at_rest()
    assert invariants.failure is None
    assert invariants.ghosts.named("orders-0").acked_end == 40


# -- clusters with one guard removed ----------------------------------------------------------------------------------------


async def nothing(at: Watched) -> None:
    await at.produce(5)


async def followers_stand_still(at: Watched) -> None:
    """The followers are paused, so the records that the leader appends are not committed."""
    for node in at.others():
        at.cluster.machines[node].pause()
    load = asyncio.ensure_future(at.produce(5, acks=1))
    reading = asyncio.ensure_future(at.consume(0.5))
    await load
    await reading


async def an_acknowledgement_is_waited_for(at: Watched) -> None:
    for node in at.others():
        at.cluster.machines[node].pause()
    await at.produce(3, timeout_ms=1500)


async def the_isr_shrinks_below_the_minimum(at: Watched) -> None:
    for node in at.others():
        at.cluster.crash(node)
    await at.world.until(lambda: len(at.cluster.image().topic("orders").partitions[0].isr) == 1, 30.0)
    await at.produce(3, acks=1)


@pytest.mark.parametrize(
    ("mutation", "story", "invariant"),
    [
        ("M07", the_isr_shrinks_below_the_minimum, "I10"),
        ("M11", an_acknowledgement_is_waited_for, "I15"),
        ("M12", nothing, "I18"),
        ("M14", nothing, "I19"),
        ("M15", followers_stand_still, "I8"),
        ("M19", nothing, "I18"),
    ],
)
def test_missing_guard_is_noticed(mutation: str, story: Callable[[Watched], Awaitable[None]], invariant: str):
    with pytest.raises(Violation) as found:
        Watched(1).run(story, mutation=mutation)
    assert found.value.invariant == invariant, found.value
    Watched(1).run(story)


async def a_lagging_follower_follows_again(at: Watched) -> None:
    """KIP-101: its own high watermark lags, and there is nothing to truncate."""
    await at.produce(5)
    await at.world.until(lambda: not at.invariants.unsettled(), 30.0)
    leader = at.leader
    at.cluster.isolate(leader)
    await at.world.until(lambda: at.invariants.ghosts.named("orders-0").registration.leader not in (leader, -1), 30.0)
    at.cluster.rejoin(leader)
    await at.rest()


def test_a_follower_that_truncates_to_its_high_watermark_is_noticed(monkeypatch: pytest.MonkeyPatch):
    Watched(4).run(a_lagging_follower_follows_again)
    make_follower = probes_module.Partition.make_follower

    def truncating(self: Any, registration: Any) -> bool:
        is_new = make_follower(self, registration)
        if is_new:
            self.log.truncate_to(max(0, self.log.high_watermark - 1))
        return is_new

    monkeypatch.setattr(probes_module.Partition, "make_follower", truncating)
    with pytest.raises(Violation) as found:
        Watched(4).run(a_lagging_follower_follows_again)
    assert found.value.invariant == "I6"


def test_i24_names_the_nodes_that_are_not_at_rest():
    async def story(at: Watched) -> None:
        at.cluster.isolate(2, at.cluster.controller_ids)
        await asyncio.sleep(3.0)
        at.invariants.at_rest()

    with pytest.raises(Violation) as found:
        Watched(1).run(story)
    assert found.value.invariant == "I24"
    assert "broker 2 is not registered, or still fenced" in found.value.text


# -- the probes themselves --------------------------------------------------------------------------------------------------


def test_violation_ends_the_run_even_if_production_code_catches_it(monkeypatch: pytest.MonkeyPatch):
    """A fetcher that meets an exception drops its partition, and continues."""

    def broken(*_: object) -> None:
        raise Violation("I0", "a check was made to fail")

    monkeypatch.setattr(Invariants, "on_appended", broken)
    with pytest.raises(Violation, match="I0"):
        Watched(1).run(nothing)


def test_the_same_seed_gives_the_same_run_with_the_probes_in_it():
    """The probes draw no random numbers, and put nothing into the trace that differs between two runs."""
    hashes = []
    for _ in range(2):
        at = Watched(3)
        at.run(followers_stand_still)
        hashes.append(at.world.trace.sha256())
    assert hashes[0] == hashes[1]


def test_the_production_classes_are_as_before_when_the_probes_are_gone():
    before = {name: vars(owner)[name] for owner, name in WRAPPED}
    with Probes(Invariants(EmittedOnly())):
        assert all(vars(owner)[name] is not before[name] for owner, name in WRAPPED)
    assert all(vars(owner)[name] is before[name] for owner, name in WRAPPED)


WRAPPED = [(Log, "append_batches"), (Log, "open"), (Fetch, "reply")]


def test_a_log_that_no_known_process_opened_is_left_alone():
    """A log that belongs to no simulated process, in the same Python process."""
    from strandline.storage.log.log import LogConfig
    from strandline.storage.memory.memory_files import MemoryFiles

    invariants = Invariants(EmittedOnly())
    with Probes(invariants):
        options = {
            "topic": "t",
            "partition": 0,
            "topic_id": bytes(16),
            "config": LogConfig(),
            "clean_shutdown": True,
            "now_ms": 0,
        }
        log = Log.open(MemoryFiles(), "/log", **options)  # type: ignore[arg-type]
        log.append_as_leader(bytearray(encode_batch([(None, b"v", [], 0)])), 0, 0)
    assert not invariants.ghosts.partitions


def test_loop_identifies_the_running_process():
    seen: list[int | None] = [node_of()]

    async def story(at: Watched) -> None:
        seen.append(at.cluster.machines[2].call(node_of))
        seen.append(node_of())

    Watched(1).run(story)
    assert seen == [None, 2, 0]
