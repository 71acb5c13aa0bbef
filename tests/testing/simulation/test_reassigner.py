"""The client that reassigns partitions knows at which replicas each may end, also if copies of its requests arrive late."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from invariant_bench import TOPIC_ID, bench

from strandline.client import TopicPartition
from strandline.client.admin_types import ReassignmentResult
from strandline.client.errors import RequestTimeout
from strandline.controller import handlers
from strandline.controller.metadata.features import LEVEL_MAX
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import FeatureLevelRecord, PartitionRecord, RegisterBrokerRecord, TopicRecord
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages.admin import AlterPartitionReassignmentsRequest, ReassignablePartition, ReassignableTopic
from strandline.testing.simulation.cluster.reassigner import Reassigner
from strandline.testing.simulation.kernel.trace import Trace
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import draw_options

PLACE, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
Target = tuple[int, ...] | None


class Controllers:
    """Controllers that accept each request that arrives, and an administrator whose requests arrive at once."""

    def __init__(self) -> None:
        self.decided: list[tuple[tuple[str, int], Target]] = []
        self.is_reached = True

    def decide(self, place: TopicPartition, target: Target) -> None:
        self.decided.append(((place.topic, place.partition), target))

    async def alter_partition_reassignments(self, targets: Mapping[TopicPartition, Target], **_: Any) -> list[ReassignmentResult]:
        if not self.is_reached:
            raise RequestTimeout("no answer")
        for place, target in targets.items():
            self.decide(place, target)
        return [ReassignmentResult(place) for place in targets]


class At:
    def __init__(self) -> None:
        self.controllers = Controllers()
        world: Any = SimpleNamespace(trace=Trace(lambda: 0.0))
        cluster: Any = SimpleNamespace()
        self.reassigner = Reassigner(world, draw_options(1), Budget(cluster), self.controllers.decided)

    def ask(self, target: Target, place: TopicPartition = PLACE) -> None:
        asyncio.run(self.reassigner.alter(self.controllers, {place: target}, None))

    def lose(self, target: Target) -> None:
        """Send a request that gets no answer."""
        self.controllers.is_reached = False
        with pytest.raises(RequestTimeout):
            self.ask(target)
        self.controllers.is_reached = True

    def may_end_at(self, *replicas: int) -> bool:
        return not self.reassigner.misses_target(PLACE, replicas)


@pytest.fixture
def at() -> At:
    return At()


def test_partition_must_end_at_the_last_accepted_target(at: At) -> None:
    at.ask((3, 1, 2))
    at.ask((1, 2))
    at.ask((3,), OTHER)
    assert at.may_end_at(1, 2)
    assert not at.may_end_at(3, 1, 2), "the second target has replaced it"
    assert not at.may_end_at(2, 1), "the order is a part of the target"
    assert not at.may_end_at(3), "that was another partition"


def test_lost_request_alone_excuses_no_other_target(at: At) -> None:
    at.lose((3, 1, 2))
    assert at.may_end_at(2, 1), "it is not known whether the request was accepted"
    at.ask((1, 2))
    assert not at.may_end_at(3, 1, 2)


def test_late_copy_may_replace_the_target(at: At) -> None:
    """Seed 20261129123: the kernel of a broker that was cut off from the controllers sent the copy 2.7 s late."""
    at.lose((3, 1, 2))
    at.ask((1, 2))
    at.controllers.decide(PLACE, (3, 1, 2))
    assert at.may_end_at(3, 1, 2)
    assert at.may_end_at(1, 2), "the decision may not have been committed"
    assert not at.may_end_at(2, 1)
    at.ask((2, 3))
    assert not at.may_end_at(3, 1, 2), "a later request has replaced it"


def test_late_copy_of_a_cancellation_leaves_the_target_unknown(at: At) -> None:
    at.ask((1, 2))
    at.controllers.decide(PLACE, None)
    assert at.may_end_at(2, 1)


def test_accepted_targets_are_noted_and_refused_ones_are_not() -> None:
    brokers = [RegisterBrokerRecord(n, n, bytes([n]) * 16) for n in (1, 2, 3)]
    topic = [TopicRecord("orders", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (1, 2), (1, 2), 1)]
    image = MetadataImage.from_records([FeatureLevelRecord(METADATA_VERSION, LEVEL_MAX), *brokers, *topic], 9, 1)

    def ask(*targets: list[int] | None) -> None:
        partitions = [ReassignablePartition(i, target) for i, target in enumerate(targets)]
        request = AlterPartitionReassignmentsRequest([ReassignableTopic("orders", partitions)])
        handlers.alter_partition_reassignments(image, request)

    with bench() as found:
        ask([2, 3], [1])  # there is no partition 1
        ask([9])
        ask(None)  # there is nothing to cancel
        ask([2, 1])
    assert found.ghosts.metadata.targets == [(("orders", 0), (2, 3)), (("orders", 0), (2, 1))]
