"""Reports of unclean elections, as `topic describe` and `recover` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from strandline.client import UncleanElection


def lost_text(lost_from: int, lost_to: int | None) -> str:
    """The range of records that may be lost, for people."""
    if lost_from == lost_to:
        return "nothing"
    return f"offset {lost_from} and above" if lost_to is None else f"offsets {lost_from} to {lost_to - 1}"


def report_text(report: UncleanElection, elected_at: str) -> str:
    """One line for people."""
    asked = ", ".join(f"broker {r.broker_id} had epoch {r.last_epoch} to offset {r.log_end_offset}" for r in report.replicas)
    return (
        f"{elected_at} unclean election ({report.strategy}) of broker {report.leader_id} in epoch "
        f"{report.leader_epoch}; last leader {report.last_known_leader_id} in epoch {report.last_known_leader_epoch}; {asked}; "
        f"may be lost: {lost_text(report.lost_from, report.lost_to)}"
    )


def report_json(report: UncleanElection) -> dict[str, Any]:
    return {
        "topic": report.partition.topic,
        "partition": report.partition.partition,
        "leader": report.leader_id,
        "leader_epoch": report.leader_epoch,
        "last_known_leader": report.last_known_leader_id,
        "last_known_leader_epoch": report.last_known_leader_epoch,
        "high_watermark": report.high_watermark,
        "lost_from": report.lost_from,
        "lost_to": report.lost_to,
        "strategy": report.strategy,
        "elected_at_ms": report.elected_at_ms,
        "replicas": [
            {
                "broker": r.broker_id,
                "last_epoch": r.last_epoch,
                "log_end_offset": r.log_end_offset,
                "high_watermark": r.high_watermark,
                "may_lack_records": r.may_lack_records,
            }
            for r in report.replicas
        ],
    }
