"""Brokers with several log directories: S70 and S71; logs that move between them, and cordoned directories: S80 to S83."""

from __future__ import annotations

import asyncio
import errno
import re
from typing import Any

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import AlterReplicaLogDir, AlterReplicaLogDirsRequest, AlterReplicaLogDirTopic
from strandline.storage.directory.future_logs import REPLACED_LOG
from strandline.testing.simulation.scenarios.stage import Stage, scenario

TWO = {"log.dirs": "/d1,/d2"}
REPLICAS = [[1, 2, 3], [1, 3, 2], [2, 1, 3], [1, 2, 3]]
"""Broker 1 gets the logs of the partitions that it leads first: 0 and 3 in its first directory, 1 and 2 in the second."""


async def _open(stage: Stage) -> None:
    await stage.open(replicas=REPLICAS, settings=TWO)
    for index in range(4):
        await stage.append(5, index=index)
    await stage.until(lambda: all(stage.isr(index) == {1, 2, 3} for index in range(4)), what="all replicas are in sync")
    dirs = [stage.replica(1, index).log.dir for index in range(4)]
    stage.must(dirs == ["/d1/orders-0", "/d2/orders-1", "/d2/orders-2", "/d1/orders-3"], "each disk has two replicas")


def _fail_disk(stage: Stage, broker: int, path: str) -> None:
    for operation in ("read", "write", "fsync", "rename", "create"):
        stage.cluster.machines[broker].files.fail(operation, f"{path}*", errno.EIO)


@scenario("S70", "One of a broker's two disks fails", source="KIP-112, KIP-858")
async def s70(stage: Stage) -> None:
    """The partitions on the failed disk get other leaders, and the broker leaves their ISRs. The partitions on the other disk
    keep their leader and its epoch. After a restart with the repaired disk, the broker is back in all ISRs."""
    await _open(stage)
    await stage.until(lambda: all(stage.registration(index).directories for index in range(4)), what="the disks are known")
    epochs = [stage.registration(index).leader_epoch for index in range(4)]
    stage.says("The second disk of broker 1 fails. It holds partition 1, which broker 1 leads, and 2, which it follows.")
    _fail_disk(stage, 1, "/d2")
    answer = await stage.produce(1, b"refused", index=1)
    stage.must(answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "broker 1 refuses a record that it cannot write")
    await stage.until(lambda: stage.leads(stage.leader(1), 1), what="another broker leads partition 1")
    await stage.append(5, index=2)
    await stage.until(lambda: 1 not in stage.isr(1) | stage.isr(2), what="broker 1 is out of the ISRs of the failed disk")
    stage.must(stage.leader(1) != 1, "another broker leads partition 1")
    stage.must(
        [stage.registration(n).leader_epoch for n in (0, 3)] == [epochs[0], epochs[3]],
        "the partitions of the other disk are still served",
    )
    stage.must(not stage.has(1, 1) and not stage.has(1, 2), "broker 1 does not serve the failed disk")
    await stage.until(lambda: {1} <= stage.isr(0) & stage.isr(3), what="broker 1 is in the ISRs of its other disk")
    for index in range(4):
        await stage.append(5, index=index)
    stage.says("The disk is repaired, and broker 1 is restarted.")
    await stage.stop(1)
    stage.cluster.machines[1].files.heal()
    stage.start(1)
    await stage.until(lambda: all(stage.isr(index) == {1, 2, 3} for index in range(4)), what="all replicas are in sync")
    stage.must(all(stage.end(1, index) == stage.end(2, index) for index in range(4)), "broker 1 has all records")


