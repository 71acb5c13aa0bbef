"""Production functions that are wrapped while a world runs: for the probes, and for the marks.

    undo = wrap("probes", Log, "flush", make)      # Log.flush is make(Log.flush) from now on
    undo()

CPython learns which classes a piece of bytecode meets, and forgets it whenever one of them changes. A run wraps more than a
hundred functions of half as many classes and puts all of them back; a process that does one run after the other learns the
same again each time. In such a process (`kept`) a wrapper therefore stays where it is from one run to the next: the next
run's wrapper is made, and what *it* closes over is put into the one that is there. Both come from the same code, so that
nothing else tells them apart. Between two runs a wrapper closes over whatever it was given last, so who wraps gives it
something idle at the end (`is_keeping`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

Function = Callable[..., Any]
Key = tuple[str, Any, str]
"""For whom, and the class or module and the name there."""


class _Kept:
    __slots__ = ("attribute", "wrapper")

    def __init__(self, attribute: Any, wrapper: Any) -> None:
        self.attribute = attribute
        """What was there before it."""
        self.wrapper = wrapper


_kept: dict[Key, _Kept] | None = None
"""In the order in which they were put in place; None where wrappers do not stay."""


def wrap(by: str, owner: Any, name: str, make: Callable[[Function], Function]) -> Callable[[], None]:
    """Put `make(function)` in its place; returns what undoes that. The owner must define the function itself."""
    key = (by, owner, name)
    if _kept is not None and key in _kept:
        _exchange(_kept[key], make)
        return _stay
    attribute = vars(owner)[name]
    wrapper = make(_function(attribute))
    setattr(owner, name, type(attribute)(wrapper) if _is_bound_otherwise(attribute) else wrapper)
    if _kept is None:
        return lambda: setattr(owner, name, attribute)
    _kept[key] = _Kept(attribute, wrapper)
    return _stay


def is_keeping() -> bool:
    """Whether wrappers stay: who wrapped for a run wraps again at its end, with something that does nothing."""
    return _kept is not None


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """From here on wrappers stay in place; at the end all are undone. For a process that does nothing but runs."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _undo_all()
        _kept = None


@contextlib.contextmanager
def removed() -> Iterator[None]:
    """Everything is as written, and wrappers do not stay, until this ends: for who changes the production code himself."""
    global _kept
    if _kept is None:
        yield
        return
    _undo_all()
    _kept = None
    try:
        yield
    finally:
        _kept = {}


def _undo_all() -> None:
    for (_, owner, name), there in reversed((_kept or {}).items()):
        setattr(owner, name, there.attribute)


def _exchange(there: _Kept, make: Callable[[Function], Function]) -> None:
    new = make(_function(there.attribute))
    assert isinstance(new, FunctionType)
    assert new.__code__ is there.wrapper.__code__, f"{new.__qualname__} is made otherwise than before"
    for cell, other in zip(there.wrapper.__closure__ or (), new.__closure__ or (), strict=True):
        cell.cell_contents = other.cell_contents


def _is_bound_otherwise(attribute: Any) -> bool:
    return isinstance(attribute, (classmethod, staticmethod))


def _function(attribute: Any) -> Function:
    return attribute.__func__ if _is_bound_otherwise(attribute) else attribute  # type: ignore[no-any-return]


def _stay() -> None:
    pass
