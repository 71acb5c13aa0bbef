"""Serving DeleteRecords: a leader moves its log start up, so that the records below it can no longer be read (KIP-107).

    before_offset                          answer
    -1                                     the same as for the high watermark
    above the high watermark               OFFSET_OUT_OF_RANGE
    at or below the log start              the low watermark; the log start does not move

    topic                                  answer
    an internal topic, the metadata log    INVALID_TOPIC_EXCEPTION
    cleanup.policy is `compact` alone      POLICY_VIOLATION: the newest value of a key may be old, and must stay

The leader moves its log start at once. Each follower receives it in a fetch response, moves its own, and names it in its next
fetch. The request waits for the low watermark, which is the smallest log start of the replicas that are alive, and of the
eligible leader replicas (KIP-966), alive or not, so that no later leader shows the records again. If the request times out first,
the answer is REQUEST_TIMED_OUT, although the leader has deleted the records. Any other follower that is down moves its log start
after its return, before it joins the ISR.

The request also waits until the leader's log start is on its disk (`log_start_saver.py`). The segments below it are removed by
the next round of retention.
"""

from __future__ import annotations

from collections.abc import Collection

from strandline.broker.log_start_saver import LogStartSaver
from strandline.broker.partition.directory import PartitionDirectory
from strandline.broker.partition.log_failures import LogFailures
from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import DelayedOperation, Purgatory
from strandline.controller.metadata.internal_topics import refuse_internal
from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)
from strandline.protocol.partitions import TopicIdPartition, refuse_repeated
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.files import DiskError
from strandline.storage.log.log_config import LogConfig

HIGH_WATERMARK = -1
"""The `before_offset` that deletes all committed records."""


class DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords request that waits for the low watermark of its partitions, and for the disk."""

    __slots__ = ("_directory", "_is_saved", "_partitions", "_request", "responses")

    def __init__(self, request: ServerRequest, directory: PartitionDirectory) -> None:
        super().__init__()
        self._request = request
        self._directory = directory
        self.responses: list[DeleteRecordsPartitionResponse] = []
        self._partitions: dict[int, Partition] = {}
        """The partitions that it still waits for, by their index in the response."""
        self._is_saved = False
        """Whether the leader's log starts are on the disk."""

    def wait_for(self, partition: Partition, offset: int) -> None:
        """Wait until the low watermark of the partition of the last response has reached `offset`."""
        index = len(self.responses) - 1
        self._partitions[index] = partition
        partition.deletions.add(offset, index, self, partition.leader_epoch)

    def on_reached(self, index: int) -> None:
        """Called when the low watermark of one partition has reached its offset: no active replica serves the records now."""
        leader_state = self._partitions[index].leader_state
        assert leader_state is not None
        self.responses[index].low_watermark = leader_state.low_watermark()
        self._settle(index)

    def on_failed(self, index: int, error_code: int) -> None:
        self.responses[index].error_code = error_code
        self._settle(index)

    def _settle(self, index: int) -> None:
        del self._partitions[index]
        self._maybe_complete()

    def on_saved(self) -> None:
        """Called when the log starts were written, or a disk has failed."""
        self._is_saved = True
        offline = self._directory.offline
        if len(offline) > 0:
            self._fail_others(ErrorCode.KAFKA_STORAGE_ERROR, offline)
        self._maybe_complete()

    def _maybe_complete(self) -> None:
        if self._is_saved and not self._partitions:
            self.complete()

    def on_complete(self) -> None:
        self._request.reply(DeleteRecordsResponse(self.responses))

    def on_expiration(self) -> None:
        for index, partition in self._partitions.items():
            partition.deletions.discard(self)
            self.responses[index].error_code = ErrorCode.REQUEST_TIMED_OUT
        if not self._is_saved:
            self._fail_others(ErrorCode.REQUEST_TIMED_OUT)
        self._request.reply(DeleteRecordsResponse(self.responses))

    def _fail_others(self, code: ErrorCode, keys: Collection[TopicIdPartition] | None = None) -> None:
        """Fail the partitions that no longer wait for their low watermark: all of them, or those of `keys`."""
        for index, response in enumerate(self.responses):
            is_meant = keys is None or (response.topic_id, response.partition) in keys
            if is_meant and not response.error_code and index not in self._partitions:
                response.error_code, response.low_watermark = code, -1


class DeleteRecordsHandler:
    """Answers DeleteRecords requests of a broker."""

    def __init__(
        self,
        directory: PartitionDirectory,
        failures: LogFailures,
        purgatory: Purgatory,
        log_starts: LogStartSaver,
    ) -> None:
        self._directory = directory
        self._failures = failures
        self._purgatory = purgatory
        self._log_starts = log_starts

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DeleteRecordsRequest)
        refuse_repeated(body.partitions)
        operation = DelayedDeleteRecords(request, self._directory)
        for item in body.partitions:
            operation.responses.append(DeleteRecordsPartitionResponse(item.topic_id, item.partition))
            self._delete(item, operation)
        if all(response.error_code for response in operation.responses):
            operation.complete()
            return
        self._purgatory.park(operation, body.timeout_ms)
        self._log_starts.save(operation.on_saved)

    def _delete(self, item: DeleteRecordsPartition, operation: DelayedDeleteRecords) -> None:
        """Move the log start of one partition, or put the error into its response."""
        response, key = operation.responses[-1], (item.topic_id, item.partition)
        try:
            if item.topic_id == METADATA_TOPIC_ID:
                raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, "the records of the metadata log cannot be deleted")
            partition = self._directory.partition(key)
            leader_state = partition.leading()
            refuse_internal(partition.topic, "the brokers delete its records")
            check_policy(partition.topic, partition.log.config)
            offset = item.before_offset if item.before_offset != HIGH_WATERMARK else partition.log.high_watermark
            leader_state.delete_records(offset)
        except BrokerError as e:
            response.error_code, response.error_message = e.code, e.message
            response.current_leader = self._directory.current_leader(key)
        except DiskError as e:
            self._failures.on_disk_error(e)
            response.error_code, response.error_message = ErrorCode.KAFKA_STORAGE_ERROR, str(e)
        else:
            response.low_watermark = leader_state.low_watermark()
            if response.low_watermark < offset:
                response.low_watermark = -1
                operation.wait_for(partition, offset)


def check_policy(topic: str, config: LogConfig) -> None:
    """Raises POLICY_VIOLATION if the topic's cleanup.policy has `compact` and not `delete`. A topic without any policy keeps its
    records until this request deletes them (KIP-1161)."""
    if config.compacts and not config.deletes:
        text = f"{topic} is compacted: its cleanup.policy must have 'delete' before records can be deleted by offset"
        raise BrokerError(ErrorCode.POLICY_VIOLATION, text)
