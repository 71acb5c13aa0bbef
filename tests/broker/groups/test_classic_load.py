"""The durable state of a group of the classic protocol: replay, other coordinators, and appends that fail."""

from __future__ import annotations

import pytest
from classic_world import GROUP, START_MS, ClassicWorld, RecordedAsker, check, subscription

from strandline.broker.groups.classic.group import GENERATION_MAX, State
from strandline.broker.groups.records.types import ClassicGroupValue, ClassicMemberValue, GroupMetadataRecord
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.groups import SyncGroupAssignment, SyncGroupRequest


def _member(name: str, instance_id: str | None = None, rebalance_timeout_ms: int = 9_000) -> ClassicMemberValue:
    return ClassicMemberValue(
        name, instance_id, f"client-{name}", f"/host-{name}", rebalance_timeout_ms, 7_000, subscription("orders"), b"a"
    )


def _record(
    *members: ClassicMemberValue, generation: int = 3, protocol: str | None = "range", leader: str | None = None
) -> GroupMetadataRecord:
    """A group's record. The first member leads, unless another one is named."""
    leader = leader or (members[0].member_id if members else None)
    return GroupMetadataRecord(GROUP, ClassicGroupValue("consumer", generation, protocol, leader, 5, members))


# -- replay -----------------------------------------------------------------------------------------------------------


def test_a_record_is_a_stable_group() -> None:
    world = ClassicWorld(log=[_record(_member("A", "i"), _member("B"))])
    group = world.group
    assert (group.state, group.generation, group.protocol_type, group.protocol) == (State.STABLE, 3, "consumer", "range")
    assert (group.leader, list(group.members), group.static_members) == ("A", ["A", "B"], {"i": "A"})
    member = group.members["B"]
    assert (member.client_id, member.client_host) == ("client-B", "/host-B")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (9_000, 7_000)
    assert (member.protocols, member.assignment) == ({"range": subscription("orders")}, b"a")
    assert group.state_since_ms == 5


def test_a_record_without_members_is_an_empty_group() -> None:
    world = ClassicWorld(log=[_record(_member("A")), _record(generation=4, protocol=None)])
    assert (world.group.state, world.group.generation, world.group.members) == (State.EMPTY, 4, {})
    assert (world.group.protocol_type, world.group.empty_since_ms) == ("consumer", 5)


def test_the_rebalance_timeout_of_old_records_is_the_session_timeout() -> None:
    world = ClassicWorld(log=[_record(_member("A", rebalance_timeout_ms=-1))])
    assert world.group.members["A"].rebalance_timeout_ms == 7_000


def test_the_newest_record_counts() -> None:
    """The static members and the supported protocols follow from it, too."""
    world = ClassicWorld(log=[_record(_member("A", "i"), _member("B")), _record(_member("B", "i"), generation=4)])
    assert (list(world.group.members), world.group.static_members) == (["B"], {"i": "B"})
    assert world.group.supports("consumer", {"range": b""})


def test_a_tombstone_removes_the_group() -> None:
    world = ClassicWorld(log=[_record(_member("A")), GroupMetadataRecord(GROUP, None)])
    assert len(world.groups) == 0


def test_a_tombstone_for_no_group_is_ignored() -> None:
    """Compaction removes the record before the tombstone (KAFKA-17306)."""
    world = ClassicWorld(log=[GroupMetadataRecord(GROUP, None)])
    assert len(world.groups) == 0


def test_a_tombstone_of_a_classic_group_leaves_one_of_the_newer_protocol() -> None:
    """After a migration and compaction, the tombstone may follow the records of the group that took over the id."""

    class OtherGroup:
        group_id = GROUP

    world, other = ClassicWorld(), OtherGroup()
    world.groups.put(other)  # type: ignore[arg-type]
    world.classic.replay(GroupMetadataRecord(GROUP, None))
    assert world.groups.get(GROUP) is other  # type: ignore[comparison-overlap]


def test_a_leader_that_is_no_member_is_replaced() -> None:
    world = ClassicWorld(log=[_record(_member("A"), leader="gone")])
    assert world.group.leader == "A"


