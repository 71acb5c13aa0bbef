"""A group's own configuration: it acts from the next heartbeat on, and stays within the bounds of the coordinator's file."""

from __future__ import annotations

import pytest
from consumer_world import GROUP, ConsumerWorld

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.group_config_manager import GroupConfigManager, GroupSettings
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AnyRecord, ConfigRecord
from strandline.protocol.messages.admin import RESOURCE_GROUP, RESOURCE_TOPIC
from strandline.protocol.messages.groups import ConsumerGroupHeartbeatResponse

DEFAULT = GroupSettings(9000, 3000, 500)


def settings_in(answer: object) -> tuple[int, int]:
    """Session timeout and heartbeat interval in the answer to a member."""
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer.session_timeout_ms, answer.heartbeat_interval_ms


def test_the_next_heartbeat_has_the_new_session_and_interval() -> None:
    world = ConsumerWorld(orders=1)
    assert settings_in(world.join("A", "orders")) == (9000, 3000)
    world.configure(session_timeout_ms=50_000, heartbeat_interval_ms=10_000)
    assert settings_in(world.beat("A")) == (50_000, 10_000)
    world.pass_time(49)
    assert list(world.group.members) == ["A"]
    world.configure(session_timeout_ms=None, heartbeat_interval_ms=None)
    assert settings_in(world.beat("A")) == (9000, 3000)
    world.pass_time(9.1)
    assert not world.groups.get(GROUP) or not world.group.members


def test_other_groups_keep_the_brokers_values() -> None:
    world = ConsumerWorld(orders=1)
    world.configure(group="another", session_timeout_ms=50_000)
    assert settings_in(world.join("A", "orders")) == (9000, 3000)


def test_sessions_that_begin_at_a_new_coordinator_have_the_groups_length() -> None:
    world = ConsumerWorld(orders=1)
    world.configure(session_timeout_ms=50_000)
    world.join("A", "orders")
    world.move()
    world.pass_time(49)
    assert list(world.group.members) == ["A"]
    world.pass_time(1.1)
    assert not world.group.members


def test_a_member_that_waits_is_answered_after_the_groups_interval() -> None:
    world = ConsumerWorld(orders=1)
    world.configure(session_timeout_ms=50_000, heartbeat_interval_ms=10_000)
    world.join("A", "orders")
    asker = world.park("A")
    world.pass_time(9.9)
    assert not asker.answers
    world.pass_time(0.2)
    assert [settings_in(answer) for answer in asker.answers] == [(50_000, 10_000)]


def test_a_groups_assignment_is_computed_at_most_once_in_its_interval() -> None:
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=0), orders=2)
    world.configure(assignment_interval_ms=4000)
    world.join("A", "orders")
    world.pass_time(1)
    world.join("B", "orders")
    assert world.group.assignment_epoch < world.group.epoch
    world.pass_time(3)
    assert world.group.assignment_epoch == world.group.epoch


def test_a_shorter_assignment_interval_counts_at_the_next_heartbeat() -> None:
    """As in Kafka, which adds the present interval to the time of the last assignment."""
    world = ConsumerWorld(GroupConfig(group_consumer_assignment_interval_ms=15_000), orders=2)
    world.join("A", "orders")
    world.pass_time(1)
    world.join("B", "orders")
    world.configure(assignment_interval_ms=2000)
    world.beat("A")
    assert world.group.assignment_epoch < world.group.epoch
    world.pass_time(1)
    world.beat("A")
    assert world.group.assignment_epoch == world.group.epoch


FULL = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"]}
"""The additional fields of a heartbeat after one whose answer was lost."""


def shortened() -> ConsumerWorld:
    """The member has received a session of 50 s. The configuration is back at 9 s, which the member has not received yet."""
    world = ConsumerWorld(orders=1)
    world.configure(session_timeout_ms=50_000)
    world.join("A", "orders")
    world.beat("A")
    world.configure(session_timeout_ms=None)
    return world


def test_a_member_that_is_cut_off_keeps_the_session_that_it_received() -> None:
    """As in Kafka: only the next heartbeat begins a session of the new length."""
    world = shortened()
    world.pass_time(49)
    assert list(world.group.members) == ["A"]
    world.pass_time(1.1)
    assert not world.group.members


def test_a_shorter_session_waits_until_the_member_knows_it() -> None:
    """If the answer with the shorter session is lost, the member reads its partitions for the rest of the longer one. Another
    member must not get them before that."""
    world = shortened()
    world.pass_time(3)
    assert settings_in(world.beat("A")) == (9000, 3000)  # the answer is lost
    world.pass_time(46)
    assert list(world.group.members) == ["A"]
    world.pass_time(1.1)
    assert not world.group.members


