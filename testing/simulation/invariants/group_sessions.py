"""I50: sessions and intervals of a group are those of its configuration, within the bounds of its coordinator's file.

The settings in effect are computed here from the metadata that the broker has applied, and from its file (`in_effect`); the
product keeps a table of its own. A change of the configuration counts from the next heartbeat on, as in Kafka:

- A response to a heartbeat names the session and the interval that were in effect when the heartbeat arrived.
- A member is not removed before the end of the session that its last heartbeat began. If it has sent none to this coordinator,
  the session begins when the coordinator has loaded the group, with the length in effect then.
- It is removed when the last of the sessions that its heartbeats began has ended, if the coordinator is active.
- A heartbeat with which a member leaves begins no session and ends none. If the tombstones of the member cannot be appended, it
  is still in the group, and all that is said here holds for it: its session ends as its heartbeat before that began it, or after
  the short grace if its connection was closed.
- The time between two targets of a group is at least the shorter one of the assignment intervals in effect at each of them. (The
  first target of a group, that of a group without members, and that of a classic group that is converted do not count.)

Times are those of the coordinator's loop. I36 checks that no other member reads a partition of a member that still relies on a
longer session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from strandline.broker.groups.consumer.group import Member
from strandline.broker.groups.records.types import GroupRecord, TargetAssignmentMemberRecord, TargetAssignmentMetadataRecord
from strandline.protocol.messages.admin import RESOURCE_GROUP
from strandline.testing.simulation.invariants.session_ghosts import ENTRIES_MAX, Coordination, Session, Settings
from strandline.testing.simulation.invariants.violation import Violation

if TYPE_CHECKING:
    from strandline.testing.simulation.invariants.ghosts import Ghosts, ReplicaGhost
    from strandline.testing.simulation.invariants.group_views import GroupView

KEYS = ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms")
WAITING_MS = 500
"""The longest interval of a member that waits for partitions."""
EXACT_S = 0.005
RATE_MIN = 0.9
"""Clocks differ by up to a tenth."""
LATE_S = 1.0
"""Seconds that a removal may take, including the time-out after which a coordinator repeats one that could not be appended."""
TWICE_S = 0.1
"""A coordinator that was paused may accept a heartbeat before it sees that the session of some member has ended. So a member
counts as overdue only if a check at least this many seconds after the first one still finds it."""
LEAVES, LEAVES_FOR_A_MOMENT = -1, -2


def in_effect(ghosts: Ghosts, node: int, group: str) -> Settings:
    """The settings that a broker applies to a group."""
    server = ghosts.processes[node].server
    return settings_of(server.metadata.image.config(RESOURCE_GROUP, group), server.opened.groups.config)


def settings_of(own: Mapping[str, str], file: Any) -> Settings:
    """Settings from the group's own values and the keys in the broker's file, which bound them."""
    found = []
    for key in KEYS:
        value, name = own.get(f"consumer.{key}"), key.replace(".", "_")
        if value is None:
            found.append(getattr(file, f"group_consumer_{name}"))
        else:
            least, most = getattr(file, f"group_consumer_min_{name}"), getattr(file, f"group_consumer_max_{name}")
            found.append(min(max(int(value), least), most))
    session_ms, interval_ms, assignment_ms = found
    has_own = any(f"consumer.{key}" in own for key in KEYS)
    return Settings(session_ms, max(1, session_ms // 3) if has_own and interval_ms >= session_ms else interval_ms, assignment_ms)


# -- heartbeats -------------------------------------------------------------------------------------------------------


def on_loaded(ghosts: Ghosts, node: int, protocol: Any, groups: Any, now: float) -> None:
    """A coordinator has loaded its groups."""
    found = Coordination(node, now, {group.group_id: in_effect(ghosts, node, group.group_id) for group in groups})
    ghosts.groups.sessions.coordinations[protocol] = found


def on_heartbeat(ghosts: Ghosts, node: int, protocol: Any, groups: Any, request: Any, now: float) -> None:
    """A coordinator has accepted a heartbeat."""
    coordination = ghosts.groups.sessions.coordinations.get(protocol)
    if coordination is None:
        return
    group, key = request.group_id, (request.group_id, request.member_id)
    _check_overdue(node, coordination, groups.get(group), group, now)
    if request.member_epoch == LEAVES:
        return  # if it is still a member afterwards, the leader has refused the tombstones, and its session goes on
    coordination.cut.pop(key, None)
    settings = in_effect(ghosts, node, group)
    coordination.in_effect.setdefault(key, deque(maxlen=ENTRIES_MAX)).append((now, settings))
    end = now + settings.session_ms / 1000
    known = coordination.sessions.get(key)
    if known is None or request.member_epoch in (0, LEAVES_FOR_A_MOMENT):  # it relies on no session before this one
        longest_ms = max((session_ms for _, session_ms in ghosts.groups.sessions.sent_sessions.get(key, ())), default=0)
        last_end = end if known is not None or request.member_epoch == 0 else max(end, coordination.began_at + longest_ms / 1000)
        coordination.sessions[key] = Session(end, last_end)
    else:
        coordination.sessions[key] = Session(end, max(end, known.last_end))


def _check_overdue(node: int, coordination: Coordination, group: Any, name: str, now: float) -> None:
    """Violation if a member is still in the group although its sessions have ended and the coordinator is active."""
    members = getattr(group, "members", {})
    for key in [key for key in coordination.sessions if key[0] == name]:
        session, member = coordination.sessions[key], members.get(key[1])
        if not isinstance(member, Member) or member.is_classic:  # one of the classic protocol chooses its own session
            del coordination.sessions[key]
        elif now > session.last_end + LATE_S:
            if session.overdue_since is not None and now > session.overdue_since + TWICE_S:
                late_ms = (now - session.last_end) * 1000
                raise _violation(node, key, f"is still a member {late_ms:.0f} ms after its session has ended")
            session.overdue_since = session.overdue_since or now


def on_answer(ghosts: Ghosts, node: int, request: Any, response: Any, received_at: float) -> None:
    """A response to a heartbeat is sent. `received_at`: when the heartbeat arrived, on the clock of the broker's loop."""
    if request.member_epoch < 0:
        return
    key = (request.group_id, request.member_id)
    ghosts.groups.sessions.sent_sessions.setdefault(key, deque(maxlen=ENTRIES_MAX)).append(
        (_run_time(), response.session_timeout_ms)
    )
    lists = [c.in_effect.get(key, ()) for c in ghosts.groups.sessions.coordinations.values() if c.node == node]
    since = [each for entries in lists for each in entries if each[0] >= received_at]
    if since and not _fits(response, min(since)[1]):
        named = f"a session of {response.session_timeout_ms} ms and an interval of {response.heartbeat_interval_ms} ms"
        raise _violation(node, key, f"got {named}; {min(since)[1]} was in effect")


