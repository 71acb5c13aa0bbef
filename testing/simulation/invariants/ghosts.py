"""Ghosts: the truth about the cluster, as an all-seeing observer records it. No broker and no controller reads them.

    PartitionGhost    every batch ever written (a tree), what is committed (a path in it), all leaders, the committed registration
      ReplicaGhost    one broker's log: its path, and the production objects behind it while they exist
    MetadataGhost     the committed metadata log, its images, brokers and topics, and the votes of voters
    GroupsGhost       consumer groups, as the records of __consumer_offsets say (group_views.py)
    TransactionsGhost transactions, as the records of __transaction_state say (transaction_views.py)
    Process           a running broker or controller; the next one on the same machine is another

`committed` does not depend on what a broker claims. A leader's high watermark is accepted only if every member of the ISR was
found to hold the records below it (`watermark.py`). The accepted one is the *true* high watermark, `committed.end`.

`loss_permitted` is set from outside when more faults have struck than the cluster promises to survive. From then on only two
things are judged for such a partition: whether its losses are reported (I20), and the invariants that need no redundancy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from strandline.controller.metadata.directory_ids import UNASSIGNED
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import METADATA_TOPIC, METADATA_TOPIC_ID, NO_LEADER
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.fence import NO_TOKEN
from strandline.testing.simulation.invariants.group_views import GroupsGhost
from strandline.testing.simulation.invariants.originals import Originals
from strandline.testing.simulation.invariants.paths import Path, Tree
from strandline.testing.simulation.invariants.transaction_views import Marker, TransactionsGhost
from strandline.testing.simulation.invariants.violation import Violation

if TYPE_CHECKING:
    from strandline.broker.partition.partition import Partition
    from strandline.storage.log.log import Log

METADATA: TopicIdPartition = (METADATA_TOPIC_ID, 0)


class Process:
    """A broker or a controller, from its start to its end."""

    __slots__ = ("files", "has_ended", "has_started", "loop", "node", "number", "open_files", "server")

    def __init__(self, node: int, number: int, server: Any, files: Any, loop: Any) -> None:
        self.node = node
        self.number = number
        """The number of this process among those of the node, from 1."""
        self.server = server
        self.files = files
        self.loop = loop
        self.has_ended = False
        self.has_started = False
        """The `start` of its server has returned."""
        self.open_files: dict[int, object] = {}
        """The open files, by their `id`; the reference keeps the id valid."""

    @property
    def is_alive(self) -> bool:
        return not self.has_ended and not getattr(self.loop, "is_dead", False)

    @property
    def incarnation_id(self) -> bytes:
        return bytes(self.server.incarnation_id)

    def __repr__(self) -> str:
        return f"<process {self.number} of node {self.node}{'' if self.is_alive else ', gone'}>"


class Registration(NamedTuple):
    """A partition as in the committed metadata."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    is_recovering: bool = False
    """An unclean election, as recorded in the metadata."""
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    directories: tuple[bytes, ...] = ()
    """The log directory of each replica, in the order of the replicas; empty if no broker has assigned any."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    """The replicas before the reassignment that is running; empty if none is."""
    throttle_rate: int = 0
    """The limit of the reassignment, in bytes per second; 0: no limit."""

    def directory_of(self, node: int) -> bytes:
        """The log directory of a broker's replica; UNASSIGNED if the metadata does not name one."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(node, UNASSIGNED)


@dataclass(slots=True, eq=False)
class BrokerGhost:
    """A broker as in the committed metadata."""

    epoch: int
    incarnation_id: bytes
    fenced: bool
    is_leaving: bool


