"""The catalogue: metrics of every node's requests, connections, disk and process."""

from __future__ import annotations

from strandline.observe.row import BOTH, BROKER, Kind, Row, Section


def _request(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ("request",), unit: float = 1.0) -> Row:
    mbean = f"kafka.network:type=RequestMetrics,name={bean},request=*"
    return Row(f"kafka_network_requestmetrics_{name}", kind, help, BOTH, labels, mbean, unit)


REQUESTS = Section(
    "Requests",
    "`request` is the API's name; a Fetch counts as `FetchConsumer` or `FetchFollower`, and also as `Fetch`. An API without "
    "a request has no series.",
    (
        _request("requests_total", "counter", "Requests received.", "RequestsPerSec"),
        _request(
            "errors_total",
            "counter",
            "Error codes in responses (each failed partition or topic counts); NONE: responses without an error.",
            "ErrorsPerSec",
            labels=("request", "error"),
        ),
        _request(
            "totaltimems",
            "histogram",
            "Time from a request's last byte here to its response, including the time that it was parked.",
            "TotalTimeMs",
            unit=1000,
        ),
        _request(
            "requestqueuetimems",
            "histogram",
            "Time from a request's last byte here to its handler: it waits for earlier requests, and under back pressure.",
            "RequestQueueTimeMs",
            unit=1000,
        ),
        _request("localtimems", "summary", "Time that the handler occupied the event loop.", "LocalTimeMs", unit=1000),
        _request("requestbytes", "summary", "Size of requests, in bytes.", "RequestBytes"),
        Row(
            "kafka_server_delayedoperationpurgatory_purgatorysize",
            "gauge",
            "Requests that are parked: produces until they are replicated, fetches until there is something to read.",
            BROKER,
            ("delayedOperation",),
            "kafka.server:type=DelayedOperationPurgatory,name=PurgatorySize,delayedOperation=*",
        ),
        Row(
            "kafka_server_delayedproducemetrics_expires_total",
            "counter",
            "Produce requests that timed out before their records were replicated.",
            BROKER,
            (),
            "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec",
        ),
        Row(
            "kafka_server_delayedfetchmetrics_expires_total",
            "counter",
            "Parked fetches that timed out before there was enough to read (usual in an idle cluster).",
            BROKER,
            ("fetcherType",),
            "kafka.server:type=DelayedFetchMetrics,name=ExpiresPerSec,fetcherType=*",
        ),
        Row(
            "kafka_server_fetchsessioncache_numincrementalfetchsessions",
            "gauge",
            "Fetch sessions.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchSessions",
        ),
        Row(
            "kafka_server_fetchsessioncache_numincrementalfetchpartitionscached",
            "gauge",
            "Partitions in fetch sessions.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
        ),
        Row(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "counter",
            "Fetch sessions that were evicted to make room for others.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=IncrementalFetchSessionEvictionsPerSec",
        ),
    ),
)


def _connection(name: str, kind: Kind, help: str, attribute: str) -> Row:
    mbean = f"kafka.server:type=socket-server-metrics,listener=*,networkProcessor=* {attribute}"
    return Row(f"kafka_server_socket_server_metrics_{name}", kind, help, BOTH, ("listener",), mbean)


CONNECTIONS = Section(
    "Connections",
    "The exporter's example rules put these labels of Kafka into the names; here they are labels, as in Strimzi's rules.",
    (
        _connection("connection_count", "gauge", "Open connections.", "connection-count"),
        _connection("connection_creation_total", "counter", "Accepted connections.", "connection-creation-total"),
        _connection("connection_close_total", "counter", "Closed connections.", "connection-close-total"),
        _connection(
            "successful_authentication_total",
            "counter",
            "Connections that have authenticated.",
            "successful-authentication-total",
        ),
        _connection(
            "failed_authentication_total", "counter", "Connections whose authentication failed.", "failed-authentication-total"
        ),
        _connection("incoming_byte_total", "counter", "Bytes read.", "incoming-byte-total"),
        _connection("outgoing_byte_total", "counter", "Bytes written.", "outgoing-byte-total"),
        Row("strandline_requests_in_flight", "gauge", "Requests without a response yet.", BOTH, ("listener",)),
        Row(
            "strandline_bad_peers_total",
            "counter",
            "Violations of the protocol by peers, by the node's reaction (closed, refused).",
            BOTH,
            ("listener", "action"),
        ),
    ),
)


