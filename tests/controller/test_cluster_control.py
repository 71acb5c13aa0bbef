"""Brokers that start, run, stop and die, as the controller sees them."""

from __future__ import annotations

import pytest
from controller_world import ControllerWorld, registration

from strandline.controller.broker_sessions import BrokerSessions
from strandline.controller.metadata.records import NO_LEADER
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CONFIG_SET,
    RESOURCE_BROKER,
    AlterableConfig,
    AlterConfigsResource,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    IncrementalAlterConfigsRequest,
    UnregisterBrokerRequest,
)
from strandline.protocol.messages.cluster import AllocateProducerIdsRequest, BrokerHeartbeatRequest
from strandline.protocol.messages.common import Listener


def code_of(world: ControllerWorld, api_key: int, body: object) -> ErrorCode:
    with pytest.raises(BrokerError) as caught:
        world.call(api_key, body)
    return caught.value.code


# -- registration -----------------------------------------------------------------------------------------------------


def test_the_broker_epoch_is_the_offset_of_the_registration_record() -> None:
    world = ControllerWorld()
    offset = world.quorum.log_end_offset
    assert world.register(1) == offset
    assert world.image.brokers[1].broker_epoch == offset
    assert world.image.brokers[1].fenced


def test_a_second_process_is_rejected_while_the_session_lasts() -> None:
    """S51: this holds also while the first one is still fenced."""
    world = ControllerWorld()
    epoch = world.register(1, incarnation=1)
    assert code_of(world, apis.BROKER_REGISTRATION, registration(1, 2)) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.now += 2.9
    world.heartbeat(1)
    world.now += 2.9
    assert code_of(world, apis.BROKER_REGISTRATION, registration(1, 2)) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert world.image.brokers[1].broker_epoch == epoch
    world.now += 0.2
    assert world.register(1, incarnation=2) > epoch


def test_the_same_incarnation_registers_again_without_a_new_epoch() -> None:
    """S51: its first response was lost. It stays unfenced; if nothing has changed, no record is written."""
    world = ControllerWorld(brokers=1)
    epoch, end = world.epoch(1), world.quorum.log_end_offset
    assert world.register(1) == epoch
    assert world.quorum.log_end_offset == end
    moved = [Listener("PLAINTEXT", "10.0.0.9", 9092)]
    assert world.register(1, listeners=moved) == epoch
    assert world.image.brokers[1].listeners == tuple(moved)
    assert not world.image.brokers[1].fenced


def test_a_wrong_cluster_id_is_refused() -> None:
    """S51: it belongs to another cluster."""
    world = ControllerWorld()
    assert code_of(world, apis.BROKER_REGISTRATION, registration(1, cluster="other")) == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert not world.image.brokers


@pytest.mark.parametrize(
    "wrong",
    [
        {"broker_id": -1},
        {"incarnation_id": bytes(16)},
        {"listeners": []},
        {"listeners": [Listener("A", "", 9092)]},
        {"listeners": [Listener("A", "h", 0)]},
        {"listeners": [Listener("A", "h", 1), Listener("A", "h", 2)]},
    ],
    ids=str,
)
def test_a_registration_that_cannot_be_used_is_refused(wrong: dict[str, object]) -> None:
    world = ControllerWorld()
    request = registration(1)
    for name, value in wrong.items():
        setattr(request, name, value)
    assert code_of(world, apis.BROKER_REGISTRATION, request) == ErrorCode.INVALID_REQUEST


def test_a_registration_removes_the_old_process_from_the_isrs() -> None:
    """The old process died and its session has ended, but it was not fenced yet: one batch does both."""
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3]])
    world.now += 2
    world.heartbeat(2), world.heartbeat(3)
    world.now += 2
    batches = len(world.quorum.batches)
    world.register(1, incarnation=2)
    assert len(world.quorum.batches) == batches + 1
    assert (world.partition("t").leader, world.partition("t").isr) == (2, (2, 3))
    assert world.image.brokers[1].fenced
    assert world.epoch(1) == world.image.offset


# -- heartbeats -------------------------------------------------------------------------------------------------------


def test_a_broker_is_unfenced_after_it_has_read_its_registration() -> None:
    """Otherwise it would lead with metadata from before its registration."""
    world = ControllerWorld()
    epoch = world.register(1)
    answer = world.heartbeat(1, offset=epoch - 1)
    assert (answer.is_caught_up, answer.is_fenced) == (False, True)
    assert world.heartbeat(1, offset=epoch, want_fence=True).is_fenced
    answer = world.heartbeat(1, offset=epoch)
    assert (answer.is_caught_up, answer.is_fenced, answer.should_shut_down) == (True, False, False)
    assert not world.image.brokers[1].fenced


