"""The marks of consumer groups: what coordinators and members must have gone through."""

from __future__ import annotations

from typing import Any

from strandline.broker.groups.coordinator import GroupCoordinator
from strandline.broker.groups.records.types import MemberState
from strandline.protocol.errors import ErrorCode
from strandline.storage.log.appending import UnexpectedLogEnd
from strandline.testing.simulation.observation.mark import RARE, SWEEP, Mark, refused
from strandline.testing.simulation.observation.watching import Called, OnCall, said

C = ErrorCode


def _advances_to(state: MemberState) -> OnCall:
    """A member takes a step of a rebalance, and is in this state then."""
    return OnCall(_CONSUMER + "ConsumerProtocol.advance", lambda call: call.result[0].state is state)


def _is_of_older_epoch(group: Any, member_id: str, instance_id: Any, epoch: int, *_: Any) -> bool:
    member = group.members.get(member_id)
    return member is not None and 0 <= epoch < member.epoch


def _commits(code: int) -> OnCall:
    """A member's commit in an older epoch than its present one gets this answer for a partition."""
    return OnCall(
        "broker.groups.consumer.group:ConsumerGroup.check_offset_commit",
        lambda call: call.before and code in call.result,
        _is_of_older_epoch,
    )


def _repeats_epoch(call: Called) -> bool:
    member, body = call.args
    return body.member_epoch not in (0, member.current.member_epoch)


def _logged(event: str, meaning: str, reach: str = SWEEP) -> Mark:
    return Mark(meaning, (said(f"consumer.{event}"),), reach)


def _refused(*codes: int) -> OnCall:
    """The broker that received a request about a group rejected it with one of these errors."""
    return OnCall(
        "broker.coordination.coordinator:Coordinator.shard_of",
        lambda call: isinstance(call.me, GroupCoordinator) and call.code in codes,
        raised=True,
    )


_REPLIES = "broker.coordination.replies:DelayedReplies."
_CONSUMER = "broker.groups.consumer.protocol:"

