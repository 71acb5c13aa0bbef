"""Reading from the nearest replica (KIP-392): which replica the leader nominates, and what a follower serves."""

from __future__ import annotations

import pytest
from fetcher_link import Link
from handled_request import HandledRequest
from replica_world import P, ReplicaWorld, begin_shutdown, code, fetched, register, values, want

from strandline.broker.fetch.replica_selector import SELECTORS
from strandline.broker.replica_manager import ReplicaConfig
from strandline.broker.replication.fetcher import Plan
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.protocol.errors import ErrorCode

RACKS = {1: "a", 2: "b", 3: "c", 4: "b"}


def world_of_racks(*items: str, selector: str | None = "rack-aware", brokers: int = 4) -> ReplicaWorld:
    """Broker 1 leads in rack a; its followers are 2 and 4 in rack b, and 3 in rack c. All have all records."""
    world = ReplicaWorld(brokers, config=ReplicaConfig(replica_selector_class=selector))
    world.change(*(register(broker_id, rack=RACKS[broker_id]) for broker_id in world.nodes))
    world.topic(replicas=tuple(world.nodes))
    for item in items:
        world[1].produce(item, acks=1)
    catch_up(world)
    return world


def catch_up(world: ReplicaWorld, *brokers: int) -> None:
    """Give these followers (default: all) all records, and the high watermark that this allows."""
    for _ in range(3):
        for broker_id in brokers or [node for node in world.nodes if node != 1]:
            world.replicate(broker_id, 1)


def nominee(request: HandledRequest) -> int:
    return fetched(request)[P].preferred_read_replica


# -- nominations ------------------------------------------------------------------------------------------------------


def test_leader_nominates_the_follower_in_the_rack_of_the_consumer() -> None:
    world = world_of_racks("x")
    request = world[1].fetch(want(0, epoch=1), rack_id="c")
    assert (code(request), nominee(request), values(request)) == (ErrorCode.NONE, 3, [])
    assert world[1].manager.metrics.total().nominations == 1


@pytest.mark.parametrize("rack", ["a", "d", ""])
def test_leader_serves_consumers_of_its_own_rack_and_of_racks_without_a_replica(rack: str) -> None:
    request = world_of_racks("x")[1].fetch(want(0, epoch=1), rack_id=rack)
    assert (nominee(request), values(request)) == (-1, [b"x"])


def test_without_a_selector_no_replica_is_nominated() -> None:
    request = world_of_racks("x", selector=None)[1].fetch(want(0, epoch=1), rack_id="b")
    assert (nominee(request), values(request)) == (-1, [b"x"])


def test_nomination_answers_at_once_although_min_bytes_are_not_there() -> None:
    """Otherwise the consumer would wait at a replica that is not meant to serve it."""
    world = world_of_racks()
    request = world[1].fetch(want(0, epoch=1), rack_id="b", max_wait_ms=10_000, min_bytes=1000)
    assert (request.is_answered, nominee(request)) == (True, 2)


def test_parked_consumer_is_nominated_when_a_replica_of_its_rack_has_the_records() -> None:
    world = world_of_racks()
    world.set_isr(1, 2)
    parked = world[1].fetch(want(0, epoch=1), rack_id="c", max_wait_ms=10_000)
    world.set_isr(1, 2, 3, 4)
    assert not parked.is_answered
    world[1].produce("x", acks=1)
    catch_up(world)
    assert nominee(parked) == 3


def test_only_members_of_the_isr_are_nominated() -> None:
    world = world_of_racks("x")
    world.set_isr(1, 2, 4)
    request = world[1].fetch(want(0, epoch=1), rack_id="c")
    assert (nominee(request), values(request)) == (-1, [b"x"])


