"""Fetch sessions: the rules of KIP-227, the cache, and that idle partitions cost nothing.

Names after Kafka's FetchSessionTest where it has the case.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from handled_request import HandledRequest
from replica_world import TOPIC, Node, P, ReplicaWorld, fetched, forget, refuse, remove_topic, values, want

from strandline.broker.fetch import fetch_session
from strandline.broker.fetch.fetch_session import (
    EVICTION_S,
    FetchSession,
    FetchSessionCache,
)
from strandline.broker.replica_manager import ReplicaConfig
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.fetch_sessions import EPOCH_MAX, FINAL_EPOCH, INITIAL_EPOCH, next_epoch
from strandline.protocol.messages.data import FetchPartition, FetchRequest

Q = (TOPIC, 1)


def request(
    session_id: int, epoch: int, *wanted: FetchPartition, replica_id: int = -1, forgotten: Any = (), replica_epoch: int = -1
) -> FetchRequest:
    return FetchRequest(replica_id, replica_epoch, 0, 1, 1 << 20, 0, session_id, epoch, list(wanted), list(forgotten))


def partitions(count: int, first: int = 0) -> list[FetchPartition]:
    return [want(0, key=(TOPIC, first + i)) for i in range(count)]


def new_session(cache: FetchSessionCache, size: int, now: float, *, replica_id: int = -1) -> FetchSession:
    session, _ = cache.session_for(request(0, INITIAL_EPOCH, *partitions(size), replica_id=replica_id), now)
    return session


# -- epochs and ids ---------------------------------------------------------------------------------------------------


def test_next_epoch_wraps_to_one() -> None:
    assert [next_epoch(e) for e in (INITIAL_EPOCH, 1, EPOCH_MAX, FINAL_EPOCH)] == [1, 2, 1, FINAL_EPOCH]


def test_new_session_id_is_positive_and_unused() -> None:
    cache = FetchSessionCache(Random(1), slots=500)
    ids = {new_session(cache, 1, 0.0).id for _ in range(500)}
    assert len(ids) == 500
    assert min(ids) > 0


def test_epoch_0_opens_a_session_and_epoch_minus_1_does_not() -> None:
    cache = FetchSessionCache(Random(1))
    opened, is_full = cache.session_for(request(0, INITIAL_EPOCH, *partitions(2)), 0.0)
    assert (opened.id > 0, opened.epoch, is_full, len(cache)) == (True, 1, True, 1)
    sessionless, is_full = cache.session_for(request(0, FINAL_EPOCH, *partitions(2)), 0.0)
    assert (sessionless.id, is_full, len(cache)) == (0, True, 1)


def test_a_full_fetch_closes_the_session_that_it_names() -> None:
    cache = FetchSessionCache(Random(1))
    for epoch, left in [(INITIAL_EPOCH, 1), (FINAL_EPOCH, 0)]:
        old = next(iter(cache._sessions.values()), None) or new_session(cache, 1, 0.0)
        cache.session_for(request(old.id, epoch, *partitions(1)), 0.0)
        assert cache.get(old.id) is None
        assert len(cache) == left


def test_fetch_requests_must_name_the_expected_epoch() -> None:
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 1, 0.0)
    for epoch in (2, 5):
        with pytest.raises(BrokerError) as e:
            cache.session_for(request(session.id, epoch), 0.0)
        assert e.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    cache.session_for(request(session.id, 1), 0.0)
    with pytest.raises(BrokerError) as e:
        cache.session_for(request(session.id, 1), 0.0)
    assert e.value.code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert session.epoch == 2


def test_an_unknown_or_forged_session_id_is_not_found() -> None:
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 1, 0.0, replica_id=2)
    for forged in (
        request(session.id + 1, 1, replica_id=2),
        request(session.id, 1, replica_id=3),
        request(session.id, 1, replica_id=-1),
        request(session.id, 1, replica_id=2, replica_epoch=9),
        request(-5, 1),
    ):
        with pytest.raises(BrokerError) as e:
            cache.session_for(forged, 0.0)
        assert e.value.code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert session.epoch == 1, "requests of other fetchers do not move it"


def test_the_same_partition_twice_is_refused() -> None:
    with pytest.raises(BrokerError) as e:
        FetchSessionCache(Random(1)).session_for(request(0, INITIAL_EPOCH, want(0), want(5)), 0.0)
    assert e.value.code == ErrorCode.INVALID_REQUEST


def test_too_many_partitions_for_a_session_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """F11: a request with a million partitions must not claim the memory."""
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 10)
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 8, 0.0)
    for too_many in (request(0, INITIAL_EPOCH, *partitions(11)), request(session.id, 1, *partitions(3, first=20))):
        with pytest.raises(BrokerError) as e:
            cache.session_for(too_many, 0.0)
        assert e.value.code == ErrorCode.INVALID_REQUEST
    assert (session.size, session.epoch) == (8, 1)


def test_a_full_fetch_does_not_close_the_session_of_another_replica() -> None:
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 1, 0.0, replica_id=2)
    cache.session_for(request(session.id, INITIAL_EPOCH, *partitions(1), replica_id=-1), 0.0)
    assert cache.get(session.id) is session


def test_incremental_fetch_session_adds_changes_and_forgets() -> None:
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 2, 0.0)
    session.dirty.clear()
    cache.session_for(request(session.id, 1, want(7), want(0, key=(TOPIC, 9)), forgotten=[forget(Q)]), 0.0)
    assert list(session.partitions) == [P, (TOPIC, 9)]
    assert session.partitions[P].fetch_offset == 7
    assert list(session.dirty) == [P, (TOPIC, 9)]


def test_cached_leader_epoch_and_last_fetched_epoch_follow_the_request() -> None:
    cache = FetchSessionCache(Random(1))
    session, _ = cache.session_for(request(0, INITIAL_EPOCH, want(0, epoch=3, last_epoch=2)), 0.0)
    cached = session.partitions[P]
    assert (cached.current_leader_epoch, cached.last_fetched_epoch) == (3, 2)
    cache.session_for(request(session.id, 1, want(0, epoch=4, last_epoch=3)), 0.0)
    assert (cached.current_leader_epoch, cached.last_fetched_epoch) == (4, 3)


def test_zero_size_fetch_session_is_closed() -> None:
    cache = FetchSessionCache(Random(1))
    assert new_session(cache, 0, 0.0).id == 0
    session = new_session(cache, 1, 0.0)
    left, _ = cache.session_for(request(session.id, 1, forgotten=[forget(P)]), 0.0)
    assert (left.id, len(cache)) == (0, 0)


# -- the cache --------------------------------------------------------------------------------------------------------


def test_a_full_cache_of_young_sessions_keeps_them() -> None:
    cache = FetchSessionCache(Random(1), slots=3)
    kept = [new_session(cache, 2, float(i)) for i in range(3)]
    assert new_session(cache, 40, 10.0).id == 0
    assert [cache.get(session.id) for session in kept] == kept


def test_resize_cached_sessions_counts_partitions() -> None:
    cache = FetchSessionCache(Random(1))
    session = new_session(cache, 2, 0.0)
    new_session(cache, 4, 0.0)
    assert cache.partition_count == 6
    cache.session_for(request(session.id, 1, *partitions(3, first=10)), 0.0)
    assert cache.partition_count == 9
    cache.remove(session.id)
    assert cache.partition_count == 4


def test_fetch_session_expiration_takes_the_least_recently_used_one() -> None:
    cache = FetchSessionCache(Random(1), slots=2)
    first, second = new_session(cache, 1, 0.0), new_session(cache, 1, 1.0)
    cache.session_for(request(first.id, 1), 100.0)
    third = new_session(cache, 1, 1.5 + EVICTION_S)
    assert (cache.get(first.id), cache.get(second.id), cache.get(third.id)) == (first, None, third)
    assert cache.evictions == 1


def test_an_old_session_gives_way_to_a_larger_one_and_not_to_a_smaller_one() -> None:
    cache = FetchSessionCache(Random(1), slots=1)
    old = new_session(cache, 5, 0.0)
    cache.session_for(request(old.id, 1), EVICTION_S)
    assert new_session(cache, 4, EVICTION_S + 1).id == 0
    assert new_session(cache, 6, EVICTION_S + 1).id != 0
    assert cache.get(old.id) is None


def test_privileged_session_handling() -> None:
    """A new session of a follower evicts a consumer's, young or old. A consumer's never evicts a follower's."""
    cache = FetchSessionCache(Random(1), slots=2)
    consumer, follower = new_session(cache, 9, 0.0), new_session(cache, 1, 0.0, replica_id=2)
    newcomer = new_session(cache, 1, 1.0, replica_id=3)
    assert (cache.get(consumer.id), cache.get(follower.id)) == (None, follower)
    assert newcomer.id
    assert new_session(cache, 1, 2.0, replica_id=4).id == 0, "young followers are spared"
    for session in (follower, newcomer):
        cache.session_for(request(session.id, 1, replica_id=session.replica_id), EVICTION_S)
    assert new_session(cache, 1000, EVICTION_S + 5).id == 0


