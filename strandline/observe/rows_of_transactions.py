"""The catalogue: metrics of the transaction coordinator."""

from __future__ import annotations

from strandline.observe.row import BROKER, Kind, Row, Section


def _own(name: str, kind: Kind, help: str, *labels: str) -> Row:
    return Row(f"strandline_transaction{name}", kind, help, BROKER, labels)


TRANSACTIONS = Section(
    "Transactions",
    "A broker counts the transactional ids that it coordinates; sum over the brokers for the cluster.",
    (
        _own(
            "_partitions",
            "gauge",
            "Partitions of __transaction_state led here, by state: loading, active, or failed to load (their ids have no "
            "coordinator).",
            "state",
        ),
        _own("al_ids", "gauge", "Transactional ids by the state of their transaction, as Kafka spells it.", "state"),
        _own("s_ended_total", "counter", "Transactions whose outcome was decided here: commit, abort, or timeout.", "how"),
        _own("s_awaiting_markers", "gauge", "Decided transactions that lack a marker in a partition."),
        _own(
            "_markers_without_leader",
            "gauge",
            "Markers that wait until their partition has a leader (`UnknownDestinationQueueSize` of Kafka).",
        ),
        _own("_markers_total", "counter", "Markers that were written: one for each partition of a transaction."),
        _own(
            "s_awaiting_completion",
            "gauge",
            "Transactions with all markers whose last record cannot be written yet, because too few replicas are in sync "
            "(`LogAppendRetryQueueSize` of Kafka).",
        ),
        _own("_load_seconds", "histogram", "Time from the leadership of a partition until its transactional ids are served."),
        _own("_append_seconds", "histogram", "Time that an append of the coordinator took."),
        _own("_commit_wait_seconds", "histogram", "Time that answers waited until their records were committed."),
        _own("_completion_seconds", "histogram", "Time from a decision until all markers of the transaction are written."),
    ),
)