def test_a_heartbeat_that_changes_nothing_writes_nothing() -> None:
    world = ControllerWorld(brokers=1)
    end = world.quorum.log_end_offset
    assert not world.heartbeat(1).is_fenced
    assert world.quorum.log_end_offset == end


@pytest.mark.parametrize("difference", [-1, 1])
def test_a_heartbeat_of_another_epoch_is_refused_and_renews_no_session(difference: int) -> None:
    """F15: the heartbeat belongs to another process than the registered one."""
    world = ControllerWorld(brokers=1)
    world.now += 2.5
    request = world.heartbeat_request(1, epoch=world.epoch(1) + difference)
    assert code_of(world, apis.BROKER_HEARTBEAT, request) == ErrorCode.STALE_BROKER_EPOCH
    world.now += 1
    world.controller.fence_expired()
    assert world.image.brokers[1].fenced


def test_a_broker_that_wants_to_be_fenced_is_fenced() -> None:
    world = ControllerWorld(brokers=2)
    world.create("t", [[1, 2]])
    assert world.heartbeat(1, want_fence=True).is_fenced
    assert (world.partition("t").leader, world.partition("t").isr) == (2, (2,))


def test_a_broker_whose_disks_have_all_failed_is_fenced_and_stays_so() -> None:
    disk, other = b"d" * 16, b"e" * 16
    world = ControllerWorld(brokers=1)
    world.start_broker(2, log_dirs=[disk])
    world.create("t", [[2, 1]])
    assert not world.heartbeat(2, offline_log_dirs=[other]).is_fenced
    assert world.heartbeat(2, offline_log_dirs=[disk]).is_fenced
    assert world.partition("t").leader == 1
    assert world.heartbeat(2, offline_log_dirs=[disk]).is_fenced


def test_a_failed_log_directory_leaves_the_registration_and_the_broker_goes_on() -> None:
    """The broker is fenced only when its last directory has failed."""
    first, second = b"d" * 16, b"e" * 16
    world = ControllerWorld(brokers=1)
    world.start_broker(2, log_dirs=[first, second])
    assert not world.heartbeat(2, offline_log_dirs=[first]).is_fenced
    assert world.image.brokers[2].log_dirs == (second,)
    offset = world.image.offset
    assert not world.heartbeat(2, offline_log_dirs=[first]).is_fenced
    assert world.image.offset == offset, "a repeated report changes nothing"
    assert world.heartbeat(2, offline_log_dirs=[first, second]).is_fenced
    assert world.image.brokers[2].fenced


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_silent_broker_is_fenced_at_the_session_timeout() -> None:
    world = ControllerWorld(brokers=2)
    world.create("t", [[1, 2]])
    world.now += 2
    world.heartbeat(2)
    world.now += 0.999
    world.controller.fence_expired()
    assert not world.image.brokers[1].fenced
    world.now += 0.001
    world.controller.fence_expired()
    assert world.image.brokers[1].fenced
    assert not world.image.brokers[2].fenced
    assert world.partition("t").leader == 2
    active = world.controller.active
    assert active is not None
    assert active.sessions.next_deadline() == pytest.approx(1000 + 5)


def test_the_first_deadline_is_that_of_the_broker_silent_for_longest() -> None:
    """A renewed session moves behind the others, so that one timer notices every expiry in time."""
    sessions = BrokerSessions(3.0)
    for broker_id in (1, 2, 3):
        sessions.touch(broker_id, 10 + broker_id, now=float(broker_id))
    sessions.touch(1, 11, now=3.5)
    assert sessions.next_deadline() == 5.0
    assert [session.broker_id for session in sessions.expired(6.0)] == [2, 3]
    sessions.touch(2, 99, now=6.0)
    assert (sessions.is_live(2, 12, 6.0), sessions.is_live(2, 99, 6.0)) == (False, True)
    assert [session.broker_id for session in sessions.expired(6.5)] == [3, 1]


def test_a_new_active_controller_gives_every_unfenced_broker_a_whole_session() -> None:
    """It does not know since when they have been silent. A fenced broker has no session: its next process may register at
    once."""
    world = ControllerWorld(brokers=2)
    world.kill_broker(2)
    world.now += 100
    world.controller.on_resign(1)
    world.become_active(epoch=2)
    world.now += 2.999
    world.controller.fence_expired()
    assert not world.image.brokers[1].fenced
    assert world.register(2, incarnation=5) > 0
    world.now += 0.001
    world.controller.fence_expired()
    assert world.image.brokers[1].fenced


