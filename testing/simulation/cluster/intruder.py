"""A client in the network that has every secret number of the protocol and almost no rights.

The intruder has values that no client should have: broker epochs, leader epochs, log ends, producer ids, the epoch of the quorum.
It sends requests of a broker, a controller or another client, with true values, in one of four ways:

    as itself     a user with DESCRIBE on topics, and no other right
    unknown       without logging in
    guessing      it logs in as the administrator or a node, with a wrong password
    pretending    it logs in as itself, and in the middle of the session again as the administrator, whose password it knows

Everything must be refused. An answer without an error is a problem of the run; and a request that takes effect all the same
breaks an invariant: a forged offset moves a high watermark (I7, I10), a forged record is one that no client of the run wrote, a
forged vote or epoch disturbs the quorum (I18). A request of the intruder that passes the guards of a handler violates I47.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

import msgspec

from strandline.controller.metadata.records import LEVEL_MAX, METADATA_TOPIC_ID
from strandline.protocol import apis
from strandline.protocol.apis import APIS, BROKER, CONTROLLER, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError
from strandline.protocol.messages import admin, cluster, data, groups, security, transactions
from strandline.protocol.messages.common import Message, SnapshotId
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.mechanisms import SCRAM_256, AuthenticationError
from strandline.protocol.security.scram import ScramClientExchange
from strandline.testing.simulation.cluster.cluster import BROKER_PORT, CLUSTER_ID, CONTROLLER_PORT, Client, SimCluster
from strandline.testing.simulation.cluster.fuzzing_client import error_codes
from strandline.testing.simulation.cluster.identities import ADMIN, INTRUDER, node_user
from strandline.testing.simulation.kernel.machine import EPOCH_MS
from strandline.testing.simulation.options import Options

PATIENCE_MS = 500
HIGH = 2**40
ITSELF, UNKNOWN, GUESSING, PRETENDING = "as itself", "unknown", "guessing", "pretending"
WAYS = (ITSELF, ITSELF, ITSELF, UNKNOWN, GUESSING, PRETENDING)
MARK = b"of the intruder"
"""Part of each record that it sends."""


class Attack(NamedTuple):
    name: str
    role: str
    api_key: int
    body: Message
    records: Any = None


class Facts:
    """The true values at this moment."""

    def __init__(self, around: SimCluster, options: Options, draw: Random) -> None:
        image = around.image()
        topics = [topic for topic in image.topics_by_id.values() if topic.partitions]
        self.topic = draw.choice(topics) if topics else None
        self.index = draw.choice(sorted(self.topic.partitions)) if self.topic is not None else 0
        self.partition = self.topic.partitions[self.index] if self.topic is not None else None
        self.topic_id = bytes(self.topic.topic_id) if self.topic is not None else bytes(16)
        self.broker = draw.choice(sorted(image.brokers) or [1])
        self.broker_epoch = image.brokers[self.broker].broker_epoch if self.broker in image.brokers else 0
        active = around.active_controller
        self.quorum_epoch = active.controller.active.epoch if active is not None and active.controller.active is not None else 1
        self.controller, self.other = (draw.choice(around.controller_ids) for _ in range(2))
        self.metadata_end = image.offset + 1
        self.group = options.members[0].group if options.members else "a-group"
        self.transactional_id = options.writers[0].transactional_id if options.writers else "a-transaction"
        self.producer = self._producer(around, draw)

    def _producer(self, around: SimCluster, draw: Random) -> tuple[int, int]:
        """The id and the epoch of a producer that has written to the partition."""
        leader = around.brokers.get(self.partition.leader) if self.partition is not None else None
        found = None if leader is None or not leader.has_logs else leader.replicas.partitions.get((self.topic_id, self.index))
        known = [] if found is None else [(each, epoch) for each, (epoch, _) in found.log.producers.dump().items()]
        return draw.choice(sorted(known)) if known else (1, 0)


class Intruder:
    def __init__(self, around: SimCluster, options: Options, problems: list[str], draw: Random) -> None:
        self.around = around
        self.options = options
        self.problems = problems
        self.draw = draw
        self.sent = self.refused = 0
        """Attacks, and how many of them were refused; the others were not answered, or their connection was closed."""

    async def work(self, client: Client, going: Callable[[], bool]) -> None:
        plan = self.options.security
        assert plan is not None
        while going() and self.sent < plan.attacks:
            await asyncio.sleep(self.draw.uniform(0.01, 0.3))
            for _ in range(self.draw.randint(1, 4)):
                self.sent += 1
                await self.attack(client, self.draw.choice(WAYS))

    async def attack(self, client: Client, how: str) -> None:
        """Attempt one attack, on a node that is drawn."""
        attack = self.draw.choice(list(attacks(Facts(self.around, self.options, self.draw), self.draw)))
        nodes = self.around.broker_ids if attack.role == BROKER else self.around.controller_ids
        node = self.draw.choice(nodes)
        try:
            connection = await self._connect(client, node)
        except StrandlineError:
            return
        try:
            await self._try(connection, attack, node, how)
        except BrokerError as e:
            is_refused = e.code not in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)
            self.refused += is_refused
            if is_refused and how == UNKNOWN:
                self._succeeded(f"is answered before it has logged in: {e}", attack, node)
        except StrandlineError:
            pass
        finally:
            connection.close()

    async def _connect(self, client: Client, node: int) -> Connection:
        host, port = self.around.host(node), BROKER_PORT if node in self.around.broker_ids else CONTROLLER_PORT
        return await Connection.connect(host, port, client_id=INTRUDER, connect_timeout_ms=PATIENCE_MS)

    async def _try(self, connection: Connection, attack: Attack, node: int, how: str) -> None:
        draw, identities = self.draw, self.around.identities
        assert identities is not None
        if how == GUESSING:
            nodes = (*self.around.broker_ids, *self.around.controller_ids)
            user = draw.choice((ADMIN, "p1", *map(node_user, nodes), "nobody"))
            await log_in(connection, user, "a guess", draw)
            self._succeeded(f"logs in as {user} with a wrong password", attack, node)
        elif how != UNKNOWN:
            await log_in(connection, INTRUDER, identities.password(INTRUDER), draw)
        if how == PRETENDING:
            await asyncio.sleep(draw.choice((0.0, 1.2)))
            await log_in(connection, ADMIN, identities.password(ADMIN), draw)
        response = await connection.request(attack.api_key, attack.body, attack.records, timeout_ms=PATIENCE_MS)
        if any(error_codes(response)):
            self.refused += 1
        else:
            self._succeeded(f"({how}) succeeds: {response!r}", attack, node)

    def _succeeded(self, text: str, attack: Attack, node: int) -> None:
        self.problems.append(f"at node {node}, {api_name(attack.api_key)}, {attack.name}: the intruder {text}"[:600])


async def log_in(connection: Connection, user: str, password: str, draw: Random) -> None:
    """Log in, or log in again, without a check of the server's signature. Raises BrokerError if the server refuses it."""
    exchange = ScramClientExchange(SCRAM_256, user, password, draw.randbytes)
    handshake = await connection.request(apis.SASL_HANDSHAKE, security.SaslHandshakeRequest(SCRAM_256), timeout_ms=PATIENCE_MS)
    _check(handshake)
    message = exchange.respond(b"")
    for _ in range(2):
        request = security.SaslAuthenticateRequest(message)
        response: Any = await connection.request(apis.SASL_AUTHENTICATE, request, timeout_ms=PATIENCE_MS)
        _check(response)
        with contextlib.suppress(AuthenticationError):
            message = exchange.respond(response.auth_bytes)


