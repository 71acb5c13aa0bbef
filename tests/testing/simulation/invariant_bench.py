"""A bench for invariants: real logs and partitions of three brokers, without servers or clients.

What the controllers commit, what brokers append, copy, truncate and commit is done by hand, so that a test can do it wrong. The
probes are installed; what a check has to say is taken with `flags`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any

from strandline.broker.partition.context import PartitionContext
from strandline.broker.partition.partition import Partition
from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import (
    AnyRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from strandline.protocol.records.builder import encode_batch
from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.invariants import membership
from strandline.testing.simulation.invariants.ghosts import PartitionGhost, Process, ReplicaGhost
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.observation.probes import Probes

TOPIC_ID = bytes(15) + b"\x07"
KEY = (TOPIC_ID, 0)
NOW_MS = 1_700_000_000_000
BROKERS = (1, 2, 3)


Event = tuple[str, int, str, dict[str, Any]]
"""Kind, node, partition, fields."""


class EmittedOnly:
    """A trace that only collects events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, kind: str, node: int, partition: str = "", **fields: Any) -> None:
        self.events.append((kind, node, partition, fields))


class Nobody:
    """Accepts every proposal and every notification, and acts on none."""

    def __init__(self) -> None:
        self.proposed: list[Any] = []

    def submit(self, item: Any) -> bool:
        self.proposed.append(item)
        return True

    def cancel(self, key: Any) -> None: ...
    def on_log_end_moved(self, partition: Any) -> None: ...
    def on_high_watermark_moved(self, partition: Any) -> None: ...
    def on_isr_changed(self, partition: Any) -> None: ...
    def on_log_start_moved(self, partition: Any) -> None: ...
    def on_low_watermark_moved(self, partition: Any) -> None: ...
    def on_role_changed(self, partition: Any) -> None: ...