def test_fencing_an_incarnation_that_was_replaced_does_nothing() -> None:
    """The probe of the old process may end after the new process has registered."""
    world = ControllerWorld(brokers=1)
    old = world.epoch(1)
    world.now += 10
    world.start_broker(1, incarnation=2)
    world.controller.fence(1, old, "late")
    assert not world.image.brokers[1].fenced


# -- controlled shutdown ------------------------------------------------------------------------------------------------


def test_controlled_shutdown_moves_all_leaders_in_one_batch() -> None:
    """The broker may stop when it has read that batch: then it can name the new leaders to producers, and its fetchers follow
    them until the end."""
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3], [2, 1, 3]])
    batches, before = len(world.quorum.batches), world.image.offset
    answer = world.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (False, False)
    assert len(world.quorum.batches) == batches + 1
    assert [world.partition("t", i).leader for i in (0, 1)] == [2, 2]
    assert [world.partition("t", i).isr for i in (0, 1)] == [(2, 3), (2, 3)]
    moved = world.image.offset
    for offset in (before, moved - 1):
        assert not world.heartbeat(1, want_shut_down=True, offset=offset).should_shut_down
    assert not world.image.brokers[1].fenced
    last = world.heartbeat(1, want_shut_down=True, offset=moved)
    assert (last.should_shut_down, last.is_fenced) == (True, True)
    assert world.image.brokers[1].fenced


def test_a_broker_may_not_stop_before_its_moves_are_committed() -> None:
    """If the controller failed now, the old leaders would stay."""
    world = ControllerWorld(brokers=2)
    world.create("t", [[1, 2]])
    world.auto_commit = False
    asked = [world.send(apis.BROKER_HEARTBEAT, world.heartbeat_request(1, want_shut_down=True)) for _ in range(3)]
    assert [request.answers for request in asked] == [[], [], []]
    world.commit()
    assert [request.answers[0].should_shut_down for request in asked] == [False, False, False]
    assert not world.image.brokers[1].fenced


def test_a_broker_that_leads_no_partition_may_stop_at_once() -> None:
    world = ControllerWorld(brokers=2)
    world.create("t", [[2, 1]])
    answer = world.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert world.partition("t").isr == (2,)


def test_after_an_orderly_stop_the_next_process_registers_at_once() -> None:
    """The session ends with the permission to stop, not by timeout."""
    world = ControllerWorld(brokers=2)
    world.heartbeat(1, want_shut_down=True)
    assert world.register(1, incarnation=2)


def test_a_fenced_broker_that_wants_to_stop_may() -> None:
    world = ControllerWorld()
    world.register(1)
    assert world.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_shutdown_goes_on_under_the_next_controller() -> None:
    """The offset to wait for was in the memory of the first controller; the next one uses the offset that it has read itself."""
    world = ControllerWorld(brokers=2)
    world.create("t", [[1, 2]])
    assert not world.heartbeat(1, want_shut_down=True).should_shut_down
    world.controller.on_resign(1)
    world.become_active(epoch=2)
    assert not world.heartbeat(1, want_shut_down=True, offset=0).should_shut_down
    assert not world.heartbeat(1, want_shut_down=True, offset=world.image.offset - 1).should_shut_down
    assert world.heartbeat(1, want_shut_down=True).should_shut_down


def test_the_only_in_sync_replica_may_stop() -> None:
    world = ControllerWorld(brokers=2)
    world.create("t", [[1, 2]])
    world.alter("t", [1])
    world.heartbeat(1, want_shut_down=True)
    assert world.heartbeat(1, want_shut_down=True).should_shut_down
    assert (world.partition("t").leader, world.partition("t").isr, world.partition("t").elr) == (NO_LEADER, (), (1,))
    world.start_broker(1, incarnation=2)
    assert world.partition("t").leader == 1


def test_a_broker_that_is_leaving_gets_no_new_replicas() -> None:
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2, 3]])
    world.heartbeat(1, want_shut_down=True)
    topics = [CreatableTopic("u", 4, 2), CreatableTopic("v", 1, 3)]
    u, v = world.call(apis.CREATE_TOPICS, CreateTopicsRequest(topics)).topics
    assert (u.error_code, v.error_code) == (0, ErrorCode.INVALID_REPLICATION_FACTOR)
    assert {b for i in range(4) for b in world.partition("u", i).replicas} == {2, 3}


