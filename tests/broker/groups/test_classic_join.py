"""Joining a group of the classic protocol: ids, the delay of the first rebalance, its end, the limits."""

from __future__ import annotations

import pytest
from classic_world import GROUP, START_MS, ClassicWorld, RecordedAsker, check, subscription

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.records.types import ClassicGroupValue, ClassicMemberValue, GroupMetadataRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import (
    JoinGroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
)

# -- ids --------------------------------------------------------------------------------------------------------------


def test_first_join_gets_an_id_only() -> None:
    """A process whose response was lost asks again, and must not leave a member behind (KIP-394)."""
    check("""
        > A joins
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > group
          Empty, generation 0, pending A
        > A joins
        > group
          PreparingRebalance, generation 0, leader A, members A
        > 3 s pass
          A: generation 1, range, leader A, members A
    """)


def test_member_ids_begin_with_the_client_or_the_instance() -> None:
    """An operator finds the process behind a member."""
    world = ClassicWorld()
    for name, instance_id, prefix in (("client", None, "client-"), ("other", "instance", "instance-")):
        asker = RecordedAsker(name)
        world.request(asker, _join(instance_id=instance_id))
        world.advance(3)
        (answer,) = asker.answers
        assert isinstance(answer, JoinGroupResponse)
        assert answer.member_id.startswith(prefix)
        assert len(answer.member_id) == len(prefix) + 36


def test_an_old_version_joins_with_its_first_request() -> None:
    check("""
        > A joins old
          log: generation 0, empty
        > group
          PreparingRebalance, generation 0, leader ?, members ?
        > 3 s pass
          A: generation 1, range, leader A, members A
    """)


def test_a_static_member_joins_with_its_first_request() -> None:
    check("""
        > A joins instance=i
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
    """)


def test_an_id_that_was_not_used_is_forgotten_after_a_session() -> None:
    check("""
        > A joins session=10
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > 9.9 s pass
        > group
          Empty, generation 0, pending A
        > 0.1 s pass
        > group
          Empty, generation 0
        > A joins
          A: UNKNOWN_MEMBER_ID
    """)


def test_an_unknown_id_is_refused() -> None:
    """A group that does not exist refuses it, too: its coordinator may have moved, or have dropped the id."""
    check("""
        > A joins id=elsewhere
          A: UNKNOWN_MEMBER_ID
        > group
          none
        > A enters
          log: generation 0, empty
        > B joins id=elsewhere
          B: UNKNOWN_MEMBER_ID
        > 3 s pass
          A: generation 1, range, leader A, members A
        > B joins id=elsewhere
          B: UNKNOWN_MEMBER_ID
    """)


def test_an_id_that_was_given_out_is_no_static_member() -> None:
    """An id is given to dynamic members only, so a request that has both is wrong."""
    check("""
        > A joins
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > A joins instance=i
          A: UNKNOWN_MEMBER_ID
        > group
          Empty, generation 0, pending A
    """)


def test_ids_depend_on_the_random_numbers_alone() -> None:
    """A simulated run is repeated from its seed."""
    ids: list[str] = []
    for seed in (1, 1, 2):
        world = ClassicWorld(seed=seed)
        world.request(RecordedAsker("A"), _join(), requires_known_member_id=False)
        ids += world.group.members
    assert ids[0] == ids[1] != ids[2]


# -- what is refused --------------------------------------------------------------------------------------------------


