"""Heartbeats on a thread of their own, with an event loop and connections of their own.

A handler that computes for a minute, or calls a blocking library, blocks its event loop. Heartbeats on that loop would stop, too,
and the coordinator would give the partitions to another member in the middle of the work. On a thread they go on, so only
`max_poll_interval_ms` limits the work, as in Kafka's Java client.

The two threads call each other through their event loops (`call_soon_threadsafe`). Beside that they share a few attributes with
immutable values: the newest view, when it was published, the marks of `Progress`, and whether the link is being closed. Both
loops use the system's monotonic clock, so their times can be compared.

A simulated event loop has its own clock, and runs many processes on one thread. There the heartbeats stay on the consumer's loop
(`may_use_threads`).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from random import Random

from strandline.client.cluster.cluster import Cluster
from strandline.client.consumer.group.heartbeats import Act, Heartbeats, MemberView, Progress
from strandline.client.consumer.group.link import reason_of_end
from strandline.client.consumer.group.membership import Identity
from strandline.client.options import ConsumerOptions
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

CLOSE_S = 2.0
"""Seconds that `close` waits for the thread, which only has to close its connections."""
LOOK_S = 1.0
"""The interval (seconds) at which the thread checks that the consumer's loop is not closed."""
BLOCKED_S = 10.0
"""If the consumer's loop has not run for this long (seconds), `consumer.event_loop_blocked` is logged once."""


def may_use_threads(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop runs on real time and takes calls from other threads. A loop that cannot watch a file descriptor is
    simulated."""
    return type(loop).add_reader is not asyncio.AbstractEventLoop.add_reader


class ThreadLink:
    """The link to heartbeats on a thread. The thread does not keep the process alive."""

    def __init__(
        self, options: ConsumerOptions, identity: Identity, seed: int, progress: Progress, on_view: Callable[[], None]
    ) -> None:
        self.view = MemberView()
        self.failure: str | None = None
        self._options = options
        self._identity = identity
        self._random = Random(seed)
        self._progress = progress
        self._on_view = on_view
        self._home = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._home.create_future()
        self._is_closing = False
        self._heartbeats: Heartbeats | None = None
        """Used only by the thread. None until the thread has created it."""
        self._early: list[Act] = []
        """Acts that were posted before `_heartbeats` existed."""
        self._task: asyncio.Task[None] | None = None
        self.lag_s = 0.0
        """Seconds that the consumer's loop took to take the last view."""
        self._published_at: float | None = None
        """When the oldest view that the consumer's loop has not taken yet was published; None: it has taken all."""
        self._is_blocked = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"heartbeats of {identity.group_id}", daemon=True)
        self._thread.start()

    # -- on the consumer's loop ---------------------------------------------------------------------------------------

    def post(self, act: Act) -> None:
        with contextlib.suppress(RuntimeError):  # The thread has ended; `failure` or `close` says why.
            self._loop.call_soon_threadsafe(self._act, act)

    async def close(self) -> None:
        self._is_closing = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._cancel)
        await asyncio.wait([self._ended], timeout=CLOSE_S)

    def _take_view(self) -> None:
        published_at, self._published_at = self._published_at, None
        if published_at is not None:
            self.lag_s = max(0.0, self._home.time() - published_at)
        self._on_view()

    def _on_thread_ended(self, reason: str) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        if not self._is_closing:
            self.failure = reason
            self._on_view()

    # -- on the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        reason = "its event loop has ended"
        try:
            reason = self._loop.run_until_complete(self._main())
        except Exception as e:
            reason = f"{type(e).__name__}: {e}"
        finally:
            self._loop.close()
            with contextlib.suppress(RuntimeError):  # The consumer's loop is closed, so `close` no longer waits.
                self._home.call_soon_threadsafe(self._on_thread_ended, reason)

    async def _main(self) -> str:
        cluster = Cluster(self._options, self._random)
        cluster.any_broker.choose_first()
        cluster.metadata.request_refresh()  # Find all brokers: the bootstrap servers may be gone when the coordinator moves.
        heartbeats = self._heartbeats = Heartbeats(
            self._options, self._identity, cluster, self._random, self._progress, self._publish
        )
        for act in self._early:
            heartbeats.act(act)
        self._task = self._loop.create_task(heartbeats.run())
        if self._is_closing:
            self._task.cancel()
        while not self._task.done():
            if self._home.is_closed():  # The program has not called `stop`. The coordinator notices the lost connection.
                self._task.cancel()
            await asyncio.wait([self._task], timeout=LOOK_S)
        await cluster.close()
        return reason_of_end(self._task)

    def _act(self, act: Act) -> None:
        if self._heartbeats is None:
            self._early.append(act)
        else:
            self._heartbeats.act(act)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _publish(self, view: MemberView) -> None:
        self.view = view
        self._look_at_home()
        with contextlib.suppress(RuntimeError):  # The consumer's loop is closed, which `_main` checks.
            self._home.call_soon_threadsafe(self._take_view)

    def _look_at_home(self) -> None:
        """Log once if the consumer's loop has not run for long."""
        now, since = self._loop.time(), self._published_at
        if since is None:
            self._published_at, self._is_blocked = now, False
        elif now - since > BLOCKED_S and not self._is_blocked:
            self._is_blocked = True
            logger.warning(
                "consumer.event_loop_blocked",
                group_id=self._identity.group_id,
                blocked_ms=round((now - since) * 1000),
                max_poll_interval_ms=self._options.max_poll_interval_ms,
            )
