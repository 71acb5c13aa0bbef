"""The table of rights, and the guards of the APIs: every item is checked, and a resource that a principal may not see seems not
to exist."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from guarded_world import ADMIN, ALICE, BOB, NODE, ORDERS, SECRET, UNKNOWN, GuardedWorld, cluster, group, topic, txn
from structlog.testing import capture_logs

from strandline.controller.metadata.internal_topics import OFFSETS_TOPIC
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.controller.metadata.security.guards.common import everyone
from strandline.controller.metadata.security.rights import FORWARDABLE, RIGHTS, forwarded, guarded
from strandline.protocol import apis
from strandline.protocol.apis import APIS, BROKER, CONTROLLER
from strandline.protocol.errors import BrokerError, InternalError
from strandline.protocol.errors import ErrorCode as E
from strandline.protocol.messages import admin, data, groups, transactions
from strandline.protocol.messages import security as s
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.producer_names import named_producer_id

OPEN = {apis.API_VERSIONS, apis.SASL_HANDSHAKE, apis.SASL_AUTHENTICATE}

# -- the table --------------------------------------------------------------------------------------------------------


def test_every_api_has_rights_on_every_role_that_serves_it() -> None:
    for api in APIS.values():
        rights = RIGHTS[api.key]
        assert rights.text, api.name
        assert [role for role in (BROKER, CONTROLLER) if rights.guard_of(role) is not None] == sorted(api.served_by), api.name
    assert set(RIGHTS) == set(APIS)


def test_only_the_apis_of_a_connection_are_open_to_everyone() -> None:
    """DescribeCluster is open on brokers: it has the addresses that Metadata has."""
    open_to_all = {(key, role) for key, r in RIGHTS.items() for role in (BROKER, CONTROLLER) if r.guard_of(role) is everyone}
    assert open_to_all == {(key, role) for key in OPEN for role in (BROKER, CONTROLLER)} | {(apis.DESCRIBE_CLUSTER, BROKER)}


def test_what_a_broker_forwards_is_checked_by_the_controller() -> None:
    for key in FORWARDABLE:
        assert RIGHTS[key].controller not in (None, everyone), APIS[key].name


def test_an_api_without_rights_is_a_bug() -> None:
    world = GuardedWorld()
    with pytest.raises(InternalError, match="no rights for a controller"):
        guarded({apis.PRODUCE: lambda request: None}, CONTROLLER, world.rights)


HARMLESS_WHEN_EMPTY = {
    # Without an item there is nothing to check or to do.
    *(apis.PRODUCE, apis.DELETE_RECORDS, apis.DESCRIBE_PRODUCERS, apis.DESCRIBE_OFFSET_LAG),
    *(apis.CREATE_TOPICS, apis.DELETE_TOPICS, apis.CREATE_PARTITIONS, apis.DESCRIBE_CONFIGS, apis.INCREMENTAL_ALTER_CONFIGS),
    *(apis.FIND_COORDINATOR, apis.OFFSET_FETCH, apis.DESCRIBE_GROUPS, apis.CONSUMER_GROUP_DESCRIBE, apis.DELETE_GROUPS),
    *(apis.ADD_PARTITIONS_TO_TXN, apis.DESCRIBE_TRANSACTIONS),
    # The response is filtered, or is open to everyone.
    *(apis.METADATA, apis.LIST_GROUPS, apis.LIST_TRANSACTIONS, apis.DESCRIBE_UNCLEAN_ELECTIONS),
}
SERVED = [(key, role) for key in sorted(set(APIS) - OPEN) for role in APIS[key].served_by]


@pytest.mark.parametrize(("key", "role"), SERVED, ids=[f"{APIS[key].name}-{role}" for key, role in SERVED])
def test_stranger_reaches_no_handler(key: int, role: str) -> None:
    """A principal without any right, with a request as empty as its schema allows."""
    if RIGHTS[key].guard_of(role) in (everyone, forwarded) or key in HARMLESS_WHEN_EMPTY:
        return
    world = GuardedWorld(role=role)
    answer = world.ask(key, _blank(APIS[key].request), principal=BOB).answer
    assert not world.reached
    assert answer.code.name.endswith("_AUTHORIZATION_FAILED")


def _blank(kind: Any) -> Any:
    values: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.required:
            values[field.name] = _blank_value(field.type)
    return kind(**values)


def _blank_value(kind: Any) -> Any:
    text = str(kind)
    if "list[" in text:
        return []
    if "str" in text:
        return "x"
    if "bytes" in text:
        return bytes(16)
    if "bool" in text:
        return False
    return 0


# -- nodes only -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "key",
    [
        apis.VOTE,
        apis.BEGIN_QUORUM_EPOCH,
        apis.END_QUORUM_EPOCH,
        apis.FETCH,
        apis.FETCH_SNAPSHOT,
        apis.ALTER_PARTITION,
        apis.BROKER_REGISTRATION,
        apis.BROKER_HEARTBEAT,
        apis.ASSIGN_REPLICAS_TO_DIRS,
        apis.ALLOCATE_PRODUCER_IDS,
        apis.INIT_NAMED_PRODUCER,
        apis.ENVELOPE,
    ],
)
def test_only_nodes_speak_to_controllers_as_nodes(key: int) -> None:
    """A client with every right on topics and groups is no node."""
    world = GuardedWorld(topic(s.ALL, "*"), group(s.ALL, "*"), cluster(s.ALTER), role=CONTROLLER)
    body = _blank(APIS[key].request)
    assert world.ask(key, body).answer.code == E.CLUSTER_AUTHORIZATION_FAILED
    assert not world.reached
    world.ask(key, body, principal=NODE)
    assert len(world.reached) == 1


def test_forged_follower_fetch_is_refused_before_anything_is_done() -> None:
    """The request is refused before it changes the session, and with it the position: a forged high offset moves nothing."""
    world = GuardedWorld(topic(s.READ), topic(s.WRITE))
    wanted = [data.FetchPartition(ORDERS, 0, 0, 10**9, 0, 0, 1)]
    forged = data.FetchRequest(2, 5, 0, 1, 1, 0, 0, 0, wanted)
    assert world.ask(apis.FETCH, forged).answer.code == E.CLUSTER_AUTHORIZATION_FAILED
    for key, body in {
        apis.LIST_OFFSETS: data.ListOffsetsRequest(2, 0, [data.ListOffsetsPartition(ORDERS, 0, 0, -1001)]),
        apis.OFFSET_FOR_LEADER_EPOCH: data.OffsetForLeaderEpochRequest(2, []),
    }.items():
        assert world.ask(key, body).answer.code == E.CLUSTER_AUTHORIZATION_FAILED
    assert not world.reached
    world.ask(apis.FETCH, forged, principal=NODE)
    assert len(world.reached) == 1


# -- Produce ----------------------------------------------------------------------------------------------------------


def produce(*ids: bytes, acks: int = -1, transactional_id: str | None = None) -> data.ProduceRequest:
    partitions = [data.ProducePartition(topic_id, index) for index, topic_id in enumerate(ids)]
    records = [memoryview(bytes([index])) for index in range(len(ids))]
    return data.ProduceRequest(transactional_id, acks, 100, partitions, records)


def produced(body: data.ProduceRequest) -> data.ProduceResponse:
    return data.ProduceResponse([data.ProducePartitionResponse(p.topic_id, p.partition, 0, 42) for p in body.partitions])


def test_produce_takes_out_the_refused_partitions_with_their_records() -> None:
    """The records stay beside their partitions, and the rows of the response are in the order of the request."""
    world = GuardedWorld(topic(s.WRITE))
    request = world.ask(apis.PRODUCE, produce(SECRET, ORDERS, UNKNOWN), produced)
    (reached,) = world.reached
    assert [p.partition for p in reached.body.partitions] == [1, 2]
    assert [bytes(each) for each in reached.body.records] == [b"\1", b"\2"]
    rows = [(row.topic_id, row.partition, row.error_code, row.base_offset) for row in request.answer.partitions]
    assert rows == [(SECRET, 0, E.UNKNOWN_TOPIC_ID, -1), (ORDERS, 1, 0, 42), (UNKNOWN, 2, 0, 42)]


def test_produce_names_the_right_only_to_those_who_may_see_the_topic() -> None:
    world = GuardedWorld(topic(s.DESCRIBE))
    answer = world.ask(apis.PRODUCE, produce(ORDERS, SECRET)).answer
    assert [row.error_code for row in answer.partitions] == [E.TOPIC_AUTHORIZATION_FAILED, E.UNKNOWN_TOPIC_ID]
    assert not world.reached


def test_produce_without_acks_closes_the_connection_if_a_partition_is_refused() -> None:
    """No response could report it to the producer."""
    world = GuardedWorld(topic(s.WRITE))
    refused = world.ask(apis.PRODUCE, produce(SECRET, acks=0))
    assert refused.answer is None
    assert refused.connection.closed
    request = world.ask(apis.PRODUCE, produce(SECRET, ORDERS, acks=0))
    world.reached[-1].no_reply()
    assert request.answer is None
    assert request.connection.closed
    allowed = world.ask(apis.PRODUCE, produce(ORDERS, acks=0))
    world.reached[-1].no_reply()
    assert not allowed.connection.closed


def test_transactional_produce_needs_the_transactional_id() -> None:
    body = produce(ORDERS, transactional_id="payments")
    world = GuardedWorld(topic(s.WRITE))
    assert world.ask(apis.PRODUCE, body).answer.code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    world.grant(topic(s.WRITE), txn(s.WRITE))
    assert world.ask(apis.PRODUCE, body, produced).answer.partitions[0].base_offset == 42


# -- producers --------------------------------------------------------------------------------------------------------


def test_idempotent_producer_needs_write_on_any_topic() -> None:
    body = data.InitProducerIdRequest()
    world = GuardedWorld(topic(s.READ))
    assert world.ask(apis.INIT_PRODUCER_ID, body).answer.code == E.CLUSTER_AUTHORIZATION_FAILED
    for granted in (topic(s.WRITE), cluster(s.IDEMPOTENT_WRITE)):
        world.grant(granted)
        world.reached.clear()
        world.ask(apis.INIT_PRODUCER_ID, body)
        assert world.reached


def test_names_of_producers_and_transactional_ids_are_one_name_space() -> None:
    world = GuardedWorld(topic(s.WRITE), txn(s.WRITE, "etl"))
    world.ask(apis.INIT_PRODUCER_ID, data.InitProducerIdRequest(name="etl"))
    world.ask(apis.INIT_PRODUCER_ID, data.InitProducerIdRequest("etl"))
    assert len(world.reached) == 2
    for body in (data.InitProducerIdRequest(name="other"), data.InitProducerIdRequest("other")):
        assert world.ask(apis.INIT_PRODUCER_ID, body).answer.code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_named_producer_may_look_up_its_own_progress() -> None:
    """It has WRITE and not READ. Other principals, and ids of other producers, need READ."""
    wanted = [data.DescribeProducersPartition(ORDERS, 0)]
    own = data.DescribeProducersRequest(wanted, [named_producer_id(0, 3)])
    world = GuardedWorld(topic(s.WRITE), txn(s.WRITE, "etl"))
    world.ask(apis.DESCRIBE_PRODUCERS, own)
    assert len(world.reached) == 1
    for ids in (None, [], [7], [named_producer_id(0, 3), 7]):
        answer = world.ask(apis.DESCRIBE_PRODUCERS, data.DescribeProducersRequest(wanted, ids)).answer
        assert answer.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    world.grant(topic(s.WRITE))
    assert world.ask(apis.DESCRIBE_PRODUCERS, own).answer.partitions[0].error_code == E.TOPIC_AUTHORIZATION_FAILED
    assert len(world.reached) == 1


# -- Metadata and topics ----------------------------------------------------------------------------------------------


def described(body: admin.MetadataRequest) -> admin.MetadataResponse:
    names = ["orders", "secret"] if body.topics is None else [asked.name for asked in body.topics]
    return admin.MetadataResponse([], "c", 1, [admin.MetadataTopic(0, name, ORDERS, []) for name in names])


def test_hidden_topics_look_like_unknown_ones() -> None:
    """By name, a hidden and an unknown topic are refused in the same way; by id, both do not exist; and a list of all topics
    leaves the hidden one out."""
    world = GuardedWorld(topic(s.READ))
    asked = [
        admin.MetadataTopicRequest("secret"),
        admin.MetadataTopicRequest("orders"),
        admin.MetadataTopicRequest("no-such"),
        admin.MetadataTopicRequest(None, SECRET),
    ]
    answer = world.ask(apis.METADATA, admin.MetadataRequest(asked), described).answer
    assert [(row.error_code, row.name, row.topic_id) for row in answer.topics] == [
        (E.TOPIC_AUTHORIZATION_FAILED, "secret", ZERO_UUID),
        (0, "orders", ORDERS),
        (E.TOPIC_AUTHORIZATION_FAILED, "no-such", ZERO_UUID),
        (E.UNKNOWN_TOPIC_ID, None, SECRET),
    ]
    assert [t.name for t in world.reached[0].body.topics] == ["orders"], "so that no hidden topic is created automatically"
    answer = world.ask(apis.METADATA, admin.MetadataRequest(None), described).answer
    assert [row.name for row in answer.topics] == ["orders"]


def test_brokers_are_described_to_everyone() -> None:
    """A client that may see no topic still gets the brokers, also if it has asked only for hidden topics."""
    world = GuardedWorld()
    answer = world.ask(apis.METADATA, admin.MetadataRequest([admin.MetadataTopicRequest("secret")]), described).answer
    assert answer.cluster_id == "c"
    assert len(answer.topics) == 1


def test_each_topic_of_a_creation_is_checked() -> None:
    def create(body: admin.CreateTopicsRequest) -> admin.CreateTopicsResponse:
        return admin.CreateTopicsResponse([admin.CreatableTopicResult(t.name, ORDERS) for t in body.topics])

    body = admin.CreateTopicsRequest([admin.CreatableTopic("a"), admin.CreatableTopic("b"), admin.CreatableTopic(OFFSETS_TOPIC)])
    world = GuardedWorld(topic(s.CREATE, "b"), role=CONTROLLER)
    rows = world.ask(apis.CREATE_TOPICS, body, create).answer.topics
    assert [row.error_code for row in rows] == [E.TOPIC_AUTHORIZATION_FAILED, 0, E.TOPIC_AUTHORIZATION_FAILED]
    rows = world.ask(apis.CREATE_TOPICS, body, create, principal=NODE).answer.topics
    assert [row.error_code for row in rows] == [E.TOPIC_AUTHORIZATION_FAILED] * 2 + [0], "brokers create the internal topics"
    world.grant(cluster(s.CREATE))
    assert not any(row.error_code for row in world.ask(apis.CREATE_TOPICS, body, create).answer.topics)


def test_deletion_by_id_does_not_tell_whether_a_hidden_topic_exists() -> None:
    body = admin.DeleteTopicsRequest(
        [admin.DeleteTopicState(None, SECRET), admin.DeleteTopicState(None, ORDERS), admin.DeleteTopicState("secret")]
    )
    world = GuardedWorld(topic(s.DESCRIBE), role=CONTROLLER)
    rows = world.ask(apis.DELETE_TOPICS, body).answer.topics
    assert [(row.name, row.error_code) for row in rows] == [
        (None, E.UNKNOWN_TOPIC_ID),
        ("orders", E.TOPIC_AUTHORIZATION_FAILED),
        ("secret", E.TOPIC_AUTHORIZATION_FAILED),
    ]
    assert rows[0].error_message == f"there is no topic with id {SECRET.hex()}", "as topic_control.py says it"


def test_configurations_of_topics_and_brokers() -> None:
    def answer(body: admin.DescribeConfigsRequest) -> admin.DescribeConfigsResponse:
        return admin.DescribeConfigsResponse(
            [admin.DescribeConfigsResult(0, None, r.resource_type, r.resource_name) for r in body.resources]
        )

    resources = [
        admin.DescribeConfigsResource(2, "orders"),
        admin.DescribeConfigsResource(4, "1"),
        admin.DescribeConfigsResource(2, "x"),
    ]
    world = GuardedWorld(topic(s.ALTER_CONFIGS))
    rows = world.ask(apis.DESCRIBE_CONFIGS, admin.DescribeConfigsRequest(resources), answer).answer.results
    assert [row.error_code for row in rows] == [0, E.CLUSTER_AUTHORIZATION_FAILED, E.TOPIC_AUTHORIZATION_FAILED]
    world = GuardedWorld(topic(s.DESCRIBE_CONFIGS), role=CONTROLLER)
    changes = admin.IncrementalAlterConfigsRequest(
        [admin.AlterConfigsResource(r.resource_type, r.resource_name, []) for r in resources]
    )
    refused = world.ask(apis.INCREMENTAL_ALTER_CONFIGS, changes).answer.responses
    assert [row.error_code for row in refused] == [
        E.TOPIC_AUTHORIZATION_FAILED,
        E.CLUSTER_AUTHORIZATION_FAILED,
        E.TOPIC_AUTHORIZATION_FAILED,
    ]


def test_configurations_of_groups_need_rights_on_the_group() -> None:
    """Rights on the cluster do not count, as in Kafka."""

    def answer(body: admin.DescribeConfigsRequest) -> admin.DescribeConfigsResponse:
        return admin.DescribeConfigsResponse(
            [admin.DescribeConfigsResult(0, None, r.resource_type, r.resource_name) for r in body.resources]
        )

    names, every = ("readers", "others"), cluster(s.ALTER_CONFIGS)
    world = GuardedWorld(group(s.ALTER_CONFIGS), every)
    described = admin.DescribeConfigsRequest([admin.DescribeConfigsResource(admin.RESOURCE_GROUP, name) for name in names])
    rows = world.ask(apis.DESCRIBE_CONFIGS, described, answer).answer.results
    assert [row.error_code for row in rows] == [0, E.GROUP_AUTHORIZATION_FAILED]
    world = GuardedWorld(group(s.DESCRIBE_CONFIGS), every, role=CONTROLLER)
    changes = admin.IncrementalAlterConfigsRequest([admin.AlterConfigsResource(admin.RESOURCE_GROUP, name, []) for name in names])
    refused = world.ask(apis.INCREMENTAL_ALTER_CONFIGS, changes).answer.responses
    assert [row.error_code for row in refused] == [E.GROUP_AUTHORIZATION_FAILED] * 2


# -- groups -----------------------------------------------------------------------------------------------------------


def test_member_needs_read_on_the_group_and_describe_on_its_topics() -> None:
    def beat(*names: str) -> groups.ConsumerGroupHeartbeatRequest:
        return groups.ConsumerGroupHeartbeatRequest("readers", "m", 0, subscribed_topic_names=list(names))

    world = GuardedWorld(topic(s.READ))
    assert world.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat("orders")).answer.code == E.GROUP_AUTHORIZATION_FAILED
    world.grant(topic(s.READ), group(s.READ))
    assert world.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat("orders", "secret")).answer.code == E.TOPIC_AUTHORIZATION_FAILED
    world.ask(apis.CONSUMER_GROUP_HEARTBEAT, beat("orders"))
    assert len(world.reached) == 1


def test_offsets_of_hidden_topics_are_hidden() -> None:
    """Named topics get the error of an unknown id; a request for all offsets leaves them out; a refused group keeps its place."""

    def fetched(body: groups.OffsetFetchRequest) -> groups.OffsetFetchResponse:
        answers = []
        for asked in body.groups:
            ids = [ORDERS, SECRET] if asked.topics is None else [t.topic_id for t in asked.topics]
            answers.append(
                groups.OffsetFetchGroupResponse(asked.group_id, partitions=[groups.OffsetFetchPartition(i, 0, 5) for i in ids])
            )
        return groups.OffsetFetchResponse(answers)

    named = [groups.GroupTopicPartitions(SECRET, [0]), groups.GroupTopicPartitions(ORDERS, [0])]
    body = groups.OffsetFetchRequest(
        [
            groups.OffsetFetchGroup("others"),
            groups.OffsetFetchGroup("readers", topics=named),
            groups.OffsetFetchGroup("readers"),
        ]
    )
    world = GuardedWorld(topic(s.DESCRIBE), group(s.DESCRIBE))
    others, by_name, everything = world.ask(apis.OFFSET_FETCH, body, fetched).answer.groups
    assert (others.group_id, others.error_code, others.partitions) == ("others", E.GROUP_AUTHORIZATION_FAILED, [])
    assert {(p.topic_id, p.error_code, p.committed_offset) for p in by_name.partitions} == {
        (ORDERS, 0, 5),
        (SECRET, E.UNKNOWN_TOPIC_ID, -1),
    }
    assert [p.topic_id for p in everything.partitions] == [ORDERS]


def test_commits_need_read_on_each_topic() -> None:
    parts = [groups.OffsetCommitPartition(SECRET, 0, 1), groups.OffsetCommitPartition(ORDERS, 0, 1)]
    body = groups.OffsetCommitRequest("readers", -1, "", None, parts)
    world = GuardedWorld(topic(s.DESCRIBE), group(s.READ))
    rows = world.ask(apis.OFFSET_COMMIT, body, lambda _: groups.OffsetCommitResponse([])).answer.partitions
    assert [row.error_code for row in rows] == [E.UNKNOWN_TOPIC_ID, E.TOPIC_AUTHORIZATION_FAILED]
    assert [reached.body.partitions for reached in world.reached] == [[]]
    world.grant(topic(s.READ))
    assert world.ask(apis.OFFSET_COMMIT, body).answer.code == E.GROUP_AUTHORIZATION_FAILED
    assert len(world.reached) == 1


@pytest.mark.parametrize(
    ("api_key", "body"),
    [
        (apis.OFFSET_COMMIT, lambda id: groups.OffsetCommitRequest("readers", 3, "m", None, [_committed(id)])),
        (apis.TXN_OFFSET_COMMIT, lambda id: transactions.TxnOffsetCommitRequest("payments", "readers", 1, 0, [_committed(id)])),
        (apis.OFFSET_DELETE, lambda id: groups.OffsetDeleteRequest("readers", [groups.GroupTopicPartitions(id, [0])])),
    ],
)
def test_error_of_the_whole_request_does_not_tell_which_topics_exist(api_key: int, body: Any) -> None:
    """The coordinator's error (here of a broker that is not the coordinator) is also returned for a topic that the sender may not
    see."""
    world = GuardedWorld(group(s.READ), group(s.DELETE), txn(s.WRITE))

    def refuse(_: Any) -> None:
        raise BrokerError(E.NOT_COORDINATOR)

    codes = [world.ask(api_key, body(topic_id), refuse).answer.code for topic_id in (SECRET, UNKNOWN)]
    assert codes == [E.NOT_COORDINATOR, E.NOT_COORDINATOR]


def _committed(topic_id: bytes) -> groups.OffsetCommitPartition:
    return groups.OffsetCommitPartition(topic_id, 0, 1)


def test_deletion_of_offsets_needs_delete_on_the_group() -> None:
    def delete(body: groups.OffsetDeleteRequest) -> groups.OffsetDeleteResponse:
        return groups.OffsetDeleteResponse(partitions=[groups.OffsetDeletePartition(t.topic_id, 0) for t in body.topics])

    body = groups.OffsetDeleteRequest(
        "readers", [groups.GroupTopicPartitions(SECRET, [0]), groups.GroupTopicPartitions(ORDERS, [0])]
    )
    world = GuardedWorld(topic(s.READ), group(s.READ))
    assert world.ask(apis.OFFSET_DELETE, body, delete).answer.code == E.GROUP_AUTHORIZATION_FAILED
    world.grant(topic(s.READ), group(s.DELETE))
    rows = world.ask(apis.OFFSET_DELETE, body, delete).answer.partitions
    assert {(row.topic_id, row.error_code) for row in rows} == {(ORDERS, 0), (SECRET, E.UNKNOWN_TOPIC_ID)}


def test_lists_of_groups_and_transactions_have_what_the_sender_may_see() -> None:
    def listed(_: Any) -> Any:
        return groups.ListGroupsResponse(
            0, [groups.ListedGroup(name, "consumer", "Stable", "consumer") for name in ("readers", "x")]
        )

    world = GuardedWorld(group(s.DESCRIBE), txn(s.DESCRIBE))
    assert [g.group_id for g in world.ask(apis.LIST_GROUPS, groups.ListGroupsRequest(), listed).answer.groups] == ["readers"]
    found = transactions.ListTransactionsResponse(
        transactions=[transactions.ListedTransaction(n, 1, "Ongoing") for n in ("payments", "x")]
    )
    answer = world.ask(apis.LIST_TRANSACTIONS, transactions.ListTransactionsRequest(), lambda _: found).answer
    assert [t.transactional_id for t in answer.transactions] == ["payments"]
    world.grant(cluster(s.DESCRIBE))
    assert len(world.ask(apis.LIST_GROUPS, groups.ListGroupsRequest(), listed).answer.groups) == 2


def test_group_with_a_hidden_topic_is_not_described() -> None:
    def described_groups(body: groups.ConsumerGroupDescribeRequest) -> groups.ConsumerGroupDescribeResponse:
        name = {"readers": "orders", "spies": "secret"}
        answers = []
        for group_id in body.group_ids:
            owned = [groups.NamedTopicPartitions(ORDERS, name[group_id], [0])]
            member = groups.ConsumerGroupMemberDescription("m", None, None, 1, "c", "h", [], None, owned, [])
            answers.append(groups.DescribedConsumerGroup(group_id, members=[member]))
        return groups.ConsumerGroupDescribeResponse(answers)

    body = groups.ConsumerGroupDescribeRequest(["readers", "others", "spies"])
    world = GuardedWorld(topic(s.DESCRIBE), group(s.DESCRIBE), group(s.DESCRIBE, "spies"))
    rows = world.ask(apis.CONSUMER_GROUP_DESCRIBE, body, described_groups).answer.groups
    assert [(row.group_id, row.error_code, len(row.members)) for row in rows] == [
        ("readers", 0, 1),
        ("others", E.GROUP_AUTHORIZATION_FAILED, 0),
        ("spies", E.TOPIC_AUTHORIZATION_FAILED, 0),
    ]


def test_coordinators_are_found_for_each_key_by_its_right() -> None:
    def found(body: groups.FindCoordinatorRequest) -> groups.FindCoordinatorResponse:
        return groups.FindCoordinatorResponse([groups.Coordinator(key, 1, "h", 1) for key in body.keys])

    world = GuardedWorld(group(s.READ), txn(s.WRITE))
    rows = world.ask(apis.FIND_COORDINATOR, groups.FindCoordinatorRequest(["x", "readers"]), found).answer.coordinators
    assert [row.error_code for row in rows] == [E.GROUP_AUTHORIZATION_FAILED, 0]
    rows = world.ask(apis.FIND_COORDINATOR, groups.FindCoordinatorRequest(["x", "payments"], 1), found).answer.coordinators
    assert [row.error_code for row in rows] == [E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, 0]


# -- transactions -----------------------------------------------------------------------------------------------------


def test_partitions_are_added_all_or_none() -> None:
    def added(body: transactions.AddPartitionsToTxnRequest) -> transactions.AddPartitionsToTxnResponse:
        return transactions.AddPartitionsToTxnResponse(
            [transactions.AddPartitionsToTxnResult(t.transactional_id) for t in body.transactions]
        )

    def asking(transactional_id: str, *ids: bytes) -> transactions.AddPartitionsToTxnTransaction:
        return transactions.AddPartitionsToTxnTransaction(
            transactional_id, 1, 0, [groups.GroupTopicPartitions(i, [0]) for i in ids]
        )

    body = transactions.AddPartitionsToTxnRequest(
        [asking("x", ORDERS), asking("payments", ORDERS, SECRET), asking("payments", ORDERS)]
    )
    world = GuardedWorld(topic(s.WRITE), txn(s.WRITE))
    denied, partly, allowed = world.ask(apis.ADD_PARTITIONS_TO_TXN, body, added).answer.results
    assert denied.error_code == E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert {(p.topic_id, p.error_code) for p in partly.partitions} == {
        (ORDERS, E.OPERATION_NOT_ATTEMPTED),
        (SECRET, E.UNKNOWN_TOPIC_ID),
    }
    assert not allowed.error_code
    world.reached.clear()
    world.ask(apis.ADD_PARTITIONS_TO_TXN, body, added, principal=NODE)
    assert len(world.reached[0].body.transactions) == 3, "a leader adds partitions for its producers"


def test_offsets_of_a_transaction_need_three_rights() -> None:
    body = transactions.TxnOffsetCommitRequest("payments", "readers", 1, 0, [groups.OffsetCommitPartition(ORDERS, 0, 1)])
    steps = [
        ([], E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ([txn(s.WRITE)], E.GROUP_AUTHORIZATION_FAILED),
        ([txn(s.WRITE), group(s.READ), topic(s.DESCRIBE)], E.TOPIC_AUTHORIZATION_FAILED),
    ]
    world = GuardedWorld()
    for granted, expected in steps:
        world.grant(*granted)
        answer = world.ask(apis.TXN_OFFSET_COMMIT, body, lambda _: transactions.TxnOffsetCommitResponse([])).answer
        code = answer.code if isinstance(answer, BrokerError) else answer.partitions[0].error_code
        assert code == expected
    world.grant(txn(s.WRITE), group(s.READ), topic(s.READ))
    world.reached.clear()
    world.ask(apis.TXN_OFFSET_COMMIT, body)
    assert len(world.reached[0].body.partitions) == 1


def test_markers_are_written_by_brokers_and_operators() -> None:
    body = transactions.WriteTxnMarkersRequest([])
    world = GuardedWorld(topic(s.ALL, "*"), txn(s.ALL, "*"))
    assert world.ask(apis.WRITE_TXN_MARKERS, body).answer.code == E.CLUSTER_AUTHORIZATION_FAILED
    world.grant(cluster(s.ALTER))
    world.ask(apis.WRITE_TXN_MARKERS, body)
    assert len(world.reached) == 1


# -- the rules themselves ---------------------------------------------------------------------------------------------


def test_rules_of_the_newest_image_count() -> None:
    """A right that is withdrawn ends with the new metadata, whatever was decided before."""
    world = GuardedWorld(topic(s.WRITE))
    world.ask(apis.PRODUCE, produce(ORDERS))
    world.grant()
    assert world.ask(apis.PRODUCE, produce(ORDERS)).answer.partitions[0].error_code == E.UNKNOWN_TOPIC_ID


def test_node_that_has_not_loaded_the_metadata_refuses_all_but_super_users() -> None:
    """The node has no rules yet. The error is retriable."""
    world = GuardedWorld(topic(s.WRITE))
    world.authorizer = world.rights.authorizer = Authorizer([ADMIN])
    world.image.offset = -1
    refused = world.ask(apis.PRODUCE, produce(ORDERS)).answer
    assert refused.code == E.BROKER_NOT_AVAILABLE
    assert refused.retriable
    world.ask(apis.PRODUCE, produce(ORDERS), principal=ADMIN)
    assert len(world.reached) == 1


def test_denials_are_logged_once_a_minute_and_printable() -> None:
    """An attacker chooses the names in its requests, and how often it sends them."""
    world = GuardedWorld()
    with capture_logs() as logs:
        for _ in range(3):
            world.ask(apis.JOIN_GROUP, groups.JoinGroupRequest("evil\n\x1b[31m", 1, 1, "", None, "consumer", []))
    (line,) = [line for line in logs if line["event"] == "authorizer.denied"]
    assert line["principal"] == str(ALICE)
    assert line["operation"] == "READ"
    assert line["resource"] == "GROUP:evil\\n\\x1b[31m"
    assert (line["host"], line["api"]) == ("10.0.0.1", "JoinGroup")


def test_lists_are_filtered_without_audit_lines() -> None:
    world = GuardedWorld()
    with capture_logs() as logs:
        world.ask(apis.METADATA, admin.MetadataRequest(None), described)
    assert not logs