GROUP_MARKS: dict[str, Mark] = {
    # The coordinator
    "group.loaded": Mark("a new coordinator loaded groups from its log", (said("groups.loaded"),)),
    "group.load_overtaken": Mark(
        "a load was dropped, because the leadership had ended", (OnCall("broker.coordination.loader:ShardLoader.cancel"),), RARE
    ),
    "group.load_awaited": Mark(
        "a request arrived before its group was loaded",
        (_refused(C.COORDINATOR_LOAD_IN_PROGRESS),),
        RARE,
    ),
    "group.not_coordinator": Mark(
        "a request arrived at a broker that does not coordinate its group",
        (_refused(C.NOT_COORDINATOR),),
    ),
    "group.reply_waited": Mark("a reply waited until its records were committed", (OnCall(_REPLIES + "on_complete"),)),
    "group.reply_failed": Mark("the leadership ended while a reply waited", (OnCall(_REPLIES + "on_failed"),)),
    "group.reply_timed_out": Mark("a reply was not committed in time", (OnCall(_REPLIES + "on_expiration"),)),
    "group.read_waited": Mark(
        "a response with committed offsets waited until a new coordinator's high watermark showed which are committed",
        (
            OnCall(
                "broker.coordination.coordinator:Coordinator.read_committed",
                lambda call: call.before,
                lambda me, active, *_: active.partition.log.high_watermark < active.loaded_end,
            ),
        ),
        RARE,
    ),
    "group.append_refused": Mark("a decision could not be appended", (said("groups.append_failed"),)),
    "group.deleted": Mark("a group was deleted on request", (OnCall("broker.groups.shard:GroupShard.delete_group"),)),
    "group.late_request": Mark(
        "a member's request arrived on a connection that the member had abandoned",
        (refused("broker.groups.member_connections:MemberConnections.check", C.NOT_COORDINATOR),),
        RARE,
    ),
    # Offsets
    "offsets.expired": Mark(
        "offsets expired", (OnCall("broker.groups.offsets:OffsetStore.expire", lambda call: call.result.records),)
    ),
    "offsets.topic_deleted": Mark(
        "the offsets of a deleted topic were deleted",
        (OnCall("broker.groups.offsets:OffsetStore.delete_topics", lambda call: call.result.records),),
    ),
    "offsets.of_older_epoch": Mark(
        "a commit of an older member epoch was accepted, because the member still owned the partition", (_commits(C.NONE),), RARE
    ),
    "offsets.stale": Mark(
        "a commit of an older member epoch was refused, because the member no longer owned the partition",
        (_commits(C.STALE_MEMBER_EPOCH),),
        RARE,
    ),
    "offsets.of_stranger": Mark(
        "a commit of a member that the group does not have was refused",
        (refused("broker.groups.consumer.group:ConsumerGroup.check_offset_commit", C.UNKNOWN_MEMBER_ID),),
    ),
    # Groups of the newer protocol
    "group.member_revoking": Mark(
        "a member got a smaller assignment, and kept its epoch until it had revoked the rest",
        (_advances_to(MemberState.UNREVOKED_PARTITIONS),),
    ),
    "group.member_waiting": Mark(
        "a member waited for partitions that other members had not given up yet",
        (_advances_to(MemberState.UNRELEASED_PARTITIONS),),
    ),
    "group.member_expired": Mark(
        "a member was removed because its session or its rebalance timeout had ended",
        (OnCall(_CONSUMER + "ConsumerProtocol.remove_expired", lambda call: call.result is not None),),
    ),
    "group.connection_lost": Mark(
        "a member's connection broke, and its session was shortened",
        (OnCall(_CONSUMER + "ConsumerProtocol.on_connection_lost"),),
    ),
    "group.response_lost": Mark(
        "a member that had lost a response sent its previous epoch again, which was accepted",
        (OnCall("broker.groups.consumer.membership:check_epoch", _repeats_epoch),),
        RARE,
    ),
    "group.member_fenced": Mark(
        "a member was fenced, because it had another epoch",
        (refused("broker.groups.consumer.membership:check_epoch", C.FENCED_MEMBER_EPOCH),),
        RARE,
    ),
    "group.static_returned": Mark(
        "a static member returned in a new process and got its partitions back",
        (OnCall("broker.groups.consumer.draft:Draft.replace"),),
        RARE,
    ),
    "group.static_refused": Mark(
        "a second process with the instance id of a member was refused",
        (refused(_CONSUMER + "ConsumerProtocol.heartbeat", C.UNRELEASED_INSTANCE_ID),),
    ),
    "group.pattern_matched": Mark(
        "the topics of a pattern were looked up", (OnCall("broker.groups.consumer.draft:Draft.put_regex"),)
    ),
    "group.configured": Mark("a group got settings of its own while its brokers ran", (said("group.config_changed"),)),
    "group.out_of_bounds": Mark(
        "a broker acted on the nearest value that the bounds of its file allow", (said("group.config_adjusted"),), RARE
    ),
    # Groups of the classic protocol, and migration
    "group.classic_rebalanced": Mark(
        "a classic group began a generation", (OnCall("broker.groups.classic.group:ClassicGroup.begin_generation"),)
    ),
    "group.classic_generation_refused": Mark(
        "a request of another generation was refused",
        (refused("broker.groups.classic.group:ClassicGroup.check_generation", C.ILLEGAL_GENERATION),),
        RARE,
    ),
    "group.classic_static_returned": Mark(
        "a static member of a classic group returned without a rebalance",
        (
            OnCall(
                "broker.groups.classic.protocol:ClassicProtocol.join",
                lambda call: call.args[1].group_instance_id and call.result.records and call.before,
                lambda me, body, *_, **__: not body.member_id,
            ),
        ),
        RARE,
    ),
    "group.upgraded": Mark(
        "a classic group with members became one of the newer protocol",
        (OnCall("broker.groups.migration.conversions:Conversions.upgrade"),),
        RARE,
    ),
    "group.downgraded": Mark(
        "a group of the newer protocol became a classic one, because all members left speak that protocol",
        (OnCall("broker.groups.migration.conversions:Conversions.downgrade", lambda call: call.result is not None),),
        RARE,
    ),
    # Members
    "member.assigned": _logged("partitions_assigned", "a consumer got partitions"),
    "member.revoked": _logged("partitions_revoked", "a consumer gave up partitions in order"),
    "member.lost": _logged("partitions_lost", "a consumer lost its partitions"),
    "member.suspended": _logged("reading_suspended", "a consumer returned no more records, because its membership was in doubt"),
    "member.resumed": _logged("reading_resumed", "a consumer's membership was confirmed again"),
    "member.idle": _logged("poll_interval_exceeded", "a consumer left its group, because the program asked for no records"),
    "member.cut_off": _logged(
        "revocation_cut_off", "a revocation did not wait longer for the program to finish its records", RARE
    ),
    "member.callback_cut_off": _logged("callback_cut_off", "a callback of a rebalance took too long"),
    "member.commit_failed": _logged("commit_failed", "an automatic commit failed"),
    # Conditional appends
    "produce.offset_conflict": Mark(
        "a conditional append was rejected, because the log ended elsewhere",
        (OnCall("storage.log.log:Log.append_as_leader", lambda call: isinstance(call.error, UnexpectedLogEnd), raised=True),),
    ),
}
"""The marks of consumer groups, by name, in the order of the report."""
