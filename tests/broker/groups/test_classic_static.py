"""Static members (KIP-345): a process that restarts is the same member under another id, and its earlier self is fenced."""

from __future__ import annotations

from classic_world import check

# -- a restart in a stable group --------------------------------------------------------------------------------------


def test_a_follower_that_returns_causes_no_rebalance() -> None:
    """Its new id is in the log before it receives the id. Otherwise the next coordinator would fence it."""
    check("""
        > A B are stable static
        > B joins id=none
          log: generation 1, range, leader A: A=a B'=b
          B: generation 1, range, leader A
        > B syncs
          B: assigned b
        > A beats
          A: ok
        > durable group
          Stable, generation 1, leader A, members A B'
    """)


def test_a_leader_that_returns_skips_the_assignment() -> None:
    """It still leads, and receives the members, because it has to watch their topics. Nothing has changed, so it assigns nothing
    (KIP-814)."""
    check("""
        > A B are stable static
        > A joins id=none
          log: generation 1, range, leader A': A'=a B=b
          A: generation 1, range, leader A', members A' B, skip the assignment
        > A syncs
          A: assigned a
    """)


def test_a_returning_leader_of_an_old_version_gets_another_leaders_id() -> None:
    """Old versions have no `skip_assignment`: a client that found itself the leader would assign again."""
    check("""
        > A B are stable static
        > A joins id=none noskip
          log: generation 1, range, leader A': A'=a B=b
          A: generation 1, range, leader A
        > A syncs
          A: assigned a
    """)


def test_each_return_has_another_id() -> None:
    check("""
        > A are stable static
        > A joins id=none
          log: generation 1, range, leader A': A'=a
          A: generation 1, range, leader A', members A', skip the assignment
        > A joins id=none
          log: generation 1, range, leader A'': A''=a
          A: generation 1, range, leader A'', members A'', skip the assignment
    """)


def test_the_earlier_self_is_fenced() -> None:
    """FENCED_INSTANCE_ID where the request names the instance; without it, the id is unknown."""
    check(
        """
        > A B are stable static
        > X joins id=none instance=b
          log: generation 1, range, leader A: A=a X=b
          X: generation 1, range, leader A
        > B beats
          B: FENCED_INSTANCE_ID
        > B syncs
          B: FENCED_INSTANCE_ID
        > B joins
          B: FENCED_INSTANCE_ID
        > B commits
          B: FENCED_INSTANCE_ID
        > B leaves
          B: left B FENCED_INSTANCE_ID
        > B beats instance=
          B: UNKNOWN_MEMBER_ID
        > X beats
          X: ok
        """
    )


def test_the_fenced_member_returns_if_its_process_is_started_again() -> None:
    """aiokafka#1188: the process that starts last is the member, and no id stays fenced."""
    check("""
        > A B are stable static
        > X joins id=none instance=b
          log: generation 1, range, leader A: A=a X=b
          X: generation 1, range, leader A
        > B beats
          B: FENCED_INSTANCE_ID
        > B joins id=none
          log: generation 1, range, leader A: A=a B'=b
          B: generation 1, range, leader A
        > X beats
          X: FENCED_INSTANCE_ID
        > B beats
          B: ok
    """)


def test_the_session_of_the_earlier_self_does_not_remove_the_member() -> None:
    check("""
        > A B are stable static session=10
        > 8 s pass
        > A beats
          A: ok
        > B joins id=none
          log: generation 1, range, leader A: A=a B'=b
          B: generation 1, range, leader A
        > 9 s pass
        > group
          Stable, generation 1, leader A, members A B'
        > 0.9 s pass
        > A beats
          A: ok
        > 0.1 s pass
        > group
          PreparingRebalance, generation 1, leader A, members A
    """)


def test_a_member_that_returns_brings_its_timeouts_and_protocols() -> None:
    world = check("""
        > A are stable static
        > A joins id=none session=20 rebalance=30 protocols=range,sticky
          log: generation 1, range, leader A': A'=a
          A: generation 1, range, leader A', members A', skip the assignment
    """)
    (member,) = world.group.members.values()
    assert (member.session_timeout_ms, member.rebalance_timeout_ms) == (20_000, 30_000)
    assert list(member.protocols) == ["range", "sticky"]
    value = world.log[-1].value
    assert value is not None
    assert (value.members[0].session_timeout_ms, value.members[0].rebalance_timeout_ms) == (20_000, 30_000)


