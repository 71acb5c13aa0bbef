"""A client that lies: malformed bytes and forged requests for the listeners of brokers and controllers, from one seed.

    findings = await run(asyncio.get_running_loop().create_connection, random.Random(seed), targets)
    assert not findings.accepted

Servers must refuse everything that it sends, or at least change nothing. It does not log in, and without authentication a peer
that claims to be broker 2, in the registered broker epoch, *is* broker 2, and a peer that may create topics may delete them. Only
logins and rights help against such lies (`intruder.py`), so this client does not send them: it never uses the registered epoch
of a broker or a later one, the id of a voter of this cluster, or the name of an existing topic in a request for a change. A
server must withstand all other lies:

    bytes       not a frame, or not a request: the connection is closed, or the request refused as a whole
    types       a known request with a field of another type or out of its bounds: refused
    batches     record batches that are wrong in one place (`malformed_batches.py`): refused, and nothing is appended
    forgeries   requests with epochs, ids, offsets, names or sessions that the sender may not use: refused
    oddities    requests at the edge of what is permitted: answered or refused, and the server continues

The number of lies and of bytes is bounded, and every wait ends. A server that is down or slow is no finding; the caller checks
whether the cluster still works.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, cast

import msgspec

from strandline.protocol import apis, frames
from strandline.protocol.apis import APIS, BROKER, CONTROLLER
from strandline.protocol.errors import PeerError
from strandline.protocol.messages import admin, cluster, data
from strandline.protocol.messages.common import Message, SnapshotId
from strandline.testing.simulation.cluster.malformed_batches import malformed_batches

Connect = Callable[..., Awaitable[tuple[Any, Any]]]
"""The `create_connection` of an event loop, or a replacement."""

CLIENT_ID = "fuzzing-client"
PATIENCE_S = 2.0
"""Seconds to wait for a response."""
NO_ID = 99_999
"""The id of a node that does not exist."""
EPOCH_MAX = 2**31 - 1
BAD_NAMES = ["../../x", ".", "..", "", "a" * 250, "nul\0", "a/b", "\u00fc", "white space"]

CLOSED, REFUSED, ANSWERED, SILENT, UNREACHABLE = "closed", "refused", "answered", "silent", "unreachable"
"""The outcome of a lie. Only ANSWERED may be a finding: a response without any error code."""


class Target(NamedTuple):
    """A listener; `role` is BROKER or CONTROLLER."""

    host: str
    port: int
    role: str


class Lie(NamedTuple):
    """The bytes of one lie, which are sent on a connection of their own."""

    name: str
    role: str | None
    """The role of the servers it is meant for; None: both."""
    buffers: Sequence[frames.Buffer]
    api_key: int | None = None
    """The API key, if its response can be decoded."""
    must_fail: bool = True
    """False: a response without an error is right, too."""


class Accepted(NamedTuple):
    """A lie that was answered as if it were true."""

    lie: str
    target: Target
    response: str


@dataclass
class Findings:
    """The outcomes of the lies."""

    outcomes: dict[str, dict[str, int]] = field(default_factory=dict)
    """Lie -> outcome -> how often it happened."""
    accepted: list[Accepted] = field(default_factory=list)
    """Each is a finding."""

    def note(self, lie: str, outcome: str) -> None:
        of_lie = self.outcomes.setdefault(lie, {})
        of_lie[outcome] = of_lie.get(outcome, 0) + 1

    def count(self, outcome: str) -> int:
        return sum(of_lie.get(outcome, 0) for of_lie in self.outcomes.values())


@dataclass
class Facts:
    """Facts that any client can request from a broker. Lies that come close to the truth are built from them."""

    cluster_id: str = "no-cluster"
    partitions: list[tuple[bytes, int, int]] = field(default_factory=list)
    """Topic id, partition, leader epoch."""
    topics: list[str] = field(default_factory=list)
    broker_epochs: dict[int, int] = field(default_factory=dict)


async def run(
    connect: Connect,
    random: Random,
    targets: Sequence[Target],
    *,
    lies: int = 100,
    pause_s: float = 0.0,
    now_ms: int = 1_700_000_000_000,
    patience_s: float = PATIENCE_S,
) -> Findings:
    """Send `lies` lies, one after the other, each to a server that is drawn; returns their outcomes.

    `now_ms`: a wall clock time that the topics' limits accept. Takes at most `lies * (2 * patience_s + pause_s)`, and as much
    for each look at the cluster, one every 20 lies.
    """
    findings, facts = Findings(), Facts()
    for number in range(lies):
        if number % 20 == 0:
            facts = await _learn(connect, random, targets, patience_s) or facts
        lie = _draw(random, facts, now_ms)
        candidates = [target for target in targets if lie.role in (None, target.role)]
        if candidates:
            target = random.choice(candidates)
            outcome, response = await _tell(connect, target, lie, patience_s)
            findings.note(lie.name, outcome)
            if outcome == ANSWERED and lie.must_fail:
                findings.accepted.append(Accepted(lie.name, target, repr(response)[:500]))
        await asyncio.sleep(pause_s)
    return findings


def _draw(random: Random, facts: Facts, now_ms: int) -> Lie:
    kind = random.choice((_bytes, _types, _batches, _batches, _broker_forgeries, _controller_forgeries, _oddities))
    return random.choice(list(kind(random, facts, now_ms)))


# -- one connection ---------------------------------------------------------------------------------------------------


class _Peer(asyncio.Protocol):
    """Collects the first frame that is received."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.done: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        """The first frame without its length; None: the connection ended first."""

    def data_received(self, data: bytes) -> None:
        self.received += data
        end = frames.LENGTH.size
        if len(self.received) >= end:
            end += frames.LENGTH.unpack_from(self.received)[0]
        if len(self.received) >= end > frames.LENGTH.size and not self.done.done():
            self.done.set_result(bytes(self.received[frames.LENGTH.size : end]))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def _tell(connect: Connect, target: Target, lie: Lie, patience_s: float) -> tuple[str, Message | None]:
    """Send the lie on a connection of its own. Returns the outcome, and the response if one could be decoded."""
    try:
        async with asyncio.timeout(patience_s):
            transport, peer = await connect(_Peer, target.host, target.port)
    except (OSError, TimeoutError):
        return UNREACHABLE, None
    try:
        for buffer in lie.buffers:
            transport.write(bytes(buffer))
        async with asyncio.timeout(patience_s):
            frame = await peer.done
    except TimeoutError:
        return SILENT, None
    finally:
        transport.abort()
    return _outcome(lie, frame)


def _outcome(lie: Lie, frame: bytes | None) -> tuple[str, Message | None]:
    if frame is None:
        return CLOSED, None
    if lie.api_key is None:
        return (REFUSED if _is_refusal(frame) else ANSWERED), None
    try:
        response = frames.decode_response(lie.api_key, frame)
    except PeerError:
        return REFUSED, None
    if isinstance(response, frames.Refusal):
        return REFUSED, None
    return (REFUSED if any(error_codes(response[1])) else ANSWERED), response[1]


def _is_refusal(frame: bytes) -> bool:
    """Whether the response, of whatever API, refuses the request as a whole."""
    decoded = msgspec.msgpack.decode(frame)
    return len(decoded) >= 3 and decoded[1] is None


def error_codes(part: Any) -> Iterator[int]:
    if isinstance(part, list):
        for each in part:
            yield from error_codes(each)
    elif isinstance(part, Message):
        yield getattr(part, "error_code", 0)
        for name in part.__struct_fields__:
            yield from error_codes(getattr(part, name))


async def _learn(connect: Connect, random: Random, targets: Sequence[Target], patience_s: float) -> Facts | None:
    """The facts about the cluster that a broker returns; None if it does not answer."""
    target = random.choice([target for target in targets if target.role == BROKER])
    metadata = await _ask(connect, target, apis.METADATA, admin.MetadataRequest(None), patience_s)
    described = await _ask(connect, target, apis.DESCRIBE_CLUSTER, admin.DescribeClusterRequest(), patience_s)
    if metadata is None or described is None:
        return None
    partitions = [(t.topic_id, p.partition, p.leader_epoch) for t in metadata.topics for p in t.partitions]
    epochs = {broker.broker_id: broker.broker_epoch for broker in described.brokers}
    return Facts(metadata.cluster_id or "", partitions, [t.name for t in metadata.topics if t.name], epochs)


async def _ask(connect: Connect, target: Target, api_key: int, body: Message, patience_s: float) -> Any:
    _, response = await _tell(connect, target, _request("ask", target.role, api_key, body), patience_s)
    return response


def _request(name: str, role: str | None, api_key: int, body: Message, records: Any = None, *, must_fail: bool = True) -> Lie:
    name = f"{APIS[api_key].name}: {name}"
    return Lie(name, role, frames.encode_request(api_key, 0, 1, CLIENT_ID, body, records), api_key, must_fail)


# -- bytes ------------------------------------------------------------------------------------------------------------


def _framed(document: bytes) -> bytes:
    return frames.LENGTH.pack(len(document)) + document


def _bytes(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F01-F04, F06, F07, F10: bytes that are no frame, or no request."""
    raw = {
        "a length of 0": bytes(4),
        "a length of -1": b"\xff\xff\xff\xff",
        "a length of 2 GiB": b"\x7f\xff\xff\xff",
        "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "a TLS hello": bytes.fromhex("16030100c5010000c10303") + random.randbytes(200),
        "a frame of noise": _framed(random.randbytes(random.randint(1, 3000))),
        "half a frame": frames.LENGTH.pack(1000) + b"\x95\0\0\1\xc0",
        "nested arrays": _framed(b"\x95\0\0\x01\xc0" + b"\x91" * 8000),
        "an array of 4 G elements": _framed(b"\x95\0\0\x01\xc0\xdd\xff\xff\xff\xff"),
        "a byte that is no msgpack": _framed(b"\x95\0\0\x01\xc1"),
        "bad UTF-8": _framed(b"\x95\0\0\x01\xa2\xff\xfe\xc0"),
        "trailing bytes": _framed(b"\x90\0\0\0\0"),
        "an unknown API": _framed(msgspec.msgpack.encode([126, 0, 1, CLIENT_ID, []])),
        "a negative API": _framed(msgspec.msgpack.encode([-1, 0, 1, CLIENT_ID, []])),
        "a future version": _framed(msgspec.msgpack.encode([apis.FETCH, 99, 1, CLIENT_ID, []])),
        "terminal codes as client id": _framed(msgspec.msgpack.encode([apis.FETCH, 99, 1, "\x1b[2J\nlevel=info", []])),
    }
    for name, each in raw.items():
        yield Lie(f"bytes: {name}", None, [each])
    changed = bytearray(frames.encode_request(apis.METADATA, 0, 1, CLIENT_ID, admin.MetadataRequest([]))[0])
    changed[random.randrange(4, len(changed))] = random.randrange(256)
    yield Lie("bytes: a request with a changed byte", None, [changed], must_fail=False)


