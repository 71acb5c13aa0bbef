"""Checks that every acknowledged or read record is at its offset, once, with one value, and that no other value was read."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from strandline.testing.history.operations import FAIL, Send, Value
from strandline.testing.history.verdict import Findings, short
from strandline.testing.history.view import NOTHING, View


def check_inconsistent_offsets(view: View, findings: Findings) -> None:
    find = partial(findings.add, "inconsistent-offsets", view.partition)
    read_at = view.read_at
    acked: dict[int, Send] = {}
    for send in view.promised:
        offset = send.offset
        if offset < 0:
            continue
        other = acked.setdefault(offset, send)
        if other.value != send.value:
            text = f"offset {offset} was acknowledged for {short(other.value)} and for {short(send.value)}"
            find(text, offset, send.ended_at)
        elif read_at.get(offset, send.value) != send.value:
            text = f"offset {offset} was acknowledged for {short(send.value)}, and {short(read_at[offset])} was read there"
            find(text, offset, send.ended_at)
    for fork in view.forks:
        find(f"at offset {fork.offset} were read {short(fork.before)} and {short(fork.value)}", fork.offset, fork.at)


def check_duplicates(view: View, findings: Findings) -> int:
    """Report duplicates of idempotent producers. Returns the number of values at several offsets that are permitted."""
    allowed = 0
    for value, offsets in _at_several_offsets(view).items():
        sends = view.repeated.get(value) or [send for send in (view.send_of.get(value),) if send]
        if not sends:
            continue  # it was not sent here, which is reported once, as unwritten-read
        if len(offsets) > len(sends) and all(map(view.is_idempotent, sends)):
            first, *others = sorted(offsets)
            text = f"{short(value)}, sent {_times(len(sends))}, is at offsets {first} and {', '.join(map(str, others))}"
            findings.add("duplicate", view.partition, text, others[0])
        else:
            allowed += len(sends) < len(offsets)
    return allowed


def _at_several_offsets(view: View) -> dict[Value, set[int]]:
    place_of = view.place_of
    found: dict[Value, set[int]] = {}
    for send in view.promised:
        offset = send.offset
        if offset >= 0 and place_of.get(send.value, offset) != offset:
            found.setdefault(send.value, {place_of[send.value]}).add(offset)
    if not view.all_places_differ:
        for offset, value in view.read_at.items():
            if place_of[value] != offset:
                found.setdefault(value, {place_of[value]}).add(offset)
    return found


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def check_lost_writes(view: View, findings: Findings) -> int:
    """Report lost acknowledged records. Returns the number of acknowledged records that are missing and permitted to be."""
    if view.final_at is None:
        for send in _unread_below_what_was_read(view):
            text = f"{short(send.value)}, acknowledged at {send.offset}, was never read, and offset {view.highest_read} was"
            findings.add("lost-write", view.partition, text, send.offset, send.ended_at)
    else:
        for send in _missing_in_the_final_read(view):
            text = f"{short(send.value)}, acknowledged at {send.offset}, is not in the final read"
            findings.add("lost-write", view.partition, text, send.offset, send.ended_at)
        _check_what_was_read_once(view, findings)
    if view.final_at is None or not view.unpromised:
        return 0
    return sum(send.value not in view.final_values for send in view.unpromised)


def _unread_below_what_was_read(view: View) -> Iterable[Send]:
    lowest, highest, place_of, excused = view.lowest_expected, view.highest_read, view.place_of, view.excused_reads
    for send in view.promised:
        is_unread = send.value not in place_of and send.value not in excused
        if lowest <= send.offset <= highest and is_unread and not view.may_lack(send.offset):
            yield send


def _missing_in_the_final_read(view: View) -> Iterable[Send]:
    final_at = view.final_at
    assert final_at is not None
    for send in view.promised:
        offset = send.offset
        if offset >= 0 and final_at.get(offset, NOTHING) == send.value:
            continue
        may_be_deleted = max(offset, 0) < view.log_start  # a send without an offset may be at any offset
        if view.removable is not None:
            may_be_deleted |= view.may_lack(offset) if offset >= 0 else view.removable.may_lack_unplaced(send)
        # Each of several sends of a value has its own copy: the copy of another send is no substitute.
        is_elsewhere = send.value in view.final_values and not (offset >= 0 and send.value in view.repeated)
        if not may_be_deleted and not is_elsewhere:
            yield send


def _check_what_was_read_once(view: View, findings: Findings) -> None:
    """The final read must show every record that was read before: it was committed, even if its producer got an error."""
    assert view.final_at is not None
    gone = view.read_at.keys() - view.final_at.keys()
    if not gone:
        return
    told = {send.value for send in view.promised}
    for offset in sorted(gone):
        value = view.read_at[offset]
        if view.excuses.hidden(offset) or value in told or value in view.final_values:
            continue
        if offset in view.followers_only:
            text = f"{short(value)}, which a follower showed at {offset}, is not in the final read"
            findings.add("follower-read-subset", view.partition, text, offset)
        else:
            text = f"{short(value)}, read at {offset}, is gone from the final read"
            findings.add("lost-write", view.partition, text, offset)


def check_reads_of_nothing(view: View, findings: Findings) -> None:
    read = view.place_of if not view.excused_reads else {**view.excused_reads, **view.place_of}
    # Set differences run in C and are empty in a good history. Sorted, because sets have no defined order.
    for value in sorted(read.keys() - view.send_of.keys(), key=read.__getitem__):
        _judge_foreign(view, findings, value, read[value])
    failed = {send.value for send in view.sends if send.outcome == FAIL}
    for value in sorted(failed & read.keys(), key=read.__getitem__):
        if view.send_of[value].outcome == FAIL:
            _aborted(view, findings, value, read[value])


def _judge_foreign(view: View, findings: Findings, value: Value, offset: int) -> None:
    """Report a value that was not sent to this partition, unless its send has an unknown partition: if the producer chooses the
    partition, only the acknowledgement names it."""
    send = view.find_send(value)
    if send is not None and send.partition is None:
        if send.outcome == FAIL:
            _aborted(view, findings, value, offset)
        return
    where = "nobody sent it" if send is None else "it was sent to another partition"
    findings.add("unwritten-read", view.partition, f"{short(value)} was read at {offset}, and {where}", offset)


def _aborted(view: View, findings: Findings, value: Value, offset: int) -> None:
    findings.add("aborted-read", view.partition, f"{short(value)} was read at {offset}, and its send had failed", offset)