# -- another coordinator ----------------------------------------------------------------------------------------------


def test_a_stable_group_does_not_notice() -> None:
    """The new coordinator begins a new session for each member, because none could send it a heartbeat before."""
    check("""
        > A B are stable session=10
        > 9 s pass
        > the coordinator moves
        > 9 s pass
        > A beats
          A: ok
        > A commits
          A: ok
        > B syncs
          B: assigned b
        > 1 s pass
        > group
          PreparingRebalance, generation 1, leader A, members A
    """)


def test_joins_that_wait_are_refused_and_the_group_begins_anew() -> None:
    check("""
        > A B are stable
        > B rejoins topics=payments
        > the coordinator moves
          B: NOT_COORDINATOR
        > group
          Stable, generation 1, leader A, members A B
        > B rejoins
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_a_generation_without_assignment_never_was() -> None:
    """The next coordinator gives the number to another generation. No member of the first one can have an assignment from it."""
    check("""
        > A B are stable
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > B syncs
        > the coordinator moves
          B: NOT_COORDINATOR
        > A syncs A=a B=b
          A: ILLEGAL_GENERATION
        > A beats
          A: ILLEGAL_GENERATION
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_ids_that_were_given_out_are_forgotten() -> None:
    check("""
        > A joins
          log: generation 0, empty
          A: MEMBER_ID_REQUIRED A
        > the coordinator moves
        > A joins
          A: UNKNOWN_MEMBER_ID
        > A enters
        > 3 s pass
          A: generation 1, range, leader A', members A'
    """)


def test_a_member_of_a_first_rebalance_begins_anew() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > the coordinator moves
          A: NOT_COORDINATOR
        > A joins
          A: UNKNOWN_MEMBER_ID
    """)


def test_a_member_may_join_with_more_protocols_after_a_load() -> None:
    """The record has only the chosen protocol. The coordinator learns the others when members join again."""
    check("""
        > A B are stable protocols=range,sticky
        > the coordinator moves
        > B rejoins protocols=sticky
          B: INCONSISTENT_GROUP_PROTOCOL
        > B rejoins protocols=sticky,range
        > A rejoins protocols=sticky,range
          A: generation 2, sticky, leader A, members A B
          B: generation 2, sticky, leader A
    """)


def test_waiting_requests_are_taken_once() -> None:
    world = check("""
        > A B are stable
        > B rejoins topics=payments
    """)
    assert [asker.name for asker in world.classic.take_waiting()] == ["B"]  # type: ignore[attr-defined]
    assert world.classic.take_waiting() == []


# -- appends that fail ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["A joins", "A joins old", "A joins instance=i"])
def test_a_coordinator_that_cannot_write_refuses_the_first_member_of_a_group(step: str) -> None:
    """It refuses the first join at once, not after the rebalance, and keeps nothing of the group."""
    world = check(f"""
        > appends fail: COORDINATOR_NOT_AVAILABLE
        > {step}
          A: COORDINATOR_NOT_AVAILABLE
        > group
          none
    """)
    assert len(world.deadlines) == 0


def test_an_assignment_that_cannot_be_written_is_given_to_no_member() -> None:
    """All waiting members get the error, and the group rebalances again: the next coordinator would not find the assignment."""
    check("""
        > A B are stable
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > B syncs
        > appends fail: NOT_COORDINATOR
        > A syncs A=x B=y
          B: NOT_COORDINATOR
          A: NOT_COORDINATOR
        > group
          PreparingRebalance, generation 2, leader A, members A B
        > durable group
          Stable, generation 1, leader A, members A B
        > appends succeed
        > B syncs
          B: REBALANCE_IN_PROGRESS
        > A rejoins
        > B rejoins
          A: generation 3, range, leader A, members A B
          B: generation 3, range, leader A
        > A syncs A=x B=y
          log: generation 3, range, leader A: A=x B=y
          A: assigned x
    """)


def test_members_of_a_failed_assignment_have_a_session() -> None:
    """Members that do not join again are removed when their sessions end."""
    check("""
        > A enters session=10 rebalance=60
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > appends fail: NOT_COORDINATOR
        > A syncs A=x
          A: NOT_COORDINATOR
        > appends succeed
        > 9.9 s pass
        > 0.1 s pass
          log: generation 2, empty
    """)


def test_a_group_is_empty_although_that_cannot_be_written() -> None:
    """The member has left, but a new coordinator finds it in the log, and removes it when its session ends."""
    check("""
        > A are stable session=10
        > appends fail: COORDINATOR_NOT_AVAILABLE
        > A leaves
          A: COORDINATOR_NOT_AVAILABLE
        > group
          Empty, generation 2
        > appends succeed
        > durable group
          Stable, generation 1, leader A, members A
        > A leaves
          A: left A UNKNOWN_MEMBER_ID
        > B enters
        > 3 s pass
          B: generation 3, range, leader B, members B
        > the coordinator moves
        > 10 s pass
          log: generation 2, empty
    """)


def test_a_session_ends_while_appends_fail() -> None:
    check("""
        > A are stable session=10
        > appends fail: COORDINATOR_NOT_AVAILABLE
        > 10 s pass
        > group
          Empty, generation 2
    """)


# -- the end of a group -----------------------------------------------------------------------------------------------


def test_a_deleted_group_leaves_nothing_behind() -> None:
    world = check("""
        > A are stable
        > B joins
          B: MEMBER_ID_REQUIRED B
        > A leaves
          A: left A
        > 0 s pass
          log: generation 2, empty
        > group
          Empty, generation 2, pending B
    """)
    (tombstone,) = world.group.tombstones()
    assert tombstone == GroupMetadataRecord(GROUP, None)
    assert len(world.deadlines) == 1, "the session of the id that was given out"
    world.classic.replay(tombstone)
    assert len(world.deadlines) == len(world.groups) == 0


def test_after_the_largest_generation_comes_the_first() -> None:
    """Negative generations are reserved for programs without a membership. (Kafka's generations become negative.)"""
    world = ClassicWorld(log=[_record(_member("A", rebalance_timeout_ms=1_000), generation=GENERATION_MAX)])
    world.move()
    world.advance(7)
    assert (world.group.state, world.group.generation) == (State.EMPTY, 1)


def test_the_time_of_a_state_is_the_wall_clock() -> None:
    """The offsets of an empty group expire by it."""
    world = check("""
        > A are stable
        > 5 s pass
        > A leaves
          log: generation 2, empty
          A: left A
    """)
    assert world.group.empty_since_ms == world.now_ms == START_MS + 1_008_000


# -- descriptions -----------------------------------------------------------------------------------------------------


def test_a_stable_group_is_described_with_its_protocol() -> None:
    world = check("""
        > A B are stable
    """)
    described = world.classic.describe(GROUP)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    assert [(m.member_metadata, m.member_assignment) for m in described.members] == [
        (subscription("orders"), b"a"),
        (subscription("orders"), b"b"),
    ]


def test_a_rebalancing_group_is_described_without_metadata() -> None:
    """The metadata may belong to another generation than the assignments."""
    world = check("""
        > A B are stable
        > A rejoins
    """)
    described = world.classic.describe(GROUP)
    assert (described.group_state, described.protocol_type, described.protocol_data) == (
        "PreparingRebalance",
        "consumer",
        "",
    )
    assert [m.member_metadata for m in described.members] == [b"", b""]


def test_members_keep_the_assignment_that_is_in_the_log() -> None:
    """They may work with it until they join again, cooperative ones even longer, also if the next one cannot be written."""
    world = check("""
        > A B are stable
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)
    world.append_error = ErrorCode.NOT_COORDINATOR
    a, b = world.group.members
    assignments = [SyncGroupAssignment(a, b"x"), SyncGroupAssignment(b, b"y")]
    world.request(RecordedAsker(), SyncGroupRequest(GROUP, 2, a, assignments=assignments))
    assert [m.member_assignment for m in world.classic.describe(GROUP).members] == [b"a", b"b"]


def test_a_group_that_does_not_exist_is_dead() -> None:
    described = ClassicWorld().classic.describe("other")
    assert (described.error_code, described.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")
