"""The callbacks of `subscribe`, which run when partitions are assigned, revoked or lost.

Each may be a plain function or a coroutine function, and gets the list of partitions. A rebalance waits for it, because other
members wait for the partitions; so each has a deadline. A coroutine that is not done by then is cancelled and not waited for. A
plain function cannot be cut off, because it stops the event loop; it is reported when it returns.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from strandline.client.consumer.records import TopicPartition
from strandline.client.errors import RebalanceCallbackFailed, UsageError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[object] | None]
"""Takes the partitions that were assigned, revoked or lost."""


class Callbacks(NamedTuple):
    """The callbacks that the program has passed to `subscribe`."""

    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None

    def for_lost(self) -> RebalanceCallback | None:
        """The callback for lost partitions: `on_lost`, or `on_revoked` without one, as in Kafka's Java client."""
        return self.on_lost or self.on_revoked


def checked_callbacks(
    on_assigned: RebalanceCallback | None,
    on_revoked: RebalanceCallback | None,
    on_lost: RebalanceCallback | None,
    listener: Any | None,
) -> Callbacks:
    """The callbacks, from functions or from a listener object with aiokafka's method names. UsageError if both are given, or if
    one cannot be called."""
    given = {"on_assigned": on_assigned, "on_revoked": on_revoked, "on_lost": on_lost}
    for name, function in given.items():
        if function is not None and not callable(function):
            raise UsageError(f"{name} must be a function, not {function!r}")
    if listener is None:
        return Callbacks(**given)
    if any(function is not None for function in given.values()):
        raise UsageError("a listener and single callbacks exclude each other")
    methods = [getattr(listener, f"on_partitions_{event}", None) for event in ("assigned", "revoked", "lost")]
    if not callable(methods[0]) and not callable(methods[1]):
        raise UsageError(f"a listener has the methods on_partitions_assigned and on_partitions_revoked, and {listener!r} has not")
    return Callbacks(*methods)


class CallbackRunner:
    """Calls callbacks within their deadlines, and keeps count."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self.failed = 0
        """Callbacks that raised an error."""
        self.cut_off = 0
        """Callbacks that were not done at their deadline."""

    async def run(
        self, name: str, callback: RebalanceCallback | None, tps: list[TopicPartition], deadline: float
    ) -> RebalanceCallbackFailed | None:
        """Call a callback and wait for it until the deadline (on the loop's clock). Returns the error that it has raised, if
        any."""
        if callback is None or not tps:
            return None
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            result = callback(list(tps))
            is_done = await self._finish(result, deadline)
        except Exception as e:
            self.failed += 1
            logger.warning("consumer.callback_failed", group_id=self._group_id, callback=name, reason=f"{type(e).__name__}: {e}")
            error = RebalanceCallbackFailed(f"{name} has raised {type(e).__name__}: {e}")
            error.__cause__ = e
            return error
        if not is_done or loop.time() > deadline:
            self.cut_off += 1
            waited_ms = round((loop.time() - started) * 1000)
            logger.warning("consumer.callback_cut_off", group_id=self._group_id, callback=name, waited_ms=waited_ms)
        return None

    @staticmethod
    async def _finish(result: object, deadline: float) -> bool:
        """Returns whether the callback is done by the deadline. Raises its error; if something else has cancelled it, that counts
        as an error."""
        if not inspect.isawaitable(result):  # A plain function has returned something.
            return True
        task: asyncio.Future[object] = asyncio.ensure_future(result)
        try:
            await asyncio.wait([task], timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.cancel()
            return False
        if task.cancelled():
            raise RuntimeError("it was cancelled")
        task.result()
        return True