def test_a_session_that_is_used_does_not_expire() -> None:
    cache = FetchSessionCache(Random(1), slots=1)
    session = new_session(cache, 1, 0.0, replica_id=2)
    for epoch in range(1, 10):
        cache.session_for(request(session.id, epoch, replica_id=2), epoch * 100.0)
        assert new_session(cache, 50, epoch * 100.0 + 1).id == 0


# -- on a broker ------------------------------------------------------------------------------------------------------


class Fetcher:
    """The fetcher's side of a fetch session."""

    def __init__(self, leader: Node, broker_id: int = -1) -> None:
        self.leader = leader
        self.replica_id = broker_id
        self.replica_epoch = 10 + broker_id if broker_id >= 0 else -1
        self.session_id = 0
        self.epoch = INITIAL_EPOCH

    def fetch(
        self, *wanted: FetchPartition, forgotten: Any = (), max_wait_ms: int = 0, end_turn: bool = True, **fields: Any
    ) -> HandledRequest:
        sent = self.leader.fetch(
            *wanted,
            replica_id=self.replica_id,
            replica_epoch=self.replica_epoch,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=list(forgotten),
            max_wait_ms=max_wait_ms,
            end_turn=end_turn,
            **fields,
        )
        if sent.is_answered and self.epoch == INITIAL_EPOCH:
            self.session_id = sent.answer.session_id
        self.epoch = next_epoch(self.epoch)
        return sent


