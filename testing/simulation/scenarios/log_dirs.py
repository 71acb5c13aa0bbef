"""Brokers with several data directories: S70 and S71."""

from __future__ import annotations

import errno

from strandline.protocol.errors import ErrorCode
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
    """The partitions of the failed disk get other leaders, and leave the ISR here. Those of the other disk keep their leader and
    its epoch. After a restart with the disk repaired, the broker is back in all ISRs."""
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
    stage.must([stage.registration(n).leader_epoch for n in (0, 3)] == [epochs[0], epochs[3]], "the other disk's go on")
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
    the disk is back, a partition would have two logs."""
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