def test_only_replicas_that_hold_the_position_are_nominated() -> None:
    """If a consumer has read further than its follower, the follower would return OFFSET_OUT_OF_RANGE."""
    world = world_of_racks("x")
    world[1].produce("y", acks=1)
    world.replicate(2, 1)
    catch_up(world, 4)
    assert nominee(world[1].fetch(want(2, epoch=1), rack_id="b")) == 4
    assert nominee(world[1].fetch(want(2, epoch=1), rack_id="c")) == -1


def test_most_caught_up_replica_of_the_rack_is_nominated() -> None:
    world = world_of_racks("x")
    assert nominee(world[1].fetch(want(0, epoch=1), rack_id="b")) == 2, "of equals, the one with the lowest id"
    world.loop.advance(1)
    world.replicate(4, 1)
    assert nominee(world[1].fetch(want(0, epoch=1), rack_id="b")) == 4, "it has shown later than the other that it has everything"
    world[1].produce("y", acks=1)
    catch_up(world, 2)
    assert nominee(world[1].fetch(want(0, epoch=1), rack_id="b")) == 2, "it has more records"


def test_broker_that_shuts_down_or_has_registered_again_is_not_nominated() -> None:
    world = world_of_racks("x")
    world.change(begin_shutdown(3))
    assert nominee(world[1].fetch(want(0, epoch=1), rack_id="c")) == -1
    world.change(register(3, epoch=99, rack="c"), at=[1])
    assert nominee(world[1].fetch(want(0, epoch=1), rack_id="c")) == -1, "its new process has not fetched yet"


def test_position_outside_of_the_leaders_log_is_out_of_range_and_not_nominated() -> None:
    world = world_of_racks("x")
    assert code(world[1].fetch(want(9, epoch=1), rack_id="b")) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_follower_nominates_no_replica() -> None:
    request = world_of_racks("x")[2].fetch(want(0, epoch=1), rack_id="c")
    assert (nominee(request), values(request)) == (-1, [b"x"])


def test_consumer_that_ignores_its_nomination_does_not_wait_for_a_new_record() -> None:
    world = world_of_racks("x")
    opened = world[1].fetch(want(0, epoch=1), rack_id="c", session_epoch=0)
    again = world[1].fetch(rack_id="", session_id=opened.answer.session_id, session_epoch=1, max_wait_ms=10_000)
    assert values(again) == [b"x"]


def test_selectors_are_those_that_the_configuration_accepts() -> None:
    (key,) = (key for key in BROKER_KEYS if key.name == "replica.selector.class")
    assert set(SELECTORS) == {None, *key.choices}


# -- what a follower serves -------------------------------------------------------------------------------------------


def test_follower_refuses_a_consumer_that_names_no_rack() -> None:
    """The consumer takes this broker for the leader, and must find out who leads now."""
    world = world_of_racks("x")
    request = world[2].fetch(want(0))
    assert code(request) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetched(request)[P].current_leader.leader_id == 1


def test_follower_serves_up_to_its_own_high_watermark() -> None:
    world = world_of_racks("x")
    world[1].produce("y", acks=1)
    for broker_id in (2, 3, 4, 3, 4):
        world.replicate(broker_id, 1)
    assert (world[1].hw, world[2].leo, world[2].hw) == (1, 2, 1)
    assert values(world[2].fetch(want(0, epoch=1), rack_id="b")) == [b"x"]
    assert world[2].manager.metrics.total().follower_bytes_out > 0


def test_position_between_high_watermark_and_log_end_of_a_follower_waits() -> None:
    """After an error, the consumer would ask again and again until the follower has received the high watermark."""
    world = world_of_racks("x")
    world[1].produce("y", acks=1)
    catch_up(world, 2)
    assert (world[2].leo, world[2].hw) == (2, 1)
    parked = world[2].fetch(want(2, epoch=1), rack_id="b", max_wait_ms=5000)
    assert not parked.is_answered
    catch_up(world)
    world[1].produce("z", acks=1)
    catch_up(world)
    assert values(parked) == [b"z"]