def _fits(response: Any, settings: Settings) -> bool:
    intervals = settings.interval_ms, min(settings.interval_ms, WAITING_MS)
    return response.session_timeout_ms == settings.session_ms and response.heartbeat_interval_ms in intervals


# -- removals ---------------------------------------------------------------------------------------------------------


def on_connection_lost(ghosts: Ghosts, protocol: Any, group: str, member_id: str) -> None:
    coordination = ghosts.groups.sessions.coordinations.get(protocol)
    if coordination is not None:
        coordination.cut[group, member_id] = None


def on_session_ended(ghosts: Ghosts, node: int, protocol: Any, group: Any, member_id: str, now: float) -> None:
    """A coordinator removes the member, because its session has ended."""
    coordination = ghosts.groups.sessions.coordinations.get(protocol)
    member = group.members.get(member_id)
    if coordination is None or member is None or member.is_classic:
        return
    key = (group.group_id, member_id)
    session = coordination.sessions.get(key)
    at_load = coordination.at_load.get(group.group_id)
    if session is not None:
        session.overdue_since = None
        session.last_end = max(session.last_end, now)  # the removal is repeated if it cannot be appended
        end = session.end
    elif at_load is not None:
        end = coordination.began_at + at_load.session_ms / 1000
    else:
        return
    if now < end - EXACT_S and key not in coordination.cut:
        raise _violation(node, key, f"is removed {(end - now) * 1000:.0f} ms before its session ends")


def relies_on_earlier_coordinator(ghosts: Ghosts, protocol: Any, group: str, member_id: str) -> bool:
    """Whether the member has sent no heartbeat to this coordinator, but relies on a session from an earlier one that has not
    ended yet. The brokers' files may differ, and a broker that has just started does not know of an earlier configuration."""
    coordination, key = ghosts.groups.sessions.coordinations.get(protocol), (group, member_id)
    if coordination is None or key in coordination.sessions:
        return False
    at = _run_time()
    return any(
        sent_at + RATE_MIN * session_ms / 1000 > at for sent_at, session_ms in ghosts.groups.sessions.sent_sessions.get(key, ())
    )


def _run_time() -> float:
    return float(getattr(asyncio._get_running_loop(), "run_time", 0.0))


def longest_sent_ms(ghosts: Ghosts, group: str, member_id: str, since: float) -> int:
    """The longest session, in milliseconds, in an answer to the member since this time on the clock of the run; 0: none."""
    sent = ghosts.groups.sessions.sent_sessions.get((group, member_id), ())
    return max((session_ms for sent_at, session_ms in sent if sent_at >= since), default=0)


def _violation(node: int, key: tuple[str, str], text: str) -> Violation:
    return Violation("I50", f"group {key[0]}: the member {key[1]} of broker {node} {text}", node=node)


# -- assignments ------------------------------------------------------------------------------------------------------


def on_appended(ghosts: Ghosts, replica: ReplicaGhost, view: GroupView, records: list[GroupRecord]) -> None:
    """A leader has appended records, and the view has applied them."""
    for record in records:
        if isinstance(record, TargetAssignmentMetadataRecord):
            _check_interval(ghosts, replica, view, record)
    for record in records:
        if isinstance(record, TargetAssignmentMemberRecord):
            targets = view.targets.setdefault(record.group_id, {})
            targets.pop(record.member_id, None)
            if record.value is not None:
                targets[record.member_id] = None


def _check_interval(ghosts: Ghosts, replica: ReplicaGhost, view: GroupView, record: TargetAssignmentMetadataRecord) -> None:
    group = record.group_id
    last = view.assigned.pop(group, None)
    if record.value is None or not record.value.assignment_timestamp or not view.members(group):
        return
    interval_ms = in_effect(ghosts, replica.node, group).assignment_ms
    view.assigned[group] = view.now, interval_ms
    if last is not None and view.targets.get(group) and view.now < last[0] + min(last[1], interval_ms) / 1000 - EXACT_S:
        text = f"broker {replica.node} computes two targets within {(view.now - last[0]) * 1000:.0f} ms"
        raise Violation("I50", f"group {group}: {text}; the intervals are {last[1]} and {interval_ms} ms", node=replica.node)
