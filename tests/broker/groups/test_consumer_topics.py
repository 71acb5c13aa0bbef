"""Topics that are created, grow and are deleted, and regular expressions: which groups notice, and when."""

from __future__ import annotations

import pytest
from consumer_world import CONFIG, GROUP, ConsumerWorld

from strandline.broker.groups.config import GroupConfig
from strandline.broker.groups.consumer import regex_scans
from strandline.broker.groups.consumer.group import ConsumerGroup
from strandline.broker.groups.consumer.regex_scans import RegexScan, compile_regex
from strandline.broker.groups.consumer.subscriptions import metadata_hash
from strandline.broker.groups.records.types import RegularExpressionRecord, RegularExpressionValue
from strandline.protocol.errors import ErrorCode

# -- topics -----------------------------------------------------------------------------------------------------------


def test_topic_grows() -> None:
    """The new partitions are assigned at once, and not with the next heartbeat."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.forget()
    world.topics.create(orders=3)
    world.publish()
    world.settle()
    world.beat("A")
    world.check(
        """
        > metadata: orders
          log: group epoch 2
          log: target of A: orders 0-2
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with orders 0@1,1-2
          A: epoch 2, orders 0-2
        """
    )


def test_topic_is_created_after_the_subscription() -> None:
    world = ConsumerWorld()
    world.join("A", "orders")
    world.forget()
    world.topics.create(orders=1)
    world.publish()
    world.settle()
    world.beat("A")
    world.check(
        """
        > metadata: orders
          log: group epoch 2
          log: target of A: orders 0
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with orders 0
          A: epoch 2, orders 0
        """
    )


def test_deleted_topic_is_given_up() -> None:
    """The member confirms it with a heartbeat that no longer names the partition, as with any other one."""
    world = ConsumerWorld(orders=1, bills=1)
    world.join("A", "orders", "bills")
    world.forget()
    world.topics.remove("orders")
    world.publish()
    world.settle()
    world.beat("A")
    world.beat("A", owns={"bills": [0]})
    world.check(
        """
        > metadata: orders
          log: group epoch 2
          log: target of A: bills 0
          log: target epoch 2
        > A beats
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with bills 0, revokes orders 0
          A: epoch 1, bills 0
        > A beats owns bills 0
          log: A is STABLE in epoch 2 (before: 1) with bills 0@1
          A: epoch 2
        """
    )


def test_recreated_topic_is_another_topic() -> None:
    """Its id is another one: the member gives up the partitions of the old one, and gets those of the new one."""
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.forget()
    world.topics.remove("orders")
    world.topics.create(orders=1)
    world.publish()
    world.settle()
    world.beat("A")
    world.beat("A", owns={})
    world.check(
        """
        > metadata: orders
          log: group epoch 2
          log: target of A: orders(2) 0
          log: target epoch 2
        > A beats
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with nothing, revokes orders 0
          A: epoch 1, nothing
        > A beats owns nothing
          log: A is STABLE in epoch 2 (before: 1) with orders(2) 0
          A: epoch 2, orders(2) 0
        """
    )


def test_groups_notice_only_what_concerns_them() -> None:
    """Elections and ISR changes report topics all the time, and changes of other topics do not concern the group."""
    world = ConsumerWorld(orders=1, bills=1)
    world.join("A", "orders")
    before = list(world.log)
    world.topics.touch("orders", "bills", "never")
    world.topics.create(bills=5, more=1)
    world.publish()
    world.settle()
    world.beat("A")
    assert world.log == before


def test_change_that_is_not_appended_is_found_by_the_next_heartbeat() -> None:
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.topics.create(orders=2)
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.publish()
    world.append_error = None
    world.forget()
    world.beat("A")
    world.check(
        """
        > A beats
          log: group epoch 2
          log: target of A: orders 0-1
          log: target epoch 2
          log: A is STABLE in epoch 2 (before: 1) with orders 0@1,1
          A: epoch 2, orders 0-1
        """
    )


def test_change_during_a_move_is_found_by_the_new_coordinator() -> None:
    world = ConsumerWorld(orders=1)
    world.join("A", "orders")
    world.topics.create(orders=2)
    world.forget()
    world.move()
    world.settle()
    world.beat("A")
    world.check(
        """
        > the coordinator moves
          log: group epoch 2
          log: target of A: orders 0-1
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with orders 0@1,1
          A: epoch 2, orders 0-1
        """
    )


def test_new_coordinator_computes_the_target_that_the_old_one_did_not() -> None:
    world = ConsumerWorld(GroupConfig(), orders=2)
    world.join("A", "orders")
    world.join("B", "orders")
    world.forget()
    world.move()
    world.settle()
    world.check(
        """
        > the coordinator moves
          log: target of A: orders 0
          log: target of B: orders 1
          log: target epoch 2
        """
    )


def test_metadata_hash_depends_on_ids_and_sizes_alone() -> None:
    world = ConsumerWorld(orders=1, bills=2)
    image = world.topics.image
    assert metadata_hash([], image) == metadata_hash(["missing"], image) == 0
    one = metadata_hash(["orders", "bills"], image)
    assert metadata_hash(["bills", "missing", "orders"], image) == one
    assert -(2**63) <= one < 2**63
    assert metadata_hash(["orders"], image) not in (0, one)
    world.topics.create(bills=3)
    grown = metadata_hash(["orders", "bills"], world.topics.image)
    world.topics.remove("bills")
    world.topics.create(bills=3)
    assert len({one, grown, metadata_hash(["orders", "bills"], world.topics.image)}) == 3


# -- regular expressions ----------------------------------------------------------------------------------------------


def regex_world(config: GroupConfig = CONFIG, **counts: int) -> ConsumerWorld:
    world = ConsumerWorld(config, **(counts or {"orders-eu": 1, "orders-us": 1, "bills": 1}))
    world.join("A", subscribed_topic_names=None, subscribed_topic_regex="orders-.*")
    return world


def test_member_gets_the_topics_of_its_expression_at_once() -> None:
    """In Kafka, it waits for one more heartbeat."""
    world = regex_world()
    world.check(
        """
        > A joins subscribed_topic_names=None subscribed_topic_regex=orders-.*
          log: A subscribes to orders-.*
          log: orders-.* matches orders-eu orders-us
          log: group epoch 1
          log: target of A: orders-eu 0 orders-us 0
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with orders-eu 0 orders-us 0
          A: epoch 1, orders-eu 0 orders-us 0
        """
    )


def test_topic_of_an_expression_comes_and_goes() -> None:
    world = regex_world()
    world.forget()
    world.topics.create(**{"orders-asia": 1, "my-orders-": 1})
    world.publish()
    world.settle()
    world.beat("A")
    world.topics.remove("orders-eu")
    world.publish()
    world.settle()
    world.check(
        """
        > metadata: my-orders- orders-asia
          log: orders-.* matches orders-asia orders-eu orders-us
          log: group epoch 2
          log: target of A: orders-asia 0 orders-eu 0 orders-us 0
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with orders-asia 0 orders-eu 0@1 orders-us 0@1
          A: epoch 2, orders-asia 0 orders-eu 0 orders-us 0
        > metadata: orders-eu
          log: orders-.* matches orders-asia orders-us
          log: group epoch 3
          log: target of A: orders-asia 0 orders-us 0
          log: target epoch 3
        """
    )


def test_new_topic_waits_for_a_member_that_does_not_know_it_yet() -> None:
    """franz-go 1.21.6: the broker resolves the expression, so it may assign a topic before the client's metadata has it. The
    client leaves the topic out of what it owns until then. That does not take the topic away, nor fence the member, and a full
    heartbeat names the topic again."""
    world = regex_world()
    world.topics.create(**{"orders-asia": 1})
    world.publish()
    world.settle()
    world.beat("A", owns={"orders-eu": [0], "orders-us": [0]})
    world.forget()
    world.beat("A", owns={"orders-eu": [0], "orders-us": [0]})
    world.beat("A")
    full = {"subscribed_topic_regex": "orders-.*", "rebalance_timeout_ms": 60_000}
    world.beat("A", owns={"orders-eu": [0], "orders-us": [0]}, **full)
    world.beat("A", owns={"orders-asia": [0], "orders-eu": [0], "orders-us": [0]})
    world.check(
        """
        > A beats owns orders-eu 0 orders-us 0
          A: epoch 2
        > A beats
          A: epoch 2
        > A beats owns orders-eu 0 orders-us 0 subscribed_topic_regex=orders-.* rebalance_timeout_ms=60000
          A: epoch 2, orders-asia 0 orders-eu 0 orders-us 0
        > A beats owns orders-asia 0 orders-eu 0 orders-us 0
          A: epoch 2
        """
    )


def test_members_share_an_expression() -> None:
    """It is looked up once for all of them, and removed with its last member."""
    world = regex_world()
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="orders-.*")
    world.forget()
    world.leave("A")
    world.leave("B")
    world.check(
        """
        > A leaves
          log: A owns nothing
          log: no target of A
          log: A is gone
          log: group epoch 3
          A: epoch -1
        > B leaves
          log: B owns nothing
          log: no target of B
          log: B is gone
          log: orders-.* is gone
          log: group epoch 4
          log: target epoch 4
          B: epoch -1
        """
    )


def test_member_changes_its_expression() -> None:
    world = regex_world()
    world.forget()
    world.beat("A", subscribed_topic_regex="bill.*")
    world.check(
        """
        > A beats subscribed_topic_regex=bill.*
          log: A subscribes to bill.*
          log: orders-.* is gone
          log: bill.* matches bills
          log: group epoch 2
          log: target of A: bills 0
          log: target epoch 2
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with nothing, revokes orders-eu 0 orders-us 0
          A: epoch 1, nothing
        """
    )


def test_member_gives_up_its_expression() -> None:
    world = regex_world()
    world.forget()
    world.beat("A", subscribed_topic_regex="")
    world.check(
        """
        > A beats subscribed_topic_regex=
          log: A subscribes to nothing
          log: orders-.* is gone
          log: group epoch 2
          log: target of A: nothing
          log: target epoch 2
          log: A is UNREVOKED_PARTITIONS in epoch 1 (before: 1) with nothing, revokes orders-eu 0 orders-us 0
          A: epoch 1, nothing
        """
    )


def test_member_takes_an_expression_that_is_known() -> None:
    world = regex_world()
    world.join("B", "bills")
    world.forget()
    world.beat("B", subscribed_topic_names=[], subscribed_topic_regex="orders-.*")
    world.check(
        """
        > B beats subscribed_topic_names=[] subscribed_topic_regex=orders-.*
          log: B subscribes to orders-.*
          log: group epoch 3
          log: target of A: orders-eu 0
          log: target of B: orders-us 0
          log: target epoch 3
          log: B is UNREVOKED_PARTITIONS in epoch 2 (before: 2) with nothing, revokes bills 0
          B: epoch 2, nothing
        """
    )


def test_names_and_expression_are_added_up() -> None:
    world = ConsumerWorld(**{"orders-eu": 1, "bills": 1})
    world.join("A", "bills", "orders-eu", subscribed_topic_regex="orders-.*")
    assert world.targets() == {"A": "bills 0 orders-eu 0"}


def test_whole_name_must_match() -> None:
    world = ConsumerWorld(orders=1, reorders=1, orderstwo=1)
    world.join("A", subscribed_topic_names=None, subscribed_topic_regex="orders")
    assert world.group.resolved["orders"].topics == ("orders",)


def test_internal_topics_never_match() -> None:
    """In Kafka, they do."""
    world = ConsumerWorld(__consumer_offsets=1, __transaction_state=1, __mine=1)
    world.join("A", subscribed_topic_names=None, subscribed_topic_regex=".*")
    assert world.group.resolved[".*"].topics == ("__mine",)
    world.topics.create(__share=1)
    world.publish()
    assert world.group.resolved[".*"].topics == ("__mine", "__share")


def test_internal_topic_can_be_named() -> None:
    world = ConsumerWorld(__consumer_offsets=1)
    world.join("A", "__consumer_offsets")
    assert world.targets() == {"A": "__consumer_offs 0"}


REFUSED = {
    "syntax": "orders-(",
    "what RE2 does not have": "(?=orders).*",
    "a back reference": r"(a)\1",
    "too long": "a" * 4097,
    "too large": "(a{100}){100}",
    "too large for RE2": "((a{10}){10}){10}" * 20,
    "too many Unicode classes": r"\pL" * 11,
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_expression_is_refused(name: str) -> None:
    """The bounds keep the time short in which RE2 compiles; a hundred names as alternatives are far from them."""
    world = ConsumerWorld(orders=1)
    refused = world.join("A", subscribed_topic_names=None, subscribed_topic_regex=REFUSED[name])
    assert refused is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.groups.get(GROUP) is None
    many = "|".join(f"a-topic-with-a-long-name-{index}" for index in range(100))
    assert compile_regex(many).fullmatch("a-topic-with-a-long-name-99")


def test_group_is_subscribed_to_anything_while_an_expression_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expression may turn out to match any topic, so the offsets of all topics must stay."""
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    assert world.group.is_subscribed_to("bills")
    assert not world.group.may_expire_offset("bills")
    world.pass_time(1)
    assert not world.group.is_subscribed_to("bills")
    assert world.group.is_subscribed_to("orders-eu")
    assert world.group.may_expire_offset("bills")


