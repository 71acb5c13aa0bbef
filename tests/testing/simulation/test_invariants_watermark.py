"""I7, I10, I12, I13, I15: which records are committed, which replicas have them, and which may be acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from invariant_bench import BROKERS, TOPIC_ID, Bench, bench

from strandline.broker.partition.partition_state import CommittedIsr
from strandline.testing.simulation.invariants import reads, watermark


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench() as found:
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def hear(at: Bench, node: int) -> None:
    """The leader applies the newest registration."""
    at.take_role(node)


# -- I10: the true high watermark ---------------------------------------------------------------------------------------


def test_record_on_the_whole_isr_may_be_committed(at: Bench):
    at.append(1, "a")
    at.copy(1, 2, 3)
    at.raise_hw(1, 1)
    at.step()
    assert at.orders.true_high_watermark == 1


def test_i10_a_high_watermark_beyond_a_member_of_the_isr(at: Bench):
    at.append(1, "a")
    at.copy(1, 2)
    with at.flags("I10", "broker 3 of the ISR [1, 2, 3] has only"):
        at.raise_hw(1, 1)


def test_i10_the_isr_is_the_controllers_not_the_leaders(at: Bench):
    """KIP-497: the expansion is committed, and the leader, which has not applied it yet, counts on the old ISR."""
    at.change(isr=(1, 2))
    hear(at, 1)
    at.replicated("a")
    at.change(isr=(1, 2, 3))
    at.append(1, "b")
    at.copy(1, 2)
    with at.flags("I10", "broker 3 of the ISR"):
        at.raise_hw(1, 2)


def test_i10_commits_with_fewer_than_min_insync_replicas(at: Bench):
    at.change(isr=(1,))
    hear(at, 1)
    at.append(1, "a")
    at.copy(1, 2, 3)
    with at.flags("I10", "with the ISR [1], which needs 2 members"):
        at.raise_hw(1, 1)


def test_leader_commits_with_the_isr_that_it_knows(at: Bench):
    """Its followers fetched that far while they were in the ISR; every remaining member has everything."""
    at.append(1, "a")
    at.copy(1, 2, 3)
    at.change(isr=(1,))
    at.raise_hw(1, 1)
    at.step()


def test_deposed_leader_may_commit_records_of_its_successors(at: Bench):
    at.append(1, "a")
    at.copy(1, 2, 3)
    at.change(isr=(2, 3), leader=2)
    at.raise_hw(1, 1)
    at.take_role(2)
    at.step()


def test_i10_deposed_leader_commits_records_that_its_successor_lacks(at: Bench):
    at.append(1, "a")
    at.change(isr=(2, 3), leader=2)
    at.take_role(2)
    with at.flags("I10", "broker 2 of the ISR [2, 3]"):
        at.raise_hw(1, 1)


def test_dead_member_of_the_isr_is_not_checked(at: Bench):
    """The member had fetched the record before it died, so the leader's commit is correct."""
    at.append(1, "a")
    at.copy(1, 2, 3)
    at.replica(3).process.has_ended = True  # type: ignore[union-attr]
    at.replica(3).path.truncate(0)
    at.raise_hw(1, 1)
    at.step()


def test_i10_a_followers_high_watermark_above_the_true_one(at: Bench):
    at.append(1, "a")
    at.copy(1, 2)
    with at.flags("I10", "of broker 2 is 1, but the true one is 0"):
        at.raise_hw(2, 1)


def test_i10_checkpoint_is_above_the_true_high_watermark(at: Bench):
    at.append(1, "a")
    at.log(1).high_watermark = 1
    with at.flags("I10"):
        watermark.check_recovered(at.replica(1), 1)


# -- I10: the offsets that clients get -----------------------------------------------------------------------------------


def elect(at: Bench, node: int) -> None:
    at.change(leader=node)
    at.take_role(node)


