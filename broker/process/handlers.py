"""Which handler answers which API of a broker: the one place where they are wired."""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from strandline.broker.delete_records import DeleteRecordsHandler
from strandline.broker.describe_log_dirs import DescribeLogDirsHandler
from strandline.broker.disk_work import RunBlocking
from strandline.broker.fetch.fetch_handler import FetchHandler, ReadersRights
from strandline.broker.fetch.offsets_handler import OffsetsHandler
from strandline.broker.fetch.replica_selector import SELECTORS
from strandline.broker.produce.describe_producers import DescribeProducersHandler
from strandline.broker.produce.preparation import MayAppend, always
from strandline.broker.produce.produce_handler import ProduceHandler
from strandline.broker.quotas.installation import QuotaInstallation
from strandline.broker.replica_log_info import ReplicaLogInfoHandler
from strandline.broker.replica_manager import ReplicaManager
from strandline.broker.transactions.admission import Adder
from strandline.broker.transactions.marker_handler import MarkerHandler, OffsetTransactions
from strandline.protocol import apis
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.directory.log_dirs import LogDirs


def data_handlers(
    replicas: ReplicaManager,
    *,
    now: Callable[[], float],
    wall_clock_ms: Callable[[], int],
    log_dirs: LogDirs,
    run_blocking: RunBlocking | None = None,
    run_preparation: RunBlocking | None = None,
    may_append: MayAppend = always,
    adder: Adder | None = None,
    offset_transactions: OffsetTransactions | None = None,
    reading: ReadersRights | None = None,
    quotas: QuotaInstallation | None = None,
) -> dict[int, Callable[[ServerRequest], None]]:
    """Api key -> handler, for the APIs that read, write or describe the partitions of this broker.

    Without `run_blocking`, a read may block the event loop. Without `run_preparation`, decompressing batches may block it, in
    Produce and in ListOffsets. `may_append`, `adder`: see `ProduceHandler`. `offset_transactions`: see `MarkerHandler`.
    `reading`: see `FetchHandler`."""
    directory, failures = replicas.directory, replicas.failures
    offsets = OffsetsHandler(directory, failures, run_preparation)
    fetch = FetchHandler(
        directory,
        failures,
        replicas.sessions,
        replicas.purgatory,
        now,
        response_bytes_max=replicas.config.fetch_max_bytes,
        run_blocking=run_blocking,
        selector=SELECTORS[replicas.config.replica_selector_class],
        on_reader=replicas.fetchers.on_reader,
        reading=reading,
    )
    if quotas is not None:
        quotas.fetch_handler = fetch
    produce = ProduceHandler(directory, failures, replicas.purgatory, wall_clock_ms, run_preparation, may_append, adder)
    return {
        apis.PRODUCE: produce.handle,
        apis.FETCH: fetch.handle,
        apis.LIST_OFFSETS: offsets.list_offsets,
        apis.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
        apis.DELETE_RECORDS: DeleteRecordsHandler(directory, failures, replicas.purgatory, replicas.log_starts).handle,
        apis.DESCRIBE_PRODUCERS: DescribeProducersHandler(directory).handle,
        apis.ALTER_REPLICA_LOG_DIRS: AlterReplicaLogDirsHandler(directory, failures, log_dirs, replicas.moves).handle,
        apis.DESCRIBE_LOG_DIRS: DescribeLogDirsHandler(directory, log_dirs, replicas.moves).handle,
        apis.WRITE_TXN_MARKERS: MarkerHandler(directory, failures, replicas.purgatory, offset_transactions, wall_clock_ms).handle,
        apis.GET_REPLICA_LOG_INFO: ReplicaLogInfoHandler(directory).handle,
    }
