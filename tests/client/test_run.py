"""`Consumer.run`: what handlers get, in which order, what is committed, and how a run ends."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
from typing import Any

import pytest
from waiting import until

from strandline.client import Consumer, ConsumerRecord, HandlerFailed
from strandline.client.errors import ClientClosed, ClientError, UnknownTopic, UsageError

from .group_world import member, until_settled
from .run_world import DEAD, Gate, P, Seen, add, cluster_with, place, records_of, running

# -- handlers ---------------------------------------------------------------------------------------------------------


async def test_records_of_a_partition_are_handled_in_order() -> None:
    seen: Seen = []

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0.001 * (record.offset % 3))
        seen.append(place(record))

    async with cluster_with("abcdef", "abcdef") as (cluster, groups), running(cluster, handle):
        await until(lambda: len(seen) == 12)
        for partition in (0, 1):
            assert [offset for p, offset in seen if p == partition] == [0, 1, 2, 3, 4, 5]
    assert [groups.offset("orders", index) for index in (0, 1)] == [6, 6]


async def test_several_partitions_are_handled_at_the_same_time() -> None:
    gate = Gate()
    async with cluster_with("ab", "ab", "ab") as (cluster, _), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: len(gate.begun) == 3)
        gate.open((1, 0))
        await until(lambda: (1, 1) in gate.begun)
        assert sorted(gate.begun) == [(0, 0), (1, 0), (1, 1), (2, 0)]
        assert consumer.metrics()["run"]["calls_running"] == 3
        gate.open(*[(p, offset) for p in range(3) for offset in range(2)])


async def test_keys_are_handled_at_the_same_time_and_each_in_order() -> None:
    gate = Gate()
    async with cluster_with("aabcb-") as (cluster, _), running(cluster, gate.handle, concurrency="key"):
        await until(lambda: len(gate.begun) == 4)
        assert sorted(gate.begun) == [(0, 0), (0, 2), (0, 3), (0, 5)]
        gate.open((0, 2))
        await until(lambda: (0, 4) in gate.begun)
        gate.open(*[(0, offset) for offset in range(6)])
        await until(lambda: len(gate.done) == 6)
        assert gate.done.index((0, 0)) < gate.done.index((0, 1))


@pytest.mark.parametrize("options", [{"concurrency": 2}, {"concurrency": "key", "max_tasks": 2}])
async def test_calls_at_the_same_time_are_limited(options: dict[str, Any]) -> None:
    running_now = most = handled = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal running_now, most, handled
        running_now += 1
        most = max(most, running_now)
        await asyncio.sleep(0.001)
        running_now -= 1
        handled += 1

    async with cluster_with("abcdefgh", "abcdefgh") as (cluster, _), running(cluster, handle, **options):
        await until(lambda: handled == 16)
    assert most == 2


async def test_batch_size_limits_the_records_of_a_batch() -> None:
    batches: list[list[tuple[int, int]]] = []

    async def handle(records: list[ConsumerRecord]) -> None:
        batches.append([place(record) for record in records])

    async with cluster_with("abcdefg") as (cluster, groups), running(cluster, handle, batch_size=3):
        await until(lambda: sum(map(len, batches)) == 7)
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [each for batch in batches for each in batch] == [(0, offset) for offset in range(7)]
    assert groups.offset("orders") == 7


async def test_plain_handlers_may_block() -> None:
    """Plain handlers run on threads, several at the same time, and the event loop goes on."""
    barrier, names = threading.Barrier(3, timeout=10), set()

    def handle(record: ConsumerRecord) -> None:
        barrier.wait()
        names.add(threading.current_thread().name)

    async with cluster_with("a", "a", "a") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await until(lambda: consumer.metrics()["run"]["handled"] == 3)
    assert len(names) == 3
    assert all(name.startswith("handler") for name in names)
    assert groups.offset("orders", 2) == 1


async def test_plain_handler_may_return_something_to_await() -> None:
    """A lambda around a coroutine function looks like a plain function until it is called."""
    seen: Seen = []

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(0)
        seen.append(place(record))

    async with cluster_with("ab") as (cluster, _), running(cluster, lambda record: handle(record)):
        await until(lambda: seen == [(0, 0), (0, 1)])


async def test_objects_and_partial_functions_are_handlers() -> None:
    threads: list[threading.Thread] = []

    class Handler:
        async def __call__(self, record: ConsumerRecord) -> None:
            threads.append(threading.current_thread())

    async def handle(what: str, record: ConsumerRecord) -> None:
        threads.append(threading.current_thread())

    for handler in (Handler(), functools.partial(handle, "x")):
        async with cluster_with("a") as (cluster, _), running(cluster, handler):
            await until(lambda: bool(threads))
        assert threads.pop() is threading.main_thread()


async def test_records_are_deserialized_for_the_handler() -> None:
    seen: list[tuple[Any, Any]] = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append((record.key, record.value))

    options = {"key_deserializer": bytes.decode, "value_deserializer": lambda value: value.split(b":")}
    async with cluster_with("a-") as (cluster, _), running(cluster, handle, options):
        await until(lambda: len(seen) == 2)
    assert seen == [("a", [b"0", b"0"]), (None, [b"0", b"1"])]


async def test_handlers_that_never_wait_let_other_tasks_run() -> None:
    """A loop over coroutines that return at once would keep the event loop, and with it the commits, to itself."""
    handled = ticks = 0

    async def handle(record: ConsumerRecord) -> None:
        nonlocal handled
        handled += 1

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 0 < handled < 20_000

    async with cluster_with("abcdefghij" * 2_000) as (cluster, _):
        ticking = asyncio.ensure_future(tick())
        async with running(cluster, handle, max_in_flight=1_000_000):
            await until(lambda: handled == 20_000)
        ticking.cancel()
    assert ticks >= 20_000 / 32 / 2


# -- what is taken, and what is committed -----------------------------------------------------------------------------


async def test_only_what_is_finished_is_committed() -> None:
    """With keys, records finish out of order; the commit stays at the first that is not finished."""
    gate, options = Gate(), {"auto_commit_interval_ms": 10}
    async with cluster_with("abcab") as (cluster, groups), running(cluster, gate.handle, options, concurrency="key"):
        await until(lambda: len(gate.begun) == 3)
        gate.open((0, 1), (0, 2))
        await until(lambda: len(gate.done) == 2)
        commits = len(groups.commits)
        gate.open((0, 4))
        await until(lambda: len(gate.done) == 3)
        await until(lambda: groups.offset("orders") == 0)
        gate.open((0, 0))
        await until(lambda: groups.offset("orders") == 3 and len(groups.commits) > commits)
        gate.open((0, 3))
        await until(lambda: groups.offset("orders") == 5)


async def test_number_of_unfinished_records_is_bounded() -> None:
    gate = Gate()
    async with (
        cluster_with("abcdefghij" * 10, "abcdefghij" * 10) as (cluster, _),
        running(cluster, gate.handle, concurrency="key", max_in_flight=8) as (consumer, _),
    ):
        await until(lambda: len(gate.begun) == 8)
        assert consumer.metrics()["run"]["in_flight"] == 8
        gate.open(*[(p, offset) for p in range(2) for offset in range(100)])
        await until(lambda: len(gate.done) == 200)
        assert consumer.metrics()["run"]["in_flight"] == 0


async def test_full_partition_does_not_stop_the_others() -> None:
    gate = Gate()
    async with cluster_with("a" * 100, "ab") as (cluster, _), running(cluster, gate.handle, max_in_flight=10):
        await until(lambda: len(gate.begun) == 2)
        add(cluster, 1, "cde")
        gate.open(*[(1, offset) for offset in range(5)])
        await until(lambda: len(gate.done) == 5)
        assert {partition for partition, _ in gate.done} == {1}
        gate.open(*[(0, offset) for offset in range(100)])


async def test_run_without_automatic_commits_leaves_them_to_the_handler() -> None:
    async with cluster_with("abc") as (cluster, groups):

        async def handle(record: ConsumerRecord) -> None:
            if record.offset == 1:
                await consumer.commit({P[0]: 2})

        async with running(cluster, handle, {"enable_auto_commit": False}) as (consumer, _):
            await until(lambda: consumer.metrics()["run"]["handled"] == 3)
        assert groups.offset("orders") == 2
        assert len(groups.commits) == 1


async def test_consumer_without_a_group_runs_handlers() -> None:
    """This is for programs that read everything, such as caches. Nothing is committed."""
    seen: Seen = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(place(record))
        if len(seen) == 6:
            consumer.end_run()

    async with (
        cluster_with("abc", "abc") as (cluster, _),
        Consumer("orders", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        await consumer.run(handle)
        assert sorted(seen) == [(p, offset) for p in (0, 1) for offset in (0, 1, 2)]
        assert await consumer.position(P[1]) == 3


async def test_partitions_that_are_assigned_by_hand_are_handled_and_committed() -> None:
    async with cluster_with("abc", "abc") as (cluster, groups):
        seen: Seen = []

        async def handle(record: ConsumerRecord) -> None:
            seen.append(place(record))
            if record.offset == 2:
                consumer.end_run()

        async with Consumer(bootstrap_servers=cluster.bootstrap, group_id="g", auto_offset_reset="earliest") as consumer:
            await consumer.assign([P[1]])
            await consumer.run(handle)
        assert seen == [(1, 0), (1, 1), (1, 2)]
        assert (groups.offset("orders", 0), groups.offset("orders", 1)) == (None, 3)


async def test_seek_drops_what_was_taken() -> None:
    seen: Seen = []

    async def handle(record: ConsumerRecord) -> None:
        seen.append(place(record))
        if len(seen) == 2:
            consumer.seek(P[0], 7)

    async with cluster_with("abcdefghij") as (cluster, groups), running(cluster, handle) as (consumer, _):
        await until(lambda: (0, 9) in seen)
        assert seen == [(0, offset) for offset in (0, 1, 7, 8, 9)]
        await consumer.commit()
    assert groups.offset("orders") == 10


# -- how a run ends ---------------------------------------------------------------------------------------------------


async def test_end_run_lets_calls_finish_and_begins_no_others() -> None:
    gate = Gate()
    async with cluster_with("abc") as (cluster, groups), member(cluster) as consumer:
        task = asyncio.ensure_future(consumer.run(gate.handle))
        await until(lambda: gate.begun == [(0, 0)])
        consumer.end_run()
        await asyncio.sleep(0.01)
        assert not task.done()
        assert consumer.health()["run"]["state"] == "ending"
        gate.open((0, 0))
        await task
        assert groups.offset("orders") == 1
        assert gate.begun == [(0, 0)]
        assert "run" not in consumer.health()


async def test_records_that_were_not_handled_are_returned_again() -> None:
    """Records that a run has taken ahead are neither committed nor left out: the next call or run begins with them."""
    async with cluster_with("abcdef") as (cluster, groups), member(cluster) as consumer:
        seen: Seen = []

        async def handle(record: ConsumerRecord) -> None:
            seen.append(place(record))
            if len(seen) % 2 == 0:
                consumer.end_run()

        await consumer.run(handle)
        await consumer.run(handle)
        assert seen == [(0, 0), (0, 1), (0, 2), (0, 3)]
        assert groups.offset("orders") == 4
        assert (await consumer.getone()).offset == 4
        await consumer.commit()
    assert groups.offset("orders") == 5


async def test_stop_waits_for_the_calls_and_commits() -> None:
    gate = Gate()
    async with cluster_with("abc") as (cluster, groups), running(cluster, gate.handle) as (consumer, task):
        await until(lambda: bool(gate.begun))
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.01)
        assert not stopping.done()
        gate.open((0, 0))
        await asyncio.gather(stopping, task)
        assert groups.offset("orders") == 1
        assert groups.group().members == {}
        with pytest.raises(ClientClosed):
            await consumer.run(gate.handle)


async def test_stop_cuts_off_a_call_that_takes_too_long() -> None:
    gate = Gate()
    async with cluster_with("abc", "abc") as (cluster, groups), running(cluster, gate.handle) as (consumer, task):
        await until(lambda: len(gate.begun) == 2)
        gate.open((1, 0), (1, 1))
        await until(lambda: (1, 2) in gate.begun)
        await consumer.stop(timeout_ms=300)
        await task
        assert gate.cancelled == [(0, 0), (1, 2)]
        assert [groups.offset("orders", index) for index in (0, 1)] == [0, 2]


async def test_cancelled_run_drains_and_commits() -> None:
    """Ctrl-C under `asyncio.run` cancels the task in this way."""
    gate = Gate()
    async with cluster_with("abc") as (cluster, groups), member(cluster) as consumer:
        task = asyncio.ensure_future(consumer.run(gate.handle))
        await until(lambda: bool(gate.begun))
        task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        gate.open((0, 0))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert groups.offset("orders") == 1


async def test_run_that_is_cancelled_twice_ends_at_once() -> None:
    gate = Gate()
    async with cluster_with("abc") as (cluster, _), member(cluster) as consumer:
        task = asyncio.ensure_future(consumer.run(gate.handle))
        await until(lambda: bool(gate.begun))
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: gate.cancelled == [(0, 0)])
        assert (await consumer.getone()).offset == 0


async def test_drain_ends_after_its_time() -> None:
    gate = Gate()
    async with cluster_with("abc") as (cluster, groups), member(cluster) as consumer:
        task = asyncio.ensure_future(consumer.run(gate.handle, drain_timeout_ms=20))
        await until(lambda: bool(gate.begun))
        consumer.end_run()
        await task
        assert gate.cancelled == [(0, 0)]
    assert groups.offset("orders") == 0


async def test_signals_end_a_run() -> None:
    async with cluster_with("abc") as (cluster, groups), member(cluster) as consumer:

        async def handle(record: ConsumerRecord) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0)

        await consumer.run(handle, stop_on=[signal.SIGUSR1])
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
        assert groups.offset("orders") is not None


async def test_thread_that_does_not_return_is_left_behind() -> None:
    """A thread cannot be stopped. The program does not wait for it, and its record is not committed."""
    leave = threading.Event()

    def handle(record: ConsumerRecord) -> None:
        if record.partition == 0:
            leave.wait(10)

    async with cluster_with("ab", "ab") as (cluster, groups), running(cluster, handle) as (consumer, task):
        await until(lambda: consumer.metrics()["run"]["handled"] == 2)
        await consumer.stop(timeout_ms=300)
        await task
        leave.set()
        assert [groups.offset("orders", index) for index in (0, 1)] == [0, 2]


async def test_handler_cannot_stop_its_consumer() -> None:
    """`stop` would wait for the handler that calls it."""
    errors: list[Exception] = []

    async def handle(record: ConsumerRecord) -> None:
        try:
            await consumer.stop()
        except UsageError as e:
            errors.append(e)
        consumer.end_run()

    async with cluster_with("ab") as (cluster, groups), member(cluster) as consumer:
        await consumer.run(handle)
        assert "end_run" in str(errors[0])
        assert consumer.health()["state"] == "ok"
    assert groups.offset("orders") == 1


async def test_records_are_returned_to_the_run_alone() -> None:
    gate = Gate()
    async with cluster_with("ab") as (cluster, _), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: bool(gate.begun))
        for call in (
            consumer.getmany(),
            consumer.getone(),
            consumer.fetch_batches(),
            consumer.run(gate.handle),
            anext(aiter(consumer)),
        ):
            with pytest.raises(UsageError, match="run"):
                await call
        gate.open((0, 0), (0, 1))


async def test_consumer_has_to_be_started() -> None:
    with pytest.raises(ClientClosed, match="start"):
        await Consumer("orders").run(print)
    Consumer("orders").end_run()


# -- errors that are not the handler's --------------------------------------------------------------------------------


async def test_missing_topics_are_errors_before_the_first_record() -> None:
    """Otherwise the run would notice it only at the first failure."""
    async with cluster_with("ab") as (cluster, _), member(cluster) as consumer:
        with pytest.raises(UnknownTopic, match="nowhere"):
            await consumer.run(print, dlq="nowhere")
        with pytest.raises(UsageError, match="subscribed"):
            await consumer.run(print, dlq="orders")
        assert await consumer.getone()


@pytest.mark.parametrize("pattern", ["orders.*", "orders[.]dead|x"])
async def test_dlq_that_matches_the_pattern_is_refused(pattern: str) -> None:
    """Each dead letter would be handled again, fail again, and be sent there again, without end."""
    async with cluster_with("a") as (cluster, _), Consumer(group_id="g", bootstrap_servers=cluster.bootstrap) as consumer:
        consumer.subscribe(pattern=pattern)
        with pytest.raises(UsageError, match="subscribed"):
            await asyncio.wait_for(consumer.run(print, dlq=DEAD), 10)


async def test_dlq_that_is_assigned_is_refused() -> None:
    async with cluster_with("a") as (cluster, _), Consumer(bootstrap_servers=cluster.bootstrap) as consumer:
        await consumer.assign([(DEAD, 0)])
        with pytest.raises(UsageError, match="subscribed"):
            await asyncio.wait_for(consumer.run(print, dlq=DEAD), 10)


async def test_dlq_that_is_subscribed_during_the_run_ends_it() -> None:
    """The dead letters are neither handled nor committed."""
    seen: list[tuple[str, int]] = []

    def fail(record: ConsumerRecord) -> None:
        seen.append((record.topic, record.offset))
        raise ValueError

    async with cluster_with("ab") as (cluster, _), running(cluster, fail, dlq=DEAD) as (consumer, task):
        await until(lambda: len(records_of(cluster, DEAD)) == 2)
        consumer.subscribe("orders", DEAD)
        with pytest.raises(UsageError, match="subscribed by now"):
            await asyncio.wait_for(task, 10)
        assert seen == [("orders", 0), ("orders", 1)]
        assert len(records_of(cluster, DEAD)) == 2
        committed = await consumer.committed((DEAD, 0))
        assert committed is None or committed == 0


async def test_error_of_a_partition_ends_the_run_after_the_calls() -> None:
    """`run` suppresses no error of the consumer. Records that were handled before it are committed."""
    gate = Gate()
    async with cluster_with("ab", "ab") as (cluster, groups), running(cluster, gate.handle) as (consumer, task):
        await until(lambda: len(gate.begun) == 2)
        state = consumer._subscription.states[P[1]]
        state.fail(ClientError("broken", topic="orders", partition=1))
        consumer._fetcher.wake()  # type: ignore[union-attr]
        await until(lambda: consumer.health()["run"]["state"] == "ending")
        gate.open((0, 0), (1, 0))
        with pytest.raises(ClientError, match="broken"):
            await task
        assert [groups.offset("orders", index) for index in (0, 1)] == [1, 1]


@pytest.mark.parametrize("name", ["run: poll", "run: work"])
async def test_cancelled_background_task_ends_the_run(name: str) -> None:
    """A test framework that cancels all tasks must not leave a run that does nothing (aiokafka#1039)."""
    gate = Gate()
    async with cluster_with("ab") as (cluster, _), running(cluster, gate.handle, drain_timeout_ms=10) as (_, task):
        await until(lambda: bool(gate.begun))
        (victim,) = [each for each in asyncio.all_tasks() if each.get_name() == name]
        victim.cancel()
        with pytest.raises(ClientError, match="was cancelled"):
            await task


async def test_error_of_a_rebalance_callback_ends_the_run() -> None:
    def on_assigned(partitions: list[object]) -> None:
        raise KeyError("mine")

    async with cluster_with("ab") as (cluster, _), member(cluster) as consumer:
        consumer.subscribe("orders", on_assigned=on_assigned)
        with pytest.raises(ClientError, match="on_assigned has raised KeyError"):
            await consumer.run(print)


async def test_figures_of_a_run() -> None:
    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 2:
            raise ValueError

    async with cluster_with("abcd") as (cluster, _), running(cluster, handle) as (consumer, task):
        await until_settled(consumer, 0)
        await asyncio.wait([task])
        assert isinstance(task.exception(), HandlerFailed)
        assert "run" not in consumer.metrics()


async def test_health_names_the_oldest_call() -> None:
    gate = Gate()
    async with cluster_with("ab", "ab") as (cluster, _), running(cluster, gate.handle) as (consumer, _):
        await until(lambda: len(gate.begun) == 2)
        health = consumer.health()["run"]
        assert (health["state"], health["calls"]) == ("running", 2)
        partition, offset = gate.begun[0]
        assert health["oldest_call"] == f"orders-{partition} at offset {offset}"
        gate.open((0, 0), (0, 1), (1, 0), (1, 1))
        await until(lambda: consumer.health()["run"]["oldest_call_ms"] is None)
        metrics = consumer.metrics()["run"]
        assert (metrics["handled"], metrics["calls"], metrics["waiting"]) == (4, 4, 0)
        assert metrics["handler_latency_ms"] > 0
