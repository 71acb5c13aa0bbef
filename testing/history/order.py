"""Checks the order of the log: against the order in which each producer sent, and against real time.

Appends to one partition must be linearizable. Offsets give the order of the log, so the check is only whether that order
contradicts real time, which takes two sorted lists and one pass over them.
"""

from __future__ import annotations

from collections.abc import Hashable
from operator import attrgetter

from strandline.testing.history.operations import FAIL, Send
from strandline.testing.history.verdict import Findings, short
from strandline.testing.history.view import View

SEQUENCES = 1 << 31
"""Number of sequence numbers; after the last one they continue at 0."""


def check_order(view: View, findings: Findings) -> None:
    _check_producers(view, findings)
    _check_real_time(view, findings)


def _check_producers(view: View, findings: Findings) -> None:
    """The records of each idempotent producer, acknowledged or only read, must be in the order of sending."""
    furthest: dict[Hashable, tuple[int, Send]] = {}
    losses, place_of, repeated = view.excuses.losses, view.place_of, view.repeated
    for send in view.sends:
        if send.outcome == FAIL or not view.is_idempotent(send):
            continue
        offset = send.offset
        if offset >= 0:
            if losses and view.excuses.forgives(offset, send.invoked_at):
                continue
        else:
            offset = place_of.get(send.value, -1)
            if offset < 0 or send.value in repeated:
                continue
        producer = _producer(send)
        furthest_offset, before = furthest.get(producer, (-1, send))
        if offset > furthest_offset:
            furthest[producer] = (offset, send)
            if send.sequence >= 0 and before is not send and _sequence_went_back(before, send):
                _tell(view, findings, "producer-order", before, send, "with the lower sequence number")
        elif offset < furthest_offset:
            name = "nonmonotonic-send" if send.offset >= 0 and before.offset >= 0 else "producer-order"
            _tell(view, findings, name, before, send, "for the later send")


def _tell(view: View, findings: Findings, name: str, before: Send, send: Send, what: str) -> None:
    text = f"{send.process}: {_place(view, send)} {what}, {_place(view, before)} for the earlier one"
    findings.add(name, view.partition, text, send.offset if send.offset >= 0 else None, send.invoked_at)


def _place(view: View, send: Send) -> str:
    if send.offset >= 0:
        return f"{short(send.value)} got offset {send.offset}"
    return f"{short(send.value)} was read at offset {view.place_of[send.value]}"


def _producer(send: Send) -> Hashable:
    """Identity within which order is promised; a new session or producer id is a new producer."""
    if send.session is None and send.producer_id < 0:
        return send.process
    return (send.process, send.session, send.producer_id)


def _sequence_went_back(before: Send, send: Send) -> bool:
    if min(before.sequence, send.sequence) < 0 or before.producer_epoch > send.producer_epoch:
        return before.producer_epoch > send.producer_epoch
    if before.producer_epoch < send.producer_epoch:
        return False
    ahead = (send.sequence - before.sequence) % SEQUENCES
    return ahead == 0 or ahead > SEQUENCES // 2


def _check_real_time(view: View, findings: Findings) -> None:
    """A send that began after another one had ended must have the higher offset, also between different producers and
    without idempotence."""
    ended = view.placed_by_end
    i, number = 0, len(ended)
    furthest: Send | None = None
    for send in sorted(view.placed, key=attrgetter("invoked_at")):
        while i < number and ended[i].ended_at < send.invoked_at:
            if furthest is None or ended[i].offset > furthest.offset:
                furthest = ended[i]
            i += 1
        if furthest is None or send.offset >= furthest.offset:
            continue
        if _producer(send) == _producer(furthest) and view.is_idempotent(send) and view.is_idempotent(furthest):
            continue  # reported as nonmonotonic-send
        text = (
            f"{send.process} got offset {send.offset} for {short(send.value)}, which it sent after "
            f"{furthest.process} had {furthest.offset} for {short(furthest.value)}"
        )
        findings.add("realtime-order", view.partition, text, send.offset, send.invoked_at)
