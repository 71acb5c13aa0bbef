"""Which brokers the plans of `strandline reassign` and `strandline broker drain` use."""

from __future__ import annotations

import pytest

from strandline.cli.moves import Situation
from strandline.client import BrokerDescription, UsageError


def situation(*brokers: BrokerDescription) -> Situation:
    return Situation({each.broker_id: each for each in brokers}, {}, {}, {})


HEALTHY = BrokerDescription(1, "h1", 1, "a")
CORDONED = BrokerDescription(2, "h2", 1, "b", is_cordoned=True)
OTHERS = (
    BrokerDescription(3, "h3", 1, is_draining=True),
    BrokerDescription(4, "h4", 1, is_fenced=True),
    BrokerDescription(5, "h5", 1, in_controlled_shutdown=True),
)


def test_a_cordoned_broker_keeps_its_replicas_and_gets_no_others() -> None:
    found = situation(HEALTHY, CORDONED, *OTHERS)
    assert found.racks() == {1: "a", 2: "b"}
    assert found.targets() == {1: "a"}
    assert found.others(1) == {}, "a drain moves nothing to it"
    assert found.others(3) == {1: "a"}


def test_chosen_brokers_are_taken_as_they_are() -> None:
    assert situation(HEALTHY, CORDONED).racks([2]) == {2: "b"}
    with pytest.raises(UsageError, match="there is no broker 9; the cluster has 1, 2"):
        situation(HEALTHY, CORDONED).racks([9])
