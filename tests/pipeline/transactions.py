"""Writes transactions into the logs of a cluster, so that tests decide the order of their batches and markers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waiting import until

from strandline.protocol.records.builder import encode_batch
from strandline.protocol.records.marker import EndTransactionMarker
from strandline.testing import caught_up

if TYPE_CHECKING:
    from strandline.broker.partition.partition import Partition
    from strandline.testing import ThreadedCluster

FIRST_PRODUCER_ID = 1_000_000
"""Larger than the ids that the cluster gives to the producers of a test."""
NOW_MS = 1_700_000_000_000


class Transactions:
    """Appends batches and markers of some producers at the leader of a partition, and waits until they are replicated."""

    def __init__(self, log: ThreadedCluster, topic: str, partition: int = 0) -> None:
        self._log, self.topic, self.partition = log, topic, partition
        self._sequences: dict[int, int] = {}

    def write(self, producer_id: int, *values: str) -> None:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(values)
        records = [(value.encode(), value.encode(), [], NOW_MS) for value in values]
        data = encode_batch(
            records,
            producer_id=FIRST_PRODUCER_ID + producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )

        def append(partition: Partition) -> None:
            assert partition.leader_state is not None
            partition.leader_state.append(bytearray(data), NOW_MS, is_transactional=True)

        self._at_leader(append)

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        def append(partition: Partition) -> None:
            assert partition.leader_state is not None
            marker = EndTransactionMarker(is_commit, 0)
            partition.leader_state.append_marker(marker, FIRST_PRODUCER_ID + producer_id, 0, NOW_MS, 0)

        self._at_leader(append)

    def plain(self, *values: str) -> None:
        """Writes records outside of transactions."""

        async def send() -> None:
            async with self._log.cluster.producer() as producer:
                for value in values:
                    await producer.send_and_wait(self.topic, value.encode(), key=value.encode(), partition=self.partition)

        self._log.run(send())

    def until_all_have_ended(self) -> None:
        """Waits for the markers of transactions whose producers already have the response to their commit or abort."""

        async def run() -> None:
            log = self._leader().log
            await until(lambda: log.last_stable_offset == log.log_end_offset, "no transaction is open")

        self._log.run(run())

    def _at_leader(self, append: Callable[[Partition], None]) -> None:
        async def run() -> None:
            append(self._leader())
            await self._log.cluster.until(caught_up(self.topic, self.partition))

        self._log.run(run())

    def _leader(self) -> Partition:
        """The leader's partition. Call it in the cluster's loop."""
        nodes: Any = self._log.cluster.nodes
        topic = nodes.image().topic(self.topic)
        leader = nodes.server(topic.partitions[self.partition].leader)
        partition: Partition = leader.replicas.partitions[topic.topic_id, self.partition]
        return partition


def written(log: ThreadedCluster, topic: str) -> Transactions:
    """Two overlapping aborted transactions, committed ones, and an open one after them. `COMMITTED` has the committed records,
    `STABLE` is the last stable offset, `END` the end of the log."""
    these = Transactions(log, topic)
    these.write(7, "no 0", "no 1")
    these.write(8, "no 2")
    these.plain("yes 3")
    these.write(9, "yes 4", "yes 5")
    these.end(8, is_commit=False)
    these.write(8, "yes 7")
    these.end(7, is_commit=False)
    these.end(9, is_commit=True)
    these.end(8, is_commit=True)
    these.write(7, "yes 11")
    these.end(7, is_commit=True)
    these.write(7, "open 13")
    these.plain("after 14")
    return these


COMMITTED = [3, 4, 5, 7, 11]
UNCOMMITTED = [0, 1, 2, *COMMITTED, 13, 14]
STABLE, END = 13, 15
