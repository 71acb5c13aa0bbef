"""SyncGroup, Heartbeat and commits in a group of the classic protocol: assignments, generations, sessions."""

from __future__ import annotations

import pytest
from classic_world import check

# -- assignments ------------------------------------------------------------------------------------------------------


def test_all_wait_for_the_leader_and_the_log() -> None:
    world = check("""
        > A enters
          log: generation 0, empty
        > B enters
        > C enters
        > 6 s pass
          A: generation 1, range, leader A, members A B C
          B: generation 1, range, leader A
          C: generation 1, range, leader A
        > B syncs
        > C syncs
        > A syncs A=a B=b C=c
          log: generation 1, range, leader A: A=a B=b C=c
          B: assigned b
          C: assigned c
          A: assigned a
        > group
          Stable, generation 1, leader A, members A B C
    """)
    assert not world.group.unsynced


def test_a_follower_that_comes_after_the_leader_gets_its_assignment_at_once() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          A: assigned a
        > B syncs
          B: assigned b
        > B syncs
          B: assigned b
    """)


def test_a_member_that_the_leader_forgot_gets_nothing() -> None:
    """Assignments to ids that are not in the group are not in the record."""
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > A syncs A=a elsewhere=x
          log: generation 1, range, leader A: A=a B=
          A: assigned a
        > B syncs
          B: assigned nothing
    """)


def test_a_stable_group_does_not_take_other_assignments() -> None:
    check("""
        > A are stable
        > A syncs A=other
          A: assigned a
    """)


def test_the_first_sync_of_a_member_is_answered_when_it_syncs_again() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > B syncs
          B: REBALANCE_IN_PROGRESS
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          B: assigned b
          A: assigned a
    """)


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("id=elsewhere", "UNKNOWN_MEMBER_ID"),
        ("generation=0", "ILLEGAL_GENERATION"),
        ("generation=2", "ILLEGAL_GENERATION"),
        ("instance=i", "UNKNOWN_MEMBER_ID"),
        ("type=connect", "INCONSISTENT_GROUP_PROTOCOL"),
        ("protocol=sticky", "INCONSISTENT_GROUP_PROTOCOL"),
        ("type=consumer protocol=range", "assigned a"),
        ("", "assigned a"),
    ],
)
def test_sync_names_the_member_and_the_generation(options: str, answer: str) -> None:
    """Old versions name neither the type nor the protocol."""
    check(f"""
        > A are stable
        > A syncs {options}
          A: {answer}
    """)


def test_sync_to_no_group_and_to_an_empty_one() -> None:
    check("""
        > A syncs generation=1 id=elsewhere
          A: UNKNOWN_MEMBER_ID
        > A are stable
        > A leaves
          log: generation 2, empty
          A: left A
        > A syncs
          A: UNKNOWN_MEMBER_ID
    """)


def test_sync_during_a_rebalance() -> None:
    """The SyncGroup itself returns REBALANCE_IN_PROGRESS. Otherwise the member would wait for a generation that does not come."""
    check("""
        > A B are stable
        > A rejoins
        > B syncs
          B: REBALANCE_IN_PROGRESS
    """)


def test_syncs_are_refused_when_another_member_joins() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > C enters
          B: REBALANCE_IN_PROGRESS
        > A syncs A=a B=b
          A: REBALANCE_IN_PROGRESS
    """)


def test_a_sync_of_a_member_that_leaves_is_answered() -> None:
    """Each request gets one answer. (Kafka leaves this one without an answer.)"""
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > C enters
        > 6 s pass
          A: generation 1, range, leader A, members A B C
          B: generation 1, range, leader A
          C: generation 1, range, leader A
        > B syncs
        > C syncs
        > B leaves
          B: UNKNOWN_MEMBER_ID
          C: REBALANCE_IN_PROGRESS
          B: left B
        > group
          PreparingRebalance, generation 1, leader A, members A C
    """)


def test_syncs_are_refused_when_the_leader_dies() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B enters
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > 10 s pass
          B: REBALANCE_IN_PROGRESS
        > B rejoins
          B: generation 2, range, leader B, members B
    """)


# -- members that do not sync -----------------------------------------------------------------------------------------


def test_a_follower_that_does_not_sync_is_removed() -> None:
    """Its heartbeats arrive, and the record may have an assignment for it, but without a sync it reads nothing."""
    check("""
        > A enters rebalance=20 session=15
          log: generation 0, empty
        > B enters rebalance=20 session=15
        > C enters rebalance=20 session=15
        > 6 s pass
          A: generation 1, range, leader A, members A B C
          B: generation 1, range, leader A
          C: generation 1, range, leader A
        > A syncs A=a B=b C=c
          log: generation 1, range, leader A: A=a B=b C=c
          A: assigned a
        > C syncs
          C: assigned c
        > 10 s pass
        > A beats
          A: ok
        > B beats
          B: ok
        > C beats
          C: ok
        > 10 s pass
        > A beats
          A: REBALANCE_IN_PROGRESS
        > B beats
          B: UNKNOWN_MEMBER_ID
        > C beats
          C: REBALANCE_IN_PROGRESS
    """)


def test_a_leader_that_does_not_sync_is_removed() -> None:
    check("""
        > A enters rebalance=20 session=15
          log: generation 0, empty
        > B enters rebalance=20 session=15
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > 10 s pass
        > A beats
          A: ok
        > 10 s pass
          B: REBALANCE_IN_PROGRESS
        > A beats
          A: UNKNOWN_MEMBER_ID
        > group
          PreparingRebalance, generation 1, leader B, members B
    """)


def test_a_group_in_which_no_member_syncs_ends() -> None:
    check("""
        > A enters rebalance=20 session=15
          log: generation 0, empty
        > B enters rebalance=20 session=15
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > 10 s pass
        > A beats
          A: ok
        > B beats
          B: ok
        > 10 s pass
          log: generation 2, empty
    """)


