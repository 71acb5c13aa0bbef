"""The single writer: when answers leave, what a resignation undoes, and what replay makes of the log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from controller_world import ListQuorum, World

from strandline.controller.controller import Controller
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import NoOpRecord, decode_record, encode_record
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError, PeerError
from strandline.protocol.messages.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    DescribeClusterRequest,
)
from strandline.protocol.messages.common import SnapshotId


def create(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest([CreatableTopic(name, 1, 1)])


@pytest.fixture
def world() -> World:
    world = World(brokers=3)
    world.auto_commit = False
    return world


def test_a_reply_leaves_only_when_its_records_are_committed_and_in_order(world: World) -> None:
    first = world.send(apis.CREATE_TOPICS, create("a"))
    end_of_first = world.quorum.log_end_offset - 1
    second = world.send(apis.CREATE_TOPICS, create("b"))
    assert (first.answers, second.answers) == ([], [])
    world.commit(up_to=end_of_first)
    assert (len(first.answers), len(second.answers)) == (1, 0)
    world.commit()
    assert (len(first.answers), len(second.answers)) == (1, 1)


def test_the_next_decision_sees_what_is_not_committed_yet(world: World) -> None:
    world.send(apis.CREATE_TOPICS, create("a"))
    again = world.send(apis.CREATE_TOPICS, create("a"))
    assert again.answers == []
    world.commit()
    assert again.answers[0].topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS


def test_a_reading_waits_for_what_it_may_have_seen(world: World) -> None:
    """Its answer could speak of a change that is lost later."""
    assert len(world.send(apis.DESCRIBE_CLUSTER, DescribeClusterRequest()).answers) == 1
    world.send(apis.CREATE_TOPICS, create("a"))
    reading = world.send(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert reading.answers == []
    world.commit()
    assert len(reading.answers) == 1


def test_a_resignation_refuses_what_waits_and_forgets_what_is_not_committed(world: World) -> None:
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


def test_what_a_former_leader_appended_may_be_committed_by_the_next_one(world: World) -> None:
    """It comes back through on_committed, as to every standby, and the images agree."""
    world.send(apis.CREATE_TOPICS, create("a"))
    ahead = world.image
    world.controller.on_resign(1)
    assert world.image.topic("a") is None
    world.commit()
    assert world.image == ahead


def test_when_the_quorum_refuses_the_append_nothing_has_changed(world: World) -> None:
    """The quorum lost the lead and its word of it is still on the way to the controller."""
    world.quorum.leading = False
    before = world.image
    answer = world.send(apis.CREATE_TOPICS, create("a")).answers[0]
    assert answer.code == ErrorCode.NOT_CONTROLLER
    assert world.image is before
    active = world.controller.active
    assert active is not None
    assert active.index.colliding_name("a") is None


def test_a_request_that_is_answered_late_is_answered_once(world: World) -> None:
    request = world.send(apis.CREATE_TOPICS, create("a"))
    world.commit()
    world.controller.on_resign(1)
    assert len(request.answers) == 1


def test_a_snapshot_and_the_rest_of_the_log_give_the_same_image_as_the_whole_log(world: World) -> None:
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


def test_a_snapshot_holds_only_what_is_committed(world: World) -> None:
    world.send(apis.CREATE_TOPICS, create("a"))
    records = [decode_record(r) for r in world.controller.snapshot_records()]
    assert MetadataImage.from_records(records, 0, 0).topic("a") is None


def test_records_of_the_quorum_itself_only_move_the_offset() -> None:
    """A change of leader is a record in the same log."""
    controller = Controller(node_id=102, session_timeout_ms=3000, now=lambda: 0.0)
    controller.on_committed(0, 0, 1, [])
    assert (controller.image.offset, controller.committed_offset) == (0, 0)


def test_a_record_from_the_future_stops_a_standby_instead_of_being_skipped() -> None:
    """Skipping it would make its picture differ from everybody else's."""
    controller = Controller(node_id=102, session_timeout_ms=3000, now=lambda: 0.0)
    with pytest.raises(PeerError, match="newer version"):
        controller.on_committed(0, 1, 1, [encode_record(NoOpRecord()), b"\x91\x7f"])
    assert controller.image.offset == -1


def test_a_controller_that_was_never_active_says_that_no_other_is_known() -> None:
    controller = Controller(node_id=101, session_timeout_ms=3000, now=lambda: 0.0)
    controller.quorum = ListQuorum()
    with pytest.raises(BrokerError, match="no other is known"):
        controller.require_active()


def test_describe_cluster_tells_brokers_and_their_state(world: World) -> None:
    world.auto_commit = True
    world.kill_broker(3)
    answer = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest())
    assert (answer.cluster_id, answer.controller_id) == ("cluster", 101)
    assert [(b.broker_id, b.port, b.is_fenced) for b in answer.brokers] == [(1, 9092, False), (2, 9093, False), (3, 9094, True)]
    answer = world.call(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(include_fenced_brokers=False))
    assert [b.broker_id for b in answer.brokers] == [1, 2]


def test_a_batch_that_landed_elsewhere_than_promised_ends_this_controllers_activity(world: World) -> None:
    """The broker epochs in it are wrong. What was written comes back by replay, as to any standby."""
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