# -- look-ups in slices -----------------------------------------------------------------------------------------------


def test_long_look_up_goes_on_by_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """One name per slice here. The member waits, and so is asked for its next heartbeat soon."""
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.pass_time(0.01)
    world.beat("A")
    world.check(
        """
        > A joins subscribed_topic_names=None subscribed_topic_regex=orders-.*
          log: A subscribes to orders-.*
          log: group epoch 1
          log: target of A: nothing
          log: target epoch 1
          log: A is STABLE in epoch 1 (before: 0) with nothing
          A: epoch 1, nothing (500 ms)
        > 0.01 s pass
          log: orders-.* matches orders-eu orders-us
          log: group epoch 2
          log: target of A: orders-eu 0 orders-us 0
          log: target epoch 2
        > A beats
          log: A is STABLE in epoch 2 (before: 1) with orders-eu 0 orders-us 0
          A: epoch 2, orders-eu 0 orders-us 0
        """
    )


def test_topics_that_come_and_go_during_a_look_up_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.topics.create(**{"orders-asia": 1})
    world.publish()
    world.topics.remove("orders-us")
    world.publish()
    world.pass_time(1)
    assert world.group.resolved["orders-.*"].topics == ("orders-asia", "orders-eu")


def test_topic_that_is_created_during_the_look_up_of_another_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up in progress is one of `bill.*` alone, and matches no new topic of `orders-.*`."""
    world = regex_world()
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="bill.*")
    world.topics.create(**{"orders-asia": 1, "bills-asia": 1})
    world.publish()
    world.pass_time(1)
    assert {regex: value.topics for regex, value in world.group.resolved.items()} == {
        "orders-.*": ("orders-asia", "orders-eu", "orders-us"),
        "bill.*": ("bills", "bills-asia"),
    }


def test_second_expression_during_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="bill.*")
    world.pass_time(1)
    assert {regex: value.topics for regex, value in world.group.resolved.items()} == {
        "orders-.*": ("orders-eu", "orders-us"),
        "bill.*": ("bills",),
    }


def test_expression_that_is_dropped_during_a_look_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.leave("A")
    world.pass_time(1)
    assert not any(isinstance(record, RegularExpressionRecord) for record in world.log)


def test_dropped_expression_is_not_stored_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second look-up of a group takes over the expressions of the first one."""
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.join("B", "bills")
    world.leave("A")
    monkeypatch.undo()
    world.join("C", subscribed_topic_names=None, subscribed_topic_regex="bill.*")
    assert list(world.group.resolved) == ["bill.*"]


