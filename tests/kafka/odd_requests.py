"""Requests that are valid in form and odd in content, from a seed, for two clusters that should give the same answers.

A round has its own topics, groups and transactional ids, so a round leaves nothing behind for the next one, and can be repeated
alone. Each side has its own ids of topics, producers and members: a request has a `Placeholder` for them, which the `Names` of a
side replace.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from random_messages import random_fields

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaApi
from strandline.broker.kafka.codec import Fields, Struct
from strandline.broker.kafka.schemas import Schemas
from strandline.protocol.records.builder import encode_batch

SCHEMAS = Schemas()
LEFT_OUT = {
    17: "SaslHandshake: the listener has no SASL",
    36: "SaslAuthenticate: the listener has no SASL",
    19: "CreateTopics: changes what all rounds see",
    20: "DeleteTopics: changes what all rounds see, the internal topics too",
    27: "WriteTxnMarkers: is for brokers and operators, and ends the transactions of other rounds",
    30: "CreateAcls: changes the rights of all rounds",
    31: "DeleteAcls: changes the rights of all rounds",
    33: "AlterConfigs: changes the broker",
    37: "CreatePartitions: changes what all rounds see",
    43: "ElectLeaders: changes what all rounds see",
    44: "IncrementalAlterConfigs: changes the broker",
    45: "AlterPartitionReassignments: changes what all rounds see",
    49: "AlterClientQuotas: slows all rounds down",
    51: "AlterUserScramCredentials: changes what all rounds see",
    57: "UpdateFeatures: changes the cluster",
    64: "UnregisterBroker: ends the cluster",
}
"""APIs that are not compared, and why."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value that is another one on each side."""

    what: str


TOPIC_ID, OTHER_TOPIC_ID = Placeholder("id of the topic"), Placeholder("id of the other topic")
PRODUCER_ID, MEMBER_ID = Placeholder("producer id"), Placeholder("id of the classic member")


@dataclass(frozen=True, slots=True)
class GroupEpoch:
    """An epoch of a group of the newer protocol, counted from 1. Kafka's groups begin with epoch 2 since 4.3 (KAFKA-20268)."""

    number: int


GROUP_EPOCHS = frozenset({"group_epoch", "assignment_epoch", "member_epoch"})
"""The fields of responses that have one."""


