"""The single writer: when replies are sent, what a resignation undoes, and which image a replay of the log gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from controller_world import ControllerWorld, registration

from strandline.controller.controller import Controller
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage, PartitionRegistration
from strandline.controller.metadata.records import (
    NoOpRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError
from strandline.protocol.messages.admin import (
    PREFERRED_ELECTION,
    CreatableTopic,
    CreateTopicsRequest,
    DescribeClusterRequest,
    ElectLeadersRequest,
)
from strandline.protocol.messages.common import SnapshotId


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, 1, 1)])


@pytest.fixture
def world() -> ControllerWorld:
    world = ControllerWorld(brokers=3)
    world.auto_commit = False
    return world


def test_replies_wait_for_the_commit_and_keep_their_order(world: ControllerWorld) -> None:
    first = world.send(apis.CREATE_TOPICS, create("a"))
    end_of_first = world.quorum.log_end_offset - 1
    second = world.send(apis.CREATE_TOPICS, create("b"))
    assert (first.answers, second.answers) == ([], [])
    world.commit(up_to=end_of_first)
    assert (len(first.answers), len(second.answers)) == (1, 0)
    world.commit()
    assert (len(first.answers), len(second.answers)) == (1, 1)


def test_the_next_decision_sees_what_is_not_committed_yet(world: ControllerWorld) -> None:
    world.send(apis.CREATE_TOPICS, create("a"))
    again = world.send(apis.CREATE_TOPICS, create("a"))
    assert again.answers == []
    world.commit()
    assert again.answers[0].topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_read_waits_for_the_commit_of_what_it_saw(world: ControllerWorld) -> None:
    """Otherwise the response could show a change that is lost later."""
    assert len(world.send(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()).answers) == 1
    world.send(apis.CREATE_TOPICS, create("a"))
    reading = world.send(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert reading.answers == []
    world.commit()
    assert len(reading.answers) == 1


def test_a_resignation_rejects_waiting_requests(world: ControllerWorld) -> None:
    committed = world.image
    waiting = [world.send(apis.CREATE_TOPICS, create(name)) for name in "ab"]
    world.controller.on_resign(1)
    world.controller.on_leader_changed(102, 2)
    for request in waiting:
        (answer,) = request.answers
        assert isinstance(answer, BrokerError)
        assert answer.code == ErrorCode.NOT_CONTROLLER
    assert world.image is committed
    refused = world.send(apis.CREATE_TOPICS, create("c"))
    assert "node 102 is" in str(refused.answers[0])


def test_the_next_leader_may_commit_an_earlier_leaders_append(world: ControllerWorld) -> None:
    """The record comes back through on_committed, as on every standby controller, and the images agree."""
    world.send(apis.CREATE_TOPICS, create("a"))
    ahead = world.image
    world.controller.on_resign(1)
    assert world.image.topic("a") is None
    world.commit()
    assert world.image == ahead


def test_when_the_quorum_refuses_the_append_nothing_has_changed(world: ControllerWorld) -> None:
    """The node no longer leads the quorum, and the controller has not been notified yet."""
    world.quorum.leading = False
    before = world.image
    answer = world.send(apis.CREATE_TOPICS, create("a")).answers[0]
    assert answer.code == ErrorCode.NOT_CONTROLLER
    assert world.image is before
    active = world.controller.active
    assert active is not None
    assert active.index.colliding_name("a") is None


def test_a_request_that_is_answered_late_is_answered_once(world: ControllerWorld) -> None:
    request = world.send(apis.CREATE_TOPICS, create("a"))
    world.commit()
    world.controller.on_resign(1)
    assert len(request.answers) == 1


def test_a_snapshot_and_the_rest_of_the_log_equal_the_whole_log(world: ControllerWorld) -> None:
    world.auto_commit = True
    world.create("t", [[1, 2, 3]] * 3)
    snapshot = list(world.controller.snapshot_records())
    snapshot_id = SnapshotId(world.image.offset + 1, 1)
    world.kill_broker(2)
    standby = Controller(node_id=102, session_timeout_ms=3000, now=lambda: 0.0)
    standby.on_snapshot(snapshot_id, snapshot)
    for base, last in world.quorum.batches:
        if base >= snapshot_id.end_offset:
            standby.on_committed(base, last, 1, [r for _, r in world.quorum.log[base : last + 1]])
    assert standby.image == world.image == world.replayed()


def test_a_snapshot_holds_only_what_is_committed(world: ControllerWorld) -> None:
    world.send(apis.CREATE_TOPICS, create("a"))
    records = [decode_record(r) for r in world.controller.snapshot_records()]
    assert MetadataImage.from_records(records, 0, 0).topic("a") is None


def test_records_of_the_quorum_itself_only_move_the_offset() -> None:
    """A change of the leader is a record in the same log."""
    controller = Controller(node_id=102, session_timeout_ms=3000, now=lambda: 0.0)
    controller.on_committed(0, 0, 1, [])
    assert (controller.image.offset, controller.committed_offset) == (0, 0)


def test_an_unknown_record_type_stops_a_standby_controller() -> None:
    """If it skipped the record, its metadata would differ from that of the other nodes."""
    controller = Controller(node_id=102, session_timeout_ms=3000, now=lambda: 0.0)
    with pytest.raises(PeerError, match="newer version"):
        controller.on_committed(0, 1, 1, [encode_record(NoOpRecord()), b"\x91\x7f"])
    assert controller.image.offset == -1


def test_a_controller_without_a_leader_answers_that_none_is_known() -> None:
    controller = Controller(node_id=101, session_timeout_ms=3000, now=lambda: 0.0)
    with pytest.raises(BrokerError, match="the active one is unknown"):
        controller.require_active()


def test_describe_cluster_tells_brokers_and_their_state(world: ControllerWorld) -> None:
    world.auto_commit = True
    world.kill_broker(3)
    answer = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 101)
    assert [(b.broker_id, b.port, b.is_fenced) for b in answer.brokers] == [(1, 9092, False), (2, 9093, False), (3, 9094, True)]
    answer = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=False))
    assert [b.broker_id for b in answer.brokers] == [1, 2]


def test_a_batch_at_an_unexpected_offset_deactivates_the_controller(world: ControllerWorld) -> None:
    """The broker epochs in it are wrong. The controller replays what was written, like a standby controller."""
    append = world.quorum.append

    def append_behind_something_else(records: Sequence[bytes], epoch: int) -> int:
        world.quorum.log.append((epoch, b""))
        return append(records, epoch)

    world.quorum.append = append_behind_something_else  # type: ignore[method-assign]
    with pytest.raises(InternalError, match="expected to end at"):
        world.send(apis.CREATE_TOPICS, create("a"))
    assert world.controller.active is None
    assert world.image is world.controller.committed
    world.commit()
    assert world.image.topic("a") is not None


def test_a_decision_with_an_unsafe_partition_state_is_not_written(world: ControllerWorld) -> None:
    """The active controller does not write it and continues; a standby controller that reads such a record stops."""
    records = [TopicRecord("bad", b"b" * 16), PartitionRecord(b"b" * 16, 0, (1, 2), (1,), 2)]
    end, image = world.quorum.log_end_offset, world.image
    with pytest.raises(InternalError, match="its leader is broker 2, which is not in the ISR"):
        world.controller.submit(lambda _: Decision(None, list(records)), lambda _: None)
    assert (world.quorum.log_end_offset, world.image) == (end, image)
    world.controller.on_resign(world.controller.active.epoch)  # type: ignore[union-attr]
    with pytest.raises(InternalError, match="partition bad-0"):
        world.controller.on_committed(end, end + 1, 1, [encode_record(record) for record in records])
    assert world.controller.image.topic("bad") is None


# -- decisions over very many partitions ---------------------------------------------------------------------------------


def many(monkeypatch: pytest.MonkeyPatch) -> ControllerWorld:
    """A cluster with thirty partitions that broker 1 leads, and ten that broker 2 leads; five records fill a batch."""
    monkeypatch.setattr("strandline.controller.controller.BATCH_BYTES", 150)
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3]] * 30 + [[2, 1, 3]] * 10)
    return world


def fence(world: ControllerWorld) -> None:
    world.controller.fence(1, world.epoch(1), "test")


def shut_down(world: ControllerWorld) -> None:
    world.send(apis.BROKER_HEARTBEAT, world.heartbeat_request(1, want_shut_down=True))


def register_anew(world: ControllerWorld) -> None:
    world.controller.require_active().sessions.remove(1)
    world.send(apis.BROKER_REGISTRATION, registration(1, incarnation=2))


def unfence(world: ControllerWorld) -> None:
    world.send(apis.BROKER_HEARTBEAT, world.heartbeat_request(2))


def prepare_unfence(world: ControllerWorld) -> None:
    """Brokers 1 and 3 left the ISRs, then 2 died as well: no partition has a leader, and only 2 may lead."""
    for broker_id in (3, 1, 2):
        world.kill_broker(broker_id)
    assert {p.leader for p in partitions(world)} == {-1}


def partitions(world: ControllerWorld) -> list[PartitionRegistration]:
    topic = world.image.topic("t")
    assert topic is not None
    return list(topic.partitions.values())


def fail_over(world: ControllerWorld, kept: int) -> None:
    """A new controller becomes active, with only the first `kept` records of the log."""
    world.commit(up_to=kept - 1)
    world.controller.on_resign(1)
    del world.quorum.log[kept:]
    world.quorum.batches = [(base, last) for base, last in world.quorum.batches if last < kept]
    world.become_active(2)
    world.commit()


def test_a_fence_of_very_many_partitions_is_written_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many(monkeypatch)
    world.auto_commit = False
    base = world.quorum.log_end_offset
    fence(world)
    sizes = [last - first + 1 for first, last in world.quorum.batches if first >= base]
    assert sum(sizes) == 41
    assert len(sizes) > 5
    assert max(sizes) <= 6
    ahead = world.image
    world.commit()
    assert world.image is ahead is world.controller.committed
    assert world.replayed() == ahead
    assert ahead.brokers[1].fenced
    assert all(1 not in p.isr and p.leader != 1 for p in partitions(world))


def test_preferred_elections_of_very_many_partitions_are_written_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The elections are independent of each other. One batch could be larger than the quorum accepts."""
    world = many(monkeypatch)
    world.kill_broker(1)
    world.start_broker(1, incarnation=2)
    for index in range(40):
        world.alter("t", [2, 3, 1], index)
    count = len(world.quorum.batches)
    results = world.call(apis.ELECT_LEADERS, ElectLeadersRequest(PREFERRED_ELECTION, None)).results
    assert [result.error_code for result in results] == [0] * 30
    assert len(world.quorum.batches) > count + 3
    assert all(p.leader == p.replicas[0] for p in partitions(world))


