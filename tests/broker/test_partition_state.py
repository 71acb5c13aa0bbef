"""The ISR states, and the maximal ISR of each."""

from __future__ import annotations

from strandline.broker.partition.partition_state import CommittedIsr


def test_a_committed_isr_counts_on_its_members_and_nothing_else() -> None:
    state = CommittedIsr((1, 2))
    assert (state.isr, state.maximal, state.is_in_flight) == ((1, 2), {1, 2}, False)


def test_a_pending_expansion_counts_on_the_new_replica_already() -> None:
    """The controller may have committed it: only the larger set is safe."""
    state = CommittedIsr((1, 2)).expand(3, 13)
    assert (state.isr, state.maximal, state.proposed, state.is_in_flight) == ((1, 2), {1, 2, 3}, (1, 2, 3), True)


def test_a_pending_shrink_counts_on_the_replica_still() -> None:
    """The controller may have refused it: only the larger set is safe."""
    state = CommittedIsr((1, 2, 3)).shrink((3,))
    assert (state.isr, state.maximal, state.proposed, state.is_in_flight) == ((1, 2, 3), {1, 2, 3}, (1, 2), True)


def test_a_pending_state_remembers_the_committed_isr() -> None:
    committed = CommittedIsr((1, 2))
    assert committed.expand(3, 13).committed is committed
    assert committed.shrink((2,)).committed is committed


def test_equal_members_do_not_make_the_same_state() -> None:
    """An answer belongs to one proposal, not to an equal one."""
    committed = CommittedIsr((1,))
    assert committed.expand(2, 13) != committed.expand(2, 13)