def test_look_up_that_is_not_appended_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world()
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.pass_time(1)
    world.append_error = None
    world.beat("A")
    world.pass_time(0.1)
    assert world.group.resolved["orders-.*"].topics == ("orders-eu", "orders-us")


def test_topic_of_an_expression_that_is_not_appended_is_looked_up_again() -> None:
    """A coordinator that could not append for a moment must not leave out the topic for the ten minutes until all are looked
    up."""
    world = regex_world()
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.topics.create(**{"orders-asia": 1})
    world.publish()
    world.append_error = None
    world.beat("A")
    world.pass_time(0.1)
    assert world.targets() == {"A": "orders-asia 0 orders-eu 0 orders-us 0"}


def test_expression_that_was_looked_up_for_a_failed_heartbeat_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look-up of the new topic waits; the heartbeat of B takes it over with its own expression, and cannot be appended."""
    world = regex_world()
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world.join("C", subscribed_topic_names=None, subscribed_topic_regex="bill.*")
    world.topics.create(**{"orders-asia": 1})
    world.publish()
    monkeypatch.undo()
    world.append_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="other.*")
    world.append_error = None
    world.beat("A")
    world.pass_time(0.1)
    assert world.group.resolved["orders-.*"].topics == ("orders-asia", "orders-eu", "orders-us")


def test_groups_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short look-up of one group does not wait for the end of the long one of another."""
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    world = regex_world(**{f"orders-{index}": 1 for index in range(100)})
    monkeypatch.setattr(regex_scans, "SLICE_COST", 20_000)
    world.join("B", subscribed_topic_names=None, subscribed_topic_regex="bill.*", group="h")
    monkeypatch.setattr(regex_scans, "SLICE_COST", 1)
    other = world.groups.get("h")
    assert isinstance(other, ConsumerGroup)
    while not other.resolved:
        world.pass_time(0.001)
    assert not world.group.resolved