def test_a_creation_of_topics_stays_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic without all its partitions would be broken."""
    world = many(monkeypatch)
    count = len(world.quorum.batches)
    world.create("another", [[1, 2, 3]] * 30)
    assert len(world.quorum.batches) == count + 1


def test_a_split_registration_has_the_offset_of_its_record_as_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    world = many(monkeypatch)
    register_anew(world)
    world.commit()
    record = decode_record(world.quorum.log[world.epoch(1)][1])
    assert isinstance(record, RegisterBrokerRecord)
    assert (record.broker_epoch, record.incarnation_id) == (world.epoch(1), bytes([2]) * 16)


def finish(world: ControllerWorld, act: Callable[[ControllerWorld], None]) -> None:
    """Take the broker's next step, if it has one, or let its session end."""
    if act is unfence:
        world.heartbeat(2)
    elif act is shut_down:
        while not world.heartbeat(1, want_shut_down=True).should_shut_down:
            assert world.now < 1010
            world.now += 1
    elif act is register_anew:
        world.controller.require_active().sessions.remove(1)
        world.register(1, incarnation=2)
    else:
        for _ in range(2):
            world.now += 2
            for other in (2, 3):
                world.heartbeat(other)
        world.controller.fence_expired()
        world.commit()


@pytest.mark.parametrize("act", [fence, shut_down, register_anew, unfence])
def test_the_next_controller_completes_a_split_decision(
    act: Callable[[ControllerWorld], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut after each batch: the broker's next request, or its silence, completes the decision of the last
    controller."""
    kept, ends = -1, [0]
    while kept < ends[-1]:
        world = many(monkeypatch)
        if act is unfence:
            prepare_unfence(world)
        world.auto_commit = False
        base = world.quorum.log_end_offset
        act(world)
        ends = [base, *(last + 1 for first, last in world.quorum.batches if first >= base)]
        assert len(ends) > 5
        kept = next(end for end in ends if end > kept)
        fail_over(world, kept)
        world.auto_commit = True
        finish(world, act)
        if act is unfence:
            assert {(p.leader, p.isr) for p in partitions(world)} == {(2, (2,))}
        else:
            assert world.image.brokers[1].fenced
            assert all(1 not in p.isr and p.leader == 2 for p in partitions(world))