def test_a_member_that_returns_with_other_topics_is_known_with_them() -> None:
    """The protocol is the same, so the group does not rebalance (as in Kafka). The offsets of its new topics must not expire."""
    world = check("""
        > A are stable static
        > A joins id=none topics=payments
          log: generation 1, range, leader A': A'=a
          A: generation 1, range, leader A', members A', skip the assignment
    """)
    assert world.group.is_subscribed_to("payments")
    assert not world.group.is_subscribed_to("orders")


def test_the_group_rebalances_if_the_protocol_changes() -> None:
    check("""
        > A are stable static protocols=range,sticky
        > A joins id=none protocols=sticky
          A: generation 2, sticky, leader A', members A'
    """)


def test_the_vote_of_a_member_that_returns_changes_the_protocol() -> None:
    check("""
        > A B are stable static protocols=range,sticky
        > A joins id=none protocols=range,sticky
          log: generation 1, range, leader A': A'=a B=b
          A: generation 1, range, leader A', members A' B, skip the assignment
        > B joins id=none protocols=sticky
        > group
          PreparingRebalance, generation 1, leader A', members A' ?
        > A rejoins
          A: generation 2, sticky, leader A', members A' B'
          B: generation 2, sticky, leader A'
    """)


def test_the_record_is_not_appended() -> None:
    """The member keeps its earlier id, and its session."""
    check("""
        > A B are stable static
        > appends fail: NOT_COORDINATOR
        > X joins id=none instance=b protocols=range,sticky session=20
          X: NOT_COORDINATOR
        > appends succeed
        > B beats
          B: ok
        > group
          Stable, generation 1, leader A, members A B
        > X joins id=none
          log: generation 1, range, leader A: A=a X=b
          X: generation 1, range, leader A
    """)


RETURNED_BEFORE_ITS_SYNC = """
    > A joins instance=a rebalance=20 session=60
      log: generation 0, empty
    > B joins instance=b rebalance=20 session=60
    > 6 s pass
      A: generation 1, range, leader A, members A B
      B: generation 1, range, leader A
    > A syncs A=a B=b
      log: generation 1, range, leader A: A=a B=b
      A: assigned a
    > B joins id=none
      log: generation 1, range, leader A: A=a B'=b
      B: generation 1, range, leader A
"""


def test_a_member_that_returns_has_to_sync_as_its_earlier_self_had() -> None:
    """The earlier self has not synced, and its deadline stays in force. (Kafka then removes no member, but rebalances.)"""
    check(
        RETURNED_BEFORE_ITS_SYNC
        + """
    > 20 s pass
    > group
      PreparingRebalance, generation 1, leader A, members A
    """
    )


def test_a_member_that_returns_and_syncs_stays() -> None:
    check(
        RETURNED_BEFORE_ITS_SYNC
        + """
    > B syncs
      B: assigned b
    > 20 s pass
    > group
      Stable, generation 1, leader A, members A B'
    """
    )


# -- a restart during a rebalance -------------------------------------------------------------------------------------


def test_the_join_of_the_earlier_self_is_answered() -> None:
    check("""
        > A joins instance=a
          log: generation 0, empty
        > X joins id=none instance=a
          A: FENCED_INSTANCE_ID
        > 3 s pass
          X: generation 1, range, leader X, members X
    """)


def test_the_first_rebalance_is_not_extended_by_a_member_that_returns() -> None:
    check("""
        > A joins instance=a
          log: generation 0, empty
        > 2 s pass
        > A joins id=none
          A: FENCED_INSTANCE_ID
        > 1 s pass
          A: generation 1, range, leader A, members A
    """)


def test_a_member_that_returns_takes_part_in_the_rebalance() -> None:
    check("""
        > A B are stable static
        > A rejoins
        > B joins id=none
          A: generation 2, range, leader A, members A B'
          B: generation 2, range, leader A
        > X joins id=B instance=a
          X: FENCED_INSTANCE_ID
    """)


def test_the_sync_of_the_earlier_self_is_answered() -> None:
    """The leader may have assigned to the earlier id already, so the group rebalances."""
    check("""
        > A B are stable static
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > B syncs
        > X joins id=none instance=b
          B: FENCED_INSTANCE_ID
        > A rejoins
          A: generation 3, range, leader A, members A X
          X: generation 3, range, leader A
    """)


