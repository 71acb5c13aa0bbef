"""LeaveGroup: members that leave, that an operator removes, and ids that were given out."""

from __future__ import annotations

from classic_world import check


def test_the_others_rebalance() -> None:
    check("""
        > A B are stable
        > A leaves
          A: left A
        > group
          PreparingRebalance, generation 1, leader B, members B
        > B beats
          B: REBALANCE_IN_PROGRESS
        > B rejoins
          B: generation 2, range, leader B, members B
    """)


def test_the_last_member_leaves_an_empty_group() -> None:
    """The generation rises, so that a member that was removed cannot commit in it."""
    check("""
        > A are stable
        > A leaves
          log: generation 2, empty
          A: left A
        > group
          Empty, generation 2
        > durable group
          Empty, generation 2
    """)


def test_a_group_that_does_not_exist_has_no_members() -> None:
    """Each member has its own code, as everywhere in this response."""
    check("""
        > A leaves id=elsewhere
          A: left ? UNKNOWN_MEMBER_ID
        > A leaves instances=i,j
          A: left i UNKNOWN_MEMBER_ID, j UNKNOWN_MEMBER_ID
    """)


def test_an_unknown_member_leaves_the_others_alone() -> None:
    check("""
        > A are stable
        > B leaves id=elsewhere
          B: left ? UNKNOWN_MEMBER_ID
        > B leaves id=none
          B: left None UNKNOWN_MEMBER_ID
        > A beats
          A: ok
    """)


def test_an_operator_removes_static_members_by_their_instances() -> None:
    check("""
        > A B C are stable static
        > X leaves instances=a,b,x
          X: left a, b, x UNKNOWN_MEMBER_ID
        > group
          PreparingRebalance, generation 1, leader C, members C
    """)


def test_a_static_member_leaves_by_its_id_and_instance() -> None:
    check("""
        > A B are stable static
        > A leaves id=B
          A: left B FENCED_INSTANCE_ID
        > A leaves id=elsewhere
          A: left ? FENCED_INSTANCE_ID
        > A leaves instance=x
          A: left A UNKNOWN_MEMBER_ID
        > A beats
          A: ok
        > A leaves
          A: left A
    """)


def test_one_request_removes_many() -> None:
    """An id that cannot be removed has its own error, and the others are removed."""
    check("""
        > A B C are stable
        > D joins
          D: MEMBER_ID_REQUIRED D
        > B leaves and=C,D,B
          B: left B, C, D, B UNKNOWN_MEMBER_ID
        > group
          PreparingRebalance, generation 1, leader A, members A
    """)


def test_an_id_that_was_given_out_can_leave() -> None:
    """The rebalance no longer waits for the id."""
    check("""
        > A are stable
        > B joins
          B: MEMBER_ID_REQUIRED B
        > A rejoins
        > B leaves
          A: generation 2, range, leader A, members A
          B: left B
    """)


def test_an_id_that_leaves_a_stable_group_causes_no_rebalance() -> None:
    check("""
        > A are stable
        > B joins
          B: MEMBER_ID_REQUIRED B
        > B leaves
          B: left B
        > A beats
          A: ok
        > B joins
          B: UNKNOWN_MEMBER_ID
    """)


def test_a_join_of_a_member_that_leaves_is_answered() -> None:
    check("""
        > A B are stable
        > B rejoins topics=payments
        > B leaves
          B: UNKNOWN_MEMBER_ID
          B: left B
        > A rejoins
          A: generation 2, range, leader A, members A
    """)


def test_the_rebalance_ends_when_the_member_leaves_that_it_waits_for() -> None:
    check("""
        > A B are stable
        > B rejoins topics=payments
        > A leaves
          B: generation 2, range, leader B, members B
          A: left A
    """)


def test_the_first_rebalance_keeps_its_delay_when_a_member_leaves() -> None:
    check("""
        > A enters
          log: generation 0, empty
        > B joins old
        > 1 s pass
        > A leaves
          A: UNKNOWN_MEMBER_ID
          A: left A
        > 4.9 s pass
        > 0.1 s pass
          B: generation 1, range, leader B, members B
    """)
