"""Topics are created, deleted and extended; invalid names, counts and assignments are rejected with a reason."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller.replica_placer import ReplicaPlacer, UsableBroker
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    TopicConfig,
)
from strandline.protocol.messages.common import ZERO_UUID


@pytest.fixture
def world() -> ControllerWorld:
    return ControllerWorld(brokers=4)


def refusal(world: ControllerWorld, topic: CreatableTopic) -> tuple[ErrorCode, str]:
    before = world.image
    (result,) = world.call(apis.CREATE_TOPICS, CreateTopicsRequest([topic])).topics
    assert result.error_code != 0
    assert result.topic_id == ZERO_UUID
    assert world.image is before
    return ErrorCode(result.error_code), result.error_message or ""


# -- create -----------------------------------------------------------------------------------------------------------


def test_all_replicas_of_a_new_topic_are_in_sync(world: ControllerWorld) -> None:
    topics = [CreatableTopic("a.b-c_1", 8, 3), CreatableTopic("defaults")]
    first, second = world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics)).topics
    assert (first.num_partitions, first.replication_factor) == (8, 3)
    assert (second.num_partitions, second.replication_factor) == (2, 3)
    image = world.image.topic("a.b-c_1")
    assert image is not None
    assert image.topic_id == first.topic_id
    for partition in image.partitions.values():
        assert len(set(partition.replicas)) == 3
        assert partition.isr == partition.replicas
        assert partition.leader == partition.replicas[0]
        assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)
    assert Counter(p.leader for p in image.partitions.values()) == {1: 2, 2: 2, 3: 2, 4: 2}


NAMES = ["", ".", "..", "../../x", "a/b", "x" * 250, "nul\0", "späce", "a b", "a\n", "٣", "__cluster_metadata"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_that_is_not_allowed_is_refused(world: ControllerWorld, name: str) -> None:
    """F12: a topic's name becomes part of a directory's name."""
    assert refusal(world, CreatableTopic(name, 1, 1))[0] == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_the_longest_name_and_names_of_dots_are_allowed(world: ControllerWorld) -> None:
    for name in ("x" * 249, "...", "-", "_"):
        world.create(name, num_partitions=1, replication_factor=1)


def test_names_that_differ_by_dot_and_underscore_collide(world: ControllerWorld) -> None:
    """They collide with an existing topic, and within one request; a deleted topic does not count."""
    topic_id = world.create("a.b")
    code, message = refusal(world, CreatableTopic("a_b", 1, 1))
    assert (code, "'a.b'" in message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, True)
    world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(None, topic_id)]))
    topics = [CreatableTopic("a_b", 1, 1), CreatableTopic("a.b", 1, 1), CreatableTopic("ab", 1, 1)]
    codes = [t.error_code for t in world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics)).topics]
    assert codes == [0, ErrorCode.INVALID_TOPIC_EXCEPTION, 0]


def explicit(*assignments: list[int], **more: Any) -> CreatableTopic:
    topic = CreatableTopic("t", **more)
    topic.assignments = [CreatableReplicaAssignment(i, replicas) for i, replicas in enumerate(assignments)]
    return topic


def gap() -> CreatableTopic:
    topic = explicit([1], [2])
    topic.assignments[1].partition = 2
    return topic


def twice() -> CreatableTopic:
    topic = explicit([1], [2])
    topic.assignments[1].partition = 0
    return topic


def configured(*configs: tuple[str, str | None]) -> CreatableTopic:
    return CreatableTopic("t", 1, 1, configs=[TopicConfig(*c) for c in configs])


REFUSALS: list[tuple[CreatableTopic, ErrorCode, str]] = [
    (CreatableTopic("t", 0, 1), ErrorCode.INVALID_PARTITIONS, "at least 1"),
    (CreatableTopic("t", -2, 1), ErrorCode.INVALID_PARTITIONS, "at least 1"),
    (CreatableTopic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1"),
    (CreatableTopic("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR, "at least 1"),
    (CreatableTopic("t", 1, 5), ErrorCode.INVALID_REPLICATION_FACTOR, "4 brokers are registered"),
    (explicit([1], num_partitions=1), ErrorCode.INVALID_REQUEST, "both be -1"),
    (explicit([1], replication_factor=1), ErrorCode.INVALID_REQUEST, "both be -1"),
    (explicit([1], []), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partition 1 is empty"),
    (explicit([1, 1]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "names a broker twice"),
    (explicit([1, 9]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "broker 9, which is not registered"),
    (explicit([1, 2], [3]), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "has 1 replicas, the others have 2"),
    (gap(), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "without a gap"),
    (twice(), ErrorCode.INVALID_REPLICA_ASSIGNMENT, "assigned twice"),
    (configured(("segment.byte", "1")), ErrorCode.INVALID_CONFIG, "did you mean 'segment.bytes'?"),
    (configured(("segment.bytes", "1")), ErrorCode.INVALID_CONFIG, "at least 14"),
    (configured(("unclean.leader.election.enable", "perhaps")), ErrorCode.INVALID_CONFIG, "must be true or false"),
    (configured(("retention.ms", "1"), ("retention.ms", "2")), ErrorCode.INVALID_CONFIG, "given twice"),
]


@pytest.mark.parametrize(("topic", "code", "words"), REFUSALS, ids=[f"{c.name}: {w}" for _, c, w in REFUSALS])
def test_create_is_refused_with_its_reason(world: ControllerWorld, topic: CreatableTopic, code: ErrorCode, words: str) -> None:
    found, message = refusal(world, topic)
    assert found == code
    assert words in message


def test_an_existing_name_and_a_name_given_twice_are_refused(world: ControllerWorld) -> None:
    world.create("t")
    assert refusal(world, CreatableTopic("t", 1, 1))[0] == ErrorCode.TOPIC_ALREADY_EXISTS
    topics = [CreatableTopic("u", 1, 1), CreatableTopic("v", 1, 1), CreatableTopic("u", 1, 1)]
    codes = [t.error_code for t in world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics)).topics]
    assert codes == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert world.image.topic("u") is None


def test_a_request_for_a_million_partitions_is_refused_as_a_whole(world: ControllerWorld) -> None:
    """F11: it is refused before any record is built."""
    for topics in ([CreatableTopic("t", 1_000_000, 1)], [CreatableTopic("t", 6000, 1), CreatableTopic("u", 6000, 1)]):
        with pytest.raises(BrokerError, match="POLICY_VIOLATION"):
            world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics))


def test_validate_only_says_the_same_and_writes_nothing(world: ControllerWorld) -> None:
    topics = [CreatableTopic("t", 3, 2), CreatableTopic("..", 1, 1)]
    t, bad = world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics, validate_only=True)).topics
    assert (t.error_code, t.num_partitions, t.topic_id) == (0, 3, ZERO_UUID)
    assert bad.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert world.image.topic("t") is None


def test_fenced_brokers_of_an_assignment_are_replicas_outside_the_isr(world: ControllerWorld) -> None:
    world.kill_broker(1)
    world.create("t", [[1, 2, 3]])
    assert (world.partition("t").isr, world.partition("t").leader) == ((2, 3), 2)
    code, message = refusal(world, CreatableTopic("u", assignments=[CreatableReplicaAssignment(0, [1])]))
    assert (code, "fenced" in message) == (ErrorCode.INVALID_REPLICA_ASSIGNMENT, True)


def test_configs_of_a_created_topic_are_stored_in_one_form(world: ControllerWorld) -> None:
    topic = CreatableTopic("t", 1, 1, configs=[TopicConfig("retention.ms", " 60000 "), TopicConfig("flush.ms", None)])
    world.call(apis.CREATE_TOPICS, CreateTopicsRequest([topic]))
    assert world.image.config(2, "t") == {"retention.ms": "60000"}
    assert world.image.topic_config("t")["retention.ms"] == 60000


# -- add partitions -----------------------------------------------------------------------------------------------------


def grow(world: ControllerWorld, *topics: CreatePartitionsTopic, validate_only: bool = False) -> list[ErrorCode]:
    results = world.call(apis.CREATE_PARTITIONS, CreatePartitionsRequest(list(topics), validate_only=validate_only)).results
    return [ErrorCode(r.error_code) for r in results]


def test_added_partitions_go_on_with_the_stripes(world: ControllerWorld) -> None:
    world.create("t", num_partitions=4, replication_factor=2)
    assert grow(world, CreatePartitionsTopic("t", 8), validate_only=True) == [0]
    topic = world.image.topic("t")
    assert topic is not None
    assert len(topic.partitions) == 4
    assert grow(world, CreatePartitionsTopic("t", 8)) == [0]
    topic = world.image.topic("t")
    assert topic is not None
    assert sorted(topic.partitions) == list(range(8))
    leaders = [topic.partitions[i].leader for i in range(8)]
    assert Counter(leaders) == {1: 2, 2: 2, 3: 2, 4: 2}
    assert leaders[4] == leaders[3] % 4 + 1


def test_added_partitions_with_explicit_replicas(world: ControllerWorld) -> None:
    world.create("t", [[1, 2]])
    assert grow(world, CreatePartitionsTopic("t", 3, [[3, 4], [4, 1]])) == [0]
    assert [world.partition("t", i).replicas for i in range(3)] == [(1, 2), (3, 4), (4, 1)]


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (CreatePartitionsTopic("nowhere", 3), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (CreatePartitionsTopic("t", 1), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitionsTopic("t", 0), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitionsTopic("t", -5), ErrorCode.INVALID_PARTITIONS),
        (CreatePartitionsTopic("t", 3, [[1, 2]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitionsTopic("t", 2, [[1, 2, 3]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (CreatePartitionsTopic("t", 2, [[1, 1]]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ],
    ids=str,
)
def test_partitions_are_not_added_when(world: ControllerWorld, topic: CreatePartitionsTopic, code: ErrorCode) -> None:
    world.create("t", [[1, 2]])
    assert grow(world, topic) == [code]


def test_too_many_added_partitions_and_a_topic_named_twice_are_refused(world: ControllerWorld) -> None:
    world.create("t", [[1, 2]])
    with pytest.raises(BrokerError, match="POLICY_VIOLATION"):
        grow(world, CreatePartitionsTopic("t", 1_000_000))
    assert grow(world, *[CreatePartitionsTopic("t", 3)] * 2) == [ErrorCode.INVALID_REQUEST] * 2


# -- delete -----------------------------------------------------------------------------------------------------------


def delete(world: ControllerWorld, *topics: DeleteTopicState) -> list[ErrorCode]:
    return [ErrorCode(t.error_code) for t in world.call(apis.DELETE_TOPICS, DeleteTopicsRequest(list(topics))).topics]


def test_a_min_isr_above_the_replication_factor_gets_a_warning(world: ControllerWorld) -> None:
    """It gets one only if the request names the value: a default of the cluster is meant for other topics, too."""
    topics = [
        CreatableTopic(name, 1, 2, configs=[TopicConfig("min.insync.replicas", value)])
        for name, value in (("fits", "2"), ("capped", "3"))
    ]
    fits, capped = world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics)).topics
    assert (fits.error_code, fits.warnings) == (0, [])
    assert (capped.error_code, len(capped.warnings)) == (0, 1)
    assert "acts as 2 on topic capped" in capped.warnings[0]


def test_topics_are_deleted_by_name_or_by_id_with_their_configs(world: ControllerWorld) -> None:
    world.create("t", num_partitions=3, replication_factor=3, configs=[TopicConfig("retention.ms", "1")])
    topic_id = world.create("u")
    assert delete(world, DeleteTopicState("t"), DeleteTopicState(None, topic_id)) == [0, 0]
    assert len(world.image.topics_by_id) == len(world.image.topics_by_name) == len(world.image.configs) == 0
    assert world.image.partition_count == 0
    world.kill_broker(1)
    assert world.create("t") not in (topic_id, ZERO_UUID)
    assert world.image.config(2, "t") == {}


def test_deletes_that_name_nothing_or_too_much_are_refused(world: ControllerWorld) -> None:
    topic_id = world.create("t")
    asked = [
        DeleteTopicState("nowhere"),
        DeleteTopicState(None, b"?" * 16),
        DeleteTopicState("t", topic_id),
        DeleteTopicState(None),
    ]
    codes = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, *[ErrorCode.INVALID_REQUEST] * 2]
    assert delete(world, *asked) == codes
    assert delete(world, DeleteTopicState("t"), DeleteTopicState(None, topic_id)) == [ErrorCode.INVALID_REQUEST] * 2
    assert world.image.topic("t") is not None


# -- placement --------------------------------------------------------------------------------------------------------


def place(brokers: list[UsableBroker], partitions: int, factor: int, seed: int = 1) -> list[tuple[int, ...]]:
    return ReplicaPlacer(brokers, Random(seed)).place(partitions, factor)


def test_replicas_are_spread_over_racks_before_brokers() -> None:
    racks = {broker_id: "abc"[broker_id % 3] for broker_id in range(9)}
    brokers = [UsableBroker(b, rack, False) for b, rack in racks.items()]
    placed = place(brokers, 90, 3)
    for replicas in placed:
        assert {racks[b] for b in replicas} == {"a", "b", "c"}
    assert set(Counter(racks[r[0]] for r in placed).values()) == {30}
    assert set(Counter(b for r in placed for b in r).values()) == {30}


@pytest.mark.parametrize("seed", range(5))
def test_leaders_are_offset_by_one(seed: int) -> None:
    """So the followers that take over a broker's partitions are not all on the same broker."""
    placed = place([UsableBroker(b, None, False) for b in (1, 2, 3)], 3, 3, seed)
    assert placed[1] == (placed[0][1], placed[0][2], placed[0][0])
    assert placed[2] == (placed[0][2], placed[0][0], placed[0][1])


@pytest.mark.parametrize("seed", range(20))
def test_fenced_brokers_come_last_and_never_lead(seed: int) -> None:
    """This holds even if a rack has only fenced brokers; no broker holds a partition twice."""
    random = Random(seed)
    brokers = [UsableBroker(b, random.choice([None, "a", "b"]), b > 3) for b in range(1, 7)]
    for replicas in place(brokers, 40, 5, seed):
        assert len(set(replicas)) == 5
        assert replicas[0] <= 3


def test_placement_needs_enough_brokers_and_one_alive() -> None:
    with pytest.raises(BrokerError, match="2 brokers are registered"):
        place([UsableBroker(1, None, False), UsableBroker(2, None, True)], 1, 3)
    with pytest.raises(BrokerError, match="all brokers are fenced"):
        place([UsableBroker(1, None, True)], 1, 1)
