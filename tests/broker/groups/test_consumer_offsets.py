"""Offsets and descriptions of a group of the newer protocol: which members may commit and fetch, what may expire, what an
operator sees."""

from __future__ import annotations

from dataclasses import replace

import pytest
from consumer_world import GROUP, ConsumerWorld

from strandline.broker.groups.records.types import ClassicMemberMetadata, ClassicProtocol, MemberMetadataRecord
from strandline.broker.groups.state import CONSUMER
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.groups import NamedTopicPartitions


def world_in_epoch_5() -> ConsumerWorld:
    """A is in epoch 5. It has owned orders 0 since epoch 1 and orders 2 since epoch 4. It has to give up orders 1, which it has
    owned since epoch 3. It does not own orders 3."""
    world = ConsumerWorld(orders=4)
    world.join("A", "orders")
    world.join("B", "orders")
    world.group.put_current("B", None)
    current = world.group.members["A"].current
    topic_id = world.topics.topic_id("orders")
    world.group.put_current(
        "A",
        replace(
            current,
            member_epoch=5,
            previous_member_epoch=4,
            assigned={topic_id: {0: 1, 2: 4}},
            pending_revocation={topic_id: {1: 3}},
        ),
    )
    return world


COMMITS = {
    "the present epoch, whatever it owns": (5, [0, 1, 2, 3], "NONE NONE NONE NONE"),
    "the epoch before": (4, [0, 1, 2, 3], "NONE NONE NONE STALE_MEMBER_EPOCH"),
    "before it got one of them": (3, [0, 1, 2], "NONE NONE STALE_MEMBER_EPOCH"),
    "long ago": (1, [0, 1, 2], "NONE STALE_MEMBER_EPOCH STALE_MEMBER_EPOCH"),
    "before it joined": (0, [0], "STALE_MEMBER_EPOCH"),
    "nothing": (5, [], ""),
}


@pytest.mark.parametrize("name", COMMITS)
def test_commit_of_an_older_epoch_counts_for_what_was_owned_then(name: str) -> None:
    """KIP-1251: a rebalance does not fail the commits that are under way. A partition that the member was assigned later may have
    had another owner in between. Kafka refuses the whole request; here each partition has its own result."""
    epoch, numbers, expected = COMMITS[name]
    world = world_in_epoch_5()
    partitions = [(world.topics.topic_id("orders"), number) for number in numbers]
    codes = world.group.check_offset_commit("A", None, epoch, partitions, world.now)
    assert " ".join(ErrorCode(code).name for code in codes) == expected


def test_commit_for_an_unknown_topic_in_an_older_epoch_is_stale() -> None:
    world = world_in_epoch_5()
    assert world.group.check_offset_commit("A", None, 4, [(bytes(16), 0)], 0.0) == [ErrorCode.STALE_MEMBER_EPOCH]


REFUSED_COMMITS = {
    "newer epoch": ("A", 6, ErrorCode.STALE_MEMBER_EPOCH),
    "unknown member": ("Z", 5, ErrorCode.UNKNOWN_MEMBER_ID),
    "program without a membership while there are members": ("", -1, ErrorCode.UNKNOWN_MEMBER_ID),
}


@pytest.mark.parametrize("name", REFUSED_COMMITS)
def test_commit_is_refused(name: str) -> None:
    member, epoch, code = REFUSED_COMMITS[name]
    with pytest.raises(BrokerError) as refused:
        world_in_epoch_5().group.check_offset_commit(member, None, epoch, [(bytes(16), 0)], 0.0)
    assert refused.value.code is code


def test_process_that_is_away_does_not_commit() -> None:
    world = ConsumerWorld(orders=1)
    world.join("A", "orders", instance_id="a")
    world.leave("A", epoch=-2, instance_id="a")
    with pytest.raises(BrokerError) as refused:
        world.group.check_offset_commit("A", "a", 1, [(world.topics.topic_id("orders"), 0)], 0.0)
    assert refused.value.code is ErrorCode.STALE_MEMBER_EPOCH


def test_restarted_static_process_commits_in_its_own_epoch() -> None:
    """Its partitions count as assigned from the beginning, so that a commit of its first epoch is not stale later."""
    world = ConsumerWorld(orders=2)
    world.join("A", "orders", instance_id="a")
    world.leave("A", epoch=-2, instance_id="a")
    world.join("A2", "orders", instance_id="a")
    world.join("B", "orders")
    world.beat("A2", owns={"orders": [0, 1]}, instance_id="a")
    world.beat("A2", owns={"orders": [0]}, instance_id="a")
    assert world.epochs["A2"] == 2
    partition = (world.topics.topic_id("orders"), 0)
    assert world.group.check_offset_commit("A2", "a", 1, [partition], 0.0) == [ErrorCode.NONE]


def test_commit_without_membership_is_accepted_for_an_empty_group() -> None:
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.leave("A")
    assert world.group.check_offset_commit("", None, -1, [(bytes(16), 0), (bytes(16), 1)], 0.0) == [0, 0]
    with pytest.raises(BrokerError) as refused:
        world.group.check_offset_commit("A", None, 1, [], 0.0)
    assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID


FETCHES = {
    "without a member": (None, -1, None),
    "with an empty member id": ("", -1, None),
    "the present epoch": ("A", 5, None),
    "an older epoch": ("A", 4, ErrorCode.STALE_MEMBER_EPOCH),
    "a newer epoch": ("A", 6, ErrorCode.STALE_MEMBER_EPOCH),
    "an unknown member": ("Z", 5, ErrorCode.UNKNOWN_MEMBER_ID),
    "an epoch without a member": (None, 5, ErrorCode.UNKNOWN_MEMBER_ID),
}


@pytest.mark.parametrize("name", FETCHES)
def test_fetch_of_offsets(name: str) -> None:
    """A member that was assigned a partition must not fetch its offset in the previous epoch."""
    member, epoch, code = FETCHES[name]
    group = world_in_epoch_5().group
    if code is None:
        group.check_offset_fetch(member, epoch)
        return
    with pytest.raises(BrokerError) as refused:
        group.check_offset_fetch(member, epoch)
    assert refused.value.code is code


def a_classic_member() -> ConsumerWorld:
    """A group in migration: A speaks the classic protocol."""
    world = world_in_epoch_5()
    metadata = replace(
        world.group.members["A"].metadata,
        classic_member_metadata=ClassicMemberMetadata(30_000, (ClassicProtocol("range", b"\0"),)),
    )
    world.consumer.replay(MemberMetadataRecord(GROUP, "A", metadata))
    return world


def test_classic_member_gets_the_codes_of_its_protocol() -> None:
    """The classic protocol has no STALE_MEMBER_EPOCH."""
    world = a_classic_member()
    partition = (world.topics.topic_id("orders"), 2)
    assert world.group.check_offset_commit("A", None, 3, [partition], 0.0) == [ErrorCode.ILLEGAL_GENERATION]
    for refuse in (
        lambda: world.group.check_offset_commit("A", None, 6, [partition], 0.0),
        lambda: world.group.check_offset_fetch("A", 4),
    ):
        with pytest.raises(BrokerError) as refused:
            refuse()
        assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_classic_member_is_described_as_one() -> None:
    """Its record has the metadata of the classic protocol, so its type is 0 (CLASSIC)."""
    world = a_classic_member()
    assert [(m.member_id, m.member_type) for m in world.consumer.describe(GROUP).members] == [("A", 0), ("B", 1)]


def test_offsets_expire_only_without_a_subscription() -> None:
    world = ConsumerWorld(orders=1, bills=1)
    world.join("A", "orders", "missing")
    assert [world.group.is_subscribed_to(topic) for topic in ("orders", "missing", "bills")] == [True, True, False]
    assert [world.group.may_expire_offset(topic) for topic in ("orders", "missing", "bills")] == [False, False, True]
    world.leave("A")
    assert world.group.may_expire_offset("orders")


def test_empty_group_knows_since_when() -> None:
    """The time is in the record of the empty target assignment, so the next coordinator has it, too."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    assert world.group.empty_since_ms == -1
    world.pass_time(5)
    world.leave("A")
    since = world.now_ms
    world.pass_time(100)
    world.move()
    assert world.group.empty_since_ms == since


# -- what is seen -----------------------------------------------------------------------------------------------------


def test_group_is_described() -> None:
    """A partition that a member has to give up is still described as its own. Deleted topics have no name, and are left out."""
    world = ConsumerWorld(orders=4, bills=1)
    world.join("A", "bills", "orders", rack_id="r", instance_id="a")
    world.join("B", "orders", subscribed_topic_regex="b.*")
    world.beat("A", owns={"orders": range(4), "bills": [0]}, instance_id="a")
    world.topics.remove("bills")
    world.publish()
    described = world.consumer.describe(GROUP)
    assert (described.error_code, described.group_id, described.group_state) == (0, GROUP, "Assigning")
    assert (described.group_epoch, described.assignment_epoch, described.assignor_name) == (3, 2, "uniform")
    a, b = described.members
    assert (a.member_id, a.instance_id, a.rack_id, a.member_epoch, a.member_type) == ("A", "a", "r", 1, 1)
    assert (a.client_id, a.client_host) == ("client-A", "h")
    assert (a.subscribed_topic_names, a.subscribed_topic_regex) == (["bills", "orders"], None)
    assert (b.subscribed_topic_names, b.subscribed_topic_regex) == (["orders"], "b.*")
    orders = world.topics.topic_id("orders")
    assert a.assignment == [NamedTopicPartitions(orders, "orders", [0, 1, 2, 3])]
    assert a.target_assignment == [NamedTopicPartitions(orders, "orders", [0, 1])]
    assert b.assignment == []
    assert b.target_assignment == [NamedTopicPartitions(orders, "orders", [2, 3])]


def test_unknown_group_is_not_described() -> None:
    with pytest.raises(BrokerError) as refused:
        ConsumerWorld().consumer.describe(GROUP)
    assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND


def test_states_are_named_as_in_kafka() -> None:
    world = ConsumerWorld(orders=2)
    world.join("A", "orders")
    seen = [world.group.state_name]
    world.join("B", "orders")
    seen.append(world.group.state_name)
    world.topics.create(orders=3)
    world.publish()
    seen.append(world.group.state_name)
    world.leave("A")
    world.leave("B")
    seen.append(world.group.state_name)
    assert seen == ["Stable", "Reconciling", "Assigning", "Empty"]
    assert (world.group.group_type, world.group.protocol_type) == (CONSUMER, "consumer")