def _check(response: Any) -> None:
    if response.error_code:
        raise BrokerError(ErrorCode(response.error_code), "the login was refused")


# -- attacks ----------------------------------------------------------------------------------------------------------


def attacks(facts: Facts, draw: Random) -> Iterator[Attack]:
    """One attack of each kind, with the values that are true now."""
    if facts.partition is not None:
        yield from _of_a_follower(facts, draw)
        yield from _of_a_client(facts)
        yield from _of_a_coordinator(facts)
    yield from _of_a_broker(facts, draw)
    yield from _of_a_controller(facts)
    yield from _of_an_administrator(facts)
    yield from _of_a_member(facts)


def fetch(facts: Facts, replica_id: int, offset: int, topic_id: bytes | None = None) -> data.FetchRequest:
    epoch = facts.partition.leader_epoch if facts.partition is not None and topic_id is None else facts.quorum_epoch
    item = data.FetchPartition(
        topic_id or facts.topic_id, facts.index if topic_id is None else 0, epoch, offset, epoch, 0, 1 << 20
    )
    replica_epoch = facts.broker_epoch if replica_id >= 0 else -1
    return data.FetchRequest(replica_id, replica_epoch, 0, 0, 1 << 20, 0, 0, -1, [item])


def _of_a_follower(facts: Facts, draw: Random) -> Iterator[Attack]:
    partition = facts.partition
    assert partition is not None
    for offset in (HIGH, draw.randint(0, 300)):
        yield Attack("a follower's fetch", BROKER, apis.FETCH, fetch(facts, facts.broker, offset))
    alone = [cluster.BrokerState(facts.broker, facts.broker_epoch)]
    item = cluster.AlterPartitionPartition(
        facts.topic_id, facts.index, partition.leader_epoch, alone, 0, partition.partition_epoch
    )
    request = cluster.AlterPartitionRequest(facts.broker, facts.broker_epoch, [item])
    yield Attack("an ISR of one", CONTROLLER, apis.ALTER_PARTITION, request)
    place = data.OffsetForLeaderPartition(facts.topic_id, facts.index, partition.leader_epoch, partition.leader_epoch)
    epochs = data.OffsetForLeaderEpochRequest(facts.broker, [place])
    yield Attack("a follower asks for an epoch", BROKER, apis.OFFSET_FOR_LEADER_EPOCH, epochs)


