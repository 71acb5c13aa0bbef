"""`@simulated`: correct tests pass under every seed's faults, wrong ones are caught and can be replayed; time is virtual; and a
failure prints what its reader needs."""

from __future__ import annotations

import asyncio
import datetime
import os
import random
import re
import secrets
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import strandline.testing.kit.simulated.decorator as decorator
from strandline import Producer
from strandline.protocol.errors import UsageError
from strandline.testing import History, caught_up, controller, fenced, isr, leader, log_end, simulated
from strandline.testing.kit.simulated.cluster import SimulatedCluster as Cluster
from strandline.testing.kit.simulated.run import Plan, run_test
from strandline.testing.kit.simulated.weather import GENTLE
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.trace import without_addresses

Play = Callable[..., None]


def failure_of(play: Play) -> tuple[BaseException, str, int]:
    """The error that the play raises, its note, and the seed."""
    with pytest.raises(BaseException) as caught:
        play()
    (note,) = [note for note in caught.value.__notes__ if "virtual time" in note]
    found = re.search(r"seed (\d+), at", note)
    assert found is not None, note
    return caught.value, note, int(found[1])


def replay(play: Any, seed: int) -> BaseException:
    with pytest.raises(BaseException) as caught:
        play.seed(seed)
    return caught.value


def said(error: BaseException) -> str:
    return without_addresses(f"{type(error)}: {error}")


# -- correct tests pass, wrong tests are caught ---------------------------------------------------------------------------