def world_of(count: int, **options: Any) -> tuple[ReplicaWorld, Node]:
    world = ReplicaWorld()
    world.topic(partitions=count, **options)
    return world, world[1]


def follow(leader: Node, broker_id: int, count: int) -> Fetcher:
    """A follower with a session for the first partitions."""
    fetcher = Fetcher(leader, broker_id)
    fetcher.fetch(*[want(0, key=(TOPIC, i), epoch=1) for i in range(count)])
    assert fetcher.session_id
    return fetcher


def test_update_and_generate_response_data_lists_only_news() -> None:
    _, leader = world_of(3)
    fetcher = Fetcher(leader)
    assert len(fetched(fetcher.fetch(*[want(0, key=(TOPIC, i), epoch=1) for i in range(3)]))) == 3
    assert fetched(fetcher.fetch()) == {}
    leader.produce("a", key=Q, acks=1)
    assert fetched(fetcher.fetch()) == {}, "not committed yet: no news for a consumer"
    leader.said_by(2, 1, key=Q)
    leader.said_by(3, 1, key=Q)
    answer = fetcher.fetch()
    assert list(fetched(answer)) == [Q]
    assert values(answer) == [b"a"]


def test_data_that_was_not_taken_is_sent_again() -> None:
    _, leader = world_of(1, replicas=(1,))
    fetcher = Fetcher(leader)
    fetcher.fetch(want(0, epoch=1))
    leader.produce("a")
    assert values(fetcher.fetch()) == [b"a"]
    assert values(fetcher.fetch()) == [b"a"]
    answer = fetcher.fetch(want(1, epoch=1))
    assert values(answer) == []
    assert fetched(answer)[P].high_watermark == 1, "the fetcher took one of the two answers, and the leader does not know which"
    assert fetched(fetcher.fetch()) == {}


def test_a_high_watermark_sent_behind_records_is_sent_again() -> None:
    """With two requests in flight, the leader answers the second one from the offset of the first. The fetcher has moved on by
    then and drops that answer, and with it a high watermark that it would otherwise get only with the next record (seed
    820360694)."""
    _, leader = world_of(1, replicas=(1, 2, 3))
    fetcher = Fetcher(leader, 2)
    fetcher.fetch(want(0, epoch=1))
    leader.produce("a")
    taken = fetcher.fetch()
    assert (values(taken), fetched(taken)[P].high_watermark) == ([b"a"], 0)
    leader.p.log.update_high_watermark(1)
    dropped = fetcher.fetch()
    assert fetched(dropped)[P].high_watermark == 1
    assert fetched(fetcher.fetch(want(1, epoch=1)))[P].high_watermark == 1


def test_the_high_watermark_is_sent_again_to_a_fetcher_that_repeats_its_position() -> None:
    """The fetcher may have dropped the previous answer, for example because a later request had overtaken it."""
    _, leader = world_of(1, replicas=(1,))
    leader.produce("a")
    fetcher = Fetcher(leader)
    fetcher.fetch(want(1, epoch=1))
    assert fetched(fetcher.fetch()) == {}
    assert fetched(fetcher.fetch(want(1, epoch=1)))[P].high_watermark == 1


