"""Traces of runs that never happened, written by hand as the simulator's probes would write them.

`kip_279` is the story of a fork that KIP-279 found, `kip_101` the one of a record that was lost by truncating to the HW. `busy`
is twenty seconds of load with faults, as large as a real run.
"""

from __future__ import annotations

from random import Random
from typing import Any

from strandline.testing.simulation.kernel.trace import Trace

ORDERS = "orders-0"


class HandwrittenTrace:
    """A cluster whose events the test writes."""

    def __init__(self, *, full: bool = True) -> None:
        self.now = 0.0
        self.trace = Trace(lambda: self.now, full=full)
        self.partition_epoch = -1

    def at(self, time: float) -> HandwrittenTrace:
        self.now = time
        return self

    def emit(self, kind: str, node: int, partition: str = "", **fields: Any) -> None:
        self.now = round(self.now + 0.001, 6)
        self.trace.emit(kind, node, partition, **fields)

    def says(self, text: str) -> None:
        self.emit("scenario.says", 0, text=text)

    def starts(self, *nodes: int) -> None:
        for node in nodes:
            self.emit("node.started", node)

    def comes_up(self, brokers: int = 3, controllers: int = 3) -> None:
        self.starts(*range(101, 101 + controllers))
        self.emit("raft.voted", 102, epoch=1, candidate=101)
        self.emit("controller.elected", 101, epoch=1)
        self.starts(*range(1, brokers + 1))
        for broker in range(1, brokers + 1):
            self.emit("metadata.broker", 101, broker=broker, epoch=broker + 4, fenced=True)
            self.emit("metadata.broker", 101, broker=broker, epoch=broker + 4, fenced=False)

    def leads(
        self, leader: int, epoch: int, isr: list[int], *, start: int, partition: str = ORDERS, followers: list[int]
    ) -> None:
        """The controller changes the partition, and `leader` and `followers` take their roles."""
        self.decides(leader, epoch, isr, partition=partition)
        self.emit("leader.became", leader, partition, epoch=epoch, start_offset=start)
        for follower in followers:
            self.emit("follower.became", follower, partition, epoch=epoch, leader=leader)

    def decides(self, leader: int, epoch: int, isr: list[int], *, partition: str = ORDERS, elr: tuple[int, ...] = ()) -> None:
        self.partition_epoch += 1
        self.emit(
            "metadata.partition",
            101,
            partition,
            leader=leader,
            leader_epoch=epoch,
            partition_epoch=self.partition_epoch,
            isr=isr,
            elr=elr,
        )

    def appends(self, node: int, base: int, last: int, epoch: int, role: str = "leader", partition: str = ORDERS) -> None:
        self.emit("log.appended", node, partition, base=base, last=last, epoch=epoch, role=role)

    def copies(self, node: int, base: int, last: int, epoch: int, partition: str = ORDERS) -> None:
        self.appends(node, base, last, epoch, "follower", partition)

    def hw(self, value: int, *nodes: int, partition: str = ORDERS) -> None:
        for node in nodes:
            self.emit("hw.advanced", node, partition, hw=value)

    def replicates(self, leader: int, followers: list[int], base: int, last: int, epoch: int, partition: str = ORDERS) -> None:
        """Records are replicated one by one, without any fault."""
        for offset in range(base, last + 1):
            self.emit("client.sent", 201, partition, value=f"order {offset}")
            self.appends(leader, offset, offset, epoch, partition=partition)
            self.emit("produce.parked", leader, partition, last=offset)
            for follower in followers:
                self.copies(follower, offset, offset, epoch, partition)
            self.hw(offset + 1, leader, *followers, partition=partition)
            self.emit("produce.acked", leader, partition, base=offset, last=offset, acks=-1)
            self.emit("client.acked", 201, partition, offset=offset, value=f"order {offset}")


