"""Reports the log directory of each replica of this broker to the controller (AssignReplicasToDirs, KIP-858).

The controller needs it to elect other leaders when a directory fails. So a broker with several directories compares each change
of its replicas in the metadata with its disks, and sends the differences, in batches. The comparison is a pure function, the
queue a plain core, and the manager their shell. An assignment is sent until the controller has answered it, even after its
directory has failed: it then shows the controller that the replica is offline.

At level 0 of the metadata nothing is sent, because its records cannot hold directories.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

from strandline.broker.partition.alter_partition import Registration
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.process.controller_channel import Channel
from strandline.broker.process.send_loop import SendLoop
from strandline.controller.metadata.directory_ids import LOST, UNASSIGNED
from strandline.controller.metadata.image import MetadataDelta, PartitionRegistration
from strandline.protocol.apis import ASSIGN_REPLICAS_TO_DIRS
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.log_limits import LineLimits
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import (
    AssignedDirectory,
    AssignedTopic,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.directory.log_dirs import LogDirs

logger = get_logger(__name__)

REPLICAS_PER_REQUEST_MAX = 2250
"""Kafka's limit. The controller refuses a request with more."""
RETRY_BACKOFF_MS = 100
REQUEST_TIMEOUT_MS = 30_000


def wrong_assignments(delta: MetadataDelta, directory: PartitionDirectory, log_dirs: LogDirs) -> dict[TopicIdPartition, bytes]:
    """The actual directories of this broker's replicas, where the metadata after the delta has none or another one. Only changed
    partitions are compared, unless the delta raises the metadata to the first level that has directories."""
    image, found = delta.image, dict[TopicIdPartition, bytes]()
    if not image.feature_level:
        return found
    keys = delta.changed_partitions if delta.before.feature_level else [*directory.partitions, *directory.offline]
    for key in keys:
        registration = image.partition(key)
        if registration is None or directory.broker_id not in registration.replicas:
            continue
        if registration.directories or log_dirs.are_several:
            actual = _actual(key, registration, directory, log_dirs)
            if actual is not None and actual != registration.directory_of(directory.broker_id):
                found[key] = actual
    return found


def _actual(
    key: TopicIdPartition, registration: PartitionRegistration, directory: PartitionDirectory, log_dirs: LogDirs
) -> bytes | None:
    """The directory of the replica, or the one that it is about to move to; LOST if it may be in one that could not be opened;
    None if nothing is known."""
    partition = directory.partitions.get(key)
    if key in directory.announced:
        return directory.announced[key]
    if partition is not None:
        return log_dirs.of(partition.log).directory_id
    if key not in directory.offline:
        return None
    log_dir = log_dirs.find(directory.image.topics_by_id[key[0]].name, key[1], key[0])
    if log_dir is not None:
        return log_dir.directory_id
    assigned = registration.directory_of(directory.broker_id)
    return LOST if assigned == UNASSIGNED or any(each.directory_id == assigned for each in log_dirs.dirs) else None


class Answered(NamedTuple):
    """An assignment that the controller has answered."""

    key: TopicIdPartition
    directory_id: bytes
    error_code: int


class AssignmentQueue:
    """The core: the assignments that the controller has not answered yet. No clock, no socket."""

    def __init__(self) -> None:
        self._wanted: dict[TopicIdPartition, bytes] = {}
        self._sent: dict[TopicIdPartition, bytes] = {}
        """The assignments of the request on the wire."""

    def __len__(self) -> int:
        return len(self._wanted)

    def submit(self, assignments: dict[TopicIdPartition, bytes]) -> None:
        """Queue assignments; each replaces an earlier one of its replica."""
        self._wanted.update(assignments)

    def next_request(self, broker_id: int, broker_epoch: int) -> AssignReplicasToDirsRequest:
        """The oldest assignments, as many as one request may have."""
        self._sent = dict(list(self._wanted.items())[:REPLICAS_PER_REQUEST_MAX])
        by_directory: dict[bytes, dict[bytes, list[int]]] = {}
        for (topic_id, index), directory_id in self._sent.items():
            by_directory.setdefault(directory_id, {}).setdefault(topic_id, []).append(index)
        directories = [
            AssignedDirectory(directory_id, [AssignedTopic(topic_id, indexes) for topic_id, indexes in topics.items()])
            for directory_id, topics in by_directory.items()
        ]
        return AssignReplicasToDirsRequest(broker_id, broker_epoch, directories)

    def on_response(self, response: AssignReplicasToDirsResponse) -> list[Answered]:
        """Drop the answered assignments, unless a newer one has replaced them, and return them. An error for a replica means that
        it, or its topic, is gone: newer metadata will say so."""
        answered = []
        for item in response.partitions:
            key = (item.topic_id, item.partition)
            if key in self._sent and self._wanted.get(key) == self._sent[key]:
                answered.append(Answered(key, self._wanted.pop(key), item.error_code))
        return answered


class DirectoryAssignmentManager:
    """The shell: one task that sends the queued assignments, one request at a time."""

    def __init__(self, broker_id: int, channel: Channel, registration: Registration) -> None:
        self._broker_id = broker_id
        self._channel = channel
        self._registration = registration
        self._queue = AssignmentQueue()
        self.on_answered: Callable[[Answered], None] = lambda answered: None
        """Called for each assignment that the controller has answered."""
        self._limits = LineLimits()
        self._loop = SendLoop("directory-assignment", self._queue, self._send_once, RETRY_BACKOFF_MS)
        self.start, self.stop = self._loop.start, self._loop.stop

    @property
    def pending(self) -> int:
        """How many replicas the controller does not yet have in the right directory."""
        return len(self._queue)

    def submit(self, assignments: dict[TopicIdPartition, bytes]) -> None:
        """Queue these assignments, and wake the task that sends them."""
        if assignments:
            self._queue.submit(assignments)
            self._loop.wake()

    async def _send_once(self) -> bool:
        """One round trip. False if it has failed: the next attempt follows after a pause."""
        epoch = self._registration.broker_epoch
        request = self._queue.next_request(self._broker_id, epoch)
        try:
            answer = await self._channel.request(ASSIGN_REPLICAS_TO_DIRS, request, REQUEST_TIMEOUT_MS)
        except BrokerError as e:
            return await self._on_refusal(e.code, epoch)
        response = cast(AssignReplicasToDirsResponse, answer)
        for answered in self._queue.on_response(response):
            self.on_answered(answered)
        return True if not response.error_code else await self._on_refusal(to_code(response.error_code), epoch)

    async def _on_refusal(self, code: ErrorCode, epoch: int) -> bool:
        suppressed = self._limits.admit(code.name, asyncio.get_running_loop().time())
        if suppressed is not None:
            logger.info("directory_assignment.retried", error=code.name, partitions=len(self._queue), **suppressed.fields)
        if code == ErrorCode.STALE_BROKER_EPOCH:
            await self._registration.renew(epoch)
        return False
