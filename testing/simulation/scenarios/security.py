"""Users, rights and quotas: S125 to S134."""

from __future__ import annotations

from typing import Any

import msgspec

from strandline.client import Acl
from strandline.client.quota_types import DEFAULT, QuotaEntity
from strandline.controller.metadata.features import Levels
from strandline.protocol import apis
from strandline.protocol.apis import APIS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages import admin, cluster, data, groups, security, transactions
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.testing.simulation.cluster.cluster import CLUSTER_ID, SimCluster
from strandline.testing.simulation.cluster.identities import PASSWORD_FILE
from strandline.testing.simulation.kernel.machine import EPOCH_MS
from strandline.testing.simulation.scenarios.security_stage import (
    Peer,
    change_rules,
    code_of,
    everyone_knows,
    make_user,
    stranger_asks,
)
from strandline.testing.simulation.scenarios.stage import Stage, scenario

NONE, DENIED = ErrorCode.NONE, ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
EVERYTHING = (("ALL", "TOPIC", "*"), ("ALL", "GROUP", "*"), ("ALL", "TRANSACTIONAL_ID", "*"))
"""All rights of a client, and none of a node."""


def fetch(stage: Stage, replica: int, offset: int, *, session: int = 0, session_epoch: int = -1) -> data.FetchRequest:
    """A fetch of the first partition, in the name of the broker `replica`, with its true epochs; -1: of a consumer."""
    known = stage.cluster.image()
    topic_id = stage.cluster.topic_id(stage.topic)
    epoch = known.topics_by_id[topic_id].partitions[0].leader_epoch
    wanted = data.FetchPartition(topic_id, 0, epoch, offset, epoch if replica >= 0 else -1, 0, 1 << 20)
    replica_epoch = known.brokers[replica].broker_epoch if replica >= 0 else -1
    partitions = [] if session and session_epoch > 0 else [wanted]
    return data.FetchRequest(replica, replica_epoch, 0, 0, 1 << 20, 0, session, session_epoch, partitions)