def kip_279() -> Trace:
    written = HandwrittenTrace()
    written.emit(
        "scenario.begins", 0, number="S03", title="Fast fail-over fork: the leader lacks the asked epoch", source="KIP-279"
    )
    written.comes_up()
    written.leads(1, 1, [1, 2, 3], start=0, followers=[2, 3])
    written.at(1.0).says("Broker 1 leads in epoch 1. Ten records are on all three replicas, and acknowledged.")
    written.replicates(1, [2, 3], 0, 9, 1)
    written.emit("log.rolled", 1, ORDERS, base=10)
    written.emit("log.isr.member_lagged", 1, ORDERS, level="warning", behind_ms=1.0)
    written.at(2.0).says("Broker 1 appends two more. Only broker 3 fetches them: what broker 2 would hear is held back.")
    written.emit("fault.begin", 0, fault="hold", a=1, b=2)
    written.appends(1, 10, 11, 1)
    written.copies(3, 10, 11, 1)
    written.at(5.0).says("Broker 1 falls silent, and broker 2 is elected. Neither 10 nor 11 was acknowledged.")
    written.emit("node.paused", 1)
    written.emit("metadata.broker", 101, broker=1, epoch=5, fenced=True)
    written.leads(2, 2, [2, 3], start=10, followers=[])
    written.appends(2, 10, 11, 2)
    written.at(6.0).says("Broker 2 dies before anybody fetched from it, and broker 3 is elected.")
    written.emit("node.crashed", 2, lossy=False)
    written.emit("metadata.broker", 101, broker=2, epoch=6, fenced=True)
    written.leads(3, 3, [3], start=12, followers=[])
    written.appends(3, 12, 12, 3)
    written.at(8.0).says("Broker 2 comes back with a fork.")
    written.starts(2)
    written.emit("log.recovered", 2, ORDERS, end=12)
    written.emit("metadata.broker", 101, broker=2, epoch=30, fenced=False)
    written.emit("follower.became", 2, ORDERS, epoch=3, leader=3)
    written.emit("fault.end", 0, fault="hold", a=1, b=2)
    written.emit("fetch.diverging", 3, ORDERS, epoch=1, end_offset=12)
    written.emit("log.truncated", 2, ORDERS, to=10, was=12)
    written.copies(2, 10, 11, 1)
    written.copies(2, 12, 12, 3)
    written.emit("isr.proposed", 3, ORDERS, isr=[2, 3])
    written.decides(3, 3, [2, 3])
    written.emit("isr.committed", 3, ORDERS, isr=[2, 3], partition_epoch=written.partition_epoch)
    written.hw(13, 3, 2)
    written.emit("produce.acked", 3, ORDERS, base=12, last=12, acks=-1)
    written.emit("node.resumed", 1)
    written.emit("follower.became", 1, ORDERS, epoch=3, leader=3)
    written.copies(1, 12, 12, 3)
    written.hw(13, 1)
    written.emit("metadata.broker", 101, broker=1, epoch=5, fenced=False)
    written.emit("isr.proposed", 3, ORDERS, isr=[1, 2, 3])
    written.decides(3, 3, [1, 2, 3])
    written.emit("client.read", 202, ORDERS, **{"from": 0, "to": 12})
    written.emit("scenario.must", 0, text="all replicas hold the same bytes", holds=True)
    written.emit("phase", 0, name="heal")
    return written.trace


def kip_101() -> Trace:
    """The trace ends where a follower that truncates to its HW loses an acknowledged record."""
    written = HandwrittenTrace()
    written.comes_up(brokers=2)
    written.leads(1, 1, [1, 2], start=0, followers=[2])
    written.at(1.0).replicates(1, [2], 0, 0, 1)
    written.appends(1, 1, 1, 1)
    written.copies(2, 1, 1, 1)
    written.hw(2, 1)
    written.emit("produce.acked", 1, ORDERS, base=1, last=1, acks=-1)
    written.emit("client.acked", 201, ORDERS, offset=1, value="tea")
    written.emit("log.fetcher.connection_lost", 2, ORDERS, level="warning", peer="10.0.0.1:9092", reason="closed by the peer")
    written.emit("log.partition.became_follower", 2, ORDERS, level="info")
    written.at(11.0).emit("fault.begin", 0, fault="cut", a=2, b=101)
    written.at(12.3).emit("log.truncated", 2, ORDERS, to=1, was=2)
    written.emit("node.crashed", 1, lossy=True)
    return written.trace


