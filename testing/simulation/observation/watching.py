"""Watches production code from outside: its log lines and events in the trace, and calls of its functions.

A `Watch` wraps functions and methods while it is installed. The wrappers look at arguments and results and change nothing;
production code does not know of them and pays nothing. Only plain functions are watched; a coroutine is observed through the
plain functions that it calls.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from strandline.protocol.errors import BrokerError
from strandline.testing.simulation.observation.wrapping import is_keeping, wrap


class Called(NamedTuple):
    """One call that has ended."""

    args: tuple[Any, ...]
    """Positional arguments; for a method, the first one is the object."""
    result: Any
    error: Exception | None
    before: Any
    """The value that `OnCall.before` returned."""

    @property
    def me(self) -> Any:
        return self.args[0]

    @property
    def code(self) -> int:
        """The code of the wire error that it raised; 0: none."""
        return int(self.error.code) if isinstance(self.error, BrokerError) else 0


@dataclass(frozen=True, slots=True)
class OnCall:
    """A call of `target` ("broker.partition:Partition.make_leader", under `strandline.`) that returned and for which `when`
    holds; with `raised`, a call that raised."""

    target: str
    when: Callable[[Called], object] | None = None
    before: Callable[..., object] | None = None
    """Called with the arguments before the call."""
    raised: bool = False


@dataclass(frozen=True, slots=True)
class OnEvent:
    """An event of the trace. For a log line the kind is `log.` and the name of the event."""

    kind: str
    when: Callable[[Mapping[str, Any]], object] | None = None


def said(event: str, when: Callable[[Mapping[str, Any]], object] | None = None) -> OnEvent:
    """A log line of the production code (docs/logs.md), at level info or above."""
    return OnEvent(f"log.{event}", when)


Sight = OnCall | OnEvent


class Watch:
    """Calls `see(name)` whenever one of the sights of that name happens."""

    def __init__(self, sights: Mapping[str, tuple[Sight, ...]], see: Callable[[str], None]) -> None:
        self._sights, self._see = sights, see
        self._events: dict[str, list[tuple[str, OnEvent]]] = {}
        self._calls: dict[str, list[tuple[str, OnCall]]] = {}
        for name, alternatives in sights.items():
            for sight in alternatives:
                if isinstance(sight, OnEvent):
                    self._events.setdefault(sight.kind, []).append((name, sight))
                else:
                    self._calls.setdefault(sight.target, []).append((name, sight))

    def on_event(self, kind: str, node: int, partition: str, fields: Mapping[str, Any]) -> None:
        for name, sight in self._events.get(kind, ()):
            if sight.when is None or sight.when(fields):
                self._see(name)

    @contextlib.contextmanager
    def installed(self, trace: Any = None) -> Iterator[None]:
        """Within the block, watch the calls and the events of the trace."""
        undo = self._install()
        heard = [] if trace is None else [trace.listeners[kind] for kind in self._events]
        for listeners in heard:
            listeners.append(self.on_event)
        try:
            yield
        finally:
            for listeners in heard:
                listeners.remove(self.on_event)
            for each in reversed(undo):
                each()
            if is_keeping():
                Watch(self._sights, lambda _: None)._install()

    def _install(self) -> list[Callable[[], None]]:
        return [wrap("watch", *resolve(target), self._wrapper_of(wanted)) for target, wanted in self._calls.items()]

    def _wrapper_of(self, wanted: list[tuple[str, OnCall]]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """A wrapper that costs as little as possible: most functions are watched for one thing, at their return or when they
        raise."""
        raised = [(name, sight) for name, sight in wanted if sight.raised]
        returned = [(name, sight) for name, sight in wanted if not sight.raised]
        befores = [(id(sight), sight.before) for _, sight in wanted if sight.before is not None]
        nothing: dict[int, Any] = {}
        if not raised and not befores and len(returned) == 1 and returned[0][1].when is not None:
            return self._plain_wrapper_of(returned[0][0], returned[0][1].when)
        see, new = self._see, tuple.__new__

        def judge(
            sights: list[tuple[str, OnCall]], args: tuple[Any, ...], result: Any, error: Exception | None, found: dict[int, Any]
        ) -> None:
            for name, sight in sights:
                if sight.when is None or sight.when(new(Called, (args, result, error, found.get(id(sight))))):
                    see(name)

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                found = {key: before(*args) for key, before in befores} if befores else nothing
                try:
                    result = function(*args, **kwargs)
                except Exception as e:  # Not ProcessDied, which ends a simulated process: that call is not judged.
                    judge(raised, args, None, e, found)
                    raise
                if returned:
                    judge(returned, args, result, None, found)
                return result

            return watched

        return wrap

    def _plain_wrapper_of(
        self, name: str, when: Callable[[Called], object]
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """The wrapper for the usual case: one thing to watch, at the return. It costs as little as possible."""
        see, new = self._see, tuple.__new__

        def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                result = function(*args, **kwargs)
                if when(new(Called, (args, result, None, None))):
                    see(name)
                return result

            return watched

        return wrap


@functools.cache
def resolve(target: str) -> tuple[Any, str]:
    """The module or class that holds the function, and its name there."""
    module, _, path = target.partition(":")
    owner: Any = importlib.import_module(f"strandline.{module}")
    *outer, name = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    if name not in vars(owner):
        raise TypeError(f"{target} is inherited: name the class that defines it")
    function = getattr(owner, name)
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"{target} is a coroutine function: it has done its work when it was awaited, not when the call returns")
    return owner, name