def produce(
    stage: Stage, *topics: str, identity: tuple[int, int, int] = (-1, -1, -1)
) -> tuple[data.ProduceRequest, list[list[bytes]]]:
    """A request with a record for the first partition of each topic. `identity`: producer id, epoch and sequence number."""
    producer_id, epoch, sequence = identity
    batch = encode_batch(
        [(None, b"of a peer", [], EPOCH_MS)], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    places = [data.ProducePartition(stage.cluster.topic_id(topic), 0) for topic in topics]
    return data.ProduceRequest(None, -1, 5000, places, []), [[batch] for _ in topics]


@scenario("S125", "A forged high offset", source="one connection that claims to be brokers 2 and 3 makes acks=all succeed")
async def s125(stage: Stage) -> None:
    """A user with all rights of a client fetches in the name of the followers, and claims that they have every record. No high
    watermark moves."""
    await stage.open(secured=True)
    mallory = await make_user(stage, "mallory", *EVERYTHING)
    await stage.append(3)
    await stage.until(lambda: stage.hw(1) == 3, what="all is committed")
    stage.says("The followers get no responses from their leader. A record waits for them.")
    holds = [stage.hold("Fetch", source=1, target=n, response=True) for n in (2, 3)]
    waiting = stage.start_produce(1, b"waits")
    await stage.until(lambda: stage.end(1) == 4, what="the leader has the record")
    stage.says("Mallory fetches as the followers, with true epochs and a high offset.")
    for follower in (2, 3):
        for offset in (4, 2**40):
            code = await code_of(mallory.ask(1, apis.FETCH, fetch(stage, follower, offset)))
            stage.must(code is DENIED, f"the leader refuses it: {code.name}")
    stage.must(stage.hw(1) == 3 and not waiting.done(), "nothing is committed, and no success was sent")
    stage.says("As a broker it also asks the controller for an ISR of one, fences a broker, and stops another.")
    known, topic_id = stage.cluster.image(), stage.cluster.topic_id(stage.topic)
    partition = known.topics_by_id[topic_id].partitions[0]
    alone = [cluster.BrokerState(1, known.brokers[1].broker_epoch)]
    item = cluster.AlterPartitionPartition(topic_id, 0, partition.leader_epoch, alone, 0, partition.partition_epoch)
    asked = [
        (apis.ALTER_PARTITION, cluster.AlterPartitionRequest(1, known.brokers[1].broker_epoch, [item])),
        (apis.BROKER_HEARTBEAT, cluster.BrokerHeartbeatRequest(2, known.brokers[2].broker_epoch, 2**40, True, False)),
        (apis.BROKER_HEARTBEAT, cluster.BrokerHeartbeatRequest(3, known.brokers[3].broker_epoch, 2**40, False, True)),
        (apis.BROKER_REGISTRATION, cluster.BrokerRegistrationRequest(2, CLUSTER_ID, bytes(15) + b"m", [])),
        (apis.VOTE, cluster.VoteRequest(CLUSTER_ID, 101, 1000, 101, 1000, 2**40)),
        (apis.BEGIN_QUORUM_EPOCH, cluster.BeginQuorumEpochRequest(CLUSTER_ID, 101, 101, 1000)),
    ]
    for api_key, body in asked:
        code = await code_of(mallory.ask(101, api_key, body))
        stage.must(code is DENIED, f"the controller refuses {APIS[api_key].name}: {code.name}")
    marker = transactions.WritableTxnMarker(1, 0, True, [groups.GroupTopicPartitions(topic_id, [0])], 2**20)
    code = await code_of(mallory.ask(1, apis.WRITE_TXN_MARKERS, transactions.WriteTxnMarkersRequest([marker])))
    stage.must(code is DENIED, f"the leader refuses a marker: {code.name}")
    for hold in holds:
        hold.release()
    stage.must(not (await waiting).error_code, "the record is committed when the followers have it")
    await stage.at_rest()


@scenario("S126", "A wrong password", source="F27, F28: CVE-2024-56128 and others")
async def s126(stage: Stage) -> None:
    """Brokers and controllers refuse a login with a wrong password after a delay, with the same answer as for a user that does
    not exist."""
    await stage.open(secured=True)
    peer = await make_user(stage, "alice")
    identities = stage.cluster.identities
    assert identities is not None
    for node in (1, 101):
        for user in ("alice", "admin", "node-2", "nobody"):
            began = stage.world.now
            code = await peer.logs_in(node, user, "a guess")
            stage.must(code is ErrorCode.SASL_AUTHENTICATION_FAILED, f"node {node} refuses {user}: {code.name}")
            stage.must(stage.world.now - began > 0.09, "the answer comes after a delay")
            await stage.until(lambda n=node: not peer.is_connected(n), what="the connection is closed")  # type: ignore[misc]
    stage.must(await peer.logs_in(1, "alice", identities.password("alice")) is NONE, "the right password is accepted")
    stage.says("Without a login there is no answer at all.")
    for node in (1, 101):
        code = await code_of(stranger_asks(stage, node, apis.DESCRIBE_CLUSTER, admin.DescribeClusterRequest()))
        stage.must(code is ErrorCode.NETWORK_EXCEPTION, f"node {node} closes the connection: {code.name}")
    await stage.at_rest()


@scenario(
    "S127", "A right is withdrawn in the middle of a fetch session", source="F30; KIP-227: a session names its partitions once"
)
async def s127(stage: Stage) -> None:
    """A fetch session was begun with the right to read. After the right is withdrawn, fetches that continue the session get no
    records until it is granted again."""
    await stage.open(secured=True)
    bob = await make_user(stage, "bob", ("READ", "TOPIC", stage.topic))
    await stage.append(1)
    begun = await bob.ask(1, apis.FETCH, fetch(stage, -1, 0, session_epoch=0))
    stage.must(begun.session_id and begun.records and begun.records[0], "a session begins, with a record")
    rule = Acl("User:bob", "READ", "TOPIC", stage.topic)
    stage.says("The right is withdrawn, or a DENY rule is added. Records are written.")
    for what in ("withdrawn", "denied"):
        denial = Acl("User:bob", "READ", "TOPIC", stage.topic, permission="DENY")
        await change_rules(stage, create=[denial] if what == "denied" else (), delete=[rule] if what == "withdrawn" else ())
        await stage.append(2)
        started = await bob.ask(1, apis.FETCH, fetch(stage, -1, 0, session_epoch=0))
        stage.must(not any(started.records) and started.partitions[0].error_code, f"a new session gets nothing: {what}")
        await change_rules(stage, create=[rule] if what == "withdrawn" else (), delete=[denial] if what == "denied" else ())
    begun = await bob.ask(1, apis.FETCH, fetch(stage, -1, 0, session_epoch=0))
    stage.must(any(begun.records), "with the right, it reads")
    await change_rules(stage, delete=[rule])
    await stage.append(2)
    later = await bob.ask(1, apis.FETCH, fetch(stage, -1, 0, session=begun.session_id, session_epoch=1))
    stage.must(not any(later.records), "the session that was begun gets no record")
    stage.must(later.partitions and later.partitions[0].error_code, "and an error")
    await change_rules(stage, create=[rule])
    again = await bob.ask(1, apis.FETCH, fetch(stage, -1, 0, session=begun.session_id, session_epoch=2))
    stage.must(any(again.records), "the session continues when the right is restored")
    await stage.at_rest()


@scenario("S128", "A session ends, and one continues as another user", source="KIP-368")
async def s128(stage: Stage) -> None:
    """A client must log in again as the same user before its session ends. One that does not is cut off at its next request."""
    await stage.open(secured=True, security={"connections.max.reauth.ms": 2000})
    alice, bob = await make_user(stage, "alice", *EVERYTHING), await make_user(stage, "bob", *EVERYTHING)
    identities = stage.cluster.identities
    assert identities is not None
    password = identities.password("alice")
    metadata = admin.MetadataRequest([])
    stage.must(await alice.logs_in(1, "alice", password) is NONE, "alice is logged in")
    await stage.sleep(1.5)
    stage.must(await alice.logs_in(1, "alice", password) is NONE, "alice logs in again")
    await stage.sleep(1.5)
    stage.must(await code_of(alice.ask(1, apis.METADATA, metadata)) is NONE, "and the session continues")
    code = await alice.logs_in(1, "bob", identities.password("bob"))
    stage.must(code is ErrorCode.SASL_AUTHENTICATION_FAILED, f"she cannot log in again as bob: {code.name}")
    await stage.until(lambda: not alice.is_connected(1), what="the connection is closed")
    stage.says("Bob does not log in again.")
    stage.must(await bob.logs_in(1, "bob", identities.password("bob")) is NONE, "bob is logged in")
    await stage.sleep(2.5)
    code = await code_of(bob.ask(1, apis.METADATA, metadata))
    stage.must(code is ErrorCode.NETWORK_EXCEPTION, f"his session is over: {code.name}")
    stage.says("The product's own connections log in again by themselves, also those of brokers and controllers.")
    await stage.append(2)
    await stage.at_rest()


@scenario("S129", "A password is changed", source="F32; KIP-554")
async def s129(stage: Stage) -> None:
    """As soon as a broker has applied the change, it refuses the old password, also after its restart."""
    await stage.open(secured=True)
    identities = stage.cluster.identities
    assert identities is not None
    peer = await make_user(stage, "alice")
    old = identities.password("alice")
    stage.must(await peer.logs_in(2, "alice", old) is NONE, "the old password is right")

    async def change() -> None:
        async with stage.client.admin() as client:
            await client.upsert_scram_credentials("alice", "new", mechanisms=[SCRAM_256])

    await stage.client.run(change())
    await everyone_knows(stage)
    for broker in (1, 2, 3):
        other = Peer(stage, "alice")
        code = await other.logs_in(broker, "alice", old)
        stage.must(code is ErrorCode.SASL_AUTHENTICATION_FAILED, f"broker {broker} refuses the old one: {code.name}")
        stage.must(await Peer(stage, "alice").logs_in(broker, "alice", "new") is NONE, f"broker {broker} accepts the new one")
    stage.says("All nodes restart.")
    for node in (101, 1, 2, 3):
        stage.crash(node)
        stage.start(node)
    await stage.until(stage.cluster.is_ready, what="all are back")
    code = await Peer(stage, "alice").logs_in(3, "alice", old)
    stage.must(code is ErrorCode.SASL_AUTHENTICATION_FAILED, f"the old password is still wrong: {code.name}")
    await stage.at_rest()


@scenario("S130", "Nodes connect before there is metadata", source="KIP-631; sasl.scram.users.file")
async def s130(stage: Stage) -> None:
    """Three controllers and three brokers start on empty disks, and authenticate each other. One broker gets a wrong password:
    all nodes refuse its connections. With the right one it joins the cluster."""
    await stage.open(secured=True, controllers=3)
    stage.says("All of them lose their power at once, and connect again.")
    for node in (101, 102, 103, 1, 2, 3):
        stage.crash(node)
    machine = stage.cluster.machines[3]
    right = machine.files.deployed[PASSWORD_FILE]
    machine.files.deployed[PASSWORD_FILE] = b"a guess"
    try:
        for node in (101, 102, 103, 1, 2, 3):
            stage.start(node)
        await stage.until(lambda: 3 not in _unfenced(stage) and _isr(stage) == {1, 2}, what="only brokers 1 and 2 take part")
        await stage.until(lambda: _leads(stage), what="one of them leads")
        await stage.until(lambda: _isr(stage) == {1, 2}, what="both are in sync")
        await stage.append(1)
        stage.must(3 not in stage.isr(), "broker 3 is not in the ISR")
    finally:
        machine.files.deployed[PASSWORD_FILE] = right
        if machine.is_up:
            stage.crash(3)
    stage.start(3)
    await stage.until(lambda: 3 in stage.isr(), what="broker 3 is back")
    await stage.at_rest()


def _isr(stage: Stage) -> set[int]:
    """The ISR of the first partition; empty while no node has the topic in its metadata."""
    topic = stage.cluster.image().topic(stage.topic)
    return set() if topic is None else set(topic.partitions[0].isr)


def _leads(stage: Stage) -> bool:
    found = stage.cluster.partition(stage.leader(), stage.topic)
    return found is not None and found.leader_state is not None


def _unfenced(stage: Stage) -> set[int]:
    active = stage.cluster.active_controller
    brokers = {} if active is None else active.controller.image.brokers
    return {n for n, broker in brokers.items() if not broker.fenced}


@scenario("S131", "A throttled consumer", source="KIP-219; F31")
async def s131(stage: Stage) -> None:
    """Every user has a small quota, the nodes as well. The consumer's connection is muted for longer than its session. The
    consumer stays a member, because heartbeats have a connection of their own; it gets all records in the end, and replication is
    not slowed down."""
    await stage.open(secured=True, replicas=[(1, 2, 3), (1, 2, 3)], settings=GROUP_SETTINGS)
    await make_user(stage, "reader", ("READ", "GROUP", "g"), ("READ", "TOPIC", stage.topic))

    async def limit(value: float | None) -> None:
        async with stage.client.admin() as client:
            await client.alter_client_quotas(QuotaEntity(user=DEFAULT), {"consumer_byte_rate": value})

    await stage.client.run(limit(50.0))
    client = stage.cluster.client("reader", "reader")
    consumer = client.consumer(group_id="g", auto_offset_reset="earliest", max_partition_fetch_bytes=200)
    seen: list[int] = []
    lost: list[object] = []

    async def read() -> None:
        async with consumer:
            consumer.subscribe(stage.topic, on_revoked=lost.append, on_lost=lost.append)
            while len(seen) < 30:
                for records in (await consumer.getmany(timeout_ms=50)).values():
                    seen.extend(record.offset for record in records)
            stage.must(not lost, f"it has lost nothing: {lost}")

    task = client.spawn(read(), "reader")
    await stage.append(30)
    await stage.until(lambda: stage.hw(2) == stage.hw(3) == 30, 5.0, "the followers have all")
    await stage.sleep(6.0)
    stage.must(len(seen) < 30, "it is slow")
    await stage.client.run(limit(None))
    await stage.until(task.done, 10.0, "it has all")
    await stage.world.join(task)
    await stage.at_rest()


GROUP_SETTINGS = {"group.consumer.session.timeout.ms": 1500, "group.consumer.heartbeat.interval.ms": 300}


@scenario("S132", "Security after a rolling upgrade", source="KIP-584")
async def s132(stage: Stage) -> None:
    """The metadata of a cluster of an older version has no rights, and a request to create one is refused with that reason. After
    the upgrade the rights are enforced."""

    def older(around: SimCluster) -> None:
        around.levels = dict.fromkeys([*around.controller_ids, *around.broker_ids], Levels(0, 1))

    await stage.open(secured=True, controllers=3, before=older)
    rule = Acl("User:alice", "WRITE", "TOPIC", stage.topic)

    async def allow() -> None:
        async with stage.client.admin() as client:
            await client.create_acls([rule])

    try:
        await stage.client.run(allow())
    except Exception as e:
        stage.must("features upgrade" in str(e), f"the refusal says what to do: {e}")
    else:
        stage.must(False, "rules are refused")
    stage.says("All nodes are restarted with the new version, one after the other, and the level is raised.")
    stage.cluster.levels.clear()
    for node in (101, 102, 103, 1, 2, 3):
        stage.crash(node)
        stage.start(node)
        await stage.until(lambda: stage.cluster.active_controller is not None and stage.cluster.is_ready(), what="it is back")
        await stage.until(lambda: stage.isr() == {1, 2, 3}, what="all are in sync")

    async def upgrade() -> None:
        async with stage.client.admin() as client:
            await client.update_features(2)

    await stage.client.run(upgrade())
    alice = await make_user(stage, "alice", ("WRITE", "TOPIC", stage.topic))
    body, records = produce(stage, stage.topic)
    stage.must(await code_of(alice.ask(stage.leader(), apis.PRODUCE, body, records)) is NONE, "alice writes")
    code = await code_of(alice.ask(stage.leader(), apis.FETCH, fetch(stage, -1, 0)))
    stage.must(code is TOPIC_DENIED, f"and does not read: {code.name}")
    await stage.at_rest()


@scenario("S133", "Sessions of other users", source="F30: ids that another user was given")
async def s133(stage: Stage) -> None:
    """Mallory has all rights, and the ids of Alice's fetch session, producer, membership and transaction. She can continue none
    of them."""
    await stage.open(secured=True, settings=GROUP_SETTINGS)
    alice, mallory = [await make_user(stage, user, *EVERYTHING) for user in ("alice", "mallory")]
    stage.says("A fetch session.")
    await stage.append(1)
    begun = await alice.ask(1, apis.FETCH, fetch(stage, -1, 0, session_epoch=0))
    code = await code_of(mallory.ask(1, apis.FETCH, fetch(stage, -1, 0, session=begun.session_id, session_epoch=1)))
    stage.must(code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, f"mallory cannot continue it: {code.name}")
    stage.says("A producer id.")
    made = await alice.ask(1, apis.INIT_PRODUCER_ID, data.InitProducerIdRequest())
    body, records = produce(stage, stage.topic, identity=(made.producer_id, made.producer_epoch, 0))
    stage.must(await code_of(alice.ask(1, apis.PRODUCE, body, records)) is NONE, "alice writes")
    body, records = produce(stage, stage.topic, identity=(made.producer_id, made.producer_epoch, 1))
    code = await code_of(mallory.ask(1, apis.PRODUCE, body, records))
    stage.must(code is ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"the next sequence number is alice's: {code.name}")
    stage.must(await code_of(alice.ask(1, apis.PRODUCE, body, records)) is NONE, "and alice continues")
    await _members_of_others(stage, alice, mallory)
    stage.says("A message in two parts: the denied part does not stop the rest.")
    await stage.create("secret", [[1, 2, 3]])
    bob = await make_user(stage, "bob", ("WRITE", "TOPIC", stage.topic))
    body, records = produce(stage, stage.topic, "secret")
    response = await bob.ask(1, apis.PRODUCE, body, records)
    codes = [bool(row.error_code) for row in response.partitions]
    stage.must(codes == [False, True], f"one part of the request is denied: {codes}")
    await stage.at_rest()


async def _members_of_others(stage: Stage, alice: Peer, mallory: Peer) -> None:
    stage.says("A member of a group, and a transactional id.")
    names = [stage.topic]
    joins = groups.ConsumerGroupHeartbeatRequest(
        "g", "alices-member", 0, rebalance_timeout_ms=5000, subscribed_topic_names=names, topic_partitions=[]
    )
    coordinator = await _coordinator(stage, alice, "g", groups.KEY_TYPE_GROUP)
    joined = await _until_answered(stage, alice, coordinator, apis.CONSUMER_GROUP_HEARTBEAT, joins)
    leaves = groups.ConsumerGroupHeartbeatRequest("g", "alices-member", -1)
    code = await code_of(mallory.ask(coordinator, apis.CONSUMER_GROUP_HEARTBEAT, leaves))
    stage.must(code is ErrorCode.UNKNOWN_MEMBER_ID, f"mallory cannot remove alice's member: {code.name}")
    item = groups.OffsetCommitPartition(stage.cluster.topic_id(stage.topic), 0, 1)
    commit = groups.OffsetCommitRequest("g", joined.member_epoch, "alices-member", None, [item])
    code = await code_of(mallory.ask(coordinator, apis.OFFSET_COMMIT, commit))
    stage.must(code is ErrorCode.UNKNOWN_MEMBER_ID, f"nor commit as alice's member: {code.name}")


async def _coordinator(stage: Stage, peer: Peer, key: str, key_type: int) -> int:
    """The broker that coordinates the group or transactional id `key`."""
    while True:
        found = await peer.ask(1, apis.FIND_COORDINATOR, groups.FindCoordinatorRequest([key], key_type))
        if not found.coordinators[0].error_code:
            return int(found.coordinators[0].node_id)
        await stage.sleep(0.1)


async def _until_answered(stage: Stage, peer: Peer, node: int, api_key: int, body: object) -> Any:
    """Send the request until the coordinator has loaded; returns the response."""
    while True:
        try:
            response = await peer.ask(node, api_key, body)
        except BrokerError as e:
            if e.code not in (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR):
                raise
        else:
            if not response.error_code:
                return response
        await stage.sleep(0.1)


@scenario("S134", "A forwarded request", source="KIP-590: the rights of the client count, not those of the broker")
async def s134(stage: Stage) -> None:
    """A broker forwards a request about the cluster. The controller decides by the user that sent the request to the broker, and
    accepts forwarded requests from nodes only."""
    await stage.open(secured=True)
    bob = await make_user(stage, "bob", ("CREATE", "TOPIC", "bobs"))
    for name, wanted in (("bobs", NONE), ("others", TOPIC_DENIED)):
        body = admin.CreateTopicsRequest([admin.CreatableTopic(name, 1, 1)], 5000)
        code = await code_of(bob.ask(1, apis.CREATE_TOPICS, body))
        stage.must(
            code in (wanted, ErrorCode.CLUSTER_AUTHORIZATION_FAILED) and (code is NONE) == (wanted is NONE),
            f"{name}: {code.name}",
        )
    stage.says("Bob sends an envelope of the administrator himself.")
    inner = admin.CreateTopicsRequest([admin.CreatableTopic("others", 1, 1)], 5000)
    envelope = security.EnvelopeRequest(
        "User:admin", "10.0.0.1", "x", apis.CREATE_TOPICS, APIS[apis.CREATE_TOPICS].max_version, msgspec.msgpack.encode(inner)
    )
    code = await code_of(bob.ask(101, apis.ENVELOPE, envelope))
    stage.must(code is DENIED, f"it is refused: {code.name}")
    stage.must(stage.cluster.image().topic("others") is None, "there is no such topic")
    await stage.at_rest()
