"""Unclean elections: S02, S28, S76 and S77. The new leader lacks committed records, which replicas and consumers must detect."""

from __future__ import annotations

from typing import Any

from strandline.client.errors import LogTruncated
from strandline.controller import handlers
from strandline.controller.decision import Decision
from strandline.controller.metadata.records import RECOVERING
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import (
    AlterPartitionPartition,
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from strandline.testing.simulation.scenarios.stage import Stage, scenario

SOON = {"unclean.recovery.timeout.ms": 300}
LOG = "/data/orders-0/00000000000000000000.log"


async def _open(stage: Stage, brokers: int = 2) -> None:
    """Open a topic for which one copy is enough, and for which an unclean election is preferred to no leader."""
    await stage.open(
        replicas=[1, 2, 3][:brokers],
        brokers=brokers,
        min_insync=1,
        controller_settings=SOON,
        unclean_leader_election_enable="true",
    )
    stage.permit_loss("unclean elections are enabled")


@scenario("S02", "Both machines lose power, and the shorter log leads", source="KIP-101, scenario 2; KIP-279")
async def s02(stage: Stage) -> None:
    """Two logs have different records at the same offset. The log of the leader stays; the other replica must drop its own
    record, however long its log is. The cluster reports which records may be lost."""
    await _open(stage)
    await stage.append(1)
    await stage.until(lambda: stage.end(2) == 1, what="broker 2 has record 0")
    stage.replica(2).log.flush()
    machine = stage.cluster.machines[2]
    on_disk = machine.files.read(LOG)
    await stage.append(1)
    stage.replica(1).log.flush()
    stage.says("Record 1 is on the disk of broker 1, and in the page cache of broker 2. Both machines lose power.")
    stage.crash(1, lossy=True)
    stage.crash(2, lossy=True)
    machine.files.write(LOG, on_disk)
    await stage.leaderless()
    stage.says("Broker 2 returns alone. It is elected, although it lacks record 1, and appends another record there.")
    stage.start(2)
    await stage.until(lambda: stage.leads(2), what="broker 2 leads")
    epoch = stage.registration().leader_epoch
    (report,) = stage.reports()
    stage.must(report.leader_epoch == epoch and report.lost_from <= 1 != report.lost_to, "the report: record 1 may be lost")
    stage.must(sum(c.controller.metrics.unclean_elections for c in stage.cluster.controllers.values()) == 1, "it is counted")
    stage.lost(1)
    await stage.append(1)
    stage.says("Broker 1 returns with the record 1 of the earlier epoch.")
    stage.start(1)
    await stage.at_rest((1, 2))
    stage.must(dict(stage.epochs(1))[epoch] == 1, "broker 1 has the record 1 of broker 2's epoch")


class _Reader:
    """A production consumer that reads from the beginning until an error is raised."""

    def __init__(self, stage: Stage) -> None:
        self.values: dict[int, bytes] = {}
        self.client = stage.cluster.client("reader")
        self._task = self.client.spawn(self._read())

    async def _read(self) -> None:
        async with self.client.consumer(auto_offset_reset="error") as consumer:
            await consumer.assign([("orders", 0)])
            consumer.seek(("orders", 0), 0)
            while True:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    self.values.update({record.offset: bytes(record.value or b"") for record in records})

    @property
    def is_over(self) -> bool:
        return self._task.done()

    @property
    def error(self) -> BaseException | None:
        return self._task.exception() if self._task.done() and not self._task.cancelled() else None


def _must_get_truncation(stage: Stage, reader: _Reader, read: dict[int, bytes], *, end: int) -> None:
    """Check that the consumer got the offset at which the logs diverge, and no record at an offset that it had already read."""
    error: Any = reader.error
    stage.must(isinstance(error, LogTruncated), f"the consumer gets the error that the log was truncated ({error!r})")
    stage.must((error.position, error.diverging_offset) == (max(read) + 1, end), f"and from where on: {end}")
    stage.must(reader.values == read, "it got no other records")


@scenario("S28", "Consumers across an unclean election", source="KIP-320")
async def s28(stage: Stage) -> None:
    """Two consumers have read ten records. The next leader has eight. One consumer fetches from its position while the log is
    shorter, the other one when the log has grown beyond it, with other records at the same offsets."""
    await _open(stage)
    await stage.append(8)
    await stage.until(lambda: stage.hw(2) == 8, what="broker 2 has eight records")
    stage.says("Broker 2 dies. Two more records are committed without it, and two consumers read all ten.")
    stage.crash(2)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is alone")
    await stage.append(2)
    epoch = stage.registration().leader_epoch
    awake, asleep = _Reader(stage), _Reader(stage)
    await stage.until(lambda: len(awake.values) == len(asleep.values) == 10, what="both have read ten records")
    read = dict(awake.values)
    asleep.client.machine.pause()
    stage.says("Broker 1 dies. Broker 2 returns, and leads uncleanly.")
    stage.crash(1)
    await stage.leaderless()
    stage.start(2)
    await stage.until(lambda: stage.leads(2), what="broker 2 leads")
    (report,) = stage.reports()
    stage.must((report.lost_from, report.lost_to) == (8, -1), "the report names the two records")
    await stage.until(lambda: awake.is_over, what="the first consumer has ended")
    _must_get_truncation(stage, awake, read, end=8)
    stage.says("Four other records are written. The second consumer, which was paused, continues at offset 10.")
    stage.lost(8)
    await stage.append(4)
    asleep.client.machine.resume()
    await stage.until(lambda: asleep.is_over, what="the second consumer has ended")
    _must_get_truncation(stage, asleep, read, end=8)
    answer, records = await stage.fetch(2, 10, epoch=stage.registration().leader_epoch, last_epoch=epoch)
    stage.must(answer.diverging_epoch.end_offset == 8 and not records, "a fetch that names the old epoch gets no record")
    stage.start(1)
    await stage.at_rest((1, 2))


@scenario("S77", "The log of an older epoch leads", source="KIP-966; Vanlightly on unclean recovery")
async def s77(stage: Stage) -> None:
    """The only replica that returns has records of an earlier leader beyond its high watermark. Its log is longer than its common
    part with the last leader's log, so its log end does not show which records are lost."""
    await _open(stage, brokers=3)
    await stage.append(5)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 5, what="all replicas have HW 5")
    stage.says("Broker 1 appends two more records. Only broker 3 copies them, and dies. Then broker 1 dies.")
    stage.hold("Fetch", source=1, target=2, response=True)
    await stage.append(2, acks=1)
    await stage.until(lambda: stage.end(3) == 7, what="broker 3 has seven records")
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1, 2}, what="broker 3 has left the ISR")
    stage.must(stage.end(2) == 5, "broker 2 has five records")
    stage.crash(1)
    await stage.until(lambda: stage.leads(2), what="broker 2 leads")
    stage.says("Broker 2 commits three others at the same offsets, and dies.")
    await stage.append(3)
    stage.crash(2)
    await stage.leaderless()
    stage.says("Broker 3 returns alone, and leads uncleanly.")
    stage.start(3)
    await stage.until(lambda: stage.leads(3), what="broker 3 leads")
    (report,) = stage.reports()
    stage.must(report.lost_from <= 5 and report.lost_to == -1, "the report says that all records from offset 5 on may be lost")
    stage.lost(5)
    await stage.append(1)
    stage.start(1)
    stage.start(2)
    await stage.at_rest()