@scenario("S71", "A disk is not mounted when its broker starts", source="KIP-112, KAFKA-5163")
async def s71(stage: Stage) -> None:
    """The broker does not create the partitions of the missing disk on its other disk: the new logs would lack records, and when
    the disk is back, each of these partitions would have two logs."""
    await _open(stage)
    stage.says("Broker 1 stops. It starts again without its second disk.")
    await stage.stop(1)
    files = stage.cluster.machines[1].files
    files.rename("/d2", "/unmounted")
    stage.start(1)
    await stage.until(lambda: {1} <= stage.isr(0) & stage.isr(3), what="broker 1 is back with its first disk")
    for index in range(4):
        await stage.append(5, index=index)
    stage.must(not stage.has(1, 1) and not stage.has(1, 2), "broker 1 has no replica of partitions 1 and 2")
    stage.must(not files.exists("/d2") and not files.exists("/d1/orders-1"), "no log was created for them")
    stage.says("It stops, and starts again with both disks.")
    await stage.stop(1)
    files.rename("/unmounted", "/d2")
    stage.start(1)
    await stage.until(lambda: all(stage.isr(index) == {1, 2, 3} for index in range(4)), what="all replicas are in sync")
    stage.must(all(stage.end(1, index) == stage.end(2, index) for index in range(4)), "broker 1 has all records")


# -- moves ------------------------------------------------------------------------------------------------------------


async def _move(stage: Stage, broker: int, path: str) -> ErrorCode:
    """Ask a broker to move its replica to this directory."""
    topics = [AlterReplicaLogDirTopic(stage.topic, [0])]
    answer = await stage.ask(broker, apis.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirsRequest([AlterReplicaLogDir(path, topics)]))
    return ErrorCode(answer.results[0].partitions[0].error_code)


def _dir(stage: Stage, broker: int) -> str:
    """The data directory of the broker's replica; empty if it has none now."""
    return f"/{stage.replica(broker).log.dir.split('/')[1]}" if stage.has(broker) else ""


def _is_known(stage: Stage, broker: int) -> bool:
    """Whether the metadata has the directory of the broker's replica."""
    log_dirs, registered = stage.cluster.brokers[broker].log_dirs, stage.registration().directory_of(broker)
    return log_dirs is not None and stage.has(broker) and log_dirs.of(stage.replica(broker).log).directory_id == registered


def _copied_end(stage: Stage, broker: int) -> int:
    """The log end of the copy in the broker's other directory; -1 if there is none."""
    server = stage.cluster.brokers[broker]
    found = server.replicas.moves.future_of(stage.replica(broker).key) if stage.has(broker) else None
    return -1 if found is None else int(found[1].log_end_offset)


async def _produce_on(stage: Stage) -> None:
    """Write to the present leader without end; the acknowledged records are in `stage.acked`."""
    while True:
        stage.sent += 1
        try:
            await stage.produce(stage.leader(), b"r%d" % stage.sent, timeout_ms=2000)
        except BrokerError:
            pass
        await stage.sleep(0.01)


