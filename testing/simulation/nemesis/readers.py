"""Reads from the disk, so that damage by a fault is found in this process, and not only by the next one."""

from __future__ import annotations

from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.protocol.errors import BrokerError
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.disk import DiskError
from strandline.storage.log.log import Log
from strandline.testing.simulation.nemesis.engine import Nemesis


def forget_tails(nemesis: Nemesis, node: int) -> None:
    """Drop the ends of the broker's logs that its process keeps in memory, so that it has to read them from the disk."""
    broker = nemesis.cluster.brokers.get(node)
    if broker is not None and broker.has_logs:
        for partition in broker.replicas.partitions.values():
            partition.log.tail.clear()
    controller = nemesis.cluster.controllers.get(node)
    if controller is not None and controller.has_quorum:
        log = controller.quorum.node.state.log
        assert isinstance(log, MetadataLog)
        log.log.tail.clear()


def read_through(nemesis: Nemesis, node: int) -> None:
    """Read a broker's logs from the beginning, as a new consumer or one that fetches from followers does. This finds damage that
    no other read finds before the run ends, while fetches of the same partitions are open."""
    broker, machine = nemesis.cluster.brokers.get(node), nemesis.cluster.machines[node]
    if broker is None or not broker.has_logs or machine.loop is None or machine.is_paused:
        return
    for key, partition in list(broker.replicas.partitions.items()):
        machine.call(_read_one, broker.replicas, key, partition.log)


def _read_one(replicas: ReplicaManager, key: TopicIdPartition, log: Log) -> None:
    try:
        log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
    except BrokerError as e:
        replicas.failures.code_of(key, e)
    except DiskError as e:
        replicas.on_disk_error(e)
