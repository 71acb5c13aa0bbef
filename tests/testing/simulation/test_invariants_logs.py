"""I1, I4, I5, I6, I11, I22: each wrong history is found, and one that is only unlucky is not reported."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from invariant_bench import KEY, NOW_MS, TOPIC_ID, Bench, batch_of, bench

from strandline.storage.log.log import Log, LogConfig
from strandline.storage.memory.memory_files import MemoryFiles
from strandline.testing.simulation.invariants import logs, rest
from strandline.testing.simulation.invariants.ghosts import METADATA


@pytest.fixture
def at() -> Iterator[Bench]:
    with bench() as found:
        yield found
        if found.invariants.failure is not None:
            raise found.invariants.failure


def fail_over(at: Bench, *, leader: int, isr: tuple[int, ...]) -> None:
    """The controllers elect another leader, and that leader takes its role."""
    at.change(isr=isr, leader=leader)
    at.take_role(leader)


# -- I1 ---------------------------------------------------------------------------------------------------------------


def test_i1_two_brokers_that_lead_in_one_epoch(at: Bench):
    with at.flags("I1", "the metadata names broker 1"):
        at.take_role(2, leader=2)


def test_i1_a_broker_that_leads_again_in_the_epoch_of_its_earlier_process(at: Bench):
    """The new process may have fewer records than the earlier one, so the broker must be elected again."""
    at.start(1, number=2)
    with at.flags("I1", "has already led in it"):
        at.take_role(1)


def test_i1_a_follower_that_writes(at: Bench):
    with at.flags("I1", "whose leader is broker 1"):
        at.append(2, "a", epoch=0)


def test_i1_epoch_without_an_elected_leader(at: Bench):
    with at.flags("I19", "names no leader"):
        at.take_role(1, leader_epoch=7, partition_epoch=7)


# -- I4 ---------------------------------------------------------------------------------------------------------------


def test_i4_other_bytes_at_the_same_offset_and_epoch(at: Bench):
    at.append(1, "a")
    forged = batch_of("b")
    forged[12:16] = (0).to_bytes(4, "big")
    with at.flags("I4", "checksum"):
        at.log(2).append_as_follower(bytes(forged), 0)


def test_i4_the_same_record_behind_another_one(at: Bench):
    """The offsets fit, the epochs do not decrease, the checksum is right: only the history differs from the leader's."""
    at.append(1, "a")
    at.append(1, "only on broker 1")
    at.copy(1, 2)
    at.log(2).truncate_to(1)
    fail_over(at, leader=2, isr=(2, 3))
    at.append(2, "b")
    at.append(2, "c")
    read = at.log(2).read(2, 1 << 20, 3)
    with at.flags("I4", "after a record of epoch 0, but the leader wrote it after a record of epoch 1"):
        at.log(1).append_as_follower(bytes(read.buffers[0]), 1)


def test_i4_a_high_watermark_above_a_fork(at: Bench):
    """KAFKA-14704: the former leader takes the new one's high watermark before it has cut its own tail."""
    at.replicated("a")
    at.append(1, "lost")
    fail_over(at, leader=2, isr=(2, 3))
    at.append(2, "b")
    at.copy(2, 3)
    at.raise_hw(2, 2)
    at.take_role(1)
    with at.flags("I4", "record 1 of epoch 0, but the committed one is of epoch 1"):
        at.raise_hw(1, 2)


def test_i4_recovery_finds_a_batch_that_was_never_written(at: Bench):
    at.append(1, "a")
    at.copy(1, 2)
    path = "/data/orders-0/00000000000000000000.log"
    forged = batch_of("invented")
    forged[0:8], forged[12:16] = (1).to_bytes(8, "big"), (0).to_bytes(4, "big")
    at.files[2].open(path, create=False).append([bytes(forged)])
    with at.flags("I4", "that no leader wrote"):
        at.start(2, number=2)


def test_i4_files_that_hold_something_else(at: Bench):
    at.append(1, "a")
    at.append(1, "b")
    rest.check_bytes(at.replica(1))
    at.files[1].flip_bit("/data/orders-0/00000000000000000000.log", 8 * 90)
    with at.flags("I4", "do not hold the batch that was written at offset"):
        rest.check_bytes(at.replica(1))


def test_unread_rotten_bytes_are_no_violation(at: Bench):
    at.append(1, "a")
    path = "/data/orders-0/00000000000000000000.log"
    at.files[1].flip_bit(path, 8 * 65)
    at.files[1].damage = [type("Damage", (), {"path": path})]  # type: ignore[attr-defined]
    rest.check_bytes(at.replica(1))