@dataclass(slots=True)
class Names:
    """The values of one side for the placeholders."""

    values: dict[Placeholder, Any] = field(default_factory=dict)
    first_group_epoch: int = 1
    """The epoch with which a group of the newer protocol begins."""

    def fill(self, value: Any) -> Any:
        """The request with the values of this side."""
        if isinstance(value, dict):
            return {name: self.fill(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.fill(part) for part in value]
        if isinstance(value, GroupEpoch):
            return value.number - 1 + self.first_group_epoch
        return self.values[value] if isinstance(value, Placeholder) else value

    def common(self, name: str, value: Any) -> Any:
        """The placeholder of the value of a response's field, a group epoch counted from 1, or the value itself."""
        if name in GROUP_EPOCHS and value > 0:
            return value + 1 - self.first_group_epoch
        found = next((known for known, own in self.values.items() if own == value and not isinstance(value, int)), None)
        return value if found is None else found


@dataclass(slots=True)
class Round:
    """The names of the topics, groups and the transactional id of one round."""

    seed: int
    number: int

    @property
    def suffix(self) -> str:
        return f"{self.seed}-{self.number}"

    @property
    def topics(self) -> tuple[str, str]:
        return f"odd-{self.suffix}", f"other-{self.suffix}"

    @property
    def groups(self) -> tuple[str, str, str]:
        """A group with offsets only, one of the classic protocol with a member, and one of the newer protocol with a member."""
        return f"simple-{self.suffix}", f"classic-{self.suffix}", f"consumer-{self.suffix}"

    @property
    def transactional_id(self) -> str:
        return f"txn-{self.suffix}"


STATIC = "instance"
NEWER_MEMBER = "member-of-the-newer-protocol"
_NAMED_TOPICS = frozenset({"topic", "topic_name", "name"})
_NUMBERS: dict[str, tuple[int, ...]] = {
    "replica_id": (-1,),
    "acks": (-1, -1, 1, 2, -2),
    "broker_id": (1, 1, 2, -1),
    "max_bytes": (1 << 20,),
    "partition_max_bytes": (1 << 20,),
    "key_type": (0, 1, 2, -1),
    "timestamp": (-1, -2, -3, -4, -5, -6, -7, 0, 1_700_000_000_000),
    "producer_epoch": (0, 0, 0, 1, -1, 32767),
    "member_epoch": (0, 1, 1, -1, -2, 5, -3),
    "generation_id": (1, 1, -1, 0, 2),
    "generation_id_or_member_epoch": (-1, -1, 1, 1, 0, 2, -2),
    "session_timeout_ms": (6000, 6000, 1, 2**31 - 1),
    "rebalance_timeout_ms": (50,),
    "transaction_timeout_ms": (10_000, 10_000, 0, -1, 2**31 - 1),
    "retention_time_ms": (-1,),
}
_EPOCHS = ("member_epoch", "generation_id", "generation_id_or_member_epoch")
"""The fields of requests that have an epoch, if the group or the member is one of the newer protocol."""
_INDEXES = frozenset({"index", "partition", "partition_index", "partitions", "partition_indexes"})
_WAIT_MS = 20


class OddRequests:
    """The requests of one round."""

    def __init__(self, round_: Round, apis: Iterable[int]) -> None:
        self._round = round_
        self._rnd = random.Random(f"{round_.seed} {round_.number}")
        self._apis = [KAFKA_APIS[key] for key in sorted(apis)]
        self._texts = self._texts_of(round_)
        self._sequence = 0

    @staticmethod
    def _texts_of(round_: Round) -> dict[str, tuple[Any, ...]]:
        topics = (*round_.topics, *round_.topics[:1] * 3, "__consumer_offsets", f"missing-{round_.suffix}", "a/b", "x" * 250, "")
        groups = (*round_.groups * 3, f"missing-{round_.suffix}", "")
        transactional = (*(round_.transactional_id,) * 5, f"missing-{round_.suffix}", "")
        return {
            **dict.fromkeys(("topic", "topic_name", "name", "resource_name"), topics),
            **dict.fromkeys(("group_id", "group", "groups", "group_ids", "key", "coordinator_keys", "groups_names"), groups),
            **dict.fromkeys(("transactional_id", "v3_and_below_transactional_id", "transactional_ids"), transactional),
            "member_id": (MEMBER_ID, MEMBER_ID, NEWER_MEMBER, NEWER_MEMBER, "unknown", ""),
            **dict.fromkeys(("group_instance_id", "instance_id"), (None, None, None, STATIC, "another", "")),
            "protocol_type": ("consumer", "consumer", "connect", ""),
            "protocol_name": ("range", "range", "none", None),
            "server_assignor": (None, None, "uniform", "range", "none"),
            "subscribed_topic_regex": (None, None, "odd.*", "("),
            "subscribed_topic_names": round_.topics,
            "rack_id": (None, "", "rack"),
        }

    def __iter__(self) -> Iterator[tuple[KafkaApi, int, dict[str, Any]]]:
        while True:
            api = self._rnd.choice(self._apis)
            version = self._rnd.randint(api.min_version, api.max_version)
            struct = SCHEMAS.request(api.key, version).struct
            fields = random_fields(self._rnd, struct)
            self._give_meaning(fields, struct)
            yield api, version, fields

    def _give_meaning(self, values: dict[str, Any], struct: Struct) -> None:
        """Replace most of the values by meaningful ones."""
        for part in struct.fields:
            value = values.get(part.name)
            if isinstance(part.kind, Struct):
                for item in (value if part.is_array else [value] if value is not None else ()) or ():
                    self._give_meaning(item, part.kind)
            elif part.is_array and value is not None:
                values[part.name] = [self._meaning(part, item) for item in value]
            elif value is not None or self._rnd.random() < 0.5:
                found = self._meaning(part, value)
                values[part.name] = value if found is None and not part.is_nullable else found
        if values.get("group_id") == self._round.groups[2] or values.get("member_id") == NEWER_MEMBER:
            epochs = {name: values[name] for name in _EPOCHS if isinstance(values.get(name), int)}
            values.update((name, GroupEpoch(epoch)) for name, epoch in epochs.items() if epoch > 0)

    def _meaning(self, part: Any, value: Any) -> Any:
        name, rnd = part.name, self._rnd
        plain_name = name.removeprefix("v3_and_below_")
        if part.kind == "string":
            found = rnd.choice(self._texts.get(name, ("consumer", "range", "1", "*", "")))
            return found if found is not None or part.is_nullable else ""
        if part.kind == "uuid":
            return rnd.choice((TOPIC_ID, TOPIC_ID, OTHER_TOPIC_ID, bytes(16), b"\1" * 16))
        if part.kind == "bytes":
            return self._records() if name == "records" else value
        if part.kind not in ("int8", "int16", "int32", "int64"):
            return value
        if plain_name in _NUMBERS:
            return rnd.choice(_NUMBERS[plain_name])
        if plain_name == "producer_id":
            return rnd.choice((PRODUCER_ID, PRODUCER_ID, -1, 0, 2**62))
        if name in _INDEXES:
            return rnd.choice((0, 0, 0, 1, 1, 2, 5, -1))
        if name.endswith("_ms"):
            return _WAIT_MS
        return rnd.choice((0, 0, 0, 1, 1, -1, 2, 5, 100))

    def _records(self) -> bytes:
        """A batch without a producer id, or of an idempotent producer with any sequence number."""
        rnd, rows = self._rnd, [(b"k", b"v", [], 1_700_000_000_000)]
        kind = rnd.random()
        if kind < 0.3:
            return encode_batch(rows)
        if kind < 0.35:
            return b""
        sequence = rnd.choice((self._sequence, self._sequence, 0, 1, 5, 2**31 - 1))
        self._sequence += 1
        return encode_batch(
            rows, producer_id=rnd.choice((77, 77, 78)), producer_epoch=rnd.choice((0, 0, 1)), base_sequence=sequence
        )


async def set_up(ask: Any, round_: Round) -> Names:
    """Create on one side what a round needs. `ask(api key, version, fields)` repeats a request until it has no temporary
    error."""
    names, values = Names(), {}
    topics = [
        {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []} for name in round_.topics
    ]
    await ask(19, 5, {"topics": topics, "timeout_ms": 10_000, "validate_only": False})
    asked = [{"topic_id": bytes(16), "name": name} for name in round_.topics]
    operations = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    found = (await ask(3, 12, {"topics": asked, **operations})).topics
    ids = {topic.name: topic.topic_id for topic in found}
    values[TOPIC_ID], values[OTHER_TOPIC_ID] = (ids[name] for name in round_.topics)
    await _write(ask, round_)
    values[PRODUCER_ID] = await _begin_transactions(ask, round_)
    values[MEMBER_ID], names.first_group_epoch = await _join(ask, round_)
    names.values = values
    return names


async def _write(ask: Any, round_: Round) -> None:
    records = encode_batch([(b"k", b"v", [], 1_700_000_000_000)] * 3)
    data = [{"name": round_.topics[0], "partition_data": [{"index": 0, "records": records}]}]
    await ask(0, 9, {"transactional_id": None, "acks": -1, "timeout_ms": 5000, "topic_data": data})


async def _begin_transactions(ask: Any, round_: Round) -> int:
    await ask(10, 3, {"key": round_.transactional_id, "key_type": 1})
    fields = {"transaction_timeout_ms": 10_000, "producer_id": -1, "producer_epoch": -1}
    found: Fields = await ask(22, 4, {"transactional_id": round_.transactional_id, **fields})
    return int(found.producer_id)


async def _join(ask: Any, round_: Round) -> tuple[str, int]:
    """Create the three groups. Returns the id of the classic member, and the epoch of the newer group."""
    simple, classic, newer = round_.groups
    for group in round_.groups:
        await ask(10, 3, {"key": group, "key_type": 0})
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": round_.topics[0], "partitions": [partition]}]
    nobody = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    await ask(8, 8, {"group_id": simple, **nobody, "topics": topics})
    newcomer = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": [round_.topics[0]], "topic_partitions": []}
    absent = {"instance_id": None, "rack_id": None, "server_assignor": None, "subscribed_topic_regex": None}
    first = await ask(68, 1, {"group_id": newer, "member_id": NEWER_MEMBER, "member_epoch": 0, **absent, **newcomer})
    protocol = {"protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff"}]}
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 50, "group_instance_id": None, "reason": None}
    member: str = (await ask(11, 9, {"group_id": classic, "member_id": "", **times, **protocol})).member_id
    joined: Fields = await ask(11, 9, {"group_id": classic, "member_id": member, **times, **protocol})
    same = {"generation_id": joined.generation_id, "member_id": member, "group_instance_id": None}
    assignments = [{"member_id": member, "assignment": b""}]
    names = {"protocol_type": "consumer", "protocol_name": "range"}
    await ask(14, 5, {"group_id": classic, **same, **names, "assignments": assignments})
    return member, first.member_epoch