class ReplicaGhost:
    """The records of a partition that a broker (or controller) really has."""

    __slots__ = (
        "absent",
        "checked_epochs",
        "clean_to",
        "damage",
        "deleted_below",
        "flushed",
        "flushed_by_epoch",
        "fork",
        "has_forgotten",
        "is_unclean",
        "live",
        "log",
        "node",
        "partition",
        "path",
        "process",
        "unjudged",
    )

    def __init__(self, partition: PartitionGhost, node: int) -> None:
        self.partition = partition
        self.node = node
        self.path = Path()
        self.process: Process | None = None
        """The process that has the log open."""
        self.log: Log | None = None
        """The log object, while it is open."""
        self.live: Partition | None = None
        """The partition object, while the broker serves it."""
        self.checked_epochs = (-1, -1)
        """Leader epoch and partition epoch of `live` when they were last checked."""
        self.is_unclean = False
        """The replica restarted with fewer records than it had, and has not been proven complete since."""
        self.damage: int | None = None
        """The first offset that the disk is known to have lost or changed."""
        self.fork: tuple[int, int] | None = None
        """(from, to): the range of records that only this replica has; from `to` on it follows the leader. See
        `logs.check_fork`."""
        self.has_forgotten = False
        """The log has dropped the state of producers that have sent nothing for long."""
        self.flushed = 0
        """For a metadata log: everything below this offset is on the disk."""
        self.flushed_by_epoch: dict[int, int] = {}
        """For a metadata log: the highest offset up to which records of each epoch were ever on the disk."""
        self.absent: dict[int, None] = {}
        """In a compacted partition: the offsets of the records that this log lacks, because a cleaner removed them."""
        self.unjudged: list[int] = []
        """Those of `absent` that were added in this step."""
        self.deleted_below = 0
        """The offset after the last tombstone that this log lacks and that no newer record of its key supersedes."""
        self.clean_to = 0
        """The first dirty offset of the log when it was last checked."""

    @property
    def is_live(self) -> bool:
        return self.live is not None and self.process is not None and self.process.is_alive

    @property
    def leads_in(self) -> int | None:
        """The epoch in which the broker believes itself to be the leader."""
        leader_state = self.live.leader_state if self.is_live and self.live is not None else None
        return None if leader_state is None else leader_state.epoch

    def __repr__(self) -> str:
        return f"<{self.partition.name} on {self.node}: {self.path}>"


class Loss(NamedTuple):
    """Committed records that the leader no longer has."""

    start: int
    end: int
    leader: int
    leader_epoch: int


class PartitionGhost:
    __slots__ = (
        "aborted",
        "accepted",
        "acked_end",
        "actors",
        "applied",
        "asked",
        "committed",
        "deleted_below",
        "high_watermark_max",
        "history",
        "is_deleted",
        "key",
        "leaders",
        "loss_permitted",
        "losses",
        "markers",
        "name",
        "open_transactions",
        "originals",
        "producers",
        "proven",
        "read",
        "read_end",
        "registration",
        "replicas",
        "reported",
        "reports",
        "stable_offsets",
        "token",
        "tokens",
        "topic",
        "tree",
        "unreported",
        "unseen",
    )

    def __init__(self, key: TopicIdPartition, topic: str) -> None:
        self.key = key
        self.topic = topic
        self.name = f"{topic}-{key[1]}"
        self.tree = Tree()
        self.originals: Originals | None = None
        """Every record ever written. None until a cleaner changes the first segment of the partition."""
        self.committed = Path()
        """`committed.end` is the true high watermark. It decreases only by a permitted loss."""
        self.asked: list[tuple[int, int]] = []
        """(offset, size): records up to this offset were committed together, when the ISR needed this minimum size."""
        self.high_watermark_max = 0
        """The highest true high watermark so far. Above `committed.end` only after a loss."""
        self.registration: Registration | None = None
        self.history: dict[int, Registration] = {}
        """Partition epoch -> the committed registration with this epoch."""
        self.leaders: dict[int, int] = {}
        """Leader epoch -> its leader in the committed metadata."""
        self.actors: dict[int, Process] = {}
        """Leader epoch -> the process that has acted as its leader."""
        self.proven: dict[int, int] = {}
        """Member of the ISR -> the broker epoch under which it was last known to be complete."""
        self.accepted: dict[int, dict[int, int]] = {}
        """The partition epoch that an accepted AlterPartition will have -> the broker epochs of the members that it names."""
        self.replicas: dict[int, ReplicaGhost] = {}
        self.deleted_below = 0
        """The highest log start that any replica has had."""
        self.acked_end = 0
        """Every record of a successful acks=all response lies below this offset."""
        self.read: dict[int, tuple[int, int]] = {}
        """Base offset -> (epoch, crc) of each batch that was sent to a consumer."""
        self.read_end = 0
        self.applied: dict[int, int] = {}
        """Leader epoch -> the highest applied high watermark that its leader sent to clients (`reads.py`)."""
        self.producers: dict[int, Any] = {}
        """Producer id (or owner of a name) -> its position in the committed log (`producers.py`)."""
        self.markers: dict[int, list[Marker]] = {}
        """Producer id -> the markers that leaders have appended."""
        self.open_transactions: dict[int, list[range]] = {}
        """Producer id -> the offsets of its transaction, if the committed log has no marker for it (`transactions.py`)."""
        self.unseen: dict[int, None] = {}
        """The committed offsets of open and of aborted transactions."""
        self.aborted: dict[int, None] = {}
        """The committed offsets of aborted transactions."""
        self.stable_offsets: dict[int, int] = {}
        """Leader epoch -> the last stable offset that its leader last sent to a reader of committed records."""
        self.token = NO_TOKEN
        """The highest fencing token in the committed log (`fencing.py`)."""
        self.tokens: dict[tuple[int, int], int] = {}
        """(leader epoch, base offset) -> the fencing token with which a leader has appended these records."""
        self.is_deleted = False
        self.loss_permitted = ""
        """The reason, if a loss is permitted."""
        self.losses: list[Loss] = []
        self.reports: dict[int, tuple[int, int]] = {}
        """Leader epoch of an unclean election -> the range that may be lost, as its report says; end -1: unknown."""
        self.unreported = -1
        """The leader epoch of an unclean election in the batch that is being replayed, if its report has not been checked."""
        self.reported: list[str] = []
        """The reports of the cluster (a metric and a log line each) about a possible loss in this partition."""

    @property
    def true_high_watermark(self) -> int:
        return self.committed.end

    def replica(self, node: int) -> ReplicaGhost:
        found = self.replicas.get(node)
        if found is None:
            found = self.replicas[node] = ReplicaGhost(self, node)
        return found

    def violation(self, invariant: str, text: str, node: int | None = None) -> Violation:
        return Violation(invariant, f"{self.name}: {text}", partition=self.name, node=node)

    def __repr__(self) -> str:
        return f"<{self.name} committed {self.committed}>"