@functools.cache
def _fields_from_a_required_one(request: type[Message]) -> int:
    """The number of fields of the request; 0 if the first one may be omitted."""
    fields = msgspec.structs.fields(request)
    return len(fields) if fields and fields[0].required else 0


def _types(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F11: a request of each API whose first field has a type that it may not have."""
    wrong: list[Any] = [{"a": 1}, {}, 1.5, float("nan"), 2**64 - 1, -(2**63), [[[]]], "\0"]
    for key, api in APIS.items():
        count = _fields_from_a_required_one(api.request)
        if count:
            body = [random.choice(wrong[:3]), *(random.choice(wrong) for _ in range(count - 1))]
            document = msgspec.msgpack.encode([key, 0, 1, CLIENT_ID, body])
            yield Lie(f"{api.name}: wrong types", random.choice(api.served_by), [_framed(document)], key)


# -- forgeries --------------------------------------------------------------------------------------------------------


def _place(random: Random, facts: Facts) -> tuple[bytes, int, int]:
    return random.choice(facts.partitions) if facts.partitions else (random.randbytes(16), 0, 0)


def _batches(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F13: malformed batches for existing partitions."""
    topic_id, partition, _ = _place(random, facts)
    for shape, records in malformed_batches(now_ms).items():
        request = data.ProduceRequest(None, random.choice((1, -1, 0)), 1000, [data.ProducePartition(topic_id, partition)], [])
        yield _request(shape, BROKER, apis.PRODUCE, request, [[records]])


def _fetch(random: Random, facts: Facts, **changes: int) -> data.FetchRequest:
    topic_id, partition, leader_epoch = _place(random, facts)
    own = {"replica_id": -1, "replica_epoch": -1, "session_id": 0, "session_epoch": -1, "max_bytes": 1 << 20, "min_bytes": 0}
    of_partition = {"current_leader_epoch": leader_epoch, "fetch_offset": 0}
    fields = {name: changes.get(name, value) for name, value in own.items()}
    wanted = {name: changes.get(name, value) for name, value in of_partition.items()}
    item = data.FetchPartition(topic_id, partition, last_fetched_epoch=-1, log_start_offset=0, partition_max_bytes=1000, **wanted)
    return data.FetchRequest(
        max_wait_ms=0, isolation_level=0, partitions=[item], forgotten=[], rack_id="", cluster_id=None, **fields
    )


def _broker_forgeries(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F11, F12, F14: requests that a broker must refuse."""
    topic_id, partition, _ = _place(random, facts)
    unknown = random.randbytes(16)
    place, nowhere = data.ProducePartition(topic_id, partition), data.ProducePartition(unknown, 0)
    produces = {
        "an unknown topic id": data.ProduceRequest(None, 1, 1000, [nowhere], []),
        "acks=7": data.ProduceRequest(None, 7, 1000, [place], []),
        "a transaction": data.ProduceRequest("mine", -1, 1000, [place], []),
    }
    for name, body in produces.items():
        yield _request(name, BROKER, apis.PRODUCE, body, [[b""]])
    twice = data.ProduceRequest(None, 1, 1000, [place, place], [])
    yield _request("a partition twice", BROKER, apis.PRODUCE, twice, [[b""], [b""]])
    fetches = {
        "offset -5": {"fetch_offset": -5},
        "an offset far beyond the end": {"fetch_offset": 2**62},
        "a future epoch": {"current_leader_epoch": EPOCH_MAX},
        "a forged session": {"session_id": random.randint(1, EPOCH_MAX), "session_epoch": 5},
        "a follower without an id": {"replica_id": NO_ID, "replica_epoch": 0},
    }
    broker_id, epoch = _forged_epoch(random, facts)
    if epoch < facts.broker_epochs.get(broker_id, 0):
        # Not a later epoch, which is not refused: a broker may fetch before the leader has received its registration.
        fetches["a follower of an earlier process"] = {"replica_id": broker_id, "replica_epoch": epoch}
    for name, changes in fetches.items():
        yield _request(name, BROKER, apis.FETCH, _fetch(random, facts, **changes))
    lists = data.ListOffsetsRequest(-1, 0, [data.ListOffsetsPartition(topic_id, partition, EPOCH_MAX, -1)])
    yield _request("a future epoch", BROKER, apis.LIST_OFFSETS, lists)
    describe = data.DescribeProducersRequest([data.DescribeProducersPartition(unknown, 0)])
    yield _request("an unknown topic id", BROKER, apis.DESCRIBE_PRODUCERS, describe)
    yield from _bad_topics(random, facts)


def _bad_topics(random: Random, facts: Facts) -> Iterator[Lie]:
    """F12: names, numbers and settings that no topic may have."""
    bad = {f"a topic named {name[:10]!r}": admin.CreatableTopic(name, 1, 1) for name in BAD_NAMES}
    bad |= {
        "-7 partitions": admin.CreatableTopic("lie", -7, 1),
        "a billion partitions": admin.CreatableTopic("lie", 10**9, 1),
        "replication factor 99": admin.CreatableTopic("lie", 1, 99),
        "replicas that do not exist": admin.CreatableTopic("lie", -1, -1, [admin.CreatableReplicaAssignment(0, [NO_ID])]),
        "the same replica twice": admin.CreatableTopic("lie", -1, -1, [admin.CreatableReplicaAssignment(0, [1, 1])]),
        "partitions with a gap": admin.CreatableTopic("lie", -1, -1, [admin.CreatableReplicaAssignment(5, [1])]),
        "an unknown setting": admin.CreatableTopic("lie", 1, 1, [], [admin.TopicConfig("no.such.key", "1")]),
        "a setting out of its bounds": admin.CreatableTopic("lie", 1, 1, [], [admin.TopicConfig("min.insync.replicas", "-3")]),
    }
    for name, topic in bad.items():
        yield _request(name, None, apis.CREATE_TOPICS, admin.CreateTopicsRequest([topic], 1000))
    if facts.topics:
        twice = admin.CreateTopicsRequest([admin.CreatableTopic(random.choice(facts.topics), 1, 1)], 1000)
        yield _request("a topic that exists", None, apis.CREATE_TOPICS, twice)
        fewer = admin.CreatePartitionsRequest([admin.CreatePartitionsTopic(random.choice(facts.topics), 0)], 1000)
        yield _request("fewer partitions", None, apis.CREATE_PARTITIONS, fewer)
    gone = admin.DeleteTopicsRequest([admin.DeleteTopicState(None, random.randbytes(16))], 1000)
    yield _request("an unknown topic id", None, apis.DELETE_TOPICS, gone)
    resource = admin.AlterConfigsResource(99, "lie", [admin.AlterableConfig("a", 0, "b")])
    yield _request("an unknown resource", None, apis.INCREMENTAL_ALTER_CONFIGS, admin.IncrementalAlterConfigsRequest([resource]))
    nowhere = [admin.ElectLeadersPartition("no-such-topic", 0, NO_ID)]
    yield _request("unclean", None, apis.ELECT_LEADERS, admin.ElectLeadersRequest(admin.UNCLEAN_ELECTION, nowhere, 1000))


def _forged_epoch(random: Random, facts: Facts) -> tuple[int, int]:
    """A broker id with a broker epoch that is not its own."""
    if not facts.broker_epochs or random.random() < 0.3:
        return NO_ID, random.choice((0, 1, 2**62))
    broker_id = random.choice(sorted(facts.broker_epochs))
    epoch = facts.broker_epochs[broker_id]
    return broker_id, random.choice([each for each in (-1, 0, epoch - 1, 2**62) if -1 <= each != epoch])


def _controller_forgeries(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F15, F16: requests that a controller must refuse, and a broker does not serve."""
    broker_id, epoch = _forged_epoch(random, facts)
    topic_id, partition, leader_epoch = _place(random, facts)
    isr = [cluster.BrokerState(broker_id, epoch)]
    items = [
        cluster.AlterPartitionPartition(topic_id, partition, wanted, isr, 0, partition_epoch)
        for wanted, partition_epoch in ((leader_epoch, 0), (EPOCH_MAX, EPOCH_MAX), (-1, -1))
    ]
    other = "another-cluster"
    forged: dict[int, dict[str, Message]] = {
        apis.BROKER_HEARTBEAT: {
            "a forged broker epoch": cluster.BrokerHeartbeatRequest(broker_id, epoch, 2**62, False, False),
            "a forged broker epoch asks for a shutdown": cluster.BrokerHeartbeatRequest(broker_id, epoch, 0, True, True),
        },
        apis.ALTER_PARTITION: {"a forged broker epoch": cluster.AlterPartitionRequest(broker_id, epoch, [random.choice(items)])},
        apis.ALLOCATE_PRODUCER_IDS: {"a forged broker epoch": cluster.AllocateProducerIdsRequest(broker_id, epoch)},
        apis.INIT_NAMED_PRODUCER: {"a forged broker epoch": cluster.InitNamedProducerRequest(broker_id, epoch, "lie", 1)},
        apis.BROKER_REGISTRATION: {
            "another cluster": cluster.BrokerRegistrationRequest(NO_ID, other, random.randbytes(16), []),
        },
        apis.VOTE: {
            "another cluster": cluster.VoteRequest(other, 101, EPOCH_MAX, 102, EPOCH_MAX, 2**62),
            "a candidate that is no voter": cluster.VoteRequest(None, 101, EPOCH_MAX, NO_ID, EPOCH_MAX, 2**62),
        },
        apis.BEGIN_QUORUM_EPOCH: {
            "another cluster": cluster.BeginQuorumEpochRequest(other, 101, 102, EPOCH_MAX),
            "a leader that is no voter": cluster.BeginQuorumEpochRequest(None, 101, NO_ID, EPOCH_MAX),
        },
        apis.END_QUORUM_EPOCH: {
            "another cluster": cluster.EndQuorumEpochRequest(other, 102, EPOCH_MAX, [101]),
            "a leader that is no voter": cluster.EndQuorumEpochRequest(None, NO_ID, EPOCH_MAX, [101]),
        },
        apis.FETCH_SNAPSHOT: {
            "a future snapshot": cluster.FetchSnapshotRequest(-1, None, 1000, leader_epoch, SnapshotId(2**62, EPOCH_MAX), 0),
        },
    }
    for api_key, bodies in forged.items():
        for name, body in bodies.items():
            yield _request(name, CONTROLLER, api_key, body)
            yield _request(f"{name}, at a broker", BROKER, api_key, body)


# -- oddities ---------------------------------------------------------------------------------------------------------


def _oddities(random: Random, facts: Facts, now_ms: int) -> Iterator[Lie]:
    """F05, F07, F14: requests at the edge of what is permitted."""
    for name, changes in {
        "no bytes": {"max_bytes": 0},
        "2 GiB at most": {"max_bytes": EPOCH_MAX},
        "negative bounds": {"max_bytes": -1, "min_bytes": -1},
        "a past epoch": {"current_leader_epoch": 0},
    }.items():
        yield _request(name, BROKER, apis.FETCH, _fetch(random, facts, **changes), must_fail=False)
    topic_id, partition, epoch = _place(random, facts)
    stamps = [data.ListOffsetsPartition(topic_id, partition, epoch, at) for at in (-100, 2**63 - 1)]
    for item in stamps:
        yield _request("odd timestamps", BROKER, apis.LIST_OFFSETS, data.ListOffsetsRequest(-1, 0, [item]), must_fail=False)
    past = data.OffsetForLeaderEpochRequest(-1, [data.OffsetForLeaderPartition(topic_id, partition, -1, random.randint(-1, 99))])
    yield _request("any epoch", BROKER, apis.OFFSET_FOR_LEADER_EPOCH, past, must_fail=False)
    one = frames.encode_request(apis.METADATA, 0, 1, CLIENT_ID, admin.MetadataRequest(None))
    yield Lie("Metadata: 100 requests with one correlation id", BROKER, cast(Any, one * 100), apis.METADATA, must_fail=False)