def test_moving_the_log_start_drops_a_fork_that_the_leader_deleted(at: Bench):
    """The leader's log starts behind the offset at which the histories diverge, so the leader cannot name that offset."""
    at.replicated("a")
    at.append(1, "fork")
    fail_over(at, leader=2, isr=(2, 3))
    at.append(2, "b")
    at.append(2, "c")
    at.copy(2, 3)
    at.raise_hw(2, 3)
    at.raise_hw(3, 3)
    at.log(2).increment_log_start_offset(2)
    at.take_role(1)
    at.copy(2, 1)
    at.raise_hw(1, 3)
    at.log(1).increment_log_start_offset(2)
    at.step()


def test_i4_a_fork_that_stays_below_the_high_watermark(at: Bench):
    at.replicated("a")
    at.append(1, "fork")
    fail_over(at, leader=2, isr=(2, 3))
    at.append(2, "b")
    at.append(2, "c")
    at.copy(2, 3)
    at.raise_hw(2, 3)
    at.log(2).increment_log_start_offset(2)
    at.take_role(1)
    at.copy(2, 1)
    with at.flags("I4", "which only it holds"):
        at.raise_hw(1, 3)


# -- I5 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"), [("high_watermark", 9), ("log_start_offset", 1), ("recovery_point", 9), ("log_end_offset", 9)]
)
def test_i5_offsets_out_of_order(at: Bench, field: str, value: int):
    at.append(1, "a")
    at.step()
    setattr(at.log(1), field, value)
    at.ghosts.dirty[at.replica(1)] = None
    with at.flags("I5"):
        at.step()


def test_i5_a_gap(at: Bench):
    at.append(1, "a")
    at.log(1).log_end_offset = 5
    with at.flags("I5", "appends a batch at offset 5, but its log ends at 1"):
        at.append(1, "b")


def test_i5_a_recovery_that_stops_short(at: Bench):
    at.append(1, "a")
    at.append(1, "b")
    log = at.log(1)
    log.log_end_offset = 1
    with at.flags("I5", "the log on disk ends at 2"):
        logs.opened(at.ghosts, at.replica(1), log)


# -- I6 ---------------------------------------------------------------------------------------------------------------


def test_i6_a_committed_record_is_cut_off(at: Bench):
    """KIP-101: a follower truncates to its own high watermark, which lags."""
    at.replicated("a")
    with at.flags("I6", "the committed records 0 to 0"):
        at.log(2).truncate_to(0)


def test_uncommitted_records_may_be_truncated(at: Bench):
    at.replicated("a")
    at.append(1, "b")
    at.copy(1, 2)
    at.log(2).truncate_to(1)
    at.step()


def test_a_damaged_replica_repairs_itself_if_others_have_it(at: Bench):
    at.replicated("a")
    at.replicated("b")
    at.change(isr=(1, 2))
    at.log(3).mark_corrupt(1)
    at.log(3).truncate_to(1)
    at.step()


def test_i6_repair_drops_the_only_copy(at: Bench):
    at.replicated("a")
    at.change(isr=(3,), leader=3)
    at.log(3).mark_corrupt(0)
    with at.flags("I6"):
        at.log(3).truncate_to(0)


def test_i5_log_start_moves_back(at: Bench):
    for value in "abc":
        at.replicated(value)
    log = at.log(1)
    log.increment_log_start_offset(2)
    log.log_start_offset = 0
    with at.flags("I5", "moved back from 2 to 1"):
        log.increment_log_start_offset(1)


def test_i6_log_restarts_without_need(at: Bench):
    """Only a leader that has deleted the records makes a follower start behind its own end."""
    at.replicated("a")
    with at.flags("I6"):
        at.log(2).truncate_fully_and_start_at(7)


def test_follower_restarts_at_the_leaders_log_start(at: Bench):
    at.replicated("a")
    at.append(1, "b", "c")
    at.copy(1, 3)
    at.change(isr=(1, 3))
    at.raise_hw(1, 3)
    at.log(1).increment_log_start_offset(3)
    at.log(2).truncate_fully_and_start_at(3)
    at.step()


def test_permitted_loss_is_no_violation(at: Bench):
    at.replicated("a")
    at.ghosts.permit_loss("two power cuts", "orders-0")
    at.log(2).truncate_to(0)
    at.step()


