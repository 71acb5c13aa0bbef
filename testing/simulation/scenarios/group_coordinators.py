"""Coordinators of consumer groups: S52, S53, S96, S97, S99, S100 and S111."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from strandline.broker.coordination.loader import LoadTurns
from strandline.protocol.errors import ErrorCode
from strandline.testing.simulation.scenarios.classic_stage import ClassicMember
from strandline.testing.simulation.scenarios.group_stage import SETTINGS, Group, code_of, open_group
from strandline.testing.simulation.scenarios.stage import Stage, scenario

LOADING, MOVED = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
SESSION_S = SETTINGS["group.consumer.session.timeout.ms"] / 1000


class HeldLoads:
    """Holds the slices of all loads until `release`, as if the logs were long."""

    def __init__(self, stage: Stage) -> None:
        self._held: list[tuple[Any, LoadTurns, Callable[[], None]]] = []
        self._is_holding = True
        add = LoadTurns.add

        def hold(turns: LoadTurns, step: Callable[[], None]) -> None:
            if self._is_holding:
                self._held.append((asyncio.get_running_loop(), turns, step))
            else:
                add(turns, step)

        stage.patch(LoadTurns, "add", hold)

    def release(self) -> None:
        """Run the slices that are held, and hold no more."""
        self._is_holding = False
        for loop, turns, step in self._held:
            if not loop.is_dead:
                loop.machine.call(turns.add, step)


@scenario("S52", "A coordinator dies after it has acknowledged commits", source="KAFKA-16030; KIP-848")
async def s52(stage: Stage) -> None:
    """Every acknowledged commit is there after the load; until its end the new coordinator answers with
    COORDINATOR_LOAD_IN_PROGRESS. A member that died with the old coordinator is removed one session after the load, because the
    log does not contain the time of its last heartbeat."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first, second)
    (ours,), (theirs,) = first.assigned, second.assigned
    await first.store(ours, 10)
    await second.store(theirs, 20)
    stage.says("The coordinator dies, and the second member with it. The next coordinator takes long to load.")
    await group.all_in_sync()
    loads = HeldLoads(stage)
    held = stage.hold("Fetch", where=lambda m: m.source in (2, 3) and m.target in (2, 3))
    stage.crash(1)
    await stage.until(lambda: group.coordinator not in (1, -1) and group.shard(group.coordinator), what="another broker leads")
    for what, attempt in (("commit", first.commit({ours: 11})), ("read offsets", group.committed(ours)), ("beat", first.beat())):
        stage.must(await code_of(attempt) is LOADING, f"to {what} is answered with COORDINATOR_LOAD_IN_PROGRESS")
    stage.says("It has loaded, and cannot tell yet which of the last records are committed: no follower has fetched.")
    loads.release()
    await group.moved_to(group.coordinator)
    began = stage.world.now
    reading = first.start(group.committed(ours, theirs))
    await stage.sleep(0.05)
    stage.must(not reading.done(), "the offsets are not answered before")
    held.release()
    stage.must(await reading == [10, 20], "both commits are there")
    stage.says("The second member is silent, and the first one gets its partition.")
    while first.assigned != [0, 1]:
        await group.answered(lambda: first.beat(first.assigned))
        stage.must(stage.world.now - began < 2 * SESSION_S, "the second member is removed when its session ends")
        await stage.sleep(0.1)
    stage.must(await first.committed(theirs) == [20], "it begins where the second one has committed")
    stage.start(1)
    await stage.at_rest()