# -- producer ids -----------------------------------------------------------------------------------------------------


def test_producer_ids_are_given_in_blocks_that_never_overlap() -> None:
    world = ControllerWorld(brokers=2)
    starts = []
    for broker_id in (1, 2, 1):
        answer = world.call(apis.ALLOCATE_PRODUCER_IDS, AllocateProducerIdsRequest(broker_id, world.epoch(broker_id)))
        assert answer.producer_id_len == 1000
        starts.append(answer.producer_id_start)
    assert starts == [0, 1000, 2000]
    stale = AllocateProducerIdsRequest(1, world.epoch(1) + 1)
    assert code_of(world, apis.ALLOCATE_PRODUCER_IDS, stale) == ErrorCode.STALE_BROKER_EPOCH


# -- unregistration ---------------------------------------------------------------------------------------------------


def unregister(world: ControllerWorld, broker_id: int) -> tuple[ErrorCode, str | None]:
    answer = world.call(apis.UNREGISTER_BROKER, UnregisterBrokerRequest(broker_id))
    return ErrorCode(answer.error_code), answer.error_message


def test_a_dead_broker_without_replicas_is_unregistered() -> None:
    world = ControllerWorld(brokers=3)
    world.create("t", [[1, 2]])
    world.kill_broker(3)
    assert unregister(world, 3) == (ErrorCode.NONE, None)
    assert sorted(world.image.brokers) == [1, 2]
    assert world.replayed().brokers == world.image.brokers
    assert unregister(world, 3)[0] == ErrorCode.BROKER_ID_NOT_REGISTERED


def test_the_configuration_of_an_unregistered_broker_is_removed() -> None:
    """Another machine with this broker id must not inherit it."""
    world = ControllerWorld(brokers=2)
    resources = [
        AlterConfigsResource(RESOURCE_BROKER, name, [AlterableConfig("log.roll.ms", CONFIG_SET, "5")]) for name in ("", "1", "2")
    ]
    world.call(apis.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest(resources))
    world.kill_broker(2)
    unregister(world, 2)
    assert {resource: dict(values) for resource, values in world.image.configs.items()} == {
        (RESOURCE_BROKER, ""): {"log.roll.ms": "5"},
        (RESOURCE_BROKER, "1"): {"log.roll.ms": "5"},
    }
    assert world.replayed().configs == world.image.configs


def test_an_unregistered_broker_registers_anew() -> None:
    world = ControllerWorld(brokers=2)
    before = world.epoch(2)
    world.kill_broker(2)
    unregister(world, 2)
    request = BrokerHeartbeatRequest(2, before, world.image.offset, False, False)
    assert code_of(world, apis.BROKER_HEARTBEAT, request) == ErrorCode.STALE_BROKER_EPOCH
    assert world.start_broker(2) > before


@pytest.mark.parametrize("state", ["unfenced", "shutting down", "registered, fenced, and heard"])
def test_a_live_broker_is_not_unregistered(state: str) -> None:
    world = ControllerWorld(brokers=2)
    if state == "shutting down":
        world.create("t", [[2, 1]])
        assert not world.heartbeat(2, want_shut_down=True, offset=0).should_shut_down
    elif state != "unfenced":
        world.kill_broker(2)
        world.register(2, incarnation=2)
    code, text = unregister(world, 2)
    assert (code, text) == (
        ErrorCode.INVALID_REQUEST,
        "broker 2 is alive: stop it first, and retry when its session has ended",
    )
    assert 2 in world.image.brokers


def test_a_broker_with_replicas_is_not_unregistered_and_the_topics_are_named() -> None:
    world = ControllerWorld(brokers=3)
    for number in range(12):
        world.create(f"t{number:02}", [[3, 1], [1, 3], [1, 2]])
    world.kill_broker(3)
    code, text = unregister(world, 3)
    assert code == ErrorCode.INVALID_REQUEST
    assert text == (
        "broker 3 hosts 24 replicas, of t00 (2), t01 (2), t02 (2), t03 (2), t04 (2), t05 (2), t06 (2), t07 (2), t08 (2), t09 (2) "
        "and 2 more topics: delete the topics or move the replicas first"
    )
    for number in range(12):
        world.call(apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(f"t{number:02}")]))
    assert unregister(world, 3) == (ErrorCode.NONE, None)