def test_a_member_that_knows_its_shorter_session_is_removed_after_it() -> None:
    world = shortened()
    world.pass_time(3)
    world.beat("A")
    world.pass_time(3)
    world.beat("A")
    world.pass_time(8.9)
    assert list(world.group.members) == ["A"]
    world.pass_time(0.2)
    assert not world.group.members


def test_a_heartbeat_after_a_lost_answer_shortens_nothing() -> None:
    world = shortened()
    world.pass_time(3)
    world.beat("A")  # the answer is lost
    world.pass_time(3)
    world.beat("A", owns={"orders": [0]}, **FULL)  # and so is this one
    world.pass_time(43.9)
    assert list(world.group.members) == ["A"]
    world.pass_time(0.2)
    assert not world.group.members


def test_a_session_that_is_shortened_twice_lasts_as_long_as_the_member_knows() -> None:
    world = shortened()
    world.configure(session_timeout_ms=20_000)
    world.beat("A")
    world.configure(session_timeout_ms=6000)
    world.pass_time(3)
    world.beat("A")  # it has received the 20 s; this answer is lost
    world.pass_time(16.9)
    assert list(world.group.members) == ["A"]
    world.pass_time(0.2)
    assert not world.group.members


def test_a_member_that_joins_again_owns_nothing_and_has_the_new_session_at_once() -> None:
    world = shortened()
    world.join("A", "orders")
    world.pass_time(9.1)
    assert not world.group.members


def test_a_new_coordinator_keeps_the_sessions_that_the_earlier_one_sent() -> None:
    """The coordinator moves before the member has received the shorter session."""
    world = shortened()
    world.pass_time(3)
    world.move()
    world.pass_time(49.9)
    assert list(world.group.members) == ["A"]
    world.pass_time(0.2)
    assert not world.group.members


def test_a_new_coordinator_forgets_sessions_that_were_sent_too_long_ago() -> None:
    world = shortened()
    world.pass_time(3)
    world.beat("A")
    world.beat("A")
    for _ in range(10):
        world.pass_time(5)
        world.beat("A")
    world.move()
    world.pass_time(9.1)
    assert not world.group.members


def manager(*records: AnyRecord, **config: int) -> GroupConfigManager:
    found = GroupConfigManager(GroupConfig(**config))
    found.apply_delta(MetadataImage.empty().apply(records, len(records), 1), 0.0)
    return found


def own(key: str, value: str, group: str = "g") -> ConfigRecord:
    return ConfigRecord(RESOURCE_GROUP, group, key, value)


SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)


@pytest.mark.parametrize(
    ("records", "config", "expected"),
    [
        ([], {}, DEFAULT),
        ([own(SESSION, "20000")], {}, GroupSettings(20_000, 3000, 500)),
        ([own(ASSIGNMENT, "0")], {}, GroupSettings(9000, 3000, 0)),
        # This broker's file has other bounds than the controller's.
        ([own(SESSION, "20000")], {"group_consumer_max_session_timeout_ms": 10_000}, GroupSettings(10_000, 3000, 500)),
        ([own(HEARTBEAT, "1000")], {"group_consumer_min_heartbeat_interval_ms": 2000}, GroupSettings(9000, 2000, 500)),
        # No heartbeat would come within the session.
        ([own(HEARTBEAT, "12000")], {}, GroupSettings(9000, 3000, 500)),
        ([own(SESSION, "12000"), own(HEARTBEAT, "12000")], {}, GroupSettings(12_000, 4000, 500)),
        # Stored by another version.
        ([own(SESSION, "soon"), own("consumer.new", "1"), own(HEARTBEAT, "2000")], {}, GroupSettings(9000, 2000, 500)),
        ([ConfigRecord(RESOURCE_TOPIC, "g", SESSION, "20000")], {}, DEFAULT),
    ],
)
def test_settings_are_those_of_the_group_within_the_brokers_bounds(
    records: list[AnyRecord], config: dict[str, int], expected: GroupSettings
) -> None:
    found = manager(*records, **config)
    assert found.of("g") == expected
    assert found.of("h") == DEFAULT


def test_a_group_without_values_of_its_own_takes_no_memory() -> None:
    found = GroupConfigManager(GroupConfig())
    image = MetadataImage.empty()
    for record in (own(SESSION, "20000"), ConfigRecord(RESOURCE_GROUP, "g", SESSION, None)):
        delta = image.apply([record], image.offset + 1, 1)
        found.apply_delta(delta, 0.0)
        image = delta.image
    assert (found.of("g"), found._own) == (DEFAULT, {})