def test_i10_latest_offset_goes_back(at: Bench):
    """A new leader with an old high watermark must not return it to a client that asks for the latest offset."""
    at.append(1, "a", "b")
    at.copy(1, 2, 3)
    at.raise_hw(1, 2)
    reads.on_high_watermark_sent(at.replica(1), 2, is_answer=True)
    elect(at, 2)
    with at.flags("I10", "sends the high watermark 0 in epoch 1, but 2 was sent in epoch 0"):
        reads.on_high_watermark_sent(at.replica(2), 0, is_answer=True)


def test_a_new_leaders_fetch_responses_may_carry_an_old_high_watermark(at: Bench):
    at.append(1, "a", "b")
    at.copy(1, 2, 3)
    at.raise_hw(1, 2)
    reads.on_high_watermark_sent(at.replica(1), 2, is_answer=False)
    elect(at, 2)
    reads.on_high_watermark_sent(at.replica(2), 0, is_answer=False)
    at.raise_hw(2, 2)
    reads.on_high_watermark_sent(at.replica(2), 2, is_answer=True)


def test_replaced_leader_may_tell_old_offsets(at: Bench):
    at.replicated("a")
    elect(at, 2)
    at.append(2, "b")
    at.copy(2, 1, 3)
    at.raise_hw(2, 2)
    reads.on_high_watermark_sent(at.replica(2), 2, is_answer=True)
    reads.on_high_watermark_sent(at.replica(1), 1, is_answer=True)


def test_i10_sent_high_watermark_exceeds_the_committed_one(at: Bench):
    at.append(1, "a")
    with at.flags("I10", "sends the high watermark 1, but the true one is 0"):
        reads.on_high_watermark_sent(at.replica(1), 1, is_answer=False)


# -- I7 -----------------------------------------------------------------------------------------------------------------


def test_i7_elected_leader_lacks_committed_records(at: Bench):
    at.change(isr=(1, 2))
    hear(at, 1)
    at.append(1, "a", "b")
    at.copy(1, 2)
    at.raise_hw(1, 2)
    watermark.on_acked(at.ghosts, at.replica(1), 2)
    at.orders.registration = at.orders.registration._replace(leader=3, leader_epoch=1, partition_epoch=2)  # type: ignore[union-attr]
    at.orders.leaders[1] = 3
    with at.flags("I7", "lacks the committed records 0 to 1, 2 of them acknowledged"):
        at.take_role(3)


def test_i7_isr_member_lost_committed_records(at: Bench):
    at.replicated("a")
    at.step()
    at.replica(2).path.truncate(0)
    with at.flags("I7", "broker 2 is in the ISR"):
        watermark.check_members(at.ghosts, at.orders)


def test_late_leader_of_a_past_election_may_lack_records(at: Bench):
    at.change(isr=(1, 2))
    hear(at, 1)
    at.append(1, "a")
    at.copy(1, 2)
    at.raise_hw(1, 1)
    stale = at.registration()
    at.change(leader=2)
    at.orders.leaders[1] = 3
    at.partitions[3].make_leader(type(stale)(stale.replicas, stale.isr, 3, 1, stale.partition_epoch + 1))
    at.orders.registration = at.orders.registration._replace(leader_epoch=2)  # type: ignore[union-attr]
    at.invariants.failure = None
    watermark.on_leader(at.ghosts, at.replica(3), 1)


def test_permitted_loss_is_noted_and_the_leaders_log_becomes_the_truth(at: Bench):
    at.replicated("a")
    at.replicated("b")
    at.ghosts.permit_loss("the last member of the ISR lost its power")
    at.log(2).truncate_to(1)
    elect(at, 2)
    assert [(loss.start, loss.end, loss.leader) for loss in at.orders.losses] == [(1, 2, 2)]
    assert at.orders.true_high_watermark == 1
    at.step()


def test_a_leader_that_returns_with_its_high_watermark_brings_lost_records_back(at: Bench):
    """A leader without records was elected, and then a replica that still has them. Its high watermark, restored from its
    checkpoint, does not move (seed 20881 of the double faults)."""
    at.replicated("a")
    at.ghosts.permit_loss("the last member of the ISR lost its disk")
    at.log(2).truncate_to(0)
    elect(at, 2)
    assert at.orders.true_high_watermark == 0
    elect(at, 3)
    assert at.orders.true_high_watermark == 1
    at.step()