def test_position_above_the_log_end_of_a_follower_is_out_of_range() -> None:
    world = world_of_racks("x")
    assert code(world[2].fetch(want(2, epoch=1), rack_id="b")) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert code(world[2].fetch(want(2, epoch=1, last_epoch=1), rack_id="b")) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_follower_never_names_a_divergence() -> None:
    """Its own log may be the one that diverges, so the consumer asks the leader."""
    world = world_of_racks("x")
    request = world[2].fetch(want(1, epoch=1, last_epoch=0), rack_id="b")
    assert code(request) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(request)[P].diverging_epoch.epoch == -1


def test_truncation_of_a_follower_ends_the_wait_of_its_consumers() -> None:
    world = world_of_racks("x")
    world[1].produce("y", acks=1)
    catch_up(world, 2)
    parked = world[2].fetch(want(2, epoch=1), rack_id="b", max_wait_ms=5000)
    world[2].p.truncate_to(1, "a test")
    world.loop.end_turn()
    assert code(parked) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_restart_of_a_followers_log_ends_the_wait_of_its_consumers() -> None:
    world = world_of_racks("x")
    parked = world[2].fetch(want(1, epoch=1), rack_id="b", max_wait_ms=5000)
    world[2].p.truncate_fully_and_start_at(world[2].p.fetch_position(), 7)
    world.loop.end_turn()
    assert code(parked) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_follower_that_becomes_leader_of_a_new_epoch_fences_its_consumers() -> None:
    world = world_of_racks("x")
    parked = world[2].fetch(want(1, epoch=1), rack_id="b", max_wait_ms=5000)
    world.elect(2)
    assert code(parked) == ErrorCode.FENCED_LEADER_EPOCH


def test_offsets_are_looked_up_at_the_leader() -> None:
    world = world_of_racks("x")
    assert world[2].list_offsets(-1).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- the high watermark of a follower with readers --------------------------------------------------------------------


def followed(*, rack: str) -> tuple[ReplicaWorld, Link, HandledRequest]:
    """Broker 2 follows broker 1 with a parked fetch. If `rack` is not empty, it has a consumer in this rack."""
    world = ReplicaWorld(3)
    world.topic()
    link = Link(world, 2, 1)
    link.round()
    consumer = world[2].fetch(want(0, epoch=1), rack_id=rack, max_wait_ms=5000, session_epoch=0)
    for key in world[2].fetchers.read:
        assert link.core.on_reader(key)
    return world, link, consumer


def parked_fetch(link: Link) -> tuple[Plan, HandledRequest]:
    """Fetch until the leader parks a fetch. Returns that fetch."""
    for _ in range(3):
        plan, request = link.ask() or pytest.fail("nothing to fetch")
        if not request.is_answered:
            return plan, request
        link.deliver(plan, request)
    pytest.fail("the leader answers again and again")


def commit_one(world: ReplicaWorld, link: Link) -> HandledRequest:
    """Append a record, have broker 2 copy it, and commit it with broker 3's fetch. Returns broker 2's next fetch."""
    plan, request = parked_fetch(link)
    world[1].produce("x", acks=1)
    link.deliver(plan, request)
    _, parked = parked_fetch(link)
    world[1].said_by(3, 1)
    assert world[1].hw == 1
    return parked


def test_high_watermark_ends_the_wait_of_a_follower_with_readers() -> None:
    """Otherwise the last record of a quiet topic would be visible at the follower half a second later than at the leader."""
    world, link, consumer = followed(rack="b")
    parked = commit_one(world, link)
    assert fetched(parked)[P].high_watermark == 1
    assert not consumer.is_answered


def test_high_watermark_does_not_end_the_wait_of_a_follower_without_readers() -> None:
    """It would cost every cluster half as many fetches again (KAFKA-9731)."""
    world, link, _ = followed(rack="")
    assert not commit_one(world, link).is_answered


