"""Gives a simulated test virtual time and random numbers from the seed.

A test and the code that it uses call Python's modules: `time.time`, `time.monotonic`, `random`, `uuid.uuid4`, `secrets`. In the
thread of the simulation these functions return the virtual time of the test's machine and numbers drawn from the seed; in other
threads they behave as usual. Not replaced are `datetime.now()`, functions that were imported by name before
(`from time import time`), the operating system's own sources, and what real threads do.
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
    """Replace the functions inside the `with` block. `machine`: the test's; `draw`: source of its random numbers."""
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
        (random, "_urandom", draw.randbytes),  # The source of `secrets` and `SystemRandom`.
    ]


def _in_this_thread(virtual: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    me = threading.get_ident()

    def function(*args: Any) -> Any:
        return virtual(*args) if threading.get_ident() == me else real(*args)

    return function
