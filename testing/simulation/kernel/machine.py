"""A machine: an address, a disk, clocks, and at most one running process.

The disk and the address outlive processes. How a process can end or be stopped:

    terminate   SIGTERM: it stops in order, as long as that takes
    crash       SIGKILL: no more of its code runs, the kernel closes its sockets, the page cache survives
    power_cut   the machine loses its power: its sockets stay silent, and any part of what was not synced is lost
    pause       SIGSTOP: the kernel still takes in bytes for it, and nothing else happens until `resume`
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.protocol.doors import Doors
from strandline.testing.simulation.kernel.disk import SimFiles
from strandline.testing.simulation.kernel.interfaces import Surroundings
from strandline.testing.simulation.kernel.loop import NodeLoop

if TYPE_CHECKING:
    from asyncio import Task

T = TypeVar("T")

EPOCH_MS = 1_700_000_000_000
"""The time on the wall clocks when the world begins, in milliseconds since 1970."""


class Machine:
    def __init__(self, world: Surroundings, node_id: int, name: str) -> None:
        self.world = world
        self.id = node_id
        self.name = name
        self.address = f"10.0.{node_id >> 8}.{node_id & 255}"
        self.files = SimFiles(world.stream(f"disk/{name}"))
        """Its disk. A process works on a `mount` of it, which ends with the process."""
        self.loop: NodeLoop | None = None
        """The event loop of the process that runs here."""
        self.incarnation = 0
        """How many processes have been started here."""
        self.has_power = True
        self.seconds_per_second = 1.0
        """The value of `clock_rate`, as a plain attribute because the loop reads it for each look at the clock."""
        self._drift_s = 0.0
        """The seconds that its clocks would have shown at the beginning of the world, had they always run at the present rate."""
        self.clock_offset_s = 1000.0 + node_id
        """The same for its monotonic clock. Set it before the machine runs."""
        self._wall_jump_ms = self.wall_jump_ms_max = 0
        """The largest error that its wall clock has had."""
        self.slowness = 1.0
        """Factor on the time that its disk takes."""
        self.on_death: Callable[[], object] = self.crash
        """Called when its disk ends the process in the middle of an operation."""
        self.graveyard: list[NodeLoop] = []
        """The loops of dead processes, kept so that no finalizer of theirs runs before the world ends."""
        world.network.add(self)

    # -- clocks -------------------------------------------------------------------------------------------------------

    @property
    def clock_rate(self) -> float:
        """Seconds that its clocks advance per second of the world. A change of the rate makes no clock jump."""
        return self.seconds_per_second

    @clock_rate.setter
    def clock_rate(self, rate: float) -> None:
        if not rate > 0:
            raise ValueError(f"a clock cannot run at a rate of {rate}")
        skipped_s = self.world.now * (self.seconds_per_second - rate)
        self.seconds_per_second = rate
        self._drift_s += skipped_s
        self.clock_offset_s += skipped_s
        if self.loop is not None:
            self.loop.on_clock_rate()

    @property
    def wall_jump_ms(self) -> int:
        """The error of its wall clock, in milliseconds."""
        return self._wall_jump_ms

    @wall_jump_ms.setter
    def wall_jump_ms(self, error_ms: int) -> None:
        self._wall_jump_ms = error_ms
        self.wall_jump_ms_max = max(self.wall_jump_ms_max, error_ms)

    def latest_clock_ms(self) -> int:
        """The highest value, in milliseconds, that its wall clock can have shown so far, whatever its errors were."""
        return self.wall_clock_ms() - self._wall_jump_ms + self.wall_jump_ms_max

    def wall_clock_ms(self) -> int:
        return EPOCH_MS + int((self.world.scheduler.now * self.seconds_per_second + self._drift_s) * 1000) + self._wall_jump_ms

    # -- processes ----------------------------------------------------------------------------------------------------

    @property
    def is_up(self) -> bool:
        return self.loop is not None

    @property
    def is_paused(self) -> bool:
        return self.loop is not None and self.loop.paused

    def boot(self) -> tuple[NodeLoop, Doors, Any]:
        """Start a new, empty process: its loop, its doors, and its view of the disk."""
        if self.loop is not None:
            raise RuntimeError(f"{self.name} has a process")
        if not self.has_power:
            self.has_power = True
            self.world.network.on_power(self)
        self.incarnation += 1
        random = self.world.stream(f"{self.name}/{self.incarnation}")
        # NodeLoop implements only the methods of an event loop that the product calls.
        self.loop = loop = NodeLoop(self, self.world.scheduler, self.world.stream_of_loop(random))  # type: ignore[abstract]
        # The process waits for its disk, and some faults of the disk end it.
        files = self.files.mount(on_latency=loop.spend, on_death=self.on_death)
        secrets = self.world.stream(f"{self.name}/{self.incarnation}/secrets")
        return loop, Doors(self.wall_clock_ms, random, self.world.scheduler.clock, secrets.randbytes), files

    def spawn(self, coroutine: Coroutine[Any, Any, T], name: str | None = None) -> Task[T]:
        """Run a coroutine as a task of the process that runs here."""
        if self.loop is None:
            coroutine.close()
            raise RuntimeError(f"{self.name} has no process")
        with self.world.within(self.loop):
            return self.loop.create_task(coroutine, name=name)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as the process that runs here."""
        if self.loop is None:
            raise RuntimeError(f"{self.name} has no process")
        with self.world.within(self.loop):
            return function(*args)

    def end(self) -> None:
        """End the process, which has stopped in order, or exits because it cannot continue."""
        if self.loop is not None:
            self._bury(power=False)
            self.files.crash(lossy=False)

    def crash(self) -> None:
        """SIGKILL to the process, if one runs."""
        if self.loop is not None:
            self.world.trace.emit("node.crashed", self.id, lossy=False)
            self.end()

    def power_cut(self) -> None:
        """Cut the power, whether a process runs or not. What was not synced may be lost."""
        self.world.trace.emit("node.crashed", self.id, lossy=True)
        if self.loop is not None:
            self._bury(power=True)
        self.has_power = False
        self.world.network.on_power_cut(self)
        self.files.crash(lossy=True)

    def _bury(self, *, power: bool) -> None:
        loop, self.loop = self.loop, None
        assert loop is not None
        loop.die()
        self.graveyard.append(loop)
        if not power:
            self.world.network.on_process_gone(loop)

    def pause(self) -> None:
        if self.loop is not None and not self.loop.paused:
            self.world.trace.emit("node.paused", self.id)
            self.loop.pause()

    def resume(self) -> None:
        if self.loop is not None and self.loop.paused:
            self.world.trace.emit("node.resumed", self.id)
            self.loop.resume()

    def __repr__(self) -> str:
        return f"<{self.name} {'up' if self.is_up else 'down'}>"