DISK = Section(
    "Disk",
    "",
    (
        Row(
            "kafka_log_logmanager_offlinelogdirectorycount",
            "gauge",
            "Log directories that failed.",
            BROKER,
            (),
            "kafka.log:type=LogManager,name=OfflineLogDirectoryCount",
        ),
        Row(
            "kafka_log_logmanager_logdirectoryoffline",
            "gauge",
            "1 if the log directory failed.",
            BROKER,
            ("logDirectory",),
            "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
        ),
        Row("strandline_log_dir_total_bytes", "gauge", "Size of the disk under the log directory.", BOTH, ("logDirectory",)),
        Row(
            "strandline_log_dir_free_bytes",
            "gauge",
            "Free space on the disk under the log directory, for this process.",
            BOTH,
            ("logDirectory",),
        ),
        Row("strandline_log_dir_used_bytes", "gauge", "Space that the logs in the directory use.", BOTH, ("logDirectory",)),
        Row(
            "strandline_log_dir_moves",
            "gauge",
            "Replicas of the broker that are moving to the log directory from another one.",
            BROKER,
            ("logDirectory",),
        ),
        Row(
            "strandline_log_dir_moves_left_bytes",
            "gauge",
            "Bytes that replicas moving to the log directory have still to copy.",
            BROKER,
            ("logDirectory",),
        ),
        Row("strandline_log_dir_moves_completed_total", "counter", "Completed moves between log directories.", BROKER),
        Row("strandline_log_dir_moved_bytes_total", "counter", "Bytes that moves between log directories have copied.", BROKER),
        Row(
            "kafka_log_logflushstats_logflushrateandtimems",
            "histogram",
            "Time of one flush (fsync) of a log.",
            BOTH,
            (),
            "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
            1000,
        ),
        Row("strandline_corrupt_ranges_total", "counter", "Damaged ranges found in logs.", BOTH),
    ),
)


NODE = Section(
    "The node",
    "The `process_*` metrics are prometheus_client's own, and exist on Linux only.",
    (
        Row(
            "strandline_build_info",
            "gauge",
            "Always 1; the labels describe the running version.",
            BOTH,
            ("version", "python", "role", "node_id"),
        ),
        Row("strandline_uptime_seconds", "gauge", "Time since the process created the node.", BOTH),
        Row(
            "strandline_event_loop_lag_seconds",
            "histogram",
            "Delay of the timers of the node's event loop: everything that a node does waits for the loop.",
            BOTH,
        ),
        Row(
            "strandline_event_loop_lag_max_seconds",
            "gauge",
            "The largest lag of the last second, as in `/health/ready`; a lag between two scrapes is only in the histogram.",
            BOTH,
        ),
        Row(
            "strandline_loss_possible_total",
            "counter",
            "Events that may have lost acknowledged records, by cause: unclean_election, corrupt_range, offline_log_dir, "
            "truncated_below_hw, elected_with_missing_records.",
            BOTH,
            ("cause",),
        ),
        Row(
            "strandline_scrape_errors_total",
            "counter",
            "Parts of a scrape that failed and are missing (a bug in Strandline).",
            BOTH,
        ),
        Row("process_cpu_seconds_total", "counter", "CPU time.", BOTH),
        Row("process_resident_memory_bytes", "gauge", "Memory in RAM.", BOTH),
        Row("process_virtual_memory_bytes", "gauge", "Address space.", BOTH),
        Row("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970.", BOTH),
        Row("process_open_fds", "gauge", "Open file descriptors.", BOTH),
        Row("process_max_fds", "gauge", "Limit of open file descriptors.", BOTH),
    ),
)