def test_slice_is_bounded_by_names_and_by_the_size_of_the_expression() -> None:
    """A slice takes 4 ms at worst: at most about 4 ns per character and instruction."""
    names = ["n" * 100] * 10_000

    def slices(regex: str) -> int:
        scan, count = RegexScan([regex], names, {}), 1
        while not scan.advance():
            count += 1
        return count

    assert 1 < slices("n.*") < 20
    assert slices("(.*n.{0,100}){2}b") > 100


def test_new_coordinator_looks_expressions_up_again() -> None:
    """Topics may have been created while there was no coordinator. The record has the topics from before."""
    world = regex_world()
    world.topics.create(**{"orders-asia": 1})
    world.forget()
    world.move()
    world.pass_time(0.1)
    world.check(
        """
        > the coordinator moves
        > 0.1 s pass
          log: orders-.* matches orders-asia orders-eu orders-us
          log: group epoch 2
          log: target of A: orders-asia 0 orders-eu 0 orders-us 0
          log: target epoch 2
        """
    )


def test_expressions_are_looked_up_again_now_and_then() -> None:
    world = regex_world()
    world.group.put_regex("orders-.*", RegularExpressionValue(("orders-eu",), 0, 0))
    for _ in range(100):
        world.pass_time(7)
        world.beat("A")
    assert world.group.resolved["orders-.*"].topics == ("orders-eu", "orders-us")


def test_stored_expression_that_is_not_valid_here_matches_nothing() -> None:
    """Kafka compiles expressions with another library."""
    world = ConsumerWorld(orders=1)
    scan = RegexScan(["(", "orders"], ["orders"], {})
    assert scan.advance()
    topics = {regex: value.topics for regex, value in scan.result(world.topics.image, 0).items()}
    assert topics == {"(": (), "orders": ("orders",)}
