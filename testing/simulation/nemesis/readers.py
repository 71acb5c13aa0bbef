"""Reads that go to the disk: what a fault has done to it is met while the run lasts, and not by the next process only."""

from __future__ import annotations

from strandline.broker.replica_manager import ReplicaManager
from strandline.controller.raft.metadata_log import MetadataLog
from strandline.protocol.errors import BrokerError
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.disk import DiskError
from strandline.storage.log.log import Log
from strandline.testing.simulation.nemesis.engine import Nemesis


def forget_tails(nemesis: Nemesis, node: int) -> None:
    """What the process holds in memory of its logs' ends, it has to read again."""
    broker = nemesis.cluster.brokers.get(node)
    if broker is not None and broker.has_logs:
        for partition in broker.replicas.partitions.values():
            partition.log.tail.clear()
    controller = nemesis.cluster.controllers.get(node)
    if controller is not None and controller.has_quorum:
        log = controller.quorum.node.state.log
        assert isinstance(log, MetadataLog)
        log._log.tail.clear()


def read_through(nemesis: Nemesis, node: int) -> None:
    """Somebody reads a broker's logs from their beginnings, as a consumer does that is new, or asks a follower. Damage that
    nobody meets otherwise before the run ends is found, while fetches of the same partitions are under way."""
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
