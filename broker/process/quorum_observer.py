"""The core of a broker's metadata loader: decides what to ask the quorum, and applies the answers to the metadata image.

The broker follows the metadata log as an observer of the quorum and keeps no copy of it on its disk: at its start it fetches
everything, a snapshot first if the log was cleaned behind one. Rules:

- Only records below the high watermark are applied. Records above it wait as bytes, and are dropped if the leader answers that
  its history diverges there. A divergence *below* the applied records would be our bug or a damaged disk.
- The node that answers a fetch without an error is the leader. The other voters name the leader that they know
  (`current_leader`). A leader of a smaller epoch than the known one is out of date, and ignored.
- If a voter does not answer, the next one is asked. The others go on naming the silent leader until they have elected a new one,
  so it is asked again only after each of them was asked once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from strandline.controller.metadata.features import SUPPORTED, Levels, decode_records
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.log_fetch import (
    SNAPSHOT_GONE,
    Records,
    is_next_chunk,
    metadata_answer,
    metadata_fetch_request,
    snapshot_fetch_request,
    truncation_offset,
)
from strandline.controller.metadata.records import AnyRecord
from strandline.protocol.apis import FETCH, FETCH_SNAPSHOT
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError, to_code
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.cluster import FetchSnapshotResponse
from strandline.protocol.messages.common import CurrentLeader, EpochEndOffset, Message, SnapshotId
from strandline.protocol.messages.data import FetchResponse
from strandline.protocol.records.batch import BatchHeader, check_crc, iter_headers
from strandline.protocol.records.reader import decode_batch

logger = get_logger(__name__)

WAIT_MS_MAX = 500
"""How long the leader holds a fetch while there are no new records."""
BYTES_MAX = 8 << 20


class _Waiting(NamedTuple):
    """A fetched batch above the high watermark."""

    header: BatchHeader
    data: bytes


class _Download:
    """A snapshot that is being downloaded."""

    def __init__(self, snapshot_id: SnapshotId) -> None:
        self.id = snapshot_id
        self.data = bytearray()


class QuorumObserver:
    """Decides which voter to ask for what, and applies the answers to the image. No clock, no socket."""

    def __init__(self, *, broker_id: int, cluster_id: str, voter_ids: Sequence[int], levels: Levels = SUPPORTED) -> None:
        """`levels`: the levels of the metadata that the broker supports."""
        self.broker_id = broker_id
        self._levels = levels
        self.cluster_id = cluster_id
        self._voter_ids = list(voter_ids)
        self._next_voter = broker_id % len(self._voter_ids)
        """The voter to ask if no leader is known (an index). The brokers start with different ones."""
        self.leader_id: int | None = None
        self.epoch = -1
        """The largest known quorum epoch; `leader_id` is the leader of this epoch."""
        self._silent_leader: tuple[int, int] | None = None
        """(leader id, epoch) of the leader that did not answer the last request to it."""
        self.image = MetadataImage.EMPTY
        """The image after all applied records, whether this broker has caught up or not."""
        self.waiting: list[_Waiting] = []
        """The fetched batches above the high watermark, in order."""
        self._download: _Download | None = None
        self.high_watermark = -1

    @property
    def caught_up(self) -> bool:
        """Whether every record that is known to be committed was applied."""
        return 0 <= self.high_watermark <= self.image.offset + 1

    def target(self) -> int:
        """The id of the voter to ask next."""
        return self.leader_id if self.leader_id is not None else self._voter_ids[self._next_voter]

    def request(self) -> tuple[int, Message]:
        """The api key and the request for `target()`."""
        if self._download is not None:
            return FETCH_SNAPSHOT, snapshot_fetch_request(
                replica_id=self.broker_id,
                cluster_id=self.cluster_id,
                leader_epoch=self.epoch,
                snapshot_id=self._download.id,
                position=len(self._download.data),
                bytes_max=BYTES_MAX,
            )
        last_epoch, end_offset = self._fetched_end()
        return FETCH, metadata_fetch_request(
            replica_id=self.broker_id,
            cluster_id=self.cluster_id,
            leader_epoch=self.epoch,
            fetch_offset=end_offset,
            last_fetched_epoch=last_epoch,
            log_start_offset=-1,
            wait_ms_max=WAIT_MS_MAX,
            bytes_max=BYTES_MAX,
        )

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_failure(self, voter_id: int) -> None:
        """Ask another voter next, because this one did not answer or refused."""
        if voter_id == self.leader_id:
            self.leader_id = None
            self._silent_leader = (voter_id, self.epoch)
        self._next_voter = (self._voter_ids.index(voter_id) + 1) % len(self._voter_ids)

    def on_fetch(self, voter_id: int, response: FetchResponse) -> MetadataDelta | None:
        """Apply an answer. Returns the records that it committed, as one delta, or None.

        Raises INCONSISTENT_CLUSTER_ID if the voter belongs to another cluster, CORRUPT_MESSAGE if a batch is damaged, `PeerError`
        if the answer is malformed, `InternalError` if it contradicts the applied records, and `UnsupportedLevel`."""
        answer = metadata_answer(response)
        if answer is None:
            raise PeerError(f"controller {voter_id} answered a fetch of one partition with {len(response.partitions)}")
        if answer.error:
            self._on_error(voter_id, to_code(answer.error), answer.leader)
            return None
        self._on_leader(voter_id, answer.leader.leader_epoch)
        match answer.content:
            case EpochEndOffset() as diverging:
                self.truncate(diverging)
            case SnapshotId() as snapshot_id:
                self._start_download(snapshot_id)
            case Records() as records:
                self._take_batches(records.data)
                self.high_watermark = max(self.high_watermark, records.high_watermark)
                return self.apply_committed()
        return None

    def on_fetch_snapshot(self, voter_id: int, response: FetchSnapshotResponse) -> MetadataDelta | None:
        """Take one more piece of a snapshot. The last piece replaces the image; returns the delta to it."""
        code, download = to_code(response.error_code), self._download
        if code or download is None:
            self._download = None
            if code not in SNAPSHOT_GONE:
                self._on_error(voter_id, code, CurrentLeader(response.leader_id, response.leader_epoch))
            return None
        if not is_next_chunk(response, download.id, len(download.data)):
            self._download = None
            raise PeerError(f"controller {voter_id} sent another chunk of the snapshot than the requested one")
        download.data += response.records[0]
        return self.install_snapshot(download) if len(download.data) >= response.size else None

    def _on_leader(self, voter_id: int, epoch: int) -> None:
        self.leader_id = voter_id
        self._silent_leader = None
        self.epoch = max(self.epoch, epoch)

    def _on_error(self, voter_id: int, code: ErrorCode, hint: CurrentLeader) -> None:
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            raise BrokerError(code)
        self.on_failure(voter_id)
        if hint.leader_epoch >= self.epoch:
            self.epoch = hint.leader_epoch
            is_news = (hint.leader_id, hint.leader_epoch) != self._silent_leader
            self.leader_id = hint.leader_id if is_news and hint.leader_id in self._voter_ids else None

    # -- the log ------------------------------------------------------------------------------------------------------

    def _take_batches(self, records: memoryview) -> None:
        for position, header in iter_headers(records):
            _, end_offset = self._fetched_end()
            if header.base_offset != end_offset:
                raise PeerError(f"a metadata batch starts at {header.base_offset}, not at {end_offset}")
            if not check_crc(records, position, header.size):
                raise BrokerError(ErrorCode.CORRUPT_MESSAGE, f"the metadata batch at offset {header.base_offset} is damaged")
            self.waiting.append(_Waiting(header, bytes(records[position : position + header.size])))

    def _fetched_end(self) -> tuple[int, int]:
        """The epoch of the last fetched batch, and the offset after it."""
        if not self.waiting:
            return self.image.epoch, self.image.offset + 1
        last = self.waiting[-1].header
        return last.leader_epoch, last.last_offset + 1

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= `epoch` that was fetched or applied, and its end."""
        headers = (waiting.header for waiting in reversed(self.waiting))
        last = next((header for header in headers if header.leader_epoch <= epoch), None)
        return (self.image.epoch, self.image.offset + 1) if last is None else (last.leader_epoch, last.last_offset + 1)

    def truncate(self, diverging: EpochEndOffset) -> None:
        """Drop the waiting batches that the leader's log does not have. The next fetch continues from there."""
        applied = self.image.offset + 1
        if diverging.end_offset < applied:
            raise InternalError(
                f"the quorum's log ends epoch {diverging.epoch} at {diverging.end_offset}, but {applied} was committed"
            )
        offset = truncation_offset(self, diverging)
        while self.waiting and self.waiting[-1].header.last_offset >= offset:
            self.waiting.pop()

    def apply_committed(self) -> MetadataDelta | None:
        """Apply the waiting batches that the high watermark covers, as one delta; None if it covers none."""
        records: list[AnyRecord] = []
        count = 0
        for waiting in self.waiting:
            if waiting.header.last_offset >= self.high_watermark:
                break
            count += 1
            records += self._records_of(waiting.header, waiting.data)
        if not count:
            return None
        last = self.waiting[count - 1].header
        del self.waiting[:count]
        delta = self.image.apply(records, last.last_offset, last.leader_epoch)
        self.image = delta.image
        return delta

    # -- snapshots ----------------------------------------------------------------------------------------------------

    def _start_download(self, snapshot_id: SnapshotId) -> None:
        if snapshot_id.end_offset <= self.image.offset + 1:
            applied = f"although the records before {self.image.offset + 1} are already applied"
            raise InternalError(f"the quorum offers a snapshot that ends at {snapshot_id.end_offset}, {applied}")
        logger.info("metadata.snapshot_requested", metadata_offset=snapshot_id.end_offset, controller_epoch=snapshot_id.epoch)
        self._download = _Download(snapshot_id)

    def install_snapshot(self, download: _Download) -> MetadataDelta:
        """Replace the image, and all waiting batches, by a downloaded snapshot."""
        self._download = None
        records: list[AnyRecord] = []
        for position, header in iter_headers(download.data):
            records += self._records_of(header, memoryview(download.data)[position : position + header.size])
        end = download.id.end_offset
        image = MetadataImage.from_records(records, end - 1, download.id.epoch)
        delta = self.image.delta_to(image)
        self.image = image
        self.waiting.clear()
        self.high_watermark = max(self.high_watermark, end)
        return delta

    def _records_of(self, header: BatchHeader, data: bytes | memoryview) -> list[AnyRecord]:
        """The metadata records of a batch; a control batch has none. Raises UnsupportedLevel."""
        if header.is_control:
            return []
        values = (record.value for record in decode_batch(data, 0, header) if record.value is not None)
        try:
            return decode_records(values, self._levels)
        except PeerError as e:
            # Its checksum is correct and it is committed, so every voter has the same record.
            raise InternalError(f"the metadata record at offset {header.base_offset} cannot be decoded: {e}") from None
