"""`Cluster`: a whole cluster for a test, with its nodes, faults, waits and oracles.

    async with Cluster(brokers=3) as cluster:
        await cluster.create_topic("orders")
        async with cluster.producer() as producer:
            await producer.send_and_wait("orders", b"1")
            await cluster.kill(await cluster.leader_of("orders"))
            await producer.send_and_wait("orders", b"2")
        await cluster.assert_no_acked_loss()

Everything runs in the test's own process and event loop: the brokers and controllers are the production classes, on real
sockets, with files in memory or on the disk. With `processes=True` each node is an operating system process; then a SIGKILL
is a real one, and the faults of network and disks are not available (`nodes.py`).

Brokers are numbered from 1, controllers from 101.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from strandline.testing.kit.async_cluster import AsyncCluster
from strandline.testing.kit.threaded import ThreadedCluster, running_in_thread


class Cluster(AsyncCluster):
    """A cluster under test. `async with Cluster()` starts it and closes it; an exception that leaves the block gets the report
    of the cluster as a note.

    Methods that wait take `within_s`, in seconds. A call that makes no sense (an unknown node, a cluster that does not run)
    raises UsageError; a node that does not do what it was asked raises KitError; what a test claims in vain raises
    AssertionError.
    """

    @staticmethod
    def running_in_thread(**options: Any) -> AbstractContextManager[ThreadedCluster]:
        """A context manager for tests without asyncio: it runs the cluster in an event loop on another thread and gives a
        `ThreadedCluster`, whose methods are plain calls. `options`: as for `Cluster`."""
        return running_in_thread(lambda: Cluster(**options))
