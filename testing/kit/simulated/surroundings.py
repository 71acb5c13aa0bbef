"""Time and chance as a test sees them while it is simulated: of the virtual clock, and of the seed.

A test, and whatever it uses, asks Python's own modules: `time.time`, `time.monotonic`, `random`, `uuid.uuid4`, `secrets`. In the
thread of the simulation these answer with the virtual time of the test's machine and with numbers drawn from the seed; other
threads get what they always got. Out of reach are `datetime.now()`, a function that was imported by its name before
(`from time import time`), the system's own sources, and what real threads do.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

from strandline.testing.simulation.kernel.machine import Machine


@contextmanager
def surroundings(machine: Machine, draw: Random) -> Iterator[None]:
    """`machine`: the test's; `draw`: where its chance comes from."""
    state = random.getstate()
    random.seed(draw.getrandbits(64))
    with ExitStack() as stack:
        for module, name, virtual in _substitutes(machine, draw):
            stack.enter_context(mock.patch.object(module, name, _in_this_thread(virtual, getattr(module, name))))
        try:
            yield
        finally:
            random.setstate(state)


def _substitutes(machine: Machine, draw: Random) -> list[tuple[Any, str, Callable[..., Any]]]:
    def wall_s() -> float:
        return machine.wall_clock_ms() / 1000

    def monotonic_s() -> float:
        return machine.clock_offset_s + machine.world.now * machine.clock_rate

    return [
        (time, "time", wall_s),
        (time, "time_ns", lambda: machine.wall_clock_ms() * 1_000_000),
        (time, "monotonic", monotonic_s),
        (time, "monotonic_ns", lambda: int(monotonic_s() * 1e9)),
        (os, "urandom", draw.randbytes),
        (random, "_urandom", draw.randbytes),  # Which `secrets` and `SystemRandom` draw from.
    ]


def _in_this_thread(virtual: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    me = threading.get_ident()

    def function(*args: Any) -> Any:
        return virtual(*args) if threading.get_ident() == me else real(*args)

    return function