class Entry(NamedTuple):
    """A committed batch of the metadata log."""

    base: int
    last: int
    epoch: int
    crc: int
    values: tuple[bytes, ...]
    """Empty for a control batch."""


@dataclass(slots=True)
class MetadataGhost:
    log: PartitionGhost = field(default_factory=lambda: PartitionGhost(METADATA, METADATA_TOPIC))
    """The tree of the metadata log, and the path of each voter."""
    entries: list[Entry] = field(default_factory=list)
    """All committed batches, in order, from offset 0."""
    by_base: dict[int, Entry] = field(default_factory=dict)
    payloads: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(epoch, base offset) -> the batch, until it is committed."""
    images: dict[int, MetadataImage] = field(default_factory=dict)
    """Last offset of a committed batch -> the image up to it."""
    image: MetadataImage = MetadataImage.EMPTY
    changes: list[tuple[int, tuple[TopicIdPartition, ...], tuple[int, ...]]] = field(default_factory=list)
    """(last offset, changed partitions, changed brokers) of each batch that changed any."""
    brokers: dict[int, BrokerGhost] = field(default_factory=dict)
    topics: dict[bytes, str] = field(default_factory=dict)
    leaders: dict[int, Process] = field(default_factory=dict)
    """Quorum epoch -> the process that has led in it."""
    votes: dict[tuple[int, int], int] = field(default_factory=dict)
    """(voter, epoch) -> the candidate that got its vote."""
    voters: tuple[int, ...] = ()
    feature_level: int = 0
    targets: list[tuple[tuple[str, int], tuple[int, ...] | None]] = field(default_factory=list)
    """(topic, partition) and the target of each reassignment that a controller has accepted, in the order of the decisions; None
    for a cancellation."""
    is_given_up: bool = False
    """The disks of a majority of the controllers were lost, and the run permitted it. From then on it is unknown which metadata
    the quorum had committed."""

    @property
    def end(self) -> int:
        """The true high watermark."""
        return self.log.committed.end

    def image_at(self, offset: int) -> MetadataImage | None:
        return MetadataImage.EMPTY if offset < 0 else self.images.get(offset)


class Ghosts:
    def __init__(self) -> None:
        self.partitions: dict[TopicIdPartition, PartitionGhost] = {}
        self.metadata = MetadataGhost()
        self.groups = GroupsGhost()
        self.transactions = TransactionsGhost()
        self.processes: dict[int, Process] = {}
        """The newest process of each node."""
        self.dirty: dict[ReplicaGhost, None] = {}
        """Replicas whose log or role changed in this step."""
        self.disturbed: dict[PartitionGhost, None] = {}
        """Partitions whose metadata, role or ISR changed in this step, or of which a log became shorter."""
        self.closed_disks: set[object] = set()
        """Disks whose logs the last process closed in order, or began to close."""
        self._by_files: dict[int, Process] = {}
        self._loss_permitted = ""
        self._min_isr: dict[tuple[int, str, int], int] = {}
        self._configs: list[object] = []
        """Keeps the keys of `_min_isr` alive."""

    # -- processes ----------------------------------------------------------------------------------------------------

    def begin(self, node: int, server: Any, files: Any, loop: Any = None) -> Process:
        before = self.processes.get(node)
        if before is not None:
            before.has_ended = True
        process = Process(node, 1 if before is None else before.number + 1, server, files, loop)
        self.processes[node] = self._by_files[id(files)] = process
        return process

    def process_of_files(self, files: object) -> Process | None:
        process = self._by_files.get(id(files))
        return process if process is not None and process.files is files else None

    def end(self, server: object) -> None:
        """Note that the server has ended. (Its event loop may continue.)"""
        for process in self.processes.values():
            if process.server is server:
                process.has_ended = True

    def live_brokers(self) -> Iterator[Process]:
        for process in self.processes.values():
            if process.is_alive and hasattr(process.server, "lifecycle"):
                yield process

    def live_controllers(self) -> Iterator[Process]:
        for process in self.processes.values():
            if process.is_alive and not hasattr(process.server, "lifecycle"):
                yield process

    # -- partitions ---------------------------------------------------------------------------------------------------

    def partition(self, key: TopicIdPartition, topic: str) -> PartitionGhost:
        if key == METADATA:
            return self.metadata.log
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions[key] = PartitionGhost(key, topic)
            found.loss_permitted = self._loss_permitted
        return found

    def named(self, name: str) -> PartitionGhost:
        """The newest partition of this name, such as `orders-0`."""
        return [p for p in self.partitions.values() if p.name == name][-1]

    def topic_name(self, topic_id: bytes) -> str:
        """The name of a topic that exists or has existed."""
        known = self.partitions.get((topic_id, 0))
        return topic_id.hex() if known is None else known.topic

    def permit_loss(self, reason: str, partition: str | None = None) -> None:
        """Permit losses, because more has failed than the cluster promises to survive: in one partition, or everywhere."""
        if partition is None:
            self._loss_permitted = reason
            self.metadata.log.loss_permitted = reason
        for ghost in self.partitions.values():
            if partition in (None, ghost.name):
                ghost.loss_permitted = reason

    def is_registered(self, replica: ReplicaGhost) -> bool:
        """Whether the process of this replica runs, and is the one that the metadata has registered."""
        process, broker = replica.process, self.metadata.brokers.get(replica.node)
        return (
            process is not None
            and broker is not None
            and process.is_alive
            and process.incarnation_id == broker.incarnation_id
            and replica.log is not None
        )

    def is_judged(self, replica: ReplicaGhost) -> bool:
        """Whether the replica must hold what it claims to hold: it runs, is registered, and its disk has lost nothing."""
        return not replica.is_unclean and replica.damage is None and self.is_registered(replica)

    # -- settings -----------------------------------------------------------------------------------------------------

    def min_isr(self, partition: PartitionGhost, replica: ReplicaGhost) -> int:
        """The effective `min.insync.replicas` in the metadata that this broker has applied: a partition with fewer replicas needs
        only these, and a reassignment may change their number."""
        live, registration = replica.live, partition.registration
        if live is not None:
            registration = partition.history.get(live.partition_epoch, registration)
        replicas = partition.replicas if registration is None else registration.replicas
        manager = getattr(replica.process and replica.process.server, "replicas", None)
        image = None if manager is None else self.metadata.image_at(manager.image.offset)
        if image is None or manager is None:
            return min(live.min_insync_replicas if live is not None else 1, len(replicas))
        return min(self._configured_min_isr(image, partition.topic, manager), len(replicas))

    def _configured_min_isr(self, image: MetadataImage, topic: str, manager: Any) -> int:
        key = (id(image.configs), topic, manager.directory.broker_id)
        value = self._min_isr.get(key)
        if value is None:
            config = image.topic_config(topic, broker_id=manager.directory.broker_id, static=manager.config.topic_defaults)
            value = self._min_isr[key] = int(str(config["min.insync.replicas"]))
            self._configs.append(image.configs)
        return value


__all__ = ["METADATA", "NO_LEADER", "BrokerGhost", "Entry", "Ghosts", "MetadataGhost", "PartitionGhost", "Process"]