def test_to_forget_partitions_are_not_answered_any_more() -> None:
    _, leader = world_of(2, replicas=(1,))
    fetcher = Fetcher(leader)
    fetcher.fetch(want(0, epoch=1), want(0, key=Q, epoch=1))
    fetcher.fetch(forgotten=[forget(P)])
    leader.produce("a")
    assert fetched(fetcher.fetch()) == {}
    assert leader.p.consumers == {}


def test_a_partition_in_error_is_answered_until_it_is_forgotten() -> None:
    _, leader = world_of(1)
    fetcher = Fetcher(leader)
    unknown = (b"no-such-topic-id", 0)
    assert fetched(fetcher.fetch(want(0, epoch=1), want(0, key=unknown)))[unknown].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert list(fetched(fetcher.fetch())) == [unknown]
    assert fetched(fetcher.fetch(forgotten=[forget(unknown)])) == {}


def test_a_known_error_does_not_make_a_long_poll_return_again_and_again() -> None:
    _, leader = world_of(1, replicas=(1,))
    fetcher = Fetcher(leader)
    fetcher.fetch(want(0, epoch=1), want(0, key=(b"no-such-topic-id", 0)))
    parked = fetcher.fetch(max_wait_ms=500)
    assert not parked.is_answered
    leader.produce("a")
    assert len(fetched(parked)) == 2


def test_topic_without_an_id_cannot_join_a_session() -> None:
    """KIP-516: the fetcher begins another session."""
    world = ReplicaWorld()
    world.topic()
    opened = world[1].fetch(want(0), session_epoch=0).answer
    refused = world[1].fetch(want(0, key=(bytes(16), 0)), session_id=opened.session_id, session_epoch=1)
    assert refused.answer.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    again = world[1].fetch(want(0), session_id=opened.session_id, session_epoch=0)
    assert again.answer.error_code == ErrorCode.NONE


def test_unknown_topic_id_heals_when_the_topic_appears() -> None:
    world, leader = world_of(1)
    fetcher = Fetcher(leader)
    later = (b"later-topic-id-9", 0)
    fetcher.fetch(want(0, key=later, epoch=1))
    world.topic(topic_id=later[0], name="later")
    assert fetched(fetcher.fetch())[later].error_code == 0


def test_diverging_epoch_is_answered_in_a_session() -> None:
    world, leader = world_of(1)
    leader.produce("a", "b", acks=1)
    fetcher = follow(leader, 2, 1)
    world.elect(1)
    answer = fetched(fetcher.fetch(want(5, epoch=2, last_epoch=1)))[P]
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (1, 2)
    healed = fetched(fetcher.fetch(want(2, epoch=2, last_epoch=1)))[P]
    assert healed.diverging_epoch.epoch == -1
    assert healed.high_watermark == 0, "sent again: with a divergence it does not count"


def test_a_session_remembers_the_epoch_of_unnamed_partitions() -> None:
    """S29: the same broker leads again in a new epoch, which the follower does not know yet (KAFKA-9338)."""
    world, leader = world_of(2)
    leader.produce("a", acks=1)
    fetcher = follow(leader, 2, 2)
    world.elect(1, at=(1,))
    answer = fetched(fetcher.fetch(want(0, key=Q, epoch=1)))
    assert answer[P].error_code == ErrorCode.FENCED_LEADER_EPOCH
    leader_state = leader.p.leader_state
    assert leader_state is not None
    assert leader_state.replicas[2].log_end_offset == -1, "fetches of the old epoch do not count"


def test_a_parked_session_is_answered_when_the_epoch_of_a_partition_changes() -> None:
    world, leader = world_of(2)
    parked = follow(leader, 2, 2).fetch(max_wait_ms=10_000)
    world.elect(1, at=(1,))
    assert fetched(parked)[P].error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_evicted_sessions_get_an_error_and_skip_no_record() -> None:
    """S30: five fetchers share two slots. Each one is served, or has to begin a new session (KAFKA-8052)."""
    world = ReplicaWorld(config=ReplicaConfig(max_incremental_fetch_session_cache_slots=2))
    world.topic(partitions=1, replicas=(1,))
    leader = world[1]
    fetchers = [Fetcher(leader) for _ in range(5)]
    offsets = [0] * 5
    random = Random(7)
    for step in range(300):
        leader.produce(f"v{step}")
        world.loop.advance(random.choice([0.1, 60.0]))
        i = random.randrange(5)
        fetcher = fetchers[i]
        answer = fetcher.fetch(want(offsets[i], epoch=1))
        error = answer.answer.error_code
        if error:
            assert error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
            fetchers[i] = Fetcher(leader)
            continue
        if fetcher.session_id == 0:
            fetcher.epoch = INITIAL_EPOCH
        got = values(answer)
        assert got[0] == f"v{offsets[i]}".encode(), "nothing is skipped"
        assert len(got) == step + 1 - offsets[i], "nothing is held back"
        offsets[i] += len(got)
    assert leader.manager.sessions.evictions > 10
    assert len(leader.p.consumers) == len(leader.manager.sessions) == 2


