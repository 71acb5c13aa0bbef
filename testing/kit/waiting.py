"""Waits for a condition, and reports the values that were seen last if it did not hold in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from strandline.protocol.errors import UsageError
from strandline.testing.kit.conditions import Condition, Value
from strandline.testing.kit.nodes import Place
from strandline.testing.kit.view import View


class NotInTime(AssertionError):
    """A condition that a test waited for did not hold in time. The message tells the values that were seen last."""


async def until(
    condition: object,
    look: Callable[[Collection[Place]], Awaitable[View]],
    *,
    within_s: float,
    poll_s: float,
) -> None:
    """Look at the cluster every `poll_s` seconds until the condition holds. Time is that of the running loop, which may be
    virtual. NotInTime: it did not hold within `within_s` seconds. UsageError: this is not a condition."""
    __tracebackhide__ = True
    if not isinstance(condition, Condition):
        hint = f"; compare it, as in {condition!r} == ..." if isinstance(condition, Value) else ""
        raise UsageError(f"until() needs a condition such as leader('t', 0) != 1, not {condition!r}{hint}")
    now = asyncio.get_running_loop().time
    deadline = now() + within_s
    places = list(dict.fromkeys(value.place for value in condition.values() if value.place is not None))
    while True:
        view = await look(places)
        if condition.holds(view):
            return
        if now() >= deadline:
            raise NotInTime(f"condition not met within {within_s:g} s: {condition!r}\n{seen(condition, view)}")
        await asyncio.sleep(poll_s)


def seen(condition: Condition, view: View) -> str:
    """The values that the condition reads, and the partitions that they belong to, as lines of text."""
    values = {repr(value): value for value in condition.values()}
    lines = [f"  last seen: {name} is {_told(value.read(view))}" for name, value in values.items()]
    for place in dict.fromkeys(value.place for value in values.values() if value.place is not None):
        found = view.partition(*place)
        lines.append(f"  {found}" if found is not None else f"  {place[0]}-{place[1]}: the partition does not exist")
    return "\n".join(lines)


def _told(value: object) -> str:
    if isinstance(value, frozenset):
        return "{" + ", ".join(map(str, sorted(value))) + "}"
    return "unknown" if value is None else str(value)