def _join(
    member_id: str = "",
    *,
    instance_id: str | None = None,
    protocol_type: str = "consumer",
    names: tuple[str, ...] = ("range",),
    session_timeout_ms: int = 10_000,
    rebalance_timeout_ms: int = 60_000,
) -> JoinGroupRequest:
    protocols = [JoinGroupProtocol(name, subscription("orders")) for name in names]
    return JoinGroupRequest(GROUP, session_timeout_ms, rebalance_timeout_ms, member_id, instance_id, protocol_type, protocols)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (_join(session_timeout_ms=5_999), ErrorCode.INVALID_SESSION_TIMEOUT),
        (_join(session_timeout_ms=1_800_001), ErrorCode.INVALID_SESSION_TIMEOUT),
        (_join(protocol_type=""), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (_join(names=()), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (_join(protocol_type="", instance_id="i"), ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        (_join("m"), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_join_that_is_refused_creates_no_group(body: JoinGroupRequest, code: ErrorCode) -> None:
    world, asker = ClassicWorld(), RecordedAsker("A")
    world.request(asker, body)
    assert asker.answers == [code]
    assert len(world.groups) == len(world.log) == len(world.deadlines) == 0


@pytest.mark.parametrize("session_timeout_ms", [6_000, 1_800_000])
def test_the_limits_of_session_timeouts_are_allowed(session_timeout_ms: int) -> None:
    world, asker = ClassicWorld(), RecordedAsker("A")
    world.request(asker, _join(session_timeout_ms=session_timeout_ms))
    (answer,) = asker.answers
    assert isinstance(answer, JoinGroupResponse)
    assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_negative_rebalance_timeout_means_the_session_timeout() -> None:
    """Requests of version 0 have no rebalance timeout."""
    world = ClassicWorld()
    world.request(RecordedAsker("A"), _join(rebalance_timeout_ms=-1), requires_known_member_id=False)
    (member,) = world.group.members.values()
    assert member.rebalance_timeout_ms == 10_000


def test_a_group_has_one_type_of_protocol() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B joins type=connect
          B: INCONSISTENT_GROUP_PROTOCOL
        > B joins type=connect instance=i
          B: INCONSISTENT_GROUP_PROTOCOL
    """)


def test_members_share_a_protocol() -> None:
    check("""
        > A enters protocols=range
          log: generation 0, empty
        > B joins protocols=sticky
          B: INCONSISTENT_GROUP_PROTOCOL
        > C enters protocols=sticky,range
        > 6 s pass
          A: generation 1, range, leader A, members A C
          C: generation 1, range, leader A
    """)


def test_an_id_survives_a_join_without_protocols() -> None:
    """The member corrects itself, and joins with the id that it has."""
    check("""
        > A joins
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > A joins protocols=
          A: INCONSISTENT_GROUP_PROTOCOL
        > A joins protocols=range
        > 3 s pass
          A: generation 1, range, leader A, members A
    """)


def test_an_empty_group_may_change_its_type() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A leaves
          log: generation 2, empty
          A: left A
        > B enters type=connect protocols=compatible
        > 3 s pass
          B: generation 3, compatible, leader B, members B
    """)


def test_of_two_protocols_with_one_name_the_first_counts() -> None:
    world, asker = ClassicWorld(), RecordedAsker("A")
    body = _join(names=("range", "sticky", "range"))
    body.protocols[2].metadata = b"second"
    world.request(asker, body, requires_known_member_id=False)
    (member,) = world.group.members.values()
    assert member.protocols == {"range": subscription("orders"), "sticky": subscription("orders")}
    world.advance(3)
    world.group.remove(member.member_id)
    assert not world.group.supports("consumer", {}), "each name was counted once"


def test_metadata_of_other_protocol_types_is_passed_on_unchanged() -> None:
    """Kafka Connect and schema registries use formats of their own for the metadata and the assignment."""
    check("""
        > A enters type=connect protocols=sessioned,compatible
          log: generation 0, empty
        > B enters type=connect protocols=sessioned,compatible
        > 6 s pass
          A: generation 1, sessioned, leader A, members A B
          B: generation 1, sessioned, leader A
        > A syncs A=tasks B=more
          log: generation 1, sessioned, leader A: A=tasks B=more
          A: assigned tasks
        > B syncs
          B: assigned more
        > B leaves
          B: left B
        > A beats
          A: REBALANCE_IN_PROGRESS
        > A rejoins
          A: generation 2, sessioned, leader A, members A
    """)


# -- the first rebalance ----------------------------------------------------------------------------------------------


def test_first_rebalance_waits_for_its_delay() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > 2.9 s pass
        > 0.1 s pass
          A: generation 1, range, leader A, members A
    """)


def test_a_newcomer_extends_the_delay() -> None:
    """The members of an application start one after the other, and each that joins too late causes another rebalance."""
    check("""
        > A enters
          log: generation 0, empty
        > 2 s pass
        > B enters
        > 3.9 s pass
        > 0.1 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
    """)


def test_the_delay_ends_with_the_rebalance_timeout_of_the_first_member() -> None:
    check("""
        > A enters rebalance=7
          log: generation 0, empty
        > 2 s pass
        > B enters
        > 3 s pass
        > C enters
        > 1.9 s pass
        > D enters
        > 0.1 s pass
          A: generation 1, range, leader A, members A B C D
          B: generation 1, range, leader A
          C: generation 1, range, leader A
          D: generation 1, range, leader A
    """)


def test_a_rebalance_timeout_that_is_shorter_than_the_delay_does_not_shorten_it() -> None:
    check("""
        > A enters rebalance=1
          log: generation 0, empty
        > B enters
        > 2.9 s pass
        > 0.1 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
    """)


def test_without_a_delay_the_first_rebalance_ends_with_the_next_deadline() -> None:
    check(
        """
        > A enters
          log: generation 0, empty
        > 0 s pass
          A: generation 1, range, leader A, members A
        """,
        group_initial_rebalance_delay_ms=0,
    )


def test_first_rebalance_ends_at_once_if_all_leave() -> None:
    """Another process starts its own first rebalance then, with its own delay."""
    check("""
        > A enters
          log: generation 0, empty
        > 1 s pass
        > A leaves
          log: generation 1, empty
          A: UNKNOWN_MEMBER_ID
          A: left A
        > B enters
        > 2.9 s pass
        > 0.1 s pass
          B: generation 2, range, leader B, members B
    """)


def test_a_later_rebalance_has_no_delay() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > B enters
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


# -- the end of the first phase ---------------------------------------------------------------------------------------


def test_the_rebalance_waits_for_the_slowest_member() -> None:
    check("""
        > A enters rebalance=20 session=300
          log: generation 0, empty
        > B enters rebalance=90 session=300
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > C enters rebalance=10
        > A rejoins
        > 89.9 s pass
        > 0.1 s pass
          A: generation 2, range, leader A, members A C
          C: generation 2, range, leader A
    """)


def test_a_member_that_does_not_join_is_removed() -> None:
    check("""
        > A enters rebalance=20 session=300
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > B enters rebalance=20
        > 20 s pass
          B: generation 2, range, leader B, members B
        > A beats
          A: UNKNOWN_MEMBER_ID
    """)


def test_first_member_to_join_leads_if_the_leader_does_not_join() -> None:
    check("""
        > A enters session=300
          log: generation 0, empty
        > B enters session=300
        > C enters session=300
        > 6 s pass
          A: generation 1, range, leader A, members A B C
          B: generation 1, range, leader A
          C: generation 1, range, leader A
        > D enters
        > C rejoins
        > B rejoins
        > 60 s pass
          B: generation 2, range, leader B, members B C D
          C: generation 2, range, leader B
          D: generation 2, range, leader B
    """)


def test_the_rebalance_waits_for_ids_that_were_given_out() -> None:
    """Otherwise a process that is about to send its second JoinGroup would cause another rebalance."""
    check("""
        > A are stable
        > B joins
          B: MEMBER_ID_REQUIRED B
        > A rejoins
        > group
          PreparingRebalance, generation 1, leader A, members A, pending B
        > B joins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_the_rebalance_ends_when_an_id_that_was_given_out_expires() -> None:
    check("""
        > A are stable session=30
        > B joins session=10
          B: MEMBER_ID_REQUIRED B
        > A rejoins
        > 9.9 s pass
        > 0.1 s pass
          A: generation 2, range, leader A, members A
    """)


def test_the_rebalance_timeout_holds_for_ids_that_were_given_out() -> None:
    check("""
        > A are stable session=300 rebalance=20
        > B joins session=300
          B: MEMBER_ID_REQUIRED B
        > A rejoins
        > 20 s pass
          A: generation 2, range, leader A, members A
        > group
          CompletingRebalance, generation 2, leader A, members A, pending B
    """)


def test_a_new_member_waits_for_five_minutes_at_most() -> None:
    """It cannot send heartbeats, and the broker reads nothing from the connection of a waiting request, so it cannot detect a
    lost one. Without the limit, a process that dies and restarts would leave one member behind each time."""
    check("""
        > A enters session=1000 rebalance=1000
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > B enters session=10 rebalance=10
        > 299.9 s pass
        > 0.1 s pass
          B: UNKNOWN_MEMBER_ID
        > group
          PreparingRebalance, generation 1, leader A, members A
    """)


def test_after_the_first_join_a_member_has_a_session_like_any_other() -> None:
    check("""
        > A enters session=10
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A syncs A=a
          log: generation 1, range, leader A: A=a
          A: assigned a
        > 9.9 s pass
        > 0.1 s pass
          log: generation 2, empty
    """)


def test_a_member_that_waits_need_not_send_heartbeats() -> None:
    check("""
        > A enters session=10
          log: generation 0, empty
        > B enters session=10
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > A rejoins session=10
          A: generation 1, range, leader A, members A B
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          A: assigned a
        > B syncs
          B: assigned b
        > A rejoins
        > 8 s pass
        > B beats
          B: REBALANCE_IN_PROGRESS
        > 8 s pass
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > 9.9 s pass
        > group
          CompletingRebalance, generation 2, leader A, members A B
        > 0.1 s pass
          log: generation 3, empty
    """)


def test_a_rebalance_timeout_of_zero_does_not_keep_the_coordinator_busy() -> None:
    """A phase in which no member has joined is extended by at least one second. Otherwise a deadline would set the next one to
    the same moment, without end."""
    members = tuple(ClassicMemberValue(name, name, "c", "h", 0, 10_000, subscription("orders"), b"") for name in ("A", "B"))
    value = ClassicGroupValue("consumer", 1, "range", "A", START_MS, members)
    world = ClassicWorld(log=[GroupMetadataRecord(GROUP, value)])
    world.move()
    world.request(RecordedAsker(), LeaveGroupRequest(GROUP, [LeavingMember("B")]))
    world.advance(0)
    assert world.group.state_name == "PreparingRebalance"
    assert world.deadlines.due_at(("classic join", GROUP)) == world.now + 1
    world.advance(10)
    assert world.group.is_empty


# -- joining again ----------------------------------------------------------------------------------------------------


def test_a_member_whose_response_was_lost_gets_it_again() -> None:
    """aiokafka#847: a member that joins again in its current generation does not disturb the others."""
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B rejoins
          B: generation 1, range, leader A
        > A rejoins
          A: generation 1, range, leader A, members A B
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          A: assigned a
        > B rejoins
          B: generation 1, range, leader A
        > B syncs
          B: assigned b
    """)


def test_the_earlier_join_of_a_member_is_answered_when_it_joins_again() -> None:
    """Each request gets one answer: the client may still be waiting on the first connection."""
    check("""
        > A enters session=60
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > B enters
        > B rejoins
          B: REBALANCE_IN_PROGRESS
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_a_stable_group_rebalances_if_its_leader_joins() -> None:
    """A leader joins again when one of its topics has more partitions, which no member's request says."""
    check("""
        > A enters
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A syncs A=a
          log: generation 1, range, leader A: A=a
          A: assigned a
        > A rejoins
          A: generation 2, range, leader A, members A
    """)


@pytest.mark.parametrize("news", ["topics=payments", "protocols=range,sticky"])
def test_a_stable_group_rebalances_if_a_member_has_news(news: str) -> None:
    check(f"""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          A: assigned a
        > B rejoins {news}
        > group
          PreparingRebalance, generation 1, leader A, members A B
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_news_before_the_assignment_begin_another_rebalance() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > A rejoins topics=payments
          B: REBALANCE_IN_PROGRESS
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_another_order_of_protocols_is_news() -> None:
    """The order of the protocols is the member's vote."""
    check("""
        > A enters protocols=range,sticky
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A rejoins protocols=sticky,range
          A: generation 2, sticky, leader A, members A
    """)


def test_a_member_of_an_earlier_generation_of_an_empty_group_begins_anew() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > 10 s pass
          log: generation 2, empty
        > A rejoins
          A: UNKNOWN_MEMBER_ID
        > A enters
        > 3 s pass
          A: generation 3, range, leader A', members A'
    """)


# -- the size of a group ----------------------------------------------------------------------------------------------


def test_a_full_group_takes_no_more_members() -> None:
    check(
        """
        > A enters
          log: generation 0, empty
        > B enters
        > C enters
          C: GROUP_MAX_SIZE_REACHED
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > C enters
          C: GROUP_MAX_SIZE_REACHED
        > A rejoins
          A: generation 1, range, leader A, members A B
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          A: assigned a
        > C enters
          C: GROUP_MAX_SIZE_REACHED
        > group
          Stable, generation 1, leader A, members A B
        """,
        group_max_size=2,
    )


def test_ids_are_given_out_while_the_group_is_empty() -> None:
    """The group may give out more ids than it has room for: the limit counts when they join."""
    check(
        """
        > A joins
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > B joins
          B: MEMBER_ID_REQUIRED B
        > A joins
        > B joins
          B: GROUP_MAX_SIZE_REACHED
        > B joins
          B: GROUP_MAX_SIZE_REACHED
        > 3 s pass
          A: generation 1, range, leader A, members A
        """,
        group_max_size=1,
    )


def test_members_of_a_full_group_join_again() -> None:
    check(
        """
        > A enters
          log: generation 0, empty
        > B enters
        > A rejoins
          A: REBALANCE_IN_PROGRESS
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        """,
        group_max_size=2,
    )


def test_a_static_member_returns_to_a_full_group() -> None:
    """It takes the place of its earlier self, so the group does not grow. (Kafka refuses it.)"""
    check(
        """
        > A joins instance=i
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A syncs A=a
          log: generation 1, range, leader A: A=a
          A: assigned a
        > A joins id=none
          log: generation 1, range, leader A': A'=a
          A: generation 1, range, leader A', members A', skip the assignment
        > B joins instance=j
          B: GROUP_MAX_SIZE_REACHED
        """,
        group_max_size=1,
    )


def test_the_last_members_to_join_are_left_out_of_a_group_that_is_too_large() -> None:
    """The limit was lowered. The rebalance does not wait for members that no longer fit."""
    world = check("""
        > A enters
          log: generation 0, empty
        > B enters
        > C enters
        > 6 s pass
          A: generation 1, range, leader A, members A B C
          B: generation 1, range, leader A
          C: generation 1, range, leader A
        > A syncs A=a B=b C=c
          log: generation 1, range, leader A: A=a B=b C=c
          A: assigned a
    """)
    a, b, c = list(world.group.members)
    smaller = ClassicWorld(GroupConfig(group_max_size=2), log=world.log)
    smaller.move()
    assert smaller.group.state_name == "PreparingRebalance"
    askers = {member_id: RecordedAsker(member_id) for member_id in (c, a, b)}
    for member_id, asker in askers.items():
        smaller.request(asker, _join(member_id))
    assert askers[b].answers == [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert list(smaller.group.members) == [a, c]
    assert [type(answer) for m in (a, c) for answer in askers[m].answers] == [JoinGroupResponse, JoinGroupResponse]


def test_a_group_that_is_not_too_large_goes_on_after_a_load() -> None:
    check(
        """
        > A enters
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A syncs A=a
          log: generation 1, range, leader A: A=a
          A: assigned a
        > the coordinator moves
        > group
          Stable, generation 1, leader A, members A
        """,
        group_max_size=1,
    )