def busy(events: int = 5_000, partitions: int = 2, seconds: float = 20.0) -> Trace:
    """Load on some partitions, and every kind of fault in the midst of it."""
    written, random = HandwrittenTrace(), Random(7)
    written.comes_up()
    names = [f"orders-{index}" for index in range(partitions)]
    leaders = {name: 1 + index % 3 for index, name in enumerate(names)}
    ends, epochs = dict.fromkeys(names, 0), dict.fromkeys(names, 1)
    for name in names:
        written.leads(
            leaders[name], 1, [1, 2, 3], start=0, partition=name, followers=[b for b in (1, 2, 3) if b != leaders[name]]
        )
    faults = {0.25: _loses_leader, 0.45: _comes_back, 0.6: _is_paused, 0.7: _cut, 0.85: _heals}
    while written.trace.emitted < events:
        share = written.trace.emitted / events
        written.now = max(written.now, share * seconds)
        for due in [due for due in faults if due <= share]:
            faults.pop(due)(written, leaders, ends, epochs)
        name = random.choice(names)
        up = [b for b in (1, 2, 3) if b != leaders[name] and not (b == 1 and 0.25 <= share < 0.45)]
        base, last = ends[name], ends[name] + random.randrange(3)
        written.appends(leaders[name], base, last, epochs[name], partition=name)
        for follower in up:
            written.copies(follower, base, last, epochs[name], name)
        written.hw(last + 1, leaders[name], *up, partition=name)
        written.emit("produce.acked", leaders[name], name, base=base, last=last, acks=-1)
        written.emit("client.acked", 201, name, offset=last, value=f"order {last}")
        ends[name] = last + 1
    return written.trace


Numbers = dict[str, int]


def _loses_leader(written: HandwrittenTrace, leaders: Numbers, ends: Numbers, epochs: Numbers) -> None:
    for name in [name for name, leader in leaders.items() if leader == 1]:
        written.appends(1, ends[name], ends[name] + 30, epochs[name], partition=name)
    written.emit("node.crashed", 1, lossy=True)
    written.emit("metadata.broker", 101, broker=1, epoch=5, fenced=True)
    for name in leaders:
        if leaders[name] == 1:
            leaders[name], epochs[name] = 2, epochs[name] + 1
            written.leads(2, epochs[name], [2, 3], start=ends[name], partition=name, followers=[3])
        else:
            written.decides(leaders[name], epochs[name], [2, 3], partition=name)


def _comes_back(written: HandwrittenTrace, leaders: Numbers, ends: Numbers, epochs: Numbers) -> None:
    written.starts(1)
    for name, leader in leaders.items():
        written.emit("follower.became", 1, name, epoch=epochs[name], leader=leader)
        if epochs[name] > 1:
            written.emit("fetch.diverging", leader, name, epoch=1, end_offset=ends[name] // 2)
            written.emit("log.truncated", 1, name, to=ends[name] // 2, was=ends[name] // 2 + 31)
        written.copies(1, ends[name] // 2, ends[name] - 1, epochs[name], name)
        written.decides(leader, epochs[name], [1, 2, 3], partition=name)


def _is_paused(written: HandwrittenTrace, leaders: Numbers, ends: Numbers, epochs: Numbers) -> None:
    written.emit("node.paused", 3)
    written.now += 1.5
    written.emit("node.resumed", 3)


def _cut(written: HandwrittenTrace, leaders: Numbers, ends: Numbers, epochs: Numbers) -> None:
    written.emit("fault.begin", 0, fault="cut", a=2, b=3)
    written.emit("fault.begin", 1, fault="slow_disk", delay_s=0.5)
    written.emit("controller.resigned", 101, epoch=1)
    written.emit("controller.elected", 103, epoch=2)


def _heals(written: HandwrittenTrace, leaders: Numbers, ends: Numbers, epochs: Numbers) -> None:
    written.emit("fault.end", 0, fault="cut", a=2, b=3)
    written.emit("fault.end", 1, fault="slow_disk")
    written.emit("isr.refused", 2, "orders-0", error="INVALID_UPDATE_VERSION")
    written.emit("produce.failed", 2, "orders-0", error="NOT_ENOUGH_REPLICAS")
