"""Checks and recompresses compressed batches before they are appended. If that takes long, a thread does it, and the connection
reads no further request meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from struct import error as StructError

from strandline.broker.disk_work import RunBlocking
from strandline.broker.partition.directory import PartitionDirectory
from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.producer_names import NAMED, NAMED_BITS
from strandline.protocol.records.batch import COMPRESSION_MASK, HEADER_SIZE, LENGTH_PREFIX
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.rpc.server_connection import answer_error
from strandline.storage.log.conversion import AT_ONCE_BYTES_MAX, Prepared, is_any_compressed, prepare, prepare_at_once
from strandline.storage.log.log_config import LogConfig
from strandline.storage.log.record_rules import bare

PreparedParts = dict[int, Prepared | BrokerError]
"""The prepared records of each partition of a request, or the error of its records, by the partition's index in the request."""
PLAIN_UNNAMED: PreparedParts = {}
"""The result if nothing needs to be prepared: every partition has one plain batch, and none is from a named producer."""
_PLAIN_NAMED: PreparedParts = {}
_PEEK = Struct(">8xi10xB20xB").unpack_from
"""The length of a batch, the lower byte of its attributes, and the first byte of its producer id."""

Then = Callable[[ServerRequest, PreparedParts], None]
MayAppend = Callable[[ServerRequest], bool]


def always(request: ServerRequest) -> bool:
    return True


class Preparation:
    """Prepares the compressed batches of produce requests. If `run_blocking` is None, the event loop does all of it."""

    def __init__(
        self,
        directory: PartitionDirectory,
        wall_clock_ms: Callable[[], int],
        run_blocking: RunBlocking | None,
        may_append: MayAppend = always,
    ) -> None:
        self._directory = directory
        self._wall_clock_ms = wall_clock_ms
        self._run_blocking = run_blocking
        self._may_append = may_append

    def begin(self, request: ServerRequest, then: Then) -> PreparedParts | None:
        """Returns the prepared parts of a request for its append. None if a thread prepares them: `then` is called later.

        Nearly every request has one plain batch per partition, and needs no more preparation than the loop in this method."""
        body, converting, prepared = request.body, self._directory.converting, PLAIN_UNNAMED
        if converting and any((item.topic_id, item.partition) in converting for item in body.partitions):
            return self._begin(request, then)
        try:
            for records in body.records:
                length, attributes, producer = _PEEK(records)
                if attributes & COMPRESSION_MASK or length + LENGTH_PREFIX != len(records):
                    return self._begin(request, then)
                if producer & NAMED_BITS == NAMED:
                    prepared = _PLAIN_NAMED
        except StructError:
            return self._begin(request, then)
        return prepared

    def _begin(self, request: ServerRequest, then: Then) -> PreparedParts | None:
        body, later, room = request.body, {}, AT_ONCE_BYTES_MAX
        parts: PreparedParts = {}
        now_ms = self._wall_clock_ms()
        for index, (item, records) in enumerate(zip(body.partitions, body.records, strict=True)):
            partition = self._directory.partitions.get((item.topic_id, item.partition))
            if partition is None or partition.leader_state is None or len(records) <= HEADER_SIZE:
                continue  # the append refuses them
            if partition.topic in INTERNAL_TOPICS:
                parts[index] = BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers write to {partition.topic}")
                continue
            config = partition.log.config
            if not config.needs_preparation and not is_any_compressed(records):
                continue
            found = _prepared_at_once(records, config, now_ms, room) if room else None
            if found is None:
                later[index] = config
            else:
                parts[index] = found
            # Plain batches count, too, because their records are checked. A batch that failed may have used all of the room.
            room = max(0, room - max(found.size, len(records))) if isinstance(found, Prepared) else 0
        if not later:
            return parts
        self._prepare_later(request, parts, later, now_ms, then)
        return None

    def _prepare_later(
        self, request: ServerRequest, parts: PreparedParts, later: dict[int, LogConfig], now_ms: int, then: Then
    ) -> None:
        records = request.body.records

        def work() -> None:
            for index, config in later.items():
                parts[index] = _prepared_or_error(records[index], config, now_ms)

        request.connection.hold()
        if self._run_blocking is None:
            work()
            self._go_on(request, parts, later, then)
        else:
            self._run_blocking(work, partial(self._go_on, request, parts, later, then))

    def _go_on(self, request: ServerRequest, parts: PreparedParts, later: dict[int, LogConfig], then: Then) -> None:
        """Append on the event loop, before the next request of the connection. The append is also made if the connection is
        closed: a producer with acks=0 may close it right after it has sent its records."""
        try:
            if not all(index in parts for index in later):
                raise InternalError("the batches of a produce request could not be prepared")
            if self._may_append(request):
                then(request, parts)
        except Exception as e:
            answer_error(request, e)
        finally:
            request.connection.release()


def _prepared_at_once(records: memoryview, config: LogConfig, now_ms: int, bytes_max: int) -> Prepared | BrokerError | None:
    try:
        return prepare_at_once(records, config, now_ms, bytes_max)
    except BrokerError as e:
        return bare(e)


def _prepared_or_error(records: memoryview, config: LogConfig, now_ms: int) -> Prepared | BrokerError:
    try:
        return prepare(records, config, now_ms)
    except BrokerError as e:
        return bare(e)