def test_a_leader_that_returns_before_it_has_assigned_leads_on() -> None:
    check("""
        > A joins instance=a
          log: generation 0, empty
        > 3 s pass
          A: generation 1, range, leader A, members A
        > A joins id=none
          A: generation 2, range, leader A', members A'
    """)


# -- static members that know their id --------------------------------------------------------------------------------


def test_a_known_member_is_like_any_other() -> None:
    check("""
        > A B are stable static
        > B rejoins
          B: generation 1, range, leader A
        > A rejoins
        > B rejoins
          A: generation 2, range, leader A, members A B
          B: generation 2, range, leader A
        > B rejoins
          B: generation 2, range, leader A
    """)


def test_instance_and_id_belong_together() -> None:
    check("""
        > A B are stable static
        > X joins id=A instance=b
          X: FENCED_INSTANCE_ID
        > X joins id=elsewhere instance=b
          X: FENCED_INSTANCE_ID
        > X joins id=A instance=x
          X: UNKNOWN_MEMBER_ID
        > X beats id=A generation=1 instance=b
          X: FENCED_INSTANCE_ID
        > X syncs id=elsewhere generation=1 instance=b
          X: FENCED_INSTANCE_ID
        > A beats
          A: ok
    """)


# -- static members that do not join ----------------------------------------------------------------------------------


def test_a_static_member_that_does_not_join_stays() -> None:
    """It may be restarting, so it stays until its session ends. The leader gets it among the members, and assigns to it."""
    check("""
        > A B are stable static session=30 rebalance=20
        > C enters rebalance=20
        > A rejoins
        > 20 s pass
          A: generation 2, range, leader A, members A B C
          C: generation 2, range, leader A
    """)


def test_another_member_leads_if_the_static_leader_does_not_join() -> None:
    check("""
        > A B are stable static session=30 rebalance=20
        > C enters rebalance=20
        > B rejoins
        > 20 s pass
          B: generation 2, range, leader B, members A B C
          C: generation 2, range, leader B
    """)


def test_a_static_member_that_does_not_join_is_of_the_new_generation() -> None:
    """Its next request returns ILLEGAL_GENERATION, so it joins, and is a normal member. If it sends nothing, its session ends."""
    check("""
        > A are stable static session=30 rebalance=20
        > B enters rebalance=20 session=30
        > 10 s pass
        > A beats
          A: REBALANCE_IN_PROGRESS
        > 10 s pass
          B: generation 2, range, leader B, members A B
        > B syncs A=a B=b
          log: generation 2, range, leader B: A=a B=b
          B: assigned b
        > A beats
          A: ILLEGAL_GENERATION
        > A rejoins
          A: generation 2, range, leader B
        > A syncs
          A: assigned a
    """)


def test_rebalance_is_extended_while_no_static_member_has_joined() -> None:
    """If no member has joined, none can assign. The rebalance ends when the sessions of the static members end."""
    check("""
        > A B are stable static session=50 rebalance=20
        > B leaves
          B: left B
        > 40 s pass
        > group
          PreparingRebalance, generation 1, leader A, members A
        > A rejoins
          A: generation 2, range, leader A, members A
        > A syncs A=a
          log: generation 2, range, leader A: A=a
          A: assigned a
        > 50 s pass
          log: generation 3, empty
    """)


def test_a_leave_does_not_free_a_group_that_waits_for_a_static_member() -> None:
    """B leaves, and C does not join again. The group waits until the session of the static member ends, and then is empty."""
    check("""
        > A B are stable static session=30 rebalance=20
        > C enters session=30 rebalance=20
        > 20 s pass
          C: generation 2, range, leader C, members A B C
        > B leaves
          B: left B
        > 20 s pass
        > group
          PreparingRebalance, generation 2, leader A, members A
        > C beats
          C: UNKNOWN_MEMBER_ID
        > 10 s pass
          log: generation 3, empty
    """)


def test_an_empty_instance_id_is_not_that_of_dynamic_members() -> None:
    """Kafka accepts it, too. A dynamic member that joins must not take the place of the static one: the group would have an
    instance id without a member, and every later member would get a server error."""
    check("""
        > A joins id=none instance=
          log: generation 0, empty
        > B joins id=none
          B: MEMBER_ID_REQUIRED B
        > B joins
        > C joins id=none
          C: MEMBER_ID_REQUIRED C
        > group
          PreparingRebalance, generation 0, leader ?, members ? B, pending C
    """)