def test_an_evicted_session_answers_its_parked_fetch() -> None:
    _, leader = world_of(1)
    fetcher = follow(leader, 2, 1)
    parked = fetcher.fetch(max_wait_ms=10_000)
    leader.manager.sessions.remove(fetcher.session_id)
    assert parked.is_answered
    assert leader.p.followers == {}


def test_an_idle_partition_is_not_looked_at_again() -> None:
    """333 idle partitions must cost nothing per fetch, nor per append elsewhere."""
    _world, leader = world_of(333)
    followers = [follow(leader, broker_id, 333) for broker_id in (2, 3)]
    sessions = [leader.manager.sessions.get(fetcher.session_id) for fetcher in followers]
    for fetcher in followers:
        fetcher.fetch()
    assert [list(session.dirty) for session in sessions if session] == [[], []]
    parked = [fetcher.fetch(max_wait_ms=500) for fetcher in followers]
    leader.produce("a", key=(TOPIC, 200), acks=1, end_turn=False)
    assert [list(session.dirty) for session in sessions if session] == [[(TOPIC, 200)]] * 2
    leader.loop.end_turn()
    assert [list(fetched(answer)) for answer in parked] == [[(TOPIC, 200)]] * 2


def test_a_follower_of_idle_partitions_is_in_sync_when_one_wakes_up() -> None:
    """Its fetches did not name the partition for an hour, but they still count as caught up."""
    world, leader = world_of(2)
    followers = [follow(leader, broker_id, 2) for broker_id in (2, 3)]
    for _ in range(360):
        world.loop.advance(10)
        for fetcher in followers:
            fetcher.fetch()
    leader.produce("a", acks=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending == {}
    world.loop.advance(11)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending[P].isr == ((1, 11),)


def test_unnamed_fetches_do_not_count_for_a_follower_that_is_behind() -> None:
    world, leader = world_of(1)
    fetcher = follow(leader, 2, 1)
    leader.produce("a", acks=1)
    for _ in range(12):
        world.loop.advance(1)
        fetcher.fetch()
        leader.produce("a", acks=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending[P].isr == ((1, 11),)


def test_fetches_of_a_session_that_forgot_the_partition_do_not_count() -> None:
    """The follower has removed the partition from its session (its disk is slow, it is fenced). Other fetches do not count."""
    world, leader = world_of(2)
    fetcher = follow(leader, 2, 2)
    fetcher.fetch(forgotten=[forget(P)])
    for _ in range(12):
        world.loop.advance(1)
        fetcher.fetch()
    leader.produce("a", acks=1)
    leader.manager.maybe_shrink_isrs()
    assert leader.alter.pending[P].isr == ((1, 11),)


def test_a_follower_joins_the_isr_although_its_partition_is_idle() -> None:
    """If the controller has refused it once (it was fenced, or the controller was slow), it must be proposed again without new
    data."""
    _world, leader = world_of(1, isr=(1, 2))
    fetcher = follow(leader, 3, 1)
    item = leader.alter.take()
    fetcher.fetch()
    refuse(item, ErrorCode.INELIGIBLE_REPLICA)
    fetcher.fetch()
    assert P in leader.alter.pending


def test_a_follower_that_the_controller_removed_joins_the_isr_again() -> None:
    world, leader = world_of(1)
    fetcher = follow(leader, 3, 1)
    fetcher.fetch()
    world.set_isr(1, 2)
    fetcher.fetch()
    assert leader.alter.pending[P].isr[-1] == (3, 13)


def test_a_deleted_partition_leaves_nothing_behind_in_its_sessions() -> None:
    world, leader = world_of(1)
    partition = leader.p
    fetcher = follow(leader, 2, 1)
    parked = fetcher.fetch(max_wait_ms=10_000)
    world.change(remove_topic())
    assert fetched(parked)[P].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert partition.followers == {}


def test_a_second_request_of_a_session_answers_the_parked_one_first() -> None:
    """A fetcher sends a second request behind its long poll when it has got another partition."""
    _, leader = world_of(2)
    fetcher = follow(leader, 2, 1)
    parked = fetcher.fetch(max_wait_ms=10_000)
    second = fetcher.fetch(want(0, key=Q, epoch=1))
    assert fetched(parked) == {}
    assert list(fetched(second)) == [Q]
