"""Wraps production functions while a world runs, for the probes and the marks.

    undo = wrap("probes", Log, "flush", make)      # Log.flush is make(Log.flush) from now on
    undo()

CPython specialises bytecode for the classes that it meets, and drops this whenever a class changes. A run wraps more than a
hundred functions of half as many classes and restores all of them, so a process that does many runs would specialise again each
time. In such a process (`kept`) a wrapper therefore stays in place between runs: the next run creates its wrapper, and the
closure of the new wrapper is put into the old one. Both come from the same code, so they differ in nothing else. Between two
runs a wrapper would still refer to the objects of the last run; therefore the caller wraps once more at the end of a run, with
functions that do nothing (`is_keeping`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

Function = Callable[..., Any]
Key = tuple[str, Any, str]
"""The user of the wrapper, the class or module, and the name there."""


class _Kept:
    __slots__ = ("attribute", "wrapper")

    def __init__(self, attribute: Any, wrapper: Any) -> None:
        self.attribute = attribute
        """The attribute before it was wrapped."""
        self.wrapper = wrapper


_kept: dict[Key, _Kept] | None = None
"""The wrappers that stay in place, in the order in which they were installed; None if wrappers do not stay."""


def wrap(by: str, owner: Any, name: str, make: Callable[[Function], Function]) -> Callable[[], None]:
    """Replace the function by `make(function)`; returns the undo function. The owner must define the function itself."""
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
    """Whether wrappers stay: then the caller wraps once more at the end of its run, with functions that do nothing."""
    return _kept is not None


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Within the block wrappers stay in place; its end undoes all of them. For a process that does nothing but runs."""
    global _kept
    _kept = {}
    try:
        yield
    finally:
        _undo_all()
        _kept = None


@contextlib.contextmanager
def removed() -> Iterator[None]:
    """Within the block no function is wrapped and wrappers do not stay, for callers that change production code themselves."""
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
    assert new.__code__ is there.wrapper.__code__, f"{new.__qualname__} is not created as before"
    for cell, other in zip(there.wrapper.__closure__ or (), new.__closure__ or (), strict=True):
        cell.cell_contents = other.cell_contents


def _is_bound_otherwise(attribute: Any) -> bool:
    return isinstance(attribute, (classmethod, staticmethod))


def _function(attribute: Any) -> Function:
    return attribute.__func__ if _is_bound_otherwise(attribute) else attribute  # type: ignore[no-any-return]


def _stay() -> None:
    pass