class Shop:
    """A user's consumer, which dies now and then. Its position and its results are in one place, as in a database."""

    def __init__(self, *, commits_first: bool = False) -> None:
        self.commits_first = commits_first
        self.position = 0
        self.handled: dict[bytes, None] = {}

    async def consume(self, cluster: Cluster) -> None:
        async with cluster.consumer() as consumer:
            await consumer.assign([("orders", 0)])
            consumer.seek(("orders", 0), self.position)
            async for record in consumer:
                if self.commits_first:
                    self.position = record.offset + 1
                await asyncio.sleep(0.02)  # Handling takes a moment, and is awaited.
                self.handled[record.value] = None
                self.position = record.offset + 1

    async def consume_and_die(self, cluster: Cluster, orders: int) -> None:
        while len(self.handled) < orders:
            task = asyncio.create_task(self.consume(cluster))
            await asyncio.wait([task], timeout=random.uniform(0.05, 1.0))
            if self.position >= orders and len(self.handled) < orders:
                task.cancel()
                raise AssertionError(f"{orders - len(self.handled)} orders were never handled")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def shop_test(*, commits_first: bool) -> Callable[[Cluster], Any]:
    async def test_shop(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        shop = Shop(commits_first=commits_first)
        consuming = asyncio.create_task(shop.consume_and_die(cluster, 20))
        async with cluster.producer() as producer:
            for number in range(20):
                await producer.send_and_wait("orders", b"%d" % number)
                await asyncio.sleep(0.02)
        await consuming
        await cluster.assert_no_acked_loss()

    return test_shop


def test_a_correct_consumer_passes_under_all_seeds() -> None:
    """If drawn faults failed correct tests, users would turn the faults off."""
    simulated(seeds=10)(shop_test(commits_first=False))()


def test_consumer_that_commits_too_early_is_caught_and_replayed() -> None:
    play = simulated(seeds=40)(shop_test(commits_first=True))
    error, note, seed = failure_of(play)
    assert "never handled" in str(error)
    assert "a second run of this seed went the same way" in note
    assert said(replay(play, seed)) == said(error)


def test_a_test_that_relies_on_no_duplicates_is_caught() -> None:
    """Without idempotence a record whose answer is lost is sent again."""

    @simulated(seeds=60)
    async def test_sum(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        async with cluster.producer(enable_idempotence=False) as producer:
            for number in range(20):
                await producer.send_and_wait("orders", b"%d" % number)
                await asyncio.sleep(0.1)
        assert sum(int(record.value) for record in await cluster.read_all("orders")) == 190

    error, _, seed = failure_of(test_sum)
    assert "== 190" in str(error)
    assert said(replay(test_sum, seed)) == said(error)


def test_reliance_on_acks_1_across_a_failover_is_caught() -> None:
    @simulated(seeds=30, faults=None)
    async def test_acks_1(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        acked = []
        cluster.delay("Fetch", ms=20, p=0.2)  # Now and then a follower lags a little.
        async with cluster.producer(acks=1, enable_idempotence=False) as producer:
            for number in range(5):
                first = await cluster.leader_of("orders")
                acked.append((await producer.send_and_wait("orders", b"%d" % number), b"%d" % number))
                await cluster.restart(first, hard=True)
                await cluster.until(isr("orders") == {1, 2, 3})
        await cluster.assert_no_acked_loss(acked)

    error, _, seed = failure_of(test_acks_1)
    assert "acknowledged records were lost" in str(error)
    assert said(replay(test_acks_1, seed)) == said(error)


# -- the cluster is the kit's -----------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[3]


def examples() -> dict[str, Any]:
    """The tests of docs/testing.md that ask for `cluster` alone."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"pytest": pytest}
    for block in blocks:
        if "@simulated" not in block:
            exec(compile(block, "docs/testing.md", "exec"), names)
    takes = {name: test for name, test in names.items() if name.startswith("test_") and asyncio.iscoroutinefunction(test)}
    arguments = {name: test.__code__.co_varnames[: test.__code__.co_argcount] for name, test in takes.items()}
    return {n: t for n, t in takes.items() if arguments[n] == ("cluster",) and not hasattr(t, "pytestmark")}


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_test_with_the_fixture_moves_here_unchanged(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each fault, wait and oracle of the guide, on virtual time."""
    simulated(seeds=1, faults=None)(EXAMPLES[name])()


def test_most_of_the_guide_was_tried() -> None:
    assert len(EXAMPLES) > 18


@simulated(seeds=4)
async def test_faults_of_test_and_seed_do_not_end_each_other(cluster: Cluster) -> None:
    topic = await cluster.create_topic(replicas=[[1, 2, 3]])
    await cluster.kill(2)
    await cluster.pause(3)
    await asyncio.sleep(15)  # The seed's own faults have ended by then.
    assert cluster.node(2).state == "killed"
    assert cluster.node(3).state == "paused"
    await cluster.make_whole()
    await cluster.until(caught_up(topic))
    assert [cluster.node(node).state for node in cluster.brokers] == ["running"] * 3


@simulated(seeds=4)
async def test_heal_ends_the_drawn_faults_and_can_await_rest(cluster: Cluster) -> None:
    topic = await cluster.create_topic(partitions=2)
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"1")
    cluster.isolate(1)
    await asyncio.sleep(0.5)
    await cluster.heal()
    assert all(part.isr == {1, 2, 3} for part in cluster.nodes.last_view().partitions())
    happened = len(cluster.weather.happened())
    await asyncio.sleep(8)
    assert len(cluster.weather.happened()) == happened
    await cluster.assert_logs_identical(topic)


@simulated(seeds=3, faults=None)
async def test_delay_applies_to_each_message(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    now = asyncio.get_running_loop().time
    async with cluster.producer() as producer:
        await producer.send_and_wait(topic, b"0")
        with cluster.delay("Produce", ms=700, by="clients", where="request") as rule:
            for number in (1, 2):
                began = now()
                await producer.send_and_wait(topic, b"%d" % number)
                assert 0.7 <= now() - began < 0.8
        assert rule.hits == 2
        began = now()
        await producer.send_and_wait(topic, b"3")
        assert now() - began < 0.1


@simulated(seeds=3, faults=None)
async def test_silently_dropped_message_lets_its_sender_wait(cluster: Cluster) -> None:
    topic = await cluster.create_topic()
    async with cluster.producer(request_timeout_ms=500) as producer:
        with cluster.drop("Produce", where="request", times=1, silently=True) as rule:
            began = asyncio.get_running_loop().time()
            await producer.send_and_wait(topic, b"1")
            assert asyncio.get_running_loop().time() - began >= 0.5
        assert rule.hits == 1
    assert len(await cluster.read_all(topic)) == 1


@simulated(seeds=3, faults=None, brokers=2, controllers=3, replica_lag_time_max_ms=700)
async def test_simulated_cluster_has_the_requested_nodes_and_settings(cluster: Cluster) -> None:
    assert (cluster.brokers, cluster.controllers) == ([1, 2], [101, 102, 103])
    topic = await cluster.create_topic(replicas=[[1, 2]])
    first = await cluster.active_controller()
    await cluster.kill(first)
    await cluster.until(controller() != first)
    cluster.isolate_controller(2)
    await cluster.until(fenced(2) & (isr(topic) == {1}))


@simulated(seeds=2, faults=None)
async def test_clients_made_by_the_test_are_simulated_too(cluster: Cluster) -> None:
    """Users test their own code, which creates its own clients."""
    topic, history = await cluster.create_topic(), History()
    async with Producer(bootstrap_servers=cluster.bootstrap_servers) as yours, cluster.producer(history=history) as ours:
        await asyncio.gather(yours.send_and_wait(topic, b"1"), ours.send_and_wait(topic, b"2"))
    await cluster.until(log_end(topic, 0, 3) == 2)
    assert await cluster.leader_of(topic) in cluster.brokers
    assert history.sends[0].offset is not None


# -- time and chance --------------------------------------------------------------------------------------------------


def test_an_hour_of_sleep_takes_no_time() -> None:
    @simulated(seeds=1, faults=None)
    async def test_hour(cluster: Cluster) -> None:
        topic = await cluster.create_topic("orders", retention_ms=60_000, segment_ms=60_000)
        async with cluster.producer() as producer:
            await producer.send_and_wait(topic, b"1")
        clocks = (time.time, time.monotonic, asyncio.get_running_loop().time)
        before = [clock() for clock in clocks]
        await asyncio.sleep(3600)
        assert [round(clock() - was) for clock, was in zip(clocks, before, strict=True)] == [3600] * 3
        await cluster.until(leader(topic) >= 0)
        async with cluster.producer() as producer:
            assert (await producer.send_and_wait(topic, b"2")).offset == 1

    began = time.monotonic()
    test_hour()
    assert time.monotonic() - began < 5


@simulated(seeds=2, faults=None)
async def test_cluster_notices_faults_before_time_leaps(cluster: Cluster) -> None:
    await cluster.create_topic("orders", replicas=[[1, 2, 3]])
    cluster.isolate(1)
    await asyncio.sleep(3)
    assert cluster.nodes.last_view().fenced() == {1}
    await asyncio.sleep(600)
    assert (await cluster.describe("orders")).isr == {2, 3}


def test_global_random_is_seeded_and_restored() -> None:
    """Programs use `uuid4` for keys and `random` for back-offs everywhere."""
    drawn = []

    @simulated(seeds=[7, 7, 8], faults=None)
    async def test_draws(cluster: Cluster) -> None:
        drawn.append((random.random(), uuid.uuid4(), secrets.token_hex(4), os.urandom(3), time.time_ns()))

    random.seed(1)
    expected = random.random()
    random.seed(1)
    sources = (time.time, os.urandom)
    test_draws()
    assert random.random() == expected
    assert (time.time, os.urandom) == sources
    one, canary, again, other = drawn
    assert one == canary == again
    assert one[:4] != other[:4]


def test_nondeterminism_of_a_test_is_detected_and_named() -> None:
    """Otherwise a failure that does not replay would cost its reader a day."""
    runs = iter(range(10))

    @simulated(seeds=2, faults=None)
    async def test_leaky(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        async with cluster.producer() as producer:
            for _ in range(next(runs) + 1):
                await producer.send_and_wait("orders", b"1")

    with pytest.raises(decorator.NotDeterministic) as caught:
        test_leaky()
    assert "seed 0 of test_leaky passed, and a second run of it took another way" in str(caught.value)
    assert "a fixture's database" in str(caught.value)


def test_failure_that_a_second_run_does_not_repeat_says_so() -> None:
    runs = iter(range(10))

    @simulated(seeds=1, faults=None)
    async def test_once(cluster: Cluster) -> None:
        assert next(runs) > 0

    error, note, _ = failure_of(test_once)
    assert isinstance(error, AssertionError)
    assert "a second run of this seed went another way, and passed" in note
    assert "datetime.now()" in note


def test_the_seed_decides_the_weather() -> None:
    plan = Plan(dict(GENTLE), is_gentle=True, limit_s=60.0, invariants=True)

    async def test(cluster: Cluster) -> None:
        await asyncio.sleep(3)

    one, again, other = (run_test(test, seed, plan) for seed in (3, 3, 4))
    assert one.error is None
    assert one.trace_sha256 == again.trace_sha256 != other.trace_sha256
    assert sum(one.faults.values()) > 0


# -- failures ---------------------------------------------------------------------------------------------------------


class Sour(Exception):
    pass


def test_exception_keeps_its_traceback_and_gets_the_story() -> None:
    async def deep_inside() -> None:
        raise Sour("milk")

    @simulated(seeds=5, faults="gentle")
    async def test_milk(cluster: Cluster) -> None:
        await cluster.create_topic("milk", replicas=[[1, 2, 3]])
        await cluster.kill(1)
        async with cluster.producer() as producer:
            await producer.send_and_wait("milk", b"1")
        cluster.isolate(3)
        await deep_inside()

    error, note, _ = failure_of(test_milk)
    assert type(error) is Sour
    assert str(error) == "milk"
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    assert frames[-2:] == ["test_milk", "deep_inside"]
    assert not {"_test", "_story", "run", "_turn"} & set(frames)
    for part in (
        "broker-1       killed",
        "cut link: 1 - 3",
        "What happened to milk-0",
        "The logs of milk-0",
        "Again\n-----",
    ):
        assert part in note
    assert re.search(r"seed 0, at \d+\.\d+ s of virtual time", note)
    assert "--strandline-seed 0" in note


def test_failure_lists_drawn_and_active_faults() -> None:
    @simulated(seeds=40, faults={"pause": 1.0})
    async def test_impatient(cluster: Cluster) -> None:
        await asyncio.sleep(0.5)
        assert cluster.weather.is_clear

    _, note, _ = failure_of(test_impatient)
    assert re.search(r"drawn faults \([1-9] active\):\n +\d+\.\d+ s  pause \(victim \d+\)", note)
    assert "still active" in note


def test_broken_guarantee_of_the_cluster_is_reported_as_our_bug() -> None:
    @simulated(seeds=1, faults=None)
    async def test_unlucky(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        cluster.world.scheduler.fail(Violation("I6", "broker 1 truncates what is committed", partition="orders-0"))
        await asyncio.sleep(1)

    error, note, _ = failure_of(test_unlucky)
    assert isinstance(error, Violation)
    assert "a bug in Strandline" in note
    assert "What happened to orders-0" in note


@pytest.mark.parametrize("invariants", [True, False])
def test_invariants_are_checked_unless_disabled(invariants: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = Invariants.after_step
    monkeypatch.setattr(Invariants, "after_step", lambda self: (looks.append(1), look(self)))

    @simulated(seeds=1, faults=None, invariants=invariants)
    async def test_short(cluster: Cluster) -> None:
        await cluster.create_topic()

    test_short()
    assert bool(looks) == invariants


def test_endless_test_shows_where_it_waits() -> None:
    async def waits_in_vain() -> None:
        await asyncio.Event().wait()

    @simulated(seeds=1, limit_s=20, faults=None)
    async def test_forever(cluster: Cluster) -> None:
        await waits_in_vain()

    error, _, _ = failure_of(test_forever)
    assert "not done after 20 s of virtual time" in str(error)
    assert "waits_in_vain (test_simulated.py:" in str(error)


def test_timeout_of_the_test_uses_virtual_time() -> None:
    @simulated(seeds=1, faults=None)
    async def test_timeout(cluster: Cluster) -> None:
        async with asyncio.timeout(300):
            await asyncio.Event().wait()

    began = time.monotonic()
    error, _, _ = failure_of(test_timeout)
    assert isinstance(error, TimeoutError)
    assert time.monotonic() - began < 5


def test_leftover_tasks_are_cancelled_and_may_clean_up() -> None:
    ended = []

    async def endless() -> None:
        try:
            await asyncio.sleep(10_000)
        finally:
            await asyncio.sleep(0.1)
            ended.append("in order")

    @simulated(seeds=2, faults=None)
    async def test_leaves(cluster: Cluster) -> None:
        asyncio.get_running_loop().kept = asyncio.create_task(endless())  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    test_leaves()
    assert ended == ["in order"] * 3  # The first seed is played twice.


def test_a_task_that_does_not_end_is_named() -> None:
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue

    @simulated(seeds=1, faults=None)
    async def test_leaves(cluster: Cluster) -> None:
        asyncio.get_running_loop().kept = asyncio.create_task(stubborn(), name="mule")  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    error, _, _ = failure_of(test_leaves)
    assert re.search(r"do not end when they are cancelled: mule: .*stubborn \(test_simulated.py:\d+\)", str(error))


def test_a_task_that_fails_unseen_fails_the_test() -> None:
    """Asyncio would only log the error, and the test would wait forever."""

    async def sour() -> None:
        raise Sour("unseen")

    @simulated(seeds=1, faults=None)
    async def test_careless(cluster: Cluster) -> None:
        asyncio.create_task(sour())  # noqa: RUF006
        await asyncio.sleep(1)

    error, _, _ = failure_of(test_careless)
    assert type(error) is Sour


def test_invalid_arguments_of_simulated_are_rejected() -> None:
    async def test_none() -> None: ...

    async def test_fine(cluster: Cluster) -> None: ...

    def test_plain(cluster: Cluster) -> None: ...

    with pytest.raises(UsageError, match="needs an argument `cluster`"):
        simulated(seeds=1)(test_none)
    with pytest.raises(UsageError, match="`async def`"):
        simulated(seeds=1)(test_plain)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="there is no fault 'earthquake'"):
        simulated(seeds=1, faults=["earthquake"])(test_fine)
    with pytest.raises(UsageError, match="needs at least one seed"):
        simulated(seeds=0)
    with pytest.raises(UsageError, match="files are simulated"):
        simulated(seeds=1, files="disk")
    with pytest.raises(UsageError, match=r"no\.such"):
        simulated(seeds=1, no_such=1)(test_fine)()


@simulated(seeds=1, faults=None)
async def test_calls_outside_virtual_time_keep_working(cluster: Cluster) -> None:
    """docs/testing.md promises that."""
    assert datetime.datetime.now(tz=datetime.UTC).year > 2024
    assert await asyncio.to_thread(lambda: 7) == 7