def _of_a_client(facts: Facts) -> Iterator[Attack]:
    producer_id, producer_epoch = facts.producer
    as_another = {"producer_id": producer_id, "producer_epoch": producer_epoch, "base_sequence": 0}
    identities: tuple[tuple[str, dict[str, Any]], ...] = (("a record", {}), ("a record as another producer", as_another))
    for name, identity in identities:
        records = encode_batch([(None, MARK, (), EPOCH_MS)], **identity)
        place = data.ProducePartition(facts.topic_id, facts.index)
        yield Attack(name, BROKER, apis.PRODUCE, data.ProduceRequest(None, -1, 300, [place], []), [[records]])
    yield Attack("a consumer's fetch", BROKER, apis.FETCH, fetch(facts, -1, 0))
    deletion = data.DeleteRecordsPartition(facts.topic_id, facts.index, -1)
    yield Attack("a deletion of records", BROKER, apis.DELETE_RECORDS, data.DeleteRecordsRequest([deletion], 300))
    named = data.InitProducerIdRequest(facts.transactional_id)
    yield Attack("a transactional id", BROKER, apis.INIT_PRODUCER_ID, named)
    end = transactions.EndTxnRequest(facts.transactional_id, producer_id, producer_epoch, committed=False)
    yield Attack("an abort of a transaction", BROKER, apis.END_TXN, end)


def _of_a_coordinator(facts: Facts) -> Iterator[Attack]:
    producer_id, producer_epoch = facts.producer
    topics = [groups.GroupTopicPartitions(facts.topic_id, [facts.index])]
    marker = transactions.WritableTxnMarker(producer_id, producer_epoch, True, topics, 2**20)
    yield Attack("a marker", BROKER, apis.WRITE_TXN_MARKERS, transactions.WriteTxnMarkersRequest([marker]))


def _of_a_broker(facts: Facts, draw: Random) -> Iterator[Attack]:
    registration = cluster.BrokerRegistrationRequest(
        facts.broker, CLUSTER_ID, draw.randbytes(16), [], previous_broker_epoch=facts.broker_epoch
    )
    yield Attack("a registration", CONTROLLER, apis.BROKER_REGISTRATION, registration)
    for fences, stops in ((True, False), (False, True), (False, False)):
        beat = cluster.BrokerHeartbeatRequest(facts.broker, facts.broker_epoch, HIGH, fences, stops)
        yield Attack("a heartbeat", CONTROLLER, apis.BROKER_HEARTBEAT, beat)
    allocation = cluster.AllocateProducerIdsRequest(facts.broker, facts.broker_epoch)
    yield Attack("producer ids", CONTROLLER, apis.ALLOCATE_PRODUCER_IDS, allocation)
    yield Attack("the metadata", CONTROLLER, apis.FETCH, fetch(facts, facts.broker, 0, METADATA_TOPIC_ID))
    everything = (security.TOPIC_RESOURCE, "*", security.LITERAL_PATTERN, "User:intruder", "*", security.ALL, security.ALLOW)
    inner = security.CreateAclsRequest([security.AclBinding(*everything)])
    for api_key, body in ((apis.CREATE_ACLS, inner), (apis.UNREGISTER_BROKER, admin.UnregisterBrokerRequest(facts.broker))):
        version = APIS[api_key].max_version
        envelope = security.EnvelopeRequest("User:admin", "10.0.0.1", "x", api_key, version, msgspec.msgpack.encode(body))
        yield Attack("an envelope of the administrator", CONTROLLER, apis.ENVELOPE, envelope)