@scenario("S53", "A commit is appended by a coordinator that is replaced", source="KIP-848; two coordinators")
async def s53(stage: Stage) -> None:
    """The old coordinator does not know that it was replaced. It appends a commit, and can neither acknowledge nor serve it: the
    next coordinator may not have it. (A coordinator that answers from its memory serves phantom commits.)"""
    group = await open_group(stage, settings={"offsets.commit.timeout.ms": 8000})
    first = group.member("first")
    await group.settled(first)
    await first.store(0, 5)
    await group.all_in_sync()
    stage.says("Broker 1 is cut off from all other nodes. The member still reaches it, and commits 9.")
    end = group.log(1).log_end_offset
    stage.cut(1, [2, 3, 101])
    commit = first.start(first.commit({0: 9}, broker=1))
    await stage.until(lambda: group.log(1).log_end_offset > end, what="the commit is appended")
    stage.must(await group.committed(0, broker=1) == [5], "what is not committed is not served")
    await stage.until(lambda: group.coordinator not in (1, -1), what="another broker leads")
    await group.moved_to(group.coordinator)
    stage.must(not commit.done() or await code_of(commit) is not ErrorCode.NONE, "the commit is not acknowledged")
    stage.must(await group.answered(lambda: group.committed(0)) == [5], "the next coordinator does not have it")
    await first.store(0, 7)
    stage.mend(1, [2, 3, 101])
    stage.must(await code_of(commit) is not ErrorCode.NONE, "the commit fails")
    await group.all_in_sync()
    while group.coordinator != 1:
        await group.resigns()
    stage.must(await group.answered(lambda: group.committed(0)) == [7], "broker 1 has dropped it")
    await group.remembers()
    await stage.at_rest()


