"""One value of one metric at this moment, and the metrics that both roles have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from strandline.protocol.errors import ErrorCode, to_code
from strandline.protocol.metrics import Histogram
from strandline.protocol.rpc.request_metrics import ApiMetrics, RequestMetrics
from strandline.protocol.rpc.server import Server
from strandline.storage.metrics import LogMetrics


class Total(NamedTuple):
    """A measurement without buckets: its count and its sum."""

    times: int
    sum: float


class Reading(NamedTuple):
    name: str
    """The name of a row in the catalogue."""
    value: float | Histogram | Total
    labels: tuple[str, ...] = ()
    """The label values in the row's order. Empty for the unlabelled series of a labelled row."""


Readings = Callable[[Any], Iterator[Reading]]
"""Yields one part of a server's metrics."""


def requests(metrics: RequestMetrics) -> Iterator[Reading]:
    """Requests per API. As in Kafka, the fetches of consumers and followers are also counted together."""
    by_name = {api.name: api for api in list(metrics.values())}
    for name, api in by_name.items():
        yield from _of_api(name, [api])
    fetches = [by_name[name] for name in ("FetchConsumer", "FetchFollower") if name in by_name]
    if fetches:
        yield from _of_api("Fetch", fetches)


def _of_api(name: str, parts: list[ApiMetrics]) -> Iterator[Reading]:
    prefix, labels = "kafka_network_requestmetrics_", (name,)
    total, queue = parts[0].total, parts[0].queue
    for part in parts[1:]:
        total, queue = total.plus(part.total), queue.plus(part.queue)
    count = sum(part.requests for part in parts)
    yield Reading(prefix + "requests_total", count, labels)
    yield Reading(prefix + "totaltimems", total, labels)
    yield Reading(prefix + "requestqueuetimems", queue, labels)
    yield Reading(prefix + "localtimems", Total(count, sum(part.local_s for part in parts)), labels)
    yield Reading(prefix + "requestbytes", Total(count, sum(part.request_bytes for part in parts)), labels)
    yield Reading(prefix + "errors_total", total.count - sum(part.failed for part in parts), (name, ErrorCode.NONE.name))
    errors: dict[str, int] = {}
    for part in parts:
        for code, times in part.error_codes.items():
            error = to_code(code).name
            errors[error] = errors.get(error, 0) + times
    for error, times in errors.items():
        yield Reading(prefix + "errors_total", times, (name, error))


def connections(servers: Iterable[Server]) -> Iterator[Reading]:
    prefix = "kafka_server_socket_server_metrics_"
    for server in servers:
        labels = (server.listener_name,)
        yield Reading(prefix + "connection_count", len(server.connections), labels)
        yield Reading(prefix + "connection_creation_total", server.connections_accepted, labels)
        yield Reading(prefix + "connection_close_total", server.connections_closed, labels)
        yield Reading(prefix + "successful_authentication_total", server.bad_peers.authenticated_count, labels)
        yield Reading(prefix + "failed_authentication_total", server.bad_peers.authentication_failed_count, labels)
        yield Reading(prefix + "incoming_byte_total", server.bytes_in, labels)
        yield Reading(prefix + "outgoing_byte_total", server.bytes_out, labels)
        in_flight = sum(connection.in_flight for connection in server.connections.values())
        yield Reading("strandline_requests_in_flight", in_flight, labels)
        yield Reading("strandline_bad_peers_total", server.bad_peers.closed_count, (*labels, "closed"))
        yield Reading("strandline_bad_peers_total", server.bad_peers.refused_count, (*labels, "refused"))


def logs(metrics: LogMetrics) -> Iterator[Reading]:
    yield Reading("kafka_log_logflushstats_logflushrateandtimems", metrics.flush)
    yield Reading("strandline_truncations_total", metrics.truncations)
    yield Reading("strandline_truncated_records_total", metrics.truncated_records)
    yield Reading("strandline_corrupt_ranges_total", metrics.corrupt_ranges)


def disk(path: str, used_bytes: int) -> Iterator[Reading]:
    """Yield the size and free space of the disk under a directory. If the system does not report them, they are omitted."""
    yield Reading("strandline_log_dir_used_bytes", used_bytes, (path,))
    try:
        found = os.statvfs(path)
    except OSError:
        return
    yield Reading("strandline_log_dir_total_bytes", found.f_blocks * found.f_frsize, (path,))
    yield Reading("strandline_log_dir_free_bytes", found.f_bavail * found.f_frsize, (path,))


def log_offsets(topic: str, partition: str, start: int, end: int, size_bytes: int) -> Iterator[Reading]:
    labels = (topic, partition)
    yield Reading("kafka_log_log_logstartoffset", start, labels)
    yield Reading("kafka_log_log_logendoffset", end, labels)
    yield Reading("kafka_log_log_size", size_bytes, labels)


def losses(**by_cause: int) -> Iterator[Reading]:
    """Events that may have lost acknowledged records. Each cause has a series from the start, at 0."""
    for cause, times in by_cause.items():
        yield Reading("strandline_loss_possible_total", times, (cause,))