def test_reader_is_reported_to_the_leader_in_one_more_fetch_behind_the_parked_one() -> None:
    world, link, _ = followed(rack="")
    plan, parked = link.ask() or pytest.fail("nothing to fetch")
    world[2].fetch(want(0, epoch=1), rack_id="b", max_wait_ms=5000, session_epoch=0)
    assert world[2].fetchers.read == [P]
    assert link.core.on_reader(P)
    (planned, _) = link.ask() or pytest.fail("the leader is not notified")
    assert [item.readers_high_watermark for item in planned.request.partitions] == [0]
    link.deliver(plan, parked)
    assert not link.core.on_reader(P), "it knows already"


def test_reader_that_has_gone_at_once_is_reported_to_the_leader_once() -> None:
    """A client without sessions that does not wait is gone before the next fetch is planned. If the follower named its position
    again for each of that client's fetches, each response of the leader would be out of date, and the follower would never get
    the high watermark."""
    world, link, _ = followed(rack="")
    parked_fetch(link)
    world[2].fetch(want(0, epoch=1), rack_id="b")
    assert link.core.on_reader(P)
    (planned, _) = link.ask() or pytest.fail("the leader is not notified")
    assert [item.readers_high_watermark for item in planned.request.partitions] == [0]
    world[2].fetch(want(0, epoch=1), rack_id="b")
    assert not link.core.on_reader(P), "it knows already"


def test_follower_whose_readers_have_gone_says_so_with_its_next_position() -> None:
    world, link, consumer = followed(rack="b")
    plan, request = parked_fetch(link)
    world[2].manager.sessions.remove(next(iter(world[2].p.consumers)).session.id)  # type: ignore[attr-defined]
    assert consumer.is_answered
    world[1].produce("x", acks=1)
    link.deliver(plan, request)
    (planned, _) = link.ask() or pytest.fail("nothing to fetch")
    assert [item.readers_high_watermark for item in planned.request.partitions] == [-1]


def test_stale_position_of_a_follower_with_readers_makes_no_answer() -> None:
    """Records are on the way to the follower, which would drop an answer to its old position and fetch in a loop."""
    world, link, _ = followed(rack="b")
    parked_fetch(link)
    world[1].produce("x", acks=1)
    session = next(iter(world[1].p.followers)).session  # type: ignore[attr-defined]
    (cached,) = session.partitions.values()
    assert cached.records_are_out
    assert not cached.is_high_watermark_news_for_readers(1)


def without_session(*, rack: str) -> tuple[ReplicaWorld, Link]:
    """Broker 2 follows broker 1, whose session cache has no room, and has a consumer in this rack."""
    world = ReplicaWorld(3)
    world.topic()
    world[1].manager.sessions.slots = 0
    link = Link(world, 2, 1)
    link.round()
    world[2].fetch(want(0, epoch=1), rack_id=rack, max_wait_ms=5000, session_epoch=0)
    return world, link


def test_leader_without_room_for_a_session_does_not_answer_the_same_high_watermark_twice() -> None:
    """Only the request can tell which high watermark the follower has. If the leader took every fetch for the first one, the
    follower would fetch in a loop."""
    world, link = without_session(rack="b")
    world[1].produce("x", acks=1)
    parked_fetch(link)


def test_high_watermark_ends_the_wait_of_a_follower_with_readers_and_without_a_session() -> None:
    world, link = without_session(rack="b")
    parked = commit_one(world, link)
    assert fetched(parked)[P].high_watermark == 1


def test_high_watermark_that_a_follower_has_missed_is_sent_at_once() -> None:
    """The high watermark has moved between two fetches of a follower without a session."""
    world, link = without_session(rack="b")
    commit_one(world, link)
    link.core.on_connection_lost()  # with the response
    plan, request = link.ask() or pytest.fail("nothing to fetch")
    assert fetched(request)[P].high_watermark == 1
    link.deliver(plan, request)
    parked_fetch(link)