@scenario("S96", "A group changes its protocol while it has members", source="KIP-848, online migration; KIP-814")
async def s96(stage: Stage) -> None:
    """A member of the newer protocol joins a classic group: the group becomes one of the newer protocol, and the classic members
    keep their partitions until they have given them up. Then this member leaves, and the group is a classic one again."""
    group = await open_group(stage)
    elder, static, newer = ClassicMember(group, "elder"), ClassicMember(group, "static", instance_id="i"), group.member("newer")
    await elder.join()
    await elder.sync({elder: [0, 1]})
    await elder.rejoined(static)
    await elder.sync({elder: [0], static: [1]})
    await static.sync({})
    await elder.store(0, 5)
    stage.says("The process of the static member restarts: no rebalance.")
    generation = static.generation
    static.forget()
    await static.join()
    await static.sync({})
    stage.must((static.generation, static.assigned) == (generation, [1]), "it has its partition, in the same generation")
    stage.says("A member of the newer protocol joins.")
    await group.answered(newer.beat)
    described = await group.describe()
    stage.must(len(described.members) == 3, "the group is of the newer protocol, with all its members")
    stage.must(newer.assigned == [], "the newer member waits")
    stage.says("It leaves again: only members of the classic protocol are left.")
    await newer.leave()
    stage.must((await group.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND, "the group is a classic one")
    stage.must(await group.committed(0) == [5], "its offsets are there")
    await group.resigns()
    await group.remembers()
    stage.must(await group.answered(lambda: group.committed(0)) == [5], "also on the next coordinator")
    await stage.at_rest()


@scenario("S97", "A change of leadership overtakes a load", source="KAFKA-16030")
async def s97(stage: Stage) -> None:
    """A broker loads groups, and loses the leadership before the load has ended. It must drop the part that it has loaded, also
    when it coordinates again, because another coordinator has written since."""
    group = await open_group(stage)
    first = group.member("first")
    await group.settled(first)
    await first.store(0, 5)
    await group.all_in_sync()
    stage.says("The coordinator resigns. The next one begins to load, and resigns as well.")
    loads = HeldLoads(stage)
    group.resign(1)
    await stage.until(lambda: group.coordinator not in (1, -1) and group.shard(group.coordinator), what="another broker loads")
    overtaken = group.coordinator
    await group.all_in_sync()
    group.resign(overtaken)
    await stage.until(lambda: group.coordinator not in (overtaken, -1), what="a third one leads")
    loads.release()
    await group.moved_to(group.coordinator)
    stage.must(await code_of(first.commit({0: 6}, broker=overtaken)) is MOVED, "the overtaken broker does not coordinate")
    await first.store(0, 7)
    stage.says("The broker whose load was overtaken coordinates again.")
    while group.coordinator != overtaken:
        await group.resigns()
    stage.must(await group.answered(lambda: group.committed(0)) == [7], "it has what was committed since")
    await group.remembers()
    await stage.at_rest()


@scenario("S99", "A coordinator moves in the middle of a rebalance", source="KAFKA-16147")
async def s99(stage: Stage) -> None:
    """A partition is assigned to another member only when its owner has given it up. The next coordinator finds the owners that
    have not done so in the records."""
    group = await open_group(stage)
    first, second = group.member("first"), group.member("second")
    await group.settled(first)
    await group.answered(second.beat)
    await first.beat()
    stage.must((first.assigned, second.assigned) == ([0], []), "the first member has to give up partition 1")
    stage.says("Before it has, the coordinator dies.")
    await group.all_in_sync()
    stage.crash(1)
    await stage.until(lambda: group.coordinator not in (1, -1), what="another broker leads")
    await group.answered(second.beat)
    stage.must(second.assigned == [], "the second member waits")
    await first.beat([0, 1])
    await second.beat()
    stage.must(second.assigned == [], "and still waits while the first one reports that it owns both")
    await first.beat([0])
    await second.beat()
    stage.must(second.assigned == [1], "it gets the partition that was given up")
    await group.settled(first, second)
    stage.start(1)
    await stage.at_rest()


@scenario("S100", "A classic group loses its coordinator in the middle of a rebalance", source="KAFKA-9752, KIP-848")
async def s100(stage: Stage) -> None:
    """A rebalance of the classic protocol is in the coordinator's memory only. The next coordinator does not have it, so the
    generation that it was to begin does not exist, and a member of an older generation cannot commit in a later one."""
    group = await open_group(stage)
    first, second = ClassicMember(group, "first"), ClassicMember(group, "second")
    await first.join()
    await first.sync({first: [0, 1]})
    await first.store(0, 5)
    stage.says("A second member joins, both are in the next generation, and the coordinator dies before the leader assigns.")
    await first.rejoined(second)
    stage.must(first.generation == second.generation == 2, "both are in generation 2")
    await group.all_in_sync()
    stage.crash(1)
    await stage.until(lambda: group.coordinator not in (1, -1), what="another broker leads")
    await group.moved_to(group.coordinator)
    stage.must(await code_of(second.sync({})) is ErrorCode.UNKNOWN_MEMBER_ID, "the coordinator does not have the second member")
    stage.must(await code_of(first.commit({0: 6})) is ErrorCode.ILLEGAL_GENERATION, "there is no generation 2")
    stage.says("They join again.")
    second.forget()
    await first.rejoined(second)
    await first.sync({first: [0], second: [1]})
    await second.sync({})
    stage.must((first.assigned, second.assigned) == ([0], [1]), "each has its partition")
    stale = first.generation - 1
    stage.must(
        await code_of(first.commit({0: 6}, generation=stale)) is ErrorCode.ILLEGAL_GENERATION, "an older generation is rejected"
    )
    await first.store(0, 7)
    stage.must(await group.committed(0) == [7], "its offset is committed")
    stage.start(1)
    await stage.at_rest()


@scenario("S111", "A coordinator has too few replicas", source="KIP-848; min.insync.replicas")
async def s111(stage: Stage) -> None:
    """A commit that only the coordinator has is not acknowledged: it times out, and later ones are refused before they are
    appended. A consumer returns no more records, keeps its partitions, and continues when the coordinator answers again."""
    group = await open_group(stage, settings={"offsets.commit.timeout.ms": 500, "replica.lag.time.max.ms": 2000})
    first = group.member("first")
    program = group.program("program")
    await program.owns(0, 1)
    await stage.append(1, index=0)
    await stage.until(lambda: program.offsets(0) == [0], what="a record is read")
    other = Group(stage, "other")
    stage.says("Brokers 2 and 3 are paused. The coordinator appends a commit, which no other broker has.")
    stage.pause(2)
    stage.pause(3)
    lonely = other.member("lonely")
    code = await code_of(lonely.beat())
    stage.must(code is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a member that joins gets an error")
    stage.says("The consumer gets no response for the length of a session. Then the ISR has one member.")
    await stage.until(lambda: program.state == "suspended", what="the consumer waits")
    await stage.until(lambda: group.isr() == [1], what="the coordinator is alone")
    end = group.log(1).log_end_offset
    code = await code_of(lonely.beat())
    stage.must(code is ErrorCode.COORDINATOR_NOT_AVAILABLE, "a later request is refused as well")
    stage.must(group.log(1).log_end_offset == end, "and not appended")
    stage.resume(2)
    stage.resume(3)
    await stage.until(lambda: program.state == "stable", what="the consumer is a member again")
    await group.all_in_sync()
    await stage.append(1, index=0)
    await stage.until(lambda: program.offsets(0)[-1:] == [1], what="the next record is read")
    await group.answered(first.beat)
    await program.stop()
    await stage.at_rest()