# -- I11 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entries", [[], [(0, 0), (1, 1)], [(0, 0), (1, 3)], [(0, 0), (2, 2)], [(0, 1), (1, 2)]])
def test_i11_a_cache_that_does_not_fit_the_records(at: Bench, entries: list[tuple[int, int]]):
    at.append(1, "a", "b")
    at.copy(1, 2)
    fail_over(at, leader=2, isr=(1, 2, 3))
    at.append(2, "c")
    at.step()
    cache = at.log(2).epochs
    assert cache.entries == [(0, 0), (1, 2)]
    cache.epochs[:], cache.starts[:] = [e for e, _ in entries], [s for _, s in entries]
    at.ghosts.dirty[at.replica(2)] = None
    with at.flags("I11"):
        at.step()


def test_empty_epoch_begins_at_the_next_one(at: Bench):
    at.replicated("a")
    fail_over(at, leader=2, isr=(2, 3))
    fail_over(at, leader=3, isr=(2, 3))
    at.append(3, "b")
    fail_over(at, leader=2, isr=(2, 3))
    at.step()
    assert at.log(2).epochs.entries == [(0, 0), (1, 1), (3, 1)]


def test_i11_record_of_a_future_epoch(at: Bench):
    at.orders.leaders[5] = 1
    with at.flags("I11", "records of epoch 5, but the newest leader epoch is 0"):
        at.append(1, "a", epoch=5)


def test_i11_epochs_that_go_back(at: Bench):
    fail_over(at, leader=2, isr=(1, 2, 3))
    at.append(2, "a")
    at.log(2).epochs.clear()
    at.orders.leaders[0] = 2
    with at.flags("I11", "of epoch 0 after a record of epoch 1"):
        at.append(2, "b", epoch=0)


# -- I22 --------------------------------------------------------------------------------------------------------------


def test_i22_a_batch_of_an_earlier_topic_of_the_name(at: Bench):
    other = at.ghosts.partition((bytes(15) + b"\x08", 0), "orders")
    at.append(1, "old")
    at.copy(1, 2)
    chain = at.orders.tree.chains.pop(0)
    other.tree.chains[0] = chain
    at.log(3).append_as_follower(bytes(b"".join(bytes(b) for b in at.log(1).read(0, 1 << 20, 1).buffers)), 0)
    found, at.invariants.failure = at.invariants.failure, None
    assert getattr(found, "invariant", None) == "I22", found


def test_i22_a_partition_that_is_served_from_another_topics_log(at: Bench):
    log = Log.open(
        at.files[1],
        "/data/other-0",
        topic="other",
        partition=0,
        topic_id=bytes(15) + b"\x09",
        config=LogConfig(),
        clean_shutdown=True,
        now_ms=0,
    )
    partition = at.partitions[1]
    with at.flags("I22", "from the log of"):
        type(partition)(KEY, "orders", log, partition.context, partition.observer, 2)


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_loss_of_unflushed_records_in_a_power_cut_is_no_violation(at: Bench):
    at.replicated("a")
    at.append(1, "b")
    at.copy(1, 2)
    at.files[2].crash()
    at.start(2, number=2)
    at.step()
    assert at.replica(2).path.end <= 2
    assert at.replica(2).is_unclean is (at.replica(2).path.end < 2)


def test_disk_that_is_empty_after_a_restart_is_no_violation(at: Bench):
    at.replicated("a")
    at.start(2, MemoryFiles(Random(0)), number=2)
    at.step()
    assert (at.replica(2).path.end, at.replica(2).is_unclean) == (0, True)


def test_append_during_which_the_process_died_may_be_found_later(at: Bench):
    """The batch was written, but the process died before the call returned."""
    batch = batch_of("a")

    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        raise Died

    log = at.log(1)
    log._remember = die  # type: ignore[method-assign]
    with pytest.raises(Died):
        log.append_as_leader(batch, 0, NOW_MS)
    at.start(1, number=2)
    at.step()
    assert at.replica(1).path.end == 1


def test_damage_by_the_disk_is_no_violation_of_the_log(at: Bench):
    for value in "abc":
        at.replicated(value)
    at.files[2].flip_bit("/data/orders-0/00000000000000000000.log", 8 * 100)
    at.start(2, number=2, recovery_point=3)
    at.step()
    assert at.replica(2).path.end == 3
    assert at.replica(2).damage == 1
    assert at.replica(2).is_unclean


def test_the_metadata_log_is_a_partition_like_any_other(at: Bench):
    assert at.ghosts.partition(METADATA, "") is at.ghosts.metadata.log
    assert at.ghosts.partitions.keys() == {(TOPIC_ID, 0)}
