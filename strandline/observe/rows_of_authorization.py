"""The catalogue: metrics of the authorizer."""

from __future__ import annotations

from strandline.observe.row import BOTH, Kind, Row, Section


def _own(name: str, kind: Kind, help: str) -> Row:
    return Row(f"strandline_authorizer_{name}", kind, help, BOTH)


AUTHORIZATION = Section(
    "Authorization",
    "All are 0 on a node without `authorizer.class.name`. A check is one right on one resource; a request may need many.",
    (
        _own("acls", "gauge", "Access rules that this node knows (`acls-total-count` of Kafka)."),
        _own("allowed_total", "counter", "Checks that were allowed (`authorization-allowed-rate-per-minute` of Kafka)."),
        _own(
            "denied_total",
            "counter",
            "Checks that were denied (`authorization-denied-rate-per-minute` of Kafka), also for resources that a list omits.",
        ),
    ),
)
