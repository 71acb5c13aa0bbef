"""Checks that a deleted key of a compacted partition stays deleted."""

from __future__ import annotations

from collections.abc import Hashable

from strandline.testing.history.operations import Send, Value
from strandline.testing.history.verdict import Findings, short
from strandline.testing.history.view import View


def check_deleted_keys(view: View, findings: Findings) -> None:
    """The final read must not show a value of a key whose newest record is a tombstone, unless it shows the tombstone too:
    otherwise each consumer that reads from the beginning would get the deleted key back. A read that takes longer than tombstones
    are kept may miss the tombstone though it has seen the value."""
    compacted, final_at = view.compacted, view.final_at
    if compacted is None or final_at is None or view.removable is None or _final_seconds(view) > compacted.delete_retention_s:
        return
    shown: dict[Hashable, tuple[int, Value, Send]] = {}
    for offset, value in sorted(final_at.items()):
        send = view.removable.send_of(value)
        if send is not None and send.key is not None:
            shown[send.key] = (offset, value, send)
    for key, (offset, value, send) in shown.items():
        newest = view.removable.newest(key)
        if newest is not None and newest.offset > offset and newest.send.tombstone and not send.tombstone:
            text = f"{short(key)} has the value {short(value)} at {offset}, but it was deleted at {newest.offset}"
            findings.add("deleted-key", view.partition, text, offset)


def _final_seconds(view: View) -> float:
    polls = [poll for poll in view.polls if poll.final]
    if not polls:
        return 0.0
    first = polls[0].ended_at if polls[0].began_at is None else polls[0].began_at
    return polls[-1].ended_at - first