def test_a_deposed_leader_is_not_the_truth_where_a_loss_is_permitted(at: Bench):
    """The deposed leader raises its high watermark late, while its successor has already committed more."""
    at.append(1, "a")
    at.copy(1, 2, 3)
    at.ghosts.permit_loss("the last member of the ISR lost its power")
    elect(at, 2)
    at.append(2, "b")
    at.copy(2, 3)
    at.raise_hw(2, 2)
    at.raise_hw(1, 1)
    assert not at.orders.losses
    assert at.orders.true_high_watermark == 2


def test_deposed_leader_without_successor_may_commit_despite_a_permitted_loss(at: Bench):
    """The last member of the ISR is fenced, and does not know it yet (seed 20027)."""
    at.ghosts.permit_loss("the last member of the ISR lost its power")
    at.change(isr=(1,))
    hear(at, 1)
    at.append(1, "a")
    at.raise_hw(1, 1)
    at.change(leader=-1)
    at.append(1, "b")
    at.raise_hw(1, 2)
    assert at.orders.true_high_watermark == 2


def test_a_leader_counts_the_replicas_that_it_knows(at: Bench):
    """A reassignment adds two replicas to the partition, which makes its min ISR larger. The leader has not applied it yet."""
    at.change(isr=(1,), replicas=(1,))
    hear(at, 1)
    at.append(1, "a")
    at.change(replicas=BROKERS, adding_replicas=(2, 3), original_replicas=(1,))
    at.raise_hw(1, 1)
    at.step()
    assert at.orders.true_high_watermark == 1
    hear(at, 1)
    at.append(1, "b")
    with at.flags("I10", "with the ISR [1], which needs 2 members"):
        at.raise_hw(1, 2)


# -- I12, I13 -----------------------------------------------------------------------------------------------------------


def test_i12_a_leader_that_does_not_wait_for_a_member_of_the_isr(at: Bench):
    leader_state = at.partitions[1].leader_state
    assert leader_state is not None
    leader_state.isr = CommittedIsr((1, 2))
    at.ghosts.disturbed[at.orders] = None
    with at.flags("I12", "waits for [1, 2] only, but the controllers may elect any of [1, 2, 3]"):
        at.step()


def test_while_an_expansion_is_under_way_the_leader_waits_for_the_newcomer(at: Bench):
    at.change(isr=(1, 2))
    hear(at, 1)
    leader_state = at.partitions[1].leader_state
    assert leader_state is not None
    leader_state.propose(leader_state.isr.committed.expand(3, leader_state.replicas[3].broker_epoch))
    at.change(isr=(1, 2, 3))
    at.step()


def test_i13_a_newcomer_behind_the_true_high_watermark(at: Bench):
    """KAFKA-7128: the newcomer has reached the high watermark that a new leader knows, and that one is old."""
    at.change(isr=(1, 2))
    hear(at, 1)
    at.append(1, "a")
    at.copy(1, 2)
    at.raise_hw(1, 1)
    with at.flags("I13", "broker 3 joins the ISR [1, 2]"):
        at.change(isr=(1, 2, 3))


def test_i13_fenced_replica_joins_the_isr(at: Bench):
    at.change(isr=(1, 2))
    at.ghosts.metadata.brokers[3].fenced = True
    with at.flags("I13", "is fenced"):
        at.change(isr=(1, 2, 3))


def test_i13_process_that_the_leader_saw_has_ended(at: Bench):
    """KIP-903: it registered again, with an empty disk, before the proposal arrived."""
    at.change(isr=(1, 2))
    at.orders.accepted[2] = {1: 0, 2: 1, 3: 2}
    at.ghosts.metadata.brokers[3].epoch = 9
    with at.flags("I13", "with broker epoch 2, but it is registered with broker epoch 9"):
        at.change(isr=(1, 2, 3))


