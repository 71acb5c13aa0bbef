"""The cluster for tests without asyncio: it runs in an event loop on another thread and offers plain calls.

    with Cluster.running_in_thread(brokers=3) as cluster:
        cluster.create_topic("orders")
        cluster.send("orders", b"1", b"2")
        cluster.kill(cluster.leader_of("orders"))
        cluster.until(leader("orders", 0) != 1)

Each coroutine method of `Cluster` is a plain method here, which returns when it is done. Records are sent and read with `send`
and `read_all`, because the clients need asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

from strandline.client import ClientSecurity, ConsumerRecord, RecordMetadata
from strandline.testing.history import EVERY_ACK, Acks, History, Verdict
from strandline.testing.kit.async_cluster import WITHIN_S, AsyncCluster
from strandline.testing.kit.conditions import Condition
from strandline.testing.kit.network import Rule
from strandline.testing.kit.oracles import Acked
from strandline.testing.kit.view import NodeView, PartitionView

T = TypeVar("T")


class ThreadedCluster:
    """A `Cluster` whose event loop runs on another thread. Its methods have the names, arguments and errors of `Cluster`'s, and
    block until they are done. `Cluster.running_in_thread()` makes one."""

    def __init__(self, cluster: AsyncCluster, loop: asyncio.AbstractEventLoop) -> None:
        self.cluster = cluster
        """The wrapped cluster. Use it only from its own loop, with `run` or `call`."""
        self.loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the cluster's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def call(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a function in the cluster's thread and return its result."""

        async def run() -> T:
            return work(*args, **options)

        return self.run(run())

    # -- the methods of Cluster ---------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def kafka_bootstrap(self) -> str:
        return self.cluster.kafka_bootstrap

    @property
    def brokers(self) -> list[int]:
        return self.cluster.brokers

    @property
    def controllers(self) -> list[int]:
        return self.cluster.controllers

    @property
    def history(self) -> History:
        return self.cluster.history

    @property
    def seed(self) -> int:
        return self.cluster.seed

    def create_topic(self, name: str | None = None, **options: Any) -> str:
        return self.run(self.cluster.create_topic(name, **options))

    def describe(self, topic: str, partition: int = 0) -> PartitionView:
        return self.run(self.cluster.describe(topic, partition))

    def leader_of(self, topic: str, partition: int = 0) -> int:
        return self.run(self.cluster.leader_of(topic, partition))

    def followers_of(self, topic: str, partition: int = 0) -> list[int]:
        return self.run(self.cluster.followers_of(topic, partition))

    def active_controller(self) -> int:
        return self.run(self.cluster.active_controller())

    def node(self, node: int) -> NodeView:
        return self.call(self.cluster.node, node)

    def kill(self, *nodes: int) -> None:
        self.run(self.cluster.kill(*nodes))

    def stop(self, *nodes: int) -> None:
        self.run(self.cluster.stop(*nodes))

    def start(self, *nodes: int, wait: bool = True, within_s: float = WITHIN_S) -> None:
        self.run(self.cluster.start(*nodes, wait=wait, within_s=within_s))

    def restart(self, *nodes: int, hard: bool = False, within_s: float = WITHIN_S) -> None:
        self.run(self.cluster.restart(*nodes, hard=hard, within_s=within_s))

    def pause(self, *nodes: int) -> None:
        self.run(self.cluster.pause(*nodes))

    def resume(self, *nodes: int) -> None:
        self.run(self.cluster.resume(*nodes))

    def force_election(self, topic: str, partition: int = 0, leader: int | None = None) -> int:
        return self.run(self.cluster.force_election(topic, partition, leader))

    def partition(self, *groups: Iterable[int]) -> None:
        self.call(self.cluster.partition, *groups)

    def isolate(self, node: int, *, clients: bool = False) -> None:
        self.call(self.cluster.isolate, node, clients=clients)

    def isolate_controller(self, broker: int) -> None:
        self.call(self.cluster.isolate_controller, broker)

    def drop(self, api: str | None = None, **options: Any) -> Rule:
        return self.call(self.cluster.drop, api, **options)

    def delay(self, api: str | None = None, *, ms: float, **options: Any) -> Rule:
        return self.call(self.cluster.delay, api, ms=ms, **options)

    def heal(self) -> None:
        self.call(self.cluster.heal)

    def slow_disk(self, node: int, ms: float) -> None:
        self.call(self.cluster.slow_disk, node, ms)

    def fill_disk(self, node: int) -> None:
        self.call(self.cluster.fill_disk, node)

    def free_disk(self, node: int) -> None:
        self.call(self.cluster.free_disk, node)

    def make_whole(self, *, within_s: float = WITHIN_S) -> None:
        self.run(self.cluster.make_whole(within_s=within_s))

    def until(self, condition: Condition, *, within_s: float = WITHIN_S) -> None:
        self.run(self.cluster.until(condition, within_s=within_s))

    def read_all(self, topic: str, *, within_s: float = WITHIN_S) -> list[ConsumerRecord]:
        return self.run(self.cluster.read_all(topic, within_s=within_s))

    def verdict(
        self,
        history: History | None = None,
        *,
        acks: Acks = EVERY_ACK,
        idempotent: bool = True,
        within_s: float = WITHIN_S,
    ) -> Verdict:
        return self.run(self.cluster.verdict(history, acks=acks, idempotent=idempotent, within_s=within_s))

    def assert_no_acked_loss(
        self,
        acked: History | Iterable[Acked] | None = None,
        *,
        acks: Acks = EVERY_ACK,
        at_least: int = 1,
        within_s: float = WITHIN_S,
    ) -> None:
        self.run(self.cluster.assert_no_acked_loss(acked, acks=acks, at_least=at_least, within_s=within_s))

    def assert_logs_identical(self, topic: str, *, within_s: float = WITHIN_S) -> None:
        self.run(self.cluster.assert_logs_identical(topic, within_s=within_s))

    def security_of(self, user: str) -> ClientSecurity:
        return self.call(self.cluster.security_of, user)

    def report(self) -> str:
        return self.call(self.cluster.report)

    # -- records ------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        *values: bytes,
        key: bytes | None = None,
        partition: int | None = None,
        acks: int | Literal["all"] = "all",
    ) -> list[RecordMetadata]:
        """Send these values, wait until all are acknowledged, and return their metadata in order. If a send failed, raise its
        error."""
        return self.run(self._send(topic, values, key, partition, acks))

    async def _send(
        self, topic: str, values: Sequence[bytes], key: bytes | None, partition: int | None, acks: int | Literal["all"]
    ) -> list[RecordMetadata]:
        async with self.cluster.producer(acks=acks) as producer:
            receipts = [await producer.send(topic, value, key=key, partition=partition) for value in values]
            return [await receipt for receipt in receipts]


@contextmanager
def running_in_thread(make: Callable[[], AsyncCluster]) -> Iterator[ThreadedCluster]:
    """Start a cluster on another thread, give it to the `with` block, and close it and the thread at the end."""
    with ThreadPoolExecutor(1, thread_name_prefix="strandline-cluster") as thread:
        ready: Future[tuple[ThreadedCluster, asyncio.Event]] = Future()
        serving = thread.submit(lambda: asyncio.run(_serve(make, ready)))
        cluster, over = ready.result()
        try:
            yield cluster
        except Exception as e:
            e.add_note(cluster.report())
            raise
        finally:
            cluster.loop.call_soon_threadsafe(over.set)
            serving.result()


async def _serve(make: Callable[[], AsyncCluster], ready: Future[tuple[ThreadedCluster, asyncio.Event]]) -> None:
    over = asyncio.Event()
    try:
        cluster = make()
        await cluster.start()
    except BaseException as e:
        ready.set_exception(e)
        return
    try:
        ready.set_result((ThreadedCluster(cluster, asyncio.get_running_loop()), over))
        await over.wait()
    finally:
        await cluster.close()