class Bench:
    """Brokers 1 to 3, one partition, `orders-0`, with min ISR 2; broker 1 leads in epoch 0."""

    def __init__(self, invariants: Invariants, *, min_isr: int = 2, topic: str = "orders") -> None:
        self.invariants = invariants
        self.topic = topic
        self.ghosts = invariants.ghosts
        self.min_isr = min_isr
        self.offset = 0
        """Offset of the next metadata record."""
        self.files: dict[int, MemoryFiles] = {}
        self.partitions: dict[int, Partition] = {}
        self.submitters: dict[int, Nobody] = {}
        for node in BROKERS:
            self.start(node, MemoryFiles(Random(node)))
        self.commit(*(self.registration_of(node) for node in BROKERS), base=0)
        self.commit(TopicRecord(topic, TOPIC_ID), PartitionRecord(TOPIC_ID, 0, BROKERS, BROKERS, 1))
        for node in BROKERS:
            self.take_role(node)

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, node: int, files: MemoryFiles | None = None, *, number: int = 1, recovery_point: int = 0) -> Process:
        """Start a process of the broker, with its log opened."""
        files = files if files is not None else self.files[node]
        self.files[node] = files
        server = SimpleNamespace(incarnation_id=bytes([node, number]) * 8, lifecycle=None, has_logs=False, servers=[])
        process = self.invariants.on_process(node, server, files)
        context = PartitionContext(
            broker_id=node,
            now=lambda: 0.0,
            call_later=lambda delay_s, callback: None,
            alter_partition=self.submitters.setdefault(node, Nobody()),
            replica_lag_s_max=10.0,
            own_broker_epoch=lambda: node,
            registered_epoch=lambda broker: broker,
            is_active=lambda broker: True,
        )
        log = Log.open(
            files,
            f"/data/{self.topic}-0",
            topic=self.topic,
            partition=0,
            topic_id=TOPIC_ID,
            config=LogConfig(),
            recovery_point=recovery_point,
            clean_shutdown=False,
            now_ms=NOW_MS,
        )
        self.partitions[node] = Partition(KEY, self.topic, log, context, Nobody(), self.min_isr)
        return process

    def registration_of(
        self, node: int, *, epoch: int | None = None, number: int = 1, fenced: bool = False
    ) -> RegisterBrokerRecord:
        return RegisterBrokerRecord(node, node - 1 if epoch is None else epoch, bytes([node, number]) * 8, fenced=fenced)

    # -- metadata -----------------------------------------------------------------------------------------------------

    def commit(self, *records: AnyRecord, base: int | None = None) -> None:
        """Commit a batch of records, as the controllers do."""
        if base is not None:
            self.offset = base
        membership.replay(self.ghosts, self.offset, list(records))
        self.offset += len(records)

    def change(self, *, isr: Sequence[int] | None = None, leader: int | None = None, **more: Any) -> None:
        named = {} if leader is None else {"leader": leader}
        self.commit(PartitionChangeRecord(TOPIC_ID, 0, isr=None if isr is None else tuple(isr), **named, **more))

    def registration(self) -> PartitionRegistration:
        known = self.orders.registration
        assert known is not None
        return PartitionRegistration(known.replicas, known.isr, known.leader, known.leader_epoch, known.partition_epoch)

    def take_role(self, node: int, **changes: Any) -> None:
        """The broker applies the newest registration, or one with these changes."""
        registration = self.registration()
        if changes:
            fields = {name: getattr(registration, name) for name in registration.__struct_fields__}
            registration = PartitionRegistration(**{**fields, **changes})
        partition = self.partitions[node]
        if registration.leader == node:
            partition.make_leader(registration)
        else:
            partition.make_follower(registration)

    # -- data ---------------------------------------------------------------------------------------------------------

    @property
    def orders(self) -> PartitionGhost:
        return self.ghosts.partitions[KEY]

    def replica(self, node: int) -> ReplicaGhost:
        return self.orders.replicas[node]

    def log(self, node: int) -> Log:
        return self.partitions[node].log

    def append(self, node: int, *values: str, epoch: int | None = None, **producer: int) -> None:
        """Append a batch as leader."""
        self.write(node, batch_of(*values, **producer), epoch)

    def write(self, node: int, batch: bytearray, epoch: int | None = None) -> None:
        self.log(node).append_as_leader(batch, self.partitions[node].leader_epoch if epoch is None else epoch, NOW_MS)

    def copy(self, source: int, *targets: int) -> None:
        """Let the followers copy the records that they lack."""
        for target in targets:
            log, here = self.log(source), self.log(target)
            if here.log_end_offset < log.log_end_offset:
                read = log.read(here.log_end_offset, 1 << 20, log.log_end_offset)
                here.append_as_follower(b"".join(bytes(buffer) for buffer in read.buffers), 1 << 20)

    def raise_hw(self, node: int, offset: int) -> None:
        self.log(node).update_high_watermark(offset)

    def replicated(self, *values: str, **producer: int) -> None:
        """Append a batch as leader, copy it to all brokers, commit it, and let all know the new high watermark."""
        leader = self.registration().leader
        self.append(leader, *values, **producer)
        self.copy(leader, *(node for node in BROKERS if node != leader))
        for node in (leader, *(node for node in BROKERS if node != leader)):
            self.raise_hw(node, self.log(leader).log_end_offset)

    # -- judging ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """End a step; no violation may have been found."""
        self.invariants.after_step()

    @contextmanager
    def flags(self, invariant: str, text: str = "") -> Iterator[None]:
        """An action in the block, or the check at the end of the step, must violate this invariant."""
        found: BaseException | None = None
        try:
            yield
            self.invariants.after_step()
        except Violation as e:
            found = e
        found = self.invariants.failure or found
        self.invariants.failure = None
        assert isinstance(found, Violation), f"nothing was found; {invariant} was to be"
        assert found.invariant == invariant, found
        assert text in found.text, found


def batch_of(*values: str, **producer: int) -> bytearray:
    batch = encode_batch([(None, value.encode(), [], NOW_MS) for value in values], **producer)
    return bytearray(batch)


@contextmanager
def bench(**options: Any) -> Iterator[Bench]:
    invariants = Invariants(EmittedOnly())
    with Probes(invariants):
        yield Bench(invariants, **options)


__all__ = ["KEY", "TOPIC_ID", "Bench", "batch_of", "bench"]