def test_complete_replica_may_join_the_isr(at: Bench):
    at.change(isr=(1, 2))
    at.replicated("a")
    at.orders.accepted[2] = {1: 0, 2: 1, 3: 2}
    at.change(isr=(1, 2, 3))
    at.step()


# -- I15 ----------------------------------------------------------------------------------------------------------------


def test_i15_an_acknowledgement_before_the_commit(at: Bench):
    at.append(1, "a")
    with at.flags("I15", "acknowledges records up to 1, but the committed log is"):
        watermark.on_acked(at.ghosts, at.replica(1), 1)


def test_i15_an_acknowledgement_of_a_record_that_the_isr_does_not_have(at: Bench):
    at.replicated("a")
    at.replica(3).path.truncate(0)
    with at.flags("I15", "but broker 3 of the ISR does not have it"):
        watermark.on_acked(at.ghosts, at.replica(1), 1)
    at.replica(3).path.extend(0, 1)


def test_i15_too_few_copies(at: Bench):
    at.replicated("a")
    at.change(isr=(1,))
    for node in (2, 3):
        at.replica(node).path.truncate(0)
    with at.flags("I15", "only 1 copies, not 2"):
        watermark.on_acked(at.ghosts, at.replica(1), 1)


def ask_for(at: Bench, min_isr: int) -> None:
    """The leader applies another `min.insync.replicas`."""
    at.partitions[1].set_min_insync_replicas(min_isr)


def committed_by_two(at: Bench, *values: str) -> None:
    at.change(isr=(1, 2))
    hear(at, 1)
    at.append(1, *values)
    at.copy(1, 2)
    at.raise_hw(1, at.log(1).log_end_offset)


def test_a_minimum_that_is_raised_after_the_commit_does_not_count(at: Bench):
    """A produce to several partitions is answered when the last of them is done; the minimum may change until then."""
    committed_by_two(at, "a", "b")
    ask_for(at, 3)
    for required in (1, 2):
        watermark.on_acked(at.ghosts, at.replica(1), required)
    assert at.orders.acked_end == 2


def test_i15_a_copy_that_is_missed_by_the_minimum_of_the_commit(at: Bench):
    """The minimum at the commit counts: two copies were needed, and one of them is missing."""
    committed_by_two(at, "a")
    ask_for(at, 3)
    at.change(isr=(1,))
    at.replica(2).path.truncate(0)
    with at.flags("I15", "only 1 copies, not 2"):
        watermark.on_acked(at.ghosts, at.replica(1), 1)


def test_i15_each_record_answers_to_the_minimum_of_its_own_commit(at: Bench):
    """Two copies were required for the first commit, three for the second. Two copies of each are left."""
    at.replicated("a")
    ask_for(at, 3)
    at.replicated("b")
    at.change(isr=(1, 2))
    at.replica(3).path.truncate(0)
    ask_for(at, 1)
    watermark.on_acked(at.ghosts, at.replica(1), 1)
    with at.flags("I15", "acknowledges record 1, but there are only 2 copies, not 3"):
        watermark.on_acked(at.ghosts, at.replica(1), 2)


def test_i15_another_record_than_the_committed_one(at: Bench):
    """The leader of an old epoch acknowledges its own record at an offset where another one was committed."""
    at.append(1, "mine")
    at.change(isr=(2, 3), leader=2)
    at.take_role(2)
    at.append(2, "theirs")
    at.copy(2, 3)
    at.raise_hw(2, 1)
    with at.flags("I15"):
        watermark.on_acked(at.ghosts, at.replica(1), 1)


def test_an_acknowledgement_of_a_committed_record_is_true(at: Bench):
    at.replicated("a")
    watermark.on_acked(at.ghosts, at.replica(1), 1)
    assert at.orders.acked_end == 1


def test_the_topic_id_of_the_bench_is_its_own(at: Bench):
    assert at.orders.key == (TOPIC_ID, 0)
