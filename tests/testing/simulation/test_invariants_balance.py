"""I28: leaders return only to preferred replicas that may lead, and never while a broker is in controlled shutdown."""

from __future__ import annotations

import pytest

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import (
    AnyRecord,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
)
from strandline.testing.simulation.invariants import balance
from strandline.testing.simulation.invariants.violation import Violation

TOPIC_ID = bytes(15) + b"\x07"
SHUTS_DOWN, FENCES = {"in_controlled_shutdown": 1}, {"fenced": 1}


def image_with(*more: AnyRecord, isr: tuple[int, ...] = (2, 3, 1)) -> MetadataImage:
    """Three unfenced brokers, and a partition that prefers broker 1 and is led by broker 2."""
    registered = [RegisterBrokerRecord(n, n, bytes([n]) * 16, (), None, False, False) for n in (1, 2, 3)]
    records = [*registered, TopicRecord("t", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (1, 2, 3), isr, 2), *more]
    return MetadataImage.EMPTY.apply(records, 100, 1).image


def returns(leader: int = 1, index: int = 0, isr: tuple[int, ...] | None = None) -> list[PartitionChangeRecord]:
    return [PartitionChangeRecord(TOPIC_ID, index, leader=leader, isr=isr)]


def changed(broker_id: int, **change: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(broker_id, broker_id, **change)


def test_a_leader_may_return_to_a_replica_in_the_isr() -> None:
    balance.check_return(image_with(), 1, returns())


def test_a_broker_that_was_fenced_after_its_controlled_shutdown_is_no_obstacle() -> None:
    gone = image_with(changed(3, **SHUTS_DOWN), changed(3, **FENCES), isr=(2, 1))
    balance.check_return(gone, 1, returns())


@pytest.mark.parametrize(
    ("image", "records", "text"),
    [
        (image_with(changed(3, **SHUTS_DOWN)), returns(), "while broker 3 is in controlled shutdown"),
        (image_with(), returns() * 1001, "1001 leaders return to broker 1 in one decision"),
        (image_with(changed(1, **FENCES), isr=(2, 3)), returns(), "not registered or is fenced"),
        (image_with(isr=(2, 3)), returns(), r"not in the ISR \[2, 3\]"),
        (image_with(), returns(leader=3), "broker 1 is the preferred replica"),
        (image_with(), returns(isr=(1,)), "its ISR is changed as well"),
        (image_with(), returns(index=5), "the partition does not exist"),
    ],
)
def test_i28(image: MetadataImage, records: list[PartitionChangeRecord], text: str) -> None:
    with pytest.raises(Violation, match=text) as caught:
        balance.check_return(image, 1, records)
    assert caught.value.invariant == "I28"
