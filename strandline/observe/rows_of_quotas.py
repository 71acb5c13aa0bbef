"""The catalogue: metrics of quotas and limits."""

from __future__ import annotations

from strandline.observe.row import BROKER, CONTROLLER, Kind, Row, Section


def _own(name: str, kind: Kind, help: str, *labels: str) -> Row:
    return Row(f"strandline_{name}", kind, help, BROKER, labels)


_PAYER = ("quota", "user", "client_id")

QUOTAS = Section(
    "Quotas",
    "`user` and `client_id` name the entity that the quota applies to: a quota of a user has no `client_id`, one of a client id "
    "no `user`. The first 100 entities of each quota have series of their own; all later ones share `(others)`.",
    (
        _own("throttled_requests_total", "counter", "Requests whose client had to wait because of a quota.", *_PAYER),
        _own(
            "throttle_seconds_total",
            "counter",
            "Time for which clients had to wait (`throttle-time` of Kafka's types Produce, Fetch and Request).",
            *_PAYER,
        ),
        _own("quota_budgets", "gauge", "Users and client ids that are measured now.", "quota"),
        _own(
            "connections_refused_total",
            "counter",
            "Connections that were closed because their address had too many, or because they came too fast.",
        ),
        _own("connections_delayed_total", "counter", "Connections that had to wait because they came faster than the limit."),
        _own("request_memory_used_bytes", "gauge", "Bytes of unanswered requests; 0 without `queued.max.request.bytes`."),
        _own("request_memory_waits_total", "counter", "Produce requests that had to wait for `queued.max.request.bytes`."),
        Row(
            "strandline_throttled_mutations_total",
            "counter",
            "Requests in which a topic was rejected because of `controller_mutation_rate`.",
            CONTROLLER,
        ),
    ),
)
