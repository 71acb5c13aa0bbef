"""Calls the program's handler: on the event loop if it is a coroutine function, otherwise on a thread.

A plain function may block, and would block the event loop. There are as many threads as calls may run at the same time. A
simulated event loop has no threads: its `run_in_executor` runs the function in a later iteration.

Keys and values are deserialized here, right before the call: a record that cannot be deserialized fails like one whose handler
fails, and does not stop the records before and behind it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from strandline.client.consumer.records import AnyRecord
from strandline.client.consumer.run.headers import with_attempt
from strandline.client.consumer.run.schedule import Delivery
from strandline.client.consumer.run.settings import BatchHandler, RecordHandler
from strandline.client.options import ConsumerOptions
from strandline.protocol.errors import UsageError


class Undecodable(Exception):
    """A deserializer failed (`__cause__`). Another attempt would fail as well."""


class _Raised:
    """The error that a call on a thread has raised."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class Handler:
    """The handler of one `run`."""

    def __init__(
        self,
        function: RecordHandler[Any, Any] | BatchHandler[Any, Any],
        options: ConsumerOptions,
        *,
        takes_batches: bool,
        calls_max: int,
    ) -> None:
        check_handler(function)
        self._function: Callable[[Any], Awaitable[object] | object] = function
        self._takes_batches = takes_batches
        self._decode_key, self._decode_value = options.key_deserializer, options.value_deserializer
        self.uses_threads = not is_coroutine_function(function)
        self._pool = ThreadPoolExecutor(calls_max, thread_name_prefix="handler") if self.uses_threads else None

    async def call(self, deliveries: Sequence[Delivery]) -> None:
        """Call the handler. Raises its error, or Undecodable."""
        if self._pool is None:
            result = self._call(deliveries)
        else:
            result = await asyncio.get_running_loop().run_in_executor(self._pool, self._call_guarded, deliveries)
        if isinstance(result, _Raised):
            raise result.error
        if inspect.isawaitable(result):
            await result
        elif inspect.isgenerator(result) or inspect.isasyncgen(result):
            raise UsageError(
                f"the handler returned {result!r}, and nothing of that has run: a handler is a function without `yield`"
            )

    def _call_guarded(self, deliveries: Sequence[Delivery]) -> object:
        """Return an error instead of raising it: a future cannot hold StopIteration, and would never be done."""
        try:
            return self._call(deliveries)
        except Exception as e:
            return _Raised(e)

    def _call(self, deliveries: Sequence[Delivery]) -> object:
        records = [self._decoded(delivery) for delivery in deliveries]
        return self._function(records if self._takes_batches else records[0])

    def _decoded(self, delivery: Delivery) -> AnyRecord:
        record = delivery.record
        if delivery.attempt > 1:
            record = with_attempt(record, delivery.attempt)
        key, value, decode_key, decode_value = record.key, record.value, self._decode_key, self._decode_value
        if decode_key is None and decode_value is None:
            return record
        try:
            if decode_key is not None and key is not None:
                key = decode_key(key)
            if decode_value is not None and value is not None:
                value = decode_value(value)
        except Exception as e:
            raise Undecodable(f"a deserializer raised {type(e).__name__}: {e}") from e
        return msgspec.structs.replace(record, key=key, value=value)

    def close(self) -> None:
        """Start no more threads. A thread whose call has not returned keeps running."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def check_handler(function: object) -> None:
    """UsageError for a handler whose calls would all fail (so that every record would become a dead letter), or would run
    nothing."""
    if not callable(function):
        raise UsageError(f"a handler is a function, and not {function!r}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(f"the handler {function!r} has a `yield`: a call returns a generator, and runs nothing of it")
    try:
        inspect.signature(function).bind(None)
    except TypeError as e:
        raise UsageError(f"a handler is called with one argument, and {function!r} does not take one: {e}") from None
    except ValueError:
        pass  # Some functions in C have no signature.


def is_coroutine_function(function: object) -> bool:
    """Whether a call returns a coroutine at once: `function` is a coroutine function, a partial of one, or an object whose
    `__call__` is one."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