class _Load:
    """The client of `_produce_on`, while the story is in the block."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    async def __aenter__(self) -> None:
        self._task = asyncio.get_running_loop().create_task(_produce_on(self._stage), name="load")

    async def __aexit__(self, *_: Any) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _steps_of_a_move(stage: Stage, broker: int) -> list[tuple[str, str]]:
    """(operation, pattern of the path) of the steps that one move takes on the disk, each once, in order; `*` stands for the data
    directory and for the topic id."""
    operations = stage.cluster.machines[broker].files.record()
    begin = len(operations)
    stage.must(not await _move(stage, broker, "/d2"), "the move has begun")
    await stage.until(lambda: _dir(stage, broker) == "/d2", what="the log has moved")
    await stage.until(lambda: not _leftovers(stage, broker), what="the old log is removed")
    found: dict[tuple[str, str], None] = {}
    for operation, path in operations[begin:]:
        if "-future" in path or path.endswith(REPLACED_LOG) or (operation == "rename" and path.endswith("/orders-0")):
            found[operation, re.sub(r"^/d\d", "/d?", re.sub(r"\.[0-9a-f]{32}", ".*", path))] = None
    return list(found)


def _leftovers(stage: Stage, broker: int) -> list[str]:
    """The directories on the disks that exist only during a move or a deletion."""
    files = stage.cluster.machines[broker].files
    names = [f"{path}/{name}" for path in ("/d1", "/d2") for name in files.list(path)]
    return [name for name in names if name.endswith(("-future", "-delete"))]


def _must_have_all_acked(stage: Stage, broker: int) -> None:
    values = stage.values(broker)
    missing = [offset for offset, value in stage.acked.get((stage.topic, 0), {}).items() if values.get(offset) != value]
    stage.must(not missing, f"broker {broker} has all acknowledged records, not without {missing[:5]}")


@scenario("S80", "A broker dies in each step of a move between its disks", source="KIP-113, KIP-858, KAFKA-16082")
async def s80(stage: Stage) -> None:
    """While clients write, broker 1 moves its log to its other disk, and dies at each step of the move in turn. The next process
    finds the old log or the new one, complete, and ends the move. Then the metadata has the right directory."""
    await stage.open(settings=TWO)
    async with _Load(stage):
        steps = await _steps_of_a_move(stage, 1)
        stage.must(len(steps) > 8, f"there are steps to die in: {steps}")
        for number, (operation, path) in enumerate(steps):
            target = "/d1" if _dir(stage, 1) == "/d2" else "/d2"
            stage.says(f"Broker 1 dies at step {number} of a move to {target}: before {operation} of {path}.")
            stage.cluster.machines[1].files.crash_at(1, operation=operation, pattern=path.replace("?", "[12]"), moment="before")
            try:
                await _move(stage, 1, target)
            except BrokerError:
                pass  # it died before it could answer
            await stage.until(lambda: not stage.cluster.machines[1].is_up, what="broker 1 is dead")
            stage.start(1)
            await stage.until(lambda: stage.isr() == {1, 2, 3} and stage.has(1), what="broker 1 is back")
            _must_have_all_acked(stage, 1)
            stage.must(not await _move(stage, 1, target), "the move continues, begins again, or is complete")
            await stage.until(lambda to=target: _dir(stage, 1) == to, what="the log has moved")  # type: ignore[misc]
            await stage.until(lambda: not _leftovers(stage, 1), what="the old log is removed")
            await stage.until(lambda: _is_known(stage, 1), what="the controller has recorded the directory")
    await stage.at_rest()
    _must_have_all_acked(stage, 1)


@scenario("S81", "A disk fails while a log moves to it, and one while a log moves from it", source="KIP-113, KAFKA-16157")
async def s81(stage: Stage) -> None:
    """The controller has accepted the new directory before the log is there. If the old disk fails then, the replica is offline
    although the metadata names a healthy disk: the broker reverts the assignment, so that another broker leads."""
    await stage.open(settings=TWO)
    await stage.append(5)
    await stage.until(lambda: _is_known(stage, 1), what="the controller has recorded the directory")
    stage.says("Broker 1 moves its log to its second disk. The assignment does not reach the controller.")
    asked = stage.hold("AssignReplicasToDirs", source=1)
    stage.must(not await _move(stage, 1, "/d2"), "the move has begun")
    await stage.until(lambda: asked.held, what="the copy has caught up")
    await stage.append(5)
    await stage.sleep(1.0)
    stage.must(_dir(stage, 1) == "/d1", "the log waits for the controller")
    stage.says("The assignment reaches the controller, but the response is held back. The first disk fails.")
    held = stage.hold("AssignReplicasToDirs", target=1, response=True)
    asked.release()
    await stage.until(lambda: held.held, what="the controller has accepted the directory")
    _fail_disk(stage, 1, "/d1")
    answer = await stage.produce(1, b"refused", acks=1)
    stage.must(answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR, "broker 1 refuses a record that it cannot write")
    held.release()
    await stage.until(lambda: stage.leads(stage.leader(), 0) and stage.leader() != 1, what="another broker leads")
    await stage.until(lambda: 1 not in stage.isr(), what="broker 1 has left the ISR")
    await stage.append(5)
    stage.says("The disk is repaired. The next process continues the move.")
    await stage.stop(1)
    stage.cluster.machines[1].files.heal()
    stage.start(1)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all replicas are in sync")
    await stage.until(lambda: _dir(stage, 1) == "/d2", what="the log has moved")
    stage.says("It moves back, and the first disk fails again, this time as the target.")
    _fail_disk(stage, 1, "/d1")
    await _move(stage, 1, "/d1")
    await stage.append(5)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="broker 1 continues with its second disk")
    stage.must(_dir(stage, 1) == "/d2", "the log is in the directory from before")
    await stage.at_rest()
    _must_have_all_acked(stage, 1)


@scenario("S82", "A log is truncated while it moves", source="KAFKA-9654, KAFKA-15036")
async def s82(stage: Stage) -> None:
    """A leader dies with records that no other replica has, in its log and in the copy on its other disk. When it follows the new
    leader, it truncates them, and so does the copy: it is promoted with the history of the new leader only."""
    await stage.open(settings=TWO)
    await stage.append(5)
    stage.says("Broker 1 moves its log. The controller does not answer, and the copy follows the log.")
    held = stage.hold("AssignReplicasToDirs", target=1, response=True)
    stage.must(not await _move(stage, 1, "/d2"), "the move has begun")
    await stage.until(lambda: held.held, what="the copy has caught up")
    stage.says("It appends records that no other broker gets, and dies.")
    stage.cut(1, [2, 3])
    fork = await stage.produce(1, *(b"fork %d" % number for number in range(20)), acks=1)
    stage.must(not fork.error_code, "broker 1 appends the records")
    await stage.until(lambda: _copied_end(stage, 1) == stage.end(1), what="the copy has them, too")
    stage.crash(1)
    held.release()
    stage.mend(1, [2, 3])
    await stage.until(lambda: stage.leads(stage.leader(), 0) and stage.leader() != 1, what="another broker leads")
    await stage.append(5)
    stage.says("Broker 1 is back. It truncates its log, and the copy follows.")
    stage.start(1)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all replicas are in sync")
    await stage.until(lambda: _dir(stage, 1) == "/d2", what="the log has moved")
    await stage.at_rest()
    _must_have_all_acked(stage, 1)
    stage.must(not any(value.startswith(b"fork") for value in stage.values(1).values()), "no record of the fork is left")


async def _cordon(stage: Stage, broker: int, paths: str | None) -> None:
    async def change() -> None:
        async with stage.client.admin() as admin:
            await admin.alter_configs("broker", broker, {"cordoned.log.dirs": paths})

    await stage.client.run(change())


@scenario("S83", "A disk is cordoned, and then its broker", source="KIP-1066")
async def s83(stage: Stage) -> None:
    """A cordoned disk gets no new log, and keeps those that it has. A broker without any other disk gets no new replica."""
    await stage.open(settings=TWO)
    await stage.append(5)
    stage.says("The first disk of broker 1 is cordoned.")
    await _cordon(stage, 1, "/d1")
    await stage.until(lambda: stage.cluster.image().brokers[1].cordoned_log_dirs, what="the controller has recorded it")
    await stage.create("later", [[1, 2, 3], [1, 2, 3]])
    dirs = [found.log.dir for index in (0, 1) if (found := stage.cluster.partition(1, "later", index)) is not None]
    stage.must(dirs == ["/d2/later-0", "/d2/later-1"], f"both new logs are on the second disk: {dirs}")
    stage.must(_dir(stage, 1) == "/d1", "the log that was there stays")
    await stage.append(5)
    stage.says("All disks of broker 3 are cordoned. Its next process reports that, too.")
    await _cordon(stage, 3, "*")
    await stage.until(lambda: stage.cluster.image().brokers[3].is_cordoned, what="the controller has recorded it")
    await stage.stop(3)
    stage.start(3)
    await stage.until(lambda: stage.isr() == {1, 2, 3}, what="its replicas return to the ISR")
    await stage.until(lambda: stage.cluster.image().brokers[3].is_cordoned, what="the controller still has it recorded")
    answer = await _move(stage, 3, "/d2")
    stage.must(
        answer == ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"no replica moves to a cordoned disk (the response is {answer.name})"
    )
    await _cordon(stage, 3, None)
    await stage.until(lambda: not stage.cluster.image().brokers[3].is_cordoned, what="the controller has recorded its end")
    await stage.at_rest()
    _must_have_all_acked(stage, 1)