def _of_a_controller(facts: Facts) -> Iterator[Attack]:
    later = facts.quorum_epoch + 1
    for is_pre_vote in (False, True):
        vote = cluster.VoteRequest(CLUSTER_ID, facts.controller, later, facts.other, facts.quorum_epoch, HIGH, is_pre_vote)
        yield Attack("a candidate", CONTROLLER, apis.VOTE, vote)
    begins = cluster.BeginQuorumEpochRequest(CLUSTER_ID, facts.controller, facts.other, later)
    yield Attack("a new leader", CONTROLLER, apis.BEGIN_QUORUM_EPOCH, begins)
    ends = cluster.EndQuorumEpochRequest(CLUSTER_ID, facts.other, facts.quorum_epoch, [facts.controller])
    yield Attack("the end of a leader", CONTROLLER, apis.END_QUORUM_EPOCH, ends)
    yield Attack("a voter's fetch", CONTROLLER, apis.FETCH, fetch(facts, facts.other, facts.metadata_end + 5, METADATA_TOPIC_ID))
    snapshot = cluster.FetchSnapshotRequest(-1, CLUSTER_ID, 1000, facts.quorum_epoch, SnapshotId(facts.metadata_end, 1), 0)
    yield Attack("a snapshot", CONTROLLER, apis.FETCH_SNAPSHOT, snapshot)


def _of_an_administrator(facts: Facts) -> Iterator[Attack]:
    password = security.ScramCredentialUpsertion("admin", security.SCRAM_SHA_256, 4096, bytes(16), bytes(32))
    entity = [security.QuotaEntityPart("user", None)]
    slow = security.QuotaAlteration(entity, [security.QuotaOperation("producer_byte_rate", 1.0)])
    requests: list[tuple[int, Message]] = [
        (apis.ALTER_USER_SCRAM_CREDENTIALS, security.AlterUserScramCredentialsRequest([], [password])),
        (apis.ALTER_CLIENT_QUOTAS, security.AlterClientQuotasRequest([slow])),
        (apis.DELETE_ACLS, security.DeleteAclsRequest([security.AclFilter()])),
        (apis.CREATE_TOPICS, admin.CreateTopicsRequest([admin.CreatableTopic("intruders", 1, 1)], 1000)),
        (apis.DELETE_TOPICS, admin.DeleteTopicsRequest([admin.DeleteTopicState(None, facts.topic_id)], 1000)),
        (apis.ELECT_LEADERS, admin.ElectLeadersRequest(admin.UNCLEAN_ELECTION, None, 1000)),
        (apis.UPDATE_FEATURES, admin.UpdateFeaturesRequest(1000, [admin.FeatureUpdate("metadata.version", LEVEL_MAX)])),
        (apis.DESCRIBE_ACLS, security.DescribeAclsRequest(security.AclFilter())),
        (apis.DESCRIBE_USER_SCRAM_CREDENTIALS, security.DescribeUserScramCredentialsRequest(None)),
    ]
    for role in (BROKER, CONTROLLER):
        for api_key, body in requests:
            yield Attack("of an administrator", role, api_key, body)


def _of_a_member(facts: Facts) -> Iterator[Attack]:
    items = [groups.OffsetCommitPartition(facts.topic_id, facts.index, 0)]
    yield Attack("an offset", BROKER, apis.OFFSET_COMMIT, groups.OffsetCommitRequest(facts.group, -1, "", None, items))
    leaves = groups.LeaveGroupRequest(facts.group, [groups.LeavingMember("a-member")])
    yield Attack("a member leaves", BROKER, apis.LEAVE_GROUP, leaves)
    yield Attack("a deletion of a group", BROKER, apis.DELETE_GROUPS, groups.DeleteGroupsRequest([facts.group]))