def test_members_that_have_synced_are_not_removed() -> None:
    check("""
        > A enters rebalance=20 session=15
          log: generation 0, empty
        > B enters rebalance=20 session=15
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          B: assigned b
          A: assigned a
        > 12 s pass
        > A beats
          A: ok
        > B beats
          B: ok
        > 12 s pass
        > group
          Stable, generation 1, leader A, members A B
    """)


def test_a_sync_that_waits_keeps_the_session() -> None:
    """The member waits for the coordinator. Its session begins again when the sync is answered."""
    check("""
        > A enters rebalance=60 session=60
          log: generation 0, empty
        > B enters rebalance=60 session=10
        > 6 s pass
          A: generation 1, range, leader A, members A B
          B: generation 1, range, leader A
        > B syncs
        > 30 s pass
        > A syncs A=a B=b
          log: generation 1, range, leader A: A=a B=b
          B: assigned b
          A: assigned a
        > 9.9 s pass
        > group
          Stable, generation 1, leader A, members A B
        > 0.1 s pass
        > group
          PreparingRebalance, generation 1, leader A, members A
    """)


# -- heartbeats -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("", "ok"),
        ("id=elsewhere", "UNKNOWN_MEMBER_ID"),
        ("generation=0", "ILLEGAL_GENERATION"),
        ("generation=2", "ILLEGAL_GENERATION"),
        ("instance=i", "UNKNOWN_MEMBER_ID"),
    ],
)
def test_a_heartbeat_names_the_member_and_the_generation(options: str, answer: str) -> None:
    check(f"""
        > A are stable
        > A beats {options}
          A: {answer}
    """)


def test_heartbeats_to_no_group_and_to_an_empty_one() -> None:
    check("""
        > A beats id=elsewhere generation=1
          A: UNKNOWN_MEMBER_ID
        > A are stable
        > A leaves
          log: generation 2, empty
          A: left A
        > A beats
          A: UNKNOWN_MEMBER_ID
        > A beats generation=2
          A: UNKNOWN_MEMBER_ID
    """)


def test_heartbeats_before_the_assignment_are_normal() -> None:
    """Members may send them as soon as their join is answered."""
    check("""
        > A enters session=10
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > 6 s pass
        > A beats
          A: ok
        > 6 s pass
        > group
          CompletingRebalance, generation 1, leader A, members A
    """)


def test_heartbeats_keep_the_session_also_during_a_rebalance() -> None:
    check("""
        > A B are stable session=10
        > B rejoins topics=payments
        > 8 s pass
        > A beats
          A: REBALANCE_IN_PROGRESS
        > 9.9 s pass
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
    """)


def test_the_session_ends_during_a_rebalance() -> None:
    """The rebalance does not wait for a member that is silent."""
    check("""
        > A B are stable session=10
        > B rejoins topics=payments
        > 9.9 s pass
        > 0.1 s pass
          B: generation 2, range, leader B, members B
    """)


def test_a_silent_member_is_removed() -> None:
    check("""
        > A B are stable session=10
        > 5 s pass
        > A beats
          A: ok
        > 5 s pass
        > A beats
          A: REBALANCE_IN_PROGRESS
        > B beats
          B: UNKNOWN_MEMBER_ID
        > A rejoins
          A: generation 2, range, leader A, members A
    """)


# -- commits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ("", "ok"),
        ("generation=0", "ILLEGAL_GENERATION"),
        ("generation=2", "ILLEGAL_GENERATION"),
        ("id=elsewhere", "UNKNOWN_MEMBER_ID"),
        ("instance=i", "UNKNOWN_MEMBER_ID"),
        ("id=none generation=-1", "UNKNOWN_MEMBER_ID"),
        ("generation=-1", "ILLEGAL_GENERATION"),
    ],
)
def test_a_member_commits_in_its_generation(options: str, answer: str) -> None:
    """A program without a membership commits only while the group has no members."""
    check(f"""
        > A are stable
        > A commits {options}
          A: {answer}
    """)


def test_an_empty_group_takes_commits_of_programs_without_a_membership() -> None:
    check("""
        > A are stable
        > A leaves
          log: generation 2, empty
          A: left A
        > A commits id=none generation=-1
          A: ok
        > A commits
          A: UNKNOWN_MEMBER_ID
    """)


def test_members_commit_what_they_have_done_before_they_join_again() -> None:
    """They have time for it while the rebalance waits for their joins. Once the next generation has begun, another member may own
    the partition (KAFKA-9823, FastStream#1414): a late commit of the last generation is refused and changes nothing else."""
    check("""
        > A B are stable
        > B rejoins topics=payments
        > A commits
          A: ok
        > A rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > A commits generation=1
          A: ILLEGAL_GENERATION
        > A commits
          A: REBALANCE_IN_PROGRESS
        > A syncs A=a B=b
          log: generation 2, range, leader A: A=a B=b
          A: assigned a
        > A commits generation=1
          A: ILLEGAL_GENERATION
        > A commits
          A: ok
        > A beats
          A: ok
    """)


def test_a_commit_keeps_the_session() -> None:
    """A consumer that commits often is alive."""
    check("""
        > A are stable session=10
        > 8 s pass
        > A commits
          A: ok
        > 9.9 s pass
        > group
          Stable, generation 1, leader A, members A
        > 0.1 s pass
          log: generation 2, empty
    """)


def test_a_commit_that_is_refused_does_not_keep_the_session() -> None:
    check("""
        > A are stable session=10
        > 8 s pass
        > A commits generation=0
          A: ILLEGAL_GENERATION
        > 2 s pass
          log: generation 2, empty
    """)
