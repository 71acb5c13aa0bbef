"""Sessions belong to their principal: what another principal with the same rights must not continue."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from guarded_world import ADMIN, ALICE, BOB, NODE, ORDERS, GuardedWorld, PeerRequest, allow, topic

from strandline.broker.fetch.fetch_session import FetchSessionCache
from strandline.broker.security.guarding import guarded_handlers
from strandline.broker.security.owners import Owners
from strandline.broker.security.producer_owners import ProducerOwners, identities
from strandline.broker.security.session_owners import SessionOwners
from strandline.controller.metadata.security.guards.common import Guard
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError
from strandline.protocol.errors import ErrorCode as E
from strandline.protocol.messages import data, groups, transactions
from strandline.protocol.messages import security as s
from strandline.protocol.producer_names import named_producer_id
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.security.principal import Principal

FOR_ALL = [allow(s.READ, s.GROUP_RESOURCE, "readers", principal) for principal in (ALICE, BOB)] + [
    allow(s.WRITE, s.TRANSACTIONAL_ID_RESOURCE, "payments", principal) for principal in (ALICE, BOB)
]


class Owned:
    """Guards of ownership before a handler that answers with `answer`."""

    def __init__(self, guards: dict[int, Guard]) -> None:
        self.world = GuardedWorld(*FOR_ALL)
        self._guards = guards

    def ask(self, key: int, body: Any, principal: Principal, answer: Callable[[Any], Any]) -> Any:
        request = PeerRequest(body, key, principal)

        def handle(passed: Any) -> None:
            response = answer(passed.body)
            if passed.ownership is not None:
                for row in response.partitions:
                    if not row.error_code:
                        passed.ownership.on_appended((row.topic_id, row.partition))
            passed.reply(response)

        try:
            self._guards[key](self.world.rights.access_of(request), request, handle)
        except BrokerError as e:
            return e.code
        return request.answer


# -- groups -----------------------------------------------------------------------------------------------------------


def beat(member_epoch: int = 1) -> groups.ConsumerGroupHeartbeatRequest:
    return groups.ConsumerGroupHeartbeatRequest("readers", "m1", member_epoch)


def beaten(code: int = 0) -> Callable[[Any], Any]:
    return lambda body: groups.ConsumerGroupHeartbeatResponse(code)


@pytest.fixture
def owned() -> Owned:
    return Owned(SessionOwners().guards())


def test_member_belongs_to_the_principal_that_joined(owned: Owned) -> None:
    """Heartbeats and commits of another principal with READ on the group fail as those of an unknown member."""
    owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(0), ALICE, beaten())
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(), BOB, beaten()) == E.UNKNOWN_MEMBER_ID
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(-1), BOB, beaten()) == E.UNKNOWN_MEMBER_ID
    commit = groups.OffsetCommitRequest("readers", 1, "m1", None, [])
    assert owned.ask(apis.OFFSET_COMMIT, commit, BOB, lambda _: groups.OffsetCommitResponse([])) == E.UNKNOWN_MEMBER_ID
    in_transaction = transactions.TxnOffsetCommitRequest("payments", "readers", 1, 0, [], 1, "m1")
    answer = owned.ask(apis.TXN_OFFSET_COMMIT, in_transaction, BOB, lambda _: transactions.TxnOffsetCommitResponse([]))
    assert answer == E.UNKNOWN_MEMBER_ID
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(), ALICE, beaten()).error_code == 0


def test_member_that_has_left_has_no_owner(owned: Owned) -> None:
    owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(0), ALICE, beaten())
    owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(-1), ALICE, beaten())
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(0), BOB, beaten()).error_code == 0


def test_heartbeat_that_fails_claims_nothing(owned: Owned) -> None:
    """Otherwise a stranger could reserve the member ids of others."""
    owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(), BOB, beaten(E.UNKNOWN_MEMBER_ID))
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(), ALICE, beaten()).error_code == 0


def test_classic_member_is_owned_from_the_response_that_names_it(owned: Owned) -> None:
    """The first JoinGroup has no id. The response MEMBER_ID_REQUIRED names it."""
    join = groups.JoinGroupRequest("readers", 1, 1, "", None, "consumer", [])
    given = groups.JoinGroupResponse(E.MEMBER_ID_REQUIRED, member_id="m1")
    owned.ask(apis.JOIN_GROUP, join, ALICE, lambda _: given)
    again = groups.JoinGroupRequest("readers", 1, 1, "m1", None, "consumer", [])
    assert owned.ask(apis.JOIN_GROUP, again, BOB, lambda _: given) == E.UNKNOWN_MEMBER_ID
    sync = groups.SyncGroupRequest("readers", 1, "m1")
    assert owned.ask(apis.SYNC_GROUP, sync, BOB, lambda _: groups.SyncGroupResponse()) == E.UNKNOWN_MEMBER_ID
    heartbeat = groups.HeartbeatRequest("readers", 1, "m1")
    assert owned.ask(apis.HEARTBEAT, heartbeat, BOB, lambda _: groups.HeartbeatResponse()) == E.UNKNOWN_MEMBER_ID


def test_new_coordinator_takes_the_first_that_succeeds(owned: Owned) -> None:
    heartbeat = groups.HeartbeatRequest("readers", 1, "m1")
    owned.ask(apis.HEARTBEAT, heartbeat, ALICE, lambda _: groups.HeartbeatResponse())
    assert owned.ask(apis.HEARTBEAT, heartbeat, BOB, lambda _: groups.HeartbeatResponse()) == E.UNKNOWN_MEMBER_ID


def test_members_of_others_are_removed_with_delete_on_the_group(owned: Owned) -> None:
    def left(body: groups.LeaveGroupRequest) -> groups.LeaveGroupResponse:
        return groups.LeaveGroupResponse(0, [groups.LeftMember(m.member_id, m.group_instance_id) for m in body.members])

    owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(0), ALICE, beaten())
    leave = groups.LeaveGroupRequest("readers", [groups.LeavingMember("m1"), groups.LeavingMember("", "static-1")])
    codes = [m.error_code for m in owned.ask(apis.LEAVE_GROUP, leave, BOB, left).members]
    assert codes == [E.UNKNOWN_MEMBER_ID, E.UNKNOWN_MEMBER_ID]
    assert [m.error_code for m in owned.ask(apis.LEAVE_GROUP, leave, ADMIN, left).members] == [0, 0]
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat(0), BOB, beaten()).error_code == 0


def test_static_member_keeps_its_place() -> None:
    """A static member that joins again without a member id replaces the earlier one and gets its partitions (KIP-345). So another
    principal must not join with its instance id, unless the group no longer has such a member."""
    holders = {("readers", "i1"): "m1"}
    owned = Owned(SessionOwners(lambda group_id, instance_id: holders.get((group_id, instance_id))).guards())
    join = groups.JoinGroupRequest("readers", 1, 1, "", "i1", "consumer", [])
    for member_id in ("m1", "m2"):
        given = groups.JoinGroupResponse(member_id=member_id)
        assert owned.ask(apis.JOIN_GROUP, join, ALICE, lambda _, given=given: given).error_code == 0
    assert owned.ask(apis.JOIN_GROUP, join, BOB, lambda _: given) == E.FENCED_INSTANCE_ID
    newer = groups.ConsumerGroupHeartbeatRequest("readers", "m3", 0, "i1")
    assert owned.ask(apis.CONSUMER_GROUP_HEARTBEAT, newer, BOB, beaten()) == E.UNRELEASED_INSTANCE_ID
    holders.clear()
    assert owned.ask(apis.JOIN_GROUP, join, BOB, lambda _: given).error_code == 0


# -- transactions -----------------------------------------------------------------------------------------------------


def initialized(body: Any) -> Any:
    return data.InitProducerIdResponse(0, 7, 0)


def test_transaction_belongs_to_the_principal_that_began_the_producer(owned: Owned) -> None:
    owned.ask(apis.INIT_PRODUCER_ID, data.InitProducerIdRequest("payments"), ALICE, initialized)
    end = transactions.EndTxnRequest("payments", 7, 0, committed=True)
    ended = transactions.EndTxnResponse()
    assert owned.ask(apis.END_TXN, end, BOB, lambda _: ended) == E.INVALID_PRODUCER_ID_MAPPING
    offsets = transactions.AddOffsetsToTxnRequest("payments", 7, 0, "readers")
    code = owned.ask(apis.ADD_OFFSETS_TO_TXN, offsets, BOB, lambda _: transactions.AddOffsetsToTxnResponse())
    assert code == E.INVALID_PRODUCER_ID_MAPPING
    adding = transactions.AddPartitionsToTxnRequest([transactions.AddPartitionsToTxnTransaction("payments", 7, 0, [])])

    def added(body: Any) -> Any:
        names = [each.transactional_id for each in body.transactions]
        return transactions.AddPartitionsToTxnResponse([transactions.AddPartitionsToTxnResult(name) for name in names])

    assert owned.ask(apis.ADD_PARTITIONS_TO_TXN, adding, BOB, added).results[0].error_code == E.INVALID_PRODUCER_ID_MAPPING
    assert owned.ask(apis.ADD_PARTITIONS_TO_TXN, adding, NODE, added).results[0].error_code == 0
    assert owned.ask(apis.END_TXN, end, ALICE, lambda _: ended).error_code == 0


def test_transactional_id_passes_to_a_principal_that_begins_anew(owned: Owned) -> None:
    """The principal has WRITE on the id, and fences the previous producer. But it must not continue with that producer's id and
    epoch."""
    owned.ask(apis.INIT_PRODUCER_ID, data.InitProducerIdRequest("payments"), ALICE, initialized)
    goes_on = data.InitProducerIdRequest("payments", producer_id=7, producer_epoch=0)
    assert owned.ask(apis.INIT_PRODUCER_ID, goes_on, BOB, initialized) == E.INVALID_PRODUCER_ID_MAPPING
    assert owned.ask(apis.INIT_PRODUCER_ID, data.InitProducerIdRequest("payments"), BOB, initialized).error_code == 0
    end = transactions.EndTxnRequest("payments", 7, 0, committed=True)
    assert owned.ask(apis.END_TXN, end, ALICE, lambda _: transactions.EndTxnResponse()) == E.INVALID_PRODUCER_ID_MAPPING


# -- producers --------------------------------------------------------------------------------------------------------


def batch(producer_id: int, epoch: int = 0) -> bytes:
    return encode_batch([(None, b"x", [], 1)], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)


def produce(*batches: bytes, transactional_id: str | None = None) -> data.ProduceRequest:
    return data.ProduceRequest(transactional_id, -1, 100, [data.ProducePartition(ORDERS, 0)], [memoryview(b"".join(batches))])


def appended(body: data.ProduceRequest) -> data.ProduceResponse:
    return data.ProduceResponse([data.ProducePartitionResponse(p.topic_id, p.partition, 0, 42) for p in body.partitions])


@pytest.fixture
def producers() -> Owned:
    return Owned({apis.PRODUCE: ProducerOwners().produce})


def code_of(response: data.ProduceResponse) -> int:
    return response.partitions[0].error_code


def test_producer_id_belongs_to_the_principal_that_has_written_with_it(producers: Owned) -> None:
    """Another principal cannot use it: not in the same epoch, not in a higher one (which would fence the producer), and not in a
    batch behind one of its own."""
    assert code_of(producers.ask(apis.PRODUCE, produce(batch(7)), ALICE, appended)) == 0
    for forged in (produce(batch(7)), produce(batch(7, 3)), produce(batch(8), batch(7))):
        assert code_of(producers.ask(apis.PRODUCE, forged, BOB, appended)) == E.INVALID_PRODUCER_ID_MAPPING
    assert code_of(producers.ask(apis.PRODUCE, produce(batch(7, 3)), ALICE, appended)) == 0
    assert code_of(producers.ask(apis.PRODUCE, produce(batch(-1)), BOB, appended)) == 0


def test_producer_id_is_owned_from_the_append_on(producers: Owned) -> None:
    """The response may wait for followers. Meanwhile another principal could add records to the producer's transaction: it is
    open in the log, so the leader does not ask the coordinator. A request that passed the guard before is refused at its
    append."""
    guard, access = ProducerOwners(), producers.world.rights.access_of
    waiting: dict[Principal, Any] = {}
    for principal in (BOB, ALICE):
        request = PeerRequest(produce(batch(7), transactional_id="payments"), apis.PRODUCE, principal)
        guard.produce(access(request), request, lambda passed, who=principal: waiting.update({who: passed}))
    where = (ORDERS, 0)
    assert waiting[ALICE].ownership.refusal(where) is None
    waiting[ALICE].ownership.on_appended(where)
    assert waiting[BOB].ownership.refusal(where).code == E.INVALID_PRODUCER_ID_MAPPING
    assert waiting[BOB].ownership.refusal((ORDERS, 1)) is None
    late = PeerRequest(produce(batch(7), transactional_id="payments"), apis.PRODUCE, BOB)
    guard.produce(access(late), late, waiting.clear)
    assert code_of(late.answer) == E.INVALID_PRODUCER_ID_MAPPING


def test_batch_that_was_not_appended_claims_nothing(producers: Owned) -> None:
    """A batch that the leader has refused may name any producer id."""

    def refused(body: data.ProduceRequest) -> data.ProduceResponse:
        return data.ProduceResponse([data.ProducePartitionResponse(ORDERS, 0, E.CORRUPT_MESSAGE)])

    producers.ask(apis.PRODUCE, produce(batch(7)), BOB, refused)
    assert code_of(producers.ask(apis.PRODUCE, produce(batch(7)), ALICE, appended)) == 0


def test_open_transaction_takes_no_records_of_another_principal(producers: Owned) -> None:
    """The attacker sends its own transactional id with the producer id of a transaction that is open in the partition: the leader
    would not ask the coordinator. A batch with a higher epoch passes, because the coordinator has to confirm it."""
    ours, theirs = produce(batch(7, 1), transactional_id="payments"), produce(batch(7, 1), transactional_id="x")
    assert code_of(producers.ask(apis.PRODUCE, ours, ALICE, appended)) == 0
    assert code_of(producers.ask(apis.PRODUCE, theirs, BOB, appended)) == E.INVALID_PRODUCER_ID_MAPPING
    taken_over = produce(batch(7, 2), transactional_id="payments")
    assert code_of(producers.ask(apis.PRODUCE, taken_over, BOB, appended)) == 0
    assert code_of(producers.ask(apis.PRODUCE, ours, ALICE, appended)) == E.INVALID_PRODUCER_ID_MAPPING


def test_named_producer_needs_its_name_with_each_batch(producers: Owned) -> None:
    """Several processes, of several principals, may write under one name if they have the right to it."""
    named = produce(batch(named_producer_id(0, 1)))
    producers.world.grant(allow(s.WRITE, s.TRANSACTIONAL_ID_RESOURCE, "etl"))
    assert code_of(producers.ask(apis.PRODUCE, named, ALICE, appended)) == 0
    code = code_of(producers.ask(apis.PRODUCE, named, BOB, appended))
    assert code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_number_without_a_name_is_refused_until_it_has_one(producers: Owned) -> None:
    """Numbers are assigned to names in order. A batch with a future number and a high epoch would fence the producer that gets
    the number later, for ever. A producer whose name this broker does not know yet tries again."""
    answer = producers.ask(apis.PRODUCE, produce(batch(named_producer_id(1, 0), 32767)), BOB, appended)
    assert code_of(answer) == E.BROKER_NOT_AVAILABLE
    assert "does not know a producer name" in answer.partitions[0].error_message
    producers.world.image.producer_numbers[1] = "etl"
    producers.world.grant(allow(s.WRITE, s.TRANSACTIONAL_ID_RESOURCE, "etl"))
    assert code_of(producers.ask(apis.PRODUCE, produce(batch(named_producer_id(1, 0))), ALICE, appended)) == 0


def test_number_whose_name_was_removed_is_refused_for_good(producers: Owned) -> None:
    """The number is not assigned again. Its producer used to try until its delivery timeout, and the error said that the name
    might still become known."""
    producers.world.image.producer_numbers.clear()
    answer = producers.ask(apis.PRODUCE, produce(batch(named_producer_id(0, 1))), ALICE, appended)
    assert code_of(answer) == E.INVALID_PRODUCER_ID_MAPPING
    assert "the producer's name was removed" in answer.partitions[0].error_message


def test_malformed_records_end_the_search() -> None:
    """The append refuses the records. The guard must neither fail nor run for ever."""
    whole = batch(7)
    assert list(identities(memoryview(whole + batch(8)))) == [(7, 0), (8, 0)]
    for cut in range(len(whole)):
        assert len(list(identities(memoryview(whole[:cut])))) <= 1
    negative = bytearray(whole * 3)
    negative[8:12] = b"\xff\xff\xff\xf0"
    assert len(list(identities(memoryview(bytes(negative))))) <= 9


def test_owners_are_bounded() -> None:
    owners: Owners[int] = Owners(3)
    for key in range(10):
        owners.claim(key, ALICE)
    assert len(owners) == 3
    assert owners.is_of_another(9, BOB)
    assert not owners.is_of_another(0, BOB)
    producers = Owned({apis.PRODUCE: (guard := ProducerOwners(3)).produce})
    for producer_id in range(10):
        producers.ask(apis.PRODUCE, produce(batch(producer_id)), ALICE, appended)
    assert len(guard) == 3


def test_flood_of_one_principal_evicts_no_owner_of_another() -> None:
    """One principal can get any number of member ids, and write with any producer id."""
    owners: Owners[int] = Owners(10)
    owners.claim(-1, BOB)
    for key in range(100):
        owners.claim(key, ALICE)
    assert len(owners) == 10
    assert owners.is_of_another(-1, ALICE)
    owners.claim(99, BOB)
    owners.release(99)
    assert len(owners) == 9
    assert not owners.is_of_another(99, ALICE)


# -- fetch sessions ---------------------------------------------------------------------------------------------------


def fetch(session_id: int, epoch: int) -> data.FetchRequest:
    return data.FetchRequest(-1, -1, 0, 1, 1, 0, session_id, epoch, [data.FetchPartition(ORDERS, 0, -1, 0, -1, -1, 1)])


def test_fetch_session_belongs_to_its_principal() -> None:
    """Another principal can neither continue the session, which would reveal what it reads, nor end it."""
    cache = FetchSessionCache(Random(1))
    session, _ = cache.session_for(fetch(0, 0), 0.0, ALICE)
    with pytest.raises(BrokerError) as e:
        cache.session_for(fetch(session.id, 1), 0.0, BOB)
    assert e.value.code == E.FETCH_SESSION_ID_NOT_FOUND
    cache.session_for(fetch(session.id, -1), 0.0, BOB)
    assert cache.session_for(fetch(session.id, 1), 0.0, ALICE)[0] is session


# -- together ---------------------------------------------------------------------------------------------------------


def test_guards_of_a_broker_check_rights_first() -> None:
    """A principal without the right cannot find out which producer ids have an owner."""
    world = GuardedWorld(topic(s.WRITE))
    reached: list[Any] = []
    handlers = guarded_handlers({apis.PRODUCE: reached.append}, world.rights)
    request = PeerRequest(produce(batch(7)), apis.PRODUCE, BOB)
    handlers[apis.PRODUCE](request)
    assert request.answer.partitions[0].error_code == E.UNKNOWN_TOPIC_ID
    request = PeerRequest(produce(batch(7)), apis.PRODUCE, ALICE)
    handlers[apis.PRODUCE](request)
    reached[0].reply(appended(reached[0].body))
    assert request.answer.partitions[0].base_offset == 42
