"""A machine outlives its processes; a process ends in the ways in which real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from strandline.testing.simulation.kernel.machine import EPOCH_MS, Machine
from strandline.testing.simulation.kernel.world import World


@pytest.fixture
def world() -> Iterator[World]:
    with closing(World(1)) as world:
        yield world


@pytest.fixture
def machine(world: World) -> Machine:
    return world.add_machine(300, "node")


def test_a_machine_has_an_address_a_name_and_one_process_at_a_time(world: World, machine: Machine) -> None:
    assert machine.address == "10.0.1.44"
    assert world.network.names["node"] == [machine.address]
    machine.boot()
    with pytest.raises(RuntimeError, match="node has a process"):
        machine.boot()
    machine.crash()
    machine.boot()
    assert machine.incarnation == 2


def test_without_a_process_nothing_runs_on_it(machine: Machine) -> None:
    with pytest.raises(RuntimeError, match="node has no process"):
        machine.spawn(asyncio.sleep(1))
    with pytest.raises(RuntimeError, match="node has no process"):
        machine.call(print)
    machine.crash()
    machine.pause()
    machine.resume()
    machine.end()
    assert not machine.is_up


def test_each_process_has_its_own_random_numbers(world: World, machine: Machine) -> None:
    _, first, _ = machine.boot()
    machine.crash()
    _, second, _ = machine.boot()
    with closing(World(1)) as again:
        _, same, _ = again.add_machine(300, "node").boot()
    one, other, third = (doors.random.random() for doors in (first, second, same))
    assert one == third != other


def test_power_cut_may_drop_unsynced_bytes_and_a_crash_drops_none() -> None:
    survived = set()
    for seed in range(10):
        with closing(World(seed)) as world:
            machine = world.add_machine(1, "node")
            _, _, files = machine.boot()
            files.open("/a", create=True).append([b"x" * 5000])
            machine.crash()
            _, _, files = machine.boot()
            assert files.open("/a", create=False).size == 5000
            machine.power_cut()
            _, _, files = machine.boot()
            survived.add(files.exists("/a"))  # its name was never synced
    assert survived == {True, False}


def test_power_returns_with_the_next_process(world: World, machine: Machine) -> None:
    machine.power_cut()  # nothing ran there
    assert not machine.has_power
    machine.boot()
    assert machine.has_power
    machine.power_cut()
    assert not machine.is_up
    assert [event.kind for event in world.trace.events()] == ["node.crashed", "node.crashed"]


def test_a_process_may_die_in_an_operation_of_its_disk(world: World, machine: Machine) -> None:
    loop, _, files = machine.boot()
    log: list[str] = []

    async def work() -> None:
        try:
            file = files.open("/a", create=True)
            log.append("opened")
            file.append([b"x"])
            log.append("written")
        except Exception:
            log.append("an error that was caught")
        finally:
            loop.call_soon(log.append, "later")
            log.append("finally")

    machine.files.crash_at(operation="write", moment="before")
    machine.spawn(work())
    world.run(world.sleep(5))
    assert log[:1] == ["opened"]
    assert "written" not in log
    assert "an error that was caught" not in log
    assert "later" not in log
    assert not machine.is_up
    assert machine.files.contents() == {"/a": b""}


def test_a_disk_that_takes_time_holds_its_process_up(world: World, machine: Machine) -> None:
    loop, _, files = machine.boot()
    log: list[float] = []

    def write() -> None:
        files.open("/a", create=True).append([b"x"])
        loop.call_soon(lambda: log.append(world.now))

    machine.files.stall(2.0, "write")
    loop.call_soon(write)
    loop.call_later(0.5, lambda: log.append(world.now))
    world.run(world.sleep(5))
    assert len(log) == 2
    assert all(2.0 <= at <= 2.01 for at in log)


def test_wall_clocks_may_jump_without_effect_on_other_machines(world: World, machine: Machine) -> None:
    loop, doors, _ = machine.boot()
    world.run(world.sleep(10))
    assert doors.wall_clock_ms() == EPOCH_MS + 10_000
    before = loop.time()
    machine.wall_jump_ms = -3_600_000
    assert doors.wall_clock_ms() == EPOCH_MS + 10_000 - 3_600_000
    assert loop.time() == before
    assert world.machine.wall_clock_ms() == EPOCH_MS + 10_000


def test_clock_is_monotonic(machine: Machine) -> None:
    with pytest.raises(ValueError, match="rate of 0"):
        machine.clock_rate = 0