@scenario("S76", "The end of a recovery is refused", source="KIP-704")
async def s76(stage: Stage) -> None:
    """A leader that was elected uncleanly recovers before other replicas join its ISR. The controller must have accepted the end
    of the recovery first, even if that takes several attempts while a follower is already in sync."""
    await _open(stage, brokers=3)
    await stage.append(5)
    await stage.until(lambda: stage.end(2) == stage.end(3) == 5, what="all have five records")
    stage.crash(2)
    stage.crash(3)
    await stage.until(lambda: stage.isr() == {1}, what="broker 1 is alone")
    await stage.append(1)
    alter_partition, refused = vars(handlers)["alter_partition"], list[AlterPartitionPartition]()

    def refusing(image: Any, request: AlterPartitionRequest) -> Any:
        if len(refused) == 3:
            return alter_partition(image, request)
        refused.extend(request.partitions)
        code = ErrorCode.INELIGIBLE_REPLICA
        answers = [AlterPartitionPartitionResponse(p.topic_id, p.partition, error_code=code) for p in request.partitions]
        return Decision(AlterPartitionResponse(0, answers))

    stage.says("Broker 1 dies, and broker 2 leads uncleanly. A controller refuses three times that its recovery has ended.")
    stage.patch(handlers, "alter_partition", refusing)
    stage.crash(1)
    stage.start(2)
    stage.start(3)
    await stage.until(lambda: stage.leads(2) or stage.leads(3), what="a replica leads")
    leader = stage.leader()
    stage.must(stage.registration().leader_recovery_state == RECOVERING, "it is RECOVERING")
    stage.lost(5)
    await stage.until(lambda: {stage.end(2), stage.end(3)} == {5} and refused, what="its follower is in sync")
    await stage.append(3)
    await stage.until(lambda: stage.end(2) == stage.end(3) == 8, what="the follower copies its records")
    if len(refused) < 3:
        stage.must(stage.isr() == {leader}, "the follower is not in the ISR")
    await stage.until(lambda: len(refused) == 3, what="the end was refused three times")
    stage.must(all(len(p.new_isr) == 1 for p in refused), "the leader has proposed no other member")
    await stage.until(lambda: stage.isr() == {2, 3}, what="the recovery has ended, and the follower has joined")
    stage.start(1)
    await stage.at_rest()
