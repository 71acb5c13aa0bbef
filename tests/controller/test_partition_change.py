"""The change of one partition: ISR, eligible leader replicas (KIP-966) and leader, as one table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from strandline.controller.metadata.image import PartitionRegistration
from strandline.controller.metadata.records import NO_LEADER, PartitionChangeRecord
from strandline.controller.partition_change import ChangeRules, change_partition, elect

KEY = (b"t" * 16, 0)


@dataclass
class Case:
    """A partition with the replicas 1, 2, 3, what changes in it, and the result."""

    isr: tuple[int, ...]
    new_isr: tuple[int, ...]
    result: tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
    """Leader, ISR, ELR, last known ELR."""
    elr: tuple[int, ...] = ()
    leader: int = 1
    last_known: tuple[int, ...] = ()
    active: tuple[int, ...] = (1, 2, 3)
    lost: tuple[int, ...] = ()
    min_isr: int = 2


CASES = {
    "shrink above the min ISR": Case((1, 2, 3), (1, 2), (1, (1, 2), (), ())),
    "shrink below the min ISR": Case((1, 2), (1,), (1, (1,), (2,), ())),
    "shrink from above to below": Case((1, 2, 3), (1,), (1, (1,), (2, 3), ())),
    "shrink further": Case((1, 2), (1,), (1, (1,), (2, 3), ()), elr=(3,), min_isr=3),
    "expand below the min ISR": Case((1,), (1, 3), (1, (1, 3), (2,), ()), elr=(2, 3), min_isr=3),
    "expand to the min ISR": Case((1,), (1, 2), (1, (1, 2), (), ()), elr=(2, 3)),
    "min ISR above the number of replicas": Case((1, 2), (1, 2, 3), (1, (1, 2, 3), (), ()), elr=(3,), min_isr=5),
    "last member fails": Case((1,), (), (NO_LEADER, (), (1,), (1,)), active=(), min_isr=1),
    "last member fails, no other is active": Case((1,), (), (NO_LEADER, (), (1, 2), (1,)), elr=(2,), active=(3,)),
    "last member fails, an eligible replica is active": Case((1,), (), (2, (2,), (1,), ()), elr=(2,), active=(2, 3)),
    "all members fail at once": Case((1, 2, 3), (), (NO_LEADER, (), (1, 2, 3), (1,)), active=()),
    "eligible replica returns": Case((), (), (3, (3,), (1,), ()), elr=(1, 3), leader=-1, last_known=(1,), active=(2, 3)),
    "first eligible replica in the order of replicas": Case(
        (), (), (2, (2,), (3,), ()), elr=(3, 2), leader=-1, last_known=(1,), active=(2, 3)
    ),
    "only a replica returns that is not eligible": Case(
        (), (), (NO_LEADER, (), (1,), (1,)), elr=(1,), leader=-1, last_known=(1,), active=(2, 3)
    ),
    "fenced last leader (KAFKA-19522)": Case((), (), (NO_LEADER, (), (), (1,)), leader=-1, last_known=(1,), active=(2, 3)),
    "the last leader alone is no candidate": Case((), (), (NO_LEADER, (), (), (1,)), leader=-1, last_known=(1,)),
    "elected replica meets the min ISR": Case((), (), (2, (2,), (), ()), elr=(1, 2), leader=-1, active=(2,), min_isr=1),
    "min ISR lowered to the ISR": Case((1,), (1,), (1, (1,), (), ()), elr=(2,), min_isr=1),
    "min ISR raised": Case((1,), (1,), (1, (1,), (2,), ()), elr=(2,), min_isr=3),
    "lost member": Case((1, 2), (1,), (1, (1,), (), ()), lost=(2,)),
    "lost member that is proposed": Case((1, 2), (1, 2), (1, (1,), (), ()), lost=(2,)),
    "lost eligible replica": Case((1,), (1,), (1, (1,), (3,), ()), elr=(2, 3), lost=(2,)),
    "lost leader": Case((1,), (), (2, (2,), (), ()), elr=(2,), lost=(1,), active=(2, 3)),
    "all lost": Case((), (), (NO_LEADER, (), (), (3,)), elr=(2,), leader=-1, last_known=(3,), lost=(2,), active=()),
    "member of level 0 is lost": Case((1,), (), (NO_LEADER, (), (), (1,)), leader=-1, lost=(1,), active=()),
}


@pytest.mark.parametrize("name", CASES)
def test_change(name: str) -> None:
    case = CASES[name]
    before = PartitionRegistration((1, 2, 3), case.isr, case.leader, 4, 7, elr=case.elr, last_known_elr=case.last_known)
    rules = ChangeRules(case.active.__contains__, lambda topic_id: case.min_isr)
    record = change_partition(KEY, before, case.new_isr, rules, lost=case.lost)
    after = before if record is None else before.merge(record)
    assert (after.leader, after.isr, after.elr, after.last_known_elr) == case.result
    assert after.contradiction() is None
    assert after.leader_epoch == 4 + (after.leader != before.leader), "only a change of the leader raises the leader epoch"
    assert after.partition_epoch == 7 + (after != before), "no record without a change"


def test_only_replica_is_never_lost() -> None:
    """No other replica could have the records: without this one the partition would wait forever."""
    before = PartitionRegistration((1,), (1,), 1)
    rules = ChangeRules(lambda broker_id: False, lambda topic_id: 1)
    record = change_partition(KEY, before, (), rules, lost=(1,))
    assert record is not None
    after = before.merge(record)
    assert (after.leader, after.isr, after.elr) == (NO_LEADER, (), (1,))


@pytest.mark.parametrize("isr", [(), (1,)])
def test_at_level_0_the_last_member_stays_in_the_isr(isr: tuple[int, ...]) -> None:
    before = PartitionRegistration((1, 2, 3), (1,), 1)
    record = change_partition(KEY, before, isr, ChangeRules(lambda broker_id: False), lost=(1,))
    assert record == PartitionChangeRecord(*KEY, leader=NO_LEADER)


def test_the_elr_does_not_lead_while_the_isr_has_members() -> None:
    """Only the ISR may have records that were committed since."""
    partition = PartitionRegistration((1, 2, 3), (1,), NO_LEADER, elr=(2,))
    assert elect(partition, (1,), (2, 3).__contains__, elr=(2,)) == NO_LEADER
