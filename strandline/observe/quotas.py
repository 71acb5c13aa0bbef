"""The metrics of quotas and limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from strandline.observe.reading import Reading

if TYPE_CHECKING:
    from strandline.broker.process.server import BrokerServer
    from strandline.controller.server import ControllerServer


def broker_quotas(server: BrokerServer) -> Iterator[Reading]:
    if server.opened is None:
        return
    quotas = server.opened.quotas.quotas
    for kind in quotas.kinds:
        yield Reading("strandline_quota_budgets", len(kind), (kind.key,))
        counted = quotas.metrics.throttled.get(kind.key, {})
        if not counted:  # A series from the start on, so that the first increase is seen.
            yield Reading("strandline_throttled_requests_total", 0, (kind.key, "", ""))
            yield Reading("strandline_throttle_seconds_total", 0, (kind.key, "", ""))
        for labels, throttled in counted.items():
            yield Reading("strandline_throttled_requests_total", throttled.requests, (kind.key, *labels))
            yield Reading("strandline_throttle_seconds_total", throttled.seconds, (kind.key, *labels))
    yield Reading("strandline_connections_refused_total", server.addresses.refused)
    yield Reading("strandline_connections_delayed_total", server.addresses.delayed)
    memory = server.request_memory
    yield Reading("strandline_request_memory_used_bytes", 0 if memory is None else memory.used)
    yield Reading("strandline_request_memory_waits_total", 0 if memory is None else memory.waits)


def mutation_quota(server: ControllerServer) -> Iterator[Reading]:
    if server.mutation_quota is not None:
        yield Reading("strandline_throttled_mutations_total", server.mutation_quota.throttled)
