"""The catalogue, of what every node does: requests, connections, disk, the process itself."""

from __future__ import annotations

from strandline.observe.row import BOTH, BROKER, Kind, Row, Section


def _request(name: str, kind: Kind, help: str, bean: str, *, labels: tuple[str, ...] = ("request",), unit: float = 1.0) -> Row:
    mbean = f"kafka.network:type=RequestMetrics,name={bean},request=*"
    return Row(f"kafka_network_requestmetrics_{name}", kind, help, BOTH, labels, mbean, unit)


REQUESTS = Section(
    "Requests",
    "`request` is the API's name; a Fetch counts as `FetchConsumer` or `FetchFollower`, and in `Fetch` for both. An API "
    "that was never asked has no series.",
    (
        _request("requests_total", "counter", "Requests that came in.", "RequestsPerSec"),
        _request(
            "errors_total",
            "counter",
            "Error codes in answers (each failed partition or topic counts); NONE: answers without any.",
            "ErrorsPerSec",
            labels=("request", "error"),
        ),
        _request(
            "totaltimems",
            "histogram",
            "From a request's last byte here to its answer, the time that it was parked included.",
            "TotalTimeMs",
            unit=1000,
        ),
        _request(
            "requestqueuetimems",
            "histogram",
            "From a request's last byte here to its handler: the requests that came with it, and back pressure.",
            "RequestQueueTimeMs",
            unit=1000,
        ),
        _request("localtimems", "summary", "Time that the handler had the event loop for itself.", "LocalTimeMs", unit=1000),
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
            "Produces whose time was over before they were replicated.",
            BROKER,
            (),
            "kafka.server:type=DelayedProduceMetrics,name=ExpiresPerSec",
        ),
        Row(
            "kafka_server_delayedfetchmetrics_expires_total",
            "counter",
            "Parked fetches whose time was over before there was enough to read (an idle cluster's daily bread).",
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
            "Partitions that fetch sessions remember.",
            BROKER,
            (),
            "kafka.server:type=FetchSessionCache,name=NumIncrementalFetchPartitionsCached",
        ),
        Row(
            "kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total",
            "counter",
            "Fetch sessions that had to make room for others.",
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
    "The exporter's example rules put Kafka's labels of these into their names; here they are labels, as with Strimzi's rules.",
    (
        _connection("connection_count", "gauge", "Open connections.", "connection-count"),
        _connection("connection_creation_total", "counter", "Connections that were accepted.", "connection-creation-total"),
        _connection("connection_close_total", "counter", "Connections that ended.", "connection-close-total"),
        _connection("incoming_byte_total", "counter", "Bytes read.", "incoming-byte-total"),
        _connection("outgoing_byte_total", "counter", "Bytes written.", "outgoing-byte-total"),
        Row("strandline_requests_in_flight", "gauge", "Requests that are not answered yet.", BOTH, ("listener",)),
        Row(
            "strandline_bad_peers_total",
            "counter",
            "What peers did against the protocol, by what was done about it (closed, refused).",
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
            "1 when the log directory failed.",
            BROKER,
            ("logDirectory",),
            "kafka.log:type=LogManager,name=LogDirectoryOffline,logDirectory=*",
        ),
        Row("strandline_log_dir_total_bytes", "gauge", "Size of the disk under the log directory.", BOTH, ("logDirectory",)),
        Row("strandline_log_dir_free_bytes", "gauge", "What is free of it for this process.", BOTH, ("logDirectory",)),
        Row("strandline_log_dir_used_bytes", "gauge", "What the logs in the directory use of it.", BOTH, ("logDirectory",)),
        Row(
            "kafka_log_logflushstats_logflushrateandtimems",
            "histogram",
            "Time of one flush (fsync) of a log.",
            BOTH,
            (),
            "kafka.log:type=LogFlushStats,name=LogFlushRateAndTimeMs",
            1000,
        ),
        Row("strandline_corrupt_ranges_total", "counter", "Damaged places that were found in logs.", BOTH),
    ),
)


NODE = Section(
    "The node",
    "The `process_*` metrics are prometheus_client's own; they are there on Linux.",
    (
        Row("strandline_build_info", "gauge", "1; what runs here.", BOTH, ("version", "python", "role", "node_id")),
        Row("strandline_uptime_seconds", "gauge", "Since the node was made.", BOTH),
        Row(
            "strandline_event_loop_lag_seconds",
            "histogram",
            "How late the timers of the node's event loop are: everything that a node does waits for it.",
            BOTH,
        ),
        Row(
            "strandline_event_loop_lag_max_seconds",
            "gauge",
            "The largest lag of the last second, as `/health/ready` tells it; one that fell between two scrapes is in the "
            "histogram alone.",
            BOTH,
        ),
        Row(
            "strandline_loss_possible_total",
            "counter",
            "What may have cost acknowledged records: unclean_election, corrupt_range, offline_log_dir, truncated_below_hw, "
            "elected_with_missing_records.",
            BOTH,
            ("cause",),
        ),
        Row("strandline_scrape_errors_total", "counter", "Parts of a scrape that failed and are missing (a bug of ours).", BOTH),
        Row("process_cpu_seconds_total", "counter", "CPU time.", BOTH),
        Row("process_resident_memory_bytes", "gauge", "Memory in RAM.", BOTH),
        Row("process_virtual_memory_bytes", "gauge", "Address space.", BOTH),
        Row("process_start_time_seconds", "gauge", "Start of the process, since 1970.", BOTH),
        Row("process_open_fds", "gauge", "Open file descriptors.", BOTH),
        Row("process_max_fds", "gauge", "How many it may open.", BOTH),
    ),
)
