"""aiokafka's interface: its names, its checks, its exceptions; compared with an installed aiokafka, if there is one."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import AsyncIterator
from typing import Any

import pytest
from waiting import until

from strandline import TopicPartition as OurTopicPartition
from strandline.client import errors as ours
from strandline.client.compat.aiokafka.errors import translated
from strandline.client.compat.aiokafka.listener import ListenerCalls
from strandline.client.compat.aiokafka.options import security as security_of
from strandline.compat import aiokafka
from strandline.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from strandline.compat.aiokafka import errors as theirs
from strandline.compat.aiokafka.abc import AbstractTokenProvider
from strandline.compat.aiokafka.helpers import create_ssl_context
from strandline.compat.aiokafka.partitioner import DefaultPartitioner
from strandline.compat.aiokafka.structs import OffsetAndMetadata, OffsetAndTimestamp, RecordMetadata
from strandline.testing import Cluster

from .test_group_cluster import fill

P0 = TopicPartition("orders", 0)
NOT_HERE = {"AIOKafkaClient"}
"""Names of aiokafka that are not for programs."""


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders", partitions=4)
        yield cluster


def consumer_of(cluster: Cluster, *topics: str, **options: Any) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        *topics, **{"bootstrap_servers": cluster.bootstrap_servers, "auto_offset_reset": "earliest", **options}
    )


# -- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", ["", "errors", "structs", "abc", "helpers", "producer", "consumer", "partitioner"])
def test_every_name_of_aiokafka_is_there(module: str) -> None:
    pytest.importorskip("aiokafka")
    original = __import__("aiokafka" + module and f"aiokafka.{module}".rstrip("."), fromlist=["x"])
    mirrored = __import__(f"strandline.compat.aiokafka.{module}".rstrip("."), fromlist=["x"])
    names = getattr(original, "__all__", []) if module != "errors" else _classes(original)
    assert {name for name in names if not hasattr(mirrored, name)} <= NOT_HERE | {"log"}


def _classes(module: Any) -> list[str]:
    return [name for name, kind in vars(module).items() if inspect.isclass(kind) and issubclass(kind, Exception)]


@pytest.mark.parametrize("name", ["AIOKafkaProducer", "AIOKafkaConsumer"])
def test_every_call_of_aiokafka_takes_the_same_arguments(name: str) -> None:
    original = getattr(pytest.importorskip("aiokafka"), name)
    mirrored = getattr(aiokafka, name)
    for call, function in vars(original).items():
        if inspect.isfunction(function) and (not call.startswith("_") or call == "__init__"):
            expected = {p.name: p.kind for p in inspect.signature(function).parameters.values()}
            found = {p.name: p.kind for p in inspect.signature(getattr(mirrored, call)).parameters.values()}
            assert found == expected, call
            assert inspect.iscoroutinefunction(getattr(mirrored, call)) == inspect.iscoroutinefunction(function), call


def test_defaults_of_aiokafka_are_kept() -> None:
    """Except for `acks` and idempotence, where ours are safer, and for defaults that name the library."""
    kafka = pytest.importorskip("aiokafka")
    for name in ("AIOKafkaProducer", "AIOKafkaConsumer"):
        expected = inspect.signature(getattr(kafka, name).__init__).parameters
        found = inspect.signature(getattr(aiokafka, name).__init__).parameters
        changed = {p.name for p in expected.values() if p.default != found[p.name].default}
        assert changed <= {"acks", "enable_idempotence", "partitioner", "client_id", "partition_assignment_strategy"}


def test_numbers_of_errors_are_those_of_aiokafka() -> None:
    kafka = pytest.importorskip("aiokafka.errors")
    mirrored = {number: kind.__name__ for number, kind in theirs.kafka_errors.items()}
    assert {number: kind.__name__ for number, kind in kafka.kafka_errors.items()}.items() <= mirrored.items()


def test_structs_have_the_fields_of_aiokafka() -> None:
    kafka = pytest.importorskip("aiokafka.structs")
    for kind in (RecordMetadata, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition):
        assert kind._fields == getattr(kafka, kind.__name__)._fields
    expected = list(inspect.signature(kafka.ConsumerRecord).parameters)
    assert list(inspect.signature(aiokafka.ConsumerRecord).parameters)[: len(expected)] == expected


def test_topic_partition_is_that_of_the_client() -> None:
    assert TopicPartition is OurTopicPartition


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (AIOKafkaProducer, {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI"}, "sasl_mechanism='GSSAPI' is not"),
        (AIOKafkaConsumer, {"group_id": "g", "partition_assignment_strategy": [object]}, "partition_assignment_strategy"),
    ],
)
async def test_unsupported_option_names_itself_and_an_alternative(kind: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(theirs.UnsupportedByStrandline, match=reason):
        kind(**options)


CONTEXT = create_ssl_context()
USER = {"sasl_plain_username": "alice", "sasl_plain_password": "hunter2-secret"}


@pytest.mark.parametrize("kind", [AIOKafkaProducer, AIOKafkaConsumer])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"security_protocol": "SSL"}, "`ssl_context` is mandatory"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "alice"}, "sasl_plain_password required for PLAIN"),
        ({"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}, "sasl_oauth_token_provider required"),
    ],
)
async def test_security_that_lacks_something_is_a_value_error(kind: Any, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind(**options)


async def test_security_has_aiokafkas_defaults_and_ignores_what_it_does_not_need() -> None:
    given = {"security_protocol": "SASL_SSL", "ssl_context": CONTEXT, **USER}
    assert security_of(given) == {**given, "sasl_mechanism": "PLAIN"}
    assert security_of({**given, "security_protocol": "PLAINTEXT"}) == {"security_protocol": "PLAINTEXT"}
    producer = AIOKafkaProducer(**{**given, "sasl_mechanism": "SCRAM-SHA-512"})
    security = producer._producer.options.connection_security
    assert (security.security_protocol, security.ssl_context) == ("SASL_SSL", CONTEXT)
    assert (security.sasl_mechanism, security.sasl_plain_username) == ("SCRAM-SHA-512", "alice")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ours.AuthenticationFailed("no", code=58), theirs.SaslAuthenticationFailed),
        (ours.AuthenticationFailed("no", code=33), theirs.UnsupportedSaslMechanismError),
        (ours.AuthenticationFailed("the certificate has expired"), theirs.AuthenticationFailedError),
        (ours.TopicAuthorizationFailed("no", topic="t", code=29), theirs.TopicAuthorizationFailedError),
        (ours.DeliveryNotAuthorized("no", topic="t", code=29), theirs.TopicAuthorizationFailedError),
        (ours.GroupMembershipNotAuthorized("no", code=30), theirs.GroupAuthorizationFailedError),
        (ours.ClusterAuthorizationFailed("no", code=31), theirs.ClusterAuthorizationFailedError),
        (ours.TransactionalIdAuthorizationFailed("no", code=53), theirs.TransactionalIdAuthorizationFailed),
    ],
)
def test_errors_of_security_are_aiokafkas(error: ours.ClientError, kind: type[Exception]) -> None:
    assert type(translated(error)) is kind


async def test_options_that_the_brokers_decide_have_no_effect() -> None:
    """The brokers' configuration has the times of a group of the newer protocol."""
    given = AIOKafkaConsumer(group_id="g", session_timeout_ms=6_000, heartbeat_interval_ms=500, consumer_timeout_ms=1)
    options, defaults = (dataclasses.asdict(each._reader.options) for each in (given, AIOKafkaConsumer(group_id="g")))
    own = {"on_state_change"}
    assert {name: options[name] for name in options.keys() - own} == {name: defaults[name] for name in defaults.keys() - own}


async def test_rebalance_timeout_is_that_of_the_member() -> None:
    assert AIOKafkaConsumer(group_id="g", rebalance_timeout_ms=7)._reader.options.rebalance_timeout_ms == 7


async def test_deprecated_options_warn() -> None:
    with pytest.warns(DeprecationWarning, match="loop"):
        AIOKafkaProducer(loop=asyncio.get_running_loop())
    with pytest.warns(DeprecationWarning, match="api_version"):
        AIOKafkaConsumer(api_version="auto")


def test_clients_are_made_in_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        AIOKafkaProducer()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost", ["localhost:9092"]),
        ("a:1,b", ["a:1", "b:9092"]),
        (["a", "b:2"], ["a:9092", "b:2"]),
        ("::1", ["[::1]:9092"]),
        ("[::1]:7", ["[::1]:7"]),
    ],
)
async def test_servers_have_a_default_port(given: Any, expected: list[str]) -> None:
    assert AIOKafkaProducer(bootstrap_servers=given)._producer.options.bootstrap_servers == expected


@pytest.mark.parametrize(
    ("given", "acks", "idempotent", "in_flight"),
    [
        ({}, "all", True, 5),
        ({"acks": 1}, 1, False, 1),
        ({"acks": "all"}, "all", True, 5),
        ({"acks": -1, "enable_idempotence": False}, "all", False, 1),
        ({"enable_idempotence": False}, 1, False, 1),
        ({"enable_idempotence": True}, "all", True, 5),
        ({"acks": 0}, 0, False, 1),
    ],
)
async def test_acks_and_idempotence(given: dict[str, Any], acks: Any, idempotent: bool, in_flight: int) -> None:
    """Nothing given: safe. Without idempotence one request at a time, so that a retry keeps the order."""
    options = AIOKafkaProducer(**given)._producer.options
    assert (options.acks, options.idempotent, options.max_in_flight_requests_per_connection) == (acks, idempotent, in_flight)


@pytest.mark.parametrize(
    "wrong", [{"acks": 2}, {"acks": True}, {"acks": 1, "enable_idempotence": True}, {"compression_type": "rar"}]
)
async def test_wrong_values_are_value_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        AIOKafkaProducer(**wrong)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ours.BufferFull("no room"), theirs.KafkaTimeoutError),
        (ours.ClientClosed("stopped"), theirs.ProducerClosed),
        (ours.NoBrokersAvailable("none"), theirs.KafkaConnectionError),
        (ours.UnknownTopic("none", topic="t"), theirs.UnknownTopicOrPartitionError),
        (ours.DeliveryTimeout("late"), theirs.KafkaTimeoutError),
        (ours.DeliveryFailed("no", code=19), theirs.NotEnoughReplicasError),
        (ours.DeliveryFailed("no", code=10), theirs.MessageSizeTooLargeError),
        (ours.RequestFailed("no", code=25), theirs.UnknownMemberIdError),
        (ours.GroupMembershipFailed("no", code=81), theirs.UnknownError),
        (ours.CommitFailed("gone"), theirs.CommitFailedError),
        (ours.UsageError("wrong"), theirs.IllegalArgumentError),
        (ours.CorruptRecords("crc", topic="t", partition=0, first_offset=1, last_offset=2), theirs.InvalidMessageError),
    ],
)
def test_errors_become_those_of_aiokafka(error: Any, kind: type[Exception]) -> None:
    found = translated(error)
    assert type(found) is kind
    assert found.__cause__ is error
    assert str(error) in str(found)


def test_error_of_a_position_has_the_partitions() -> None:
    """Programs read `err.args[0].keys()`."""
    error = ours.OffsetOutOfRange("outside", topic="orders", partition=2)
    assert translated(error, position=70).args == ({TopicPartition("orders", 2): 70},)
    assert type(translated(error)) is theirs.NoOffsetForPartitionError


def test_flags_of_codes_are_those_of_our_table() -> None:
    assert theirs.for_code(6) is theirs.NotLeaderForPartitionError
    assert theirs.NotLeaderForPartitionError.retriable
    assert theirs.NotLeaderForPartitionError.invalid_metadata
    assert not theirs.for_code(999).retriable
    assert str(theirs.KafkaTimeoutError()) == "KafkaTimeoutError"


# -- the producer -----------------------------------------------------------------------------------------------------


async def test_send_returns_a_future(cluster: Cluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        futures = [await producer.send("orders", b"%d" % number, partition=1) for number in range(3)]
        assert all(isinstance(future, asyncio.Future) for future in futures)
        done, _ = await asyncio.wait(futures)
        assert sorted(future.result().offset for future in done) == [0, 1, 2]
        assert futures[0].result().topic_partition == TopicPartition("orders", 1)
        assert await producer.partitions_for("orders") == {0, 1, 2, 3}


async def test_serializers_get_none_too(cluster: Cluster) -> None:
    """aiokafka calls serializers for None, too."""

    def encode(data: str | None) -> bytes:
        return b"none" if data is None else data.encode()

    options: dict[str, Any] = {"key_serializer": encode, "value_serializer": encode}
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **options) as producer:
        await producer.send_and_wait("orders", "tea", partition=0)
        batch = producer.create_batch()
        batch.append(key="k", value="v", timestamp=1_700_000_000_000, headers=[("h", b"1")])
        await (await producer.send_batch(batch, "orders", partition=0))
        assert batch.append(key="k", value="v", timestamp=None) is None
    decode = {"key_deserializer": lambda data: data and data.decode(), "value_deserializer": lambda data: (data, "decoded")}
    async with consumer_of(cluster, "orders", **decode) as consumer:
        first, second = await consumer.getone(), await consumer.getone()
    assert (first.key, first.value, first.serialized_value_size) == ("none", (b"tea", "decoded"), 3)
    assert (second.timestamp, second.headers, second.serialized_key_size) == (1_700_000_000_000, (("h", b"1"),), 1)


async def test_record_needs_key_or_value(cluster: Cluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        with pytest.raises(AssertionError, match="key or a value"):
            await producer.send("orders")
        with pytest.raises(theirs.MessageSizeTooLargeError):
            await producer.send("orders", bytes(2_000_000))
        with pytest.raises(theirs.UnknownTopicOrPartitionError):
            await producer.send("orders", b"1", partition=9)
        with pytest.raises(aiokafka.IllegalOperation, match="transaction"):
            producer.transaction()
    with pytest.raises(theirs.ProducerClosed):
        await producer.send("orders", b"1")


async def test_no_acknowledgement_is_none(cluster: Cluster) -> None:
    async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers, acks=0) as producer:
        assert await producer.send_and_wait("orders", b"1") is None


def test_partitioner_can_be_called() -> None:
    """murmur2("21") is negative in Java; the vector is that of test_partition_queue."""
    partitioner = DefaultPartitioner()
    assert partitioner(b"k", [0], [0]) == 0
    assert partitioner(None, [0, 1, 2], [2]) == 2
    kafka = pytest.importorskip("aiokafka.partitioner").DefaultPartitioner()
    keys = [b"%d" % number for number in range(200)]
    assert [partitioner(key, list(range(7)), []) for key in keys] == [kafka(key, list(range(7)), []) for key in keys]


# -- the consumer -----------------------------------------------------------------------------------------------------


async def test_start_waits_for_partitions(cluster: Cluster) -> None:
    """Programs look at `assignment` right after `start`."""
    async with consumer_of(cluster, "orders", group_id="g") as consumer:
        assert len(consumer.assignment()) == 4
    async with consumer_of(cluster, "orders") as consumer:
        assert len(consumer.assignment()) == 4
        assert consumer.partitions_for_topic("orders") == {0, 1, 2, 3}
        assert consumer.partitions_for_topic("unknown") is None


async def test_unknown_topic_is_an_error_of_start(cluster: Cluster) -> None:
    consumer = consumer_of(cluster, "nowhere")
    with pytest.raises(theirs.UnknownTopicOrPartitionError):
        await consumer.start()


async def test_assign_is_a_plain_call(cluster: Cluster) -> None:
    """Calls that follow at once, before the partitions were looked up, take effect."""
    await fill(cluster, 40)
    consumer = consumer_of(cluster)
    consumer.assign([P0])
    async with consumer:
        consumer.seek(P0, 7)
        assert consumer.assignment() == {P0}
        assert (await consumer.getone()).offset == 7
        other = TopicPartition("orders", 1)
        consumer.assign([P0, other])
        consumer.pause(P0)
        assert consumer.paused() == {P0}
        assert (await consumer.getone()).partition == 1
        consumer.resume(P0)
        assert (await consumer.getone(P0)).offset == 8
        with pytest.raises(aiokafka.errors.IllegalStateError):
            consumer.subscribe(["orders"])
        consumer.assign([TopicPartition("orders", 9)])
        with pytest.raises(theirs.UnknownTopicOrPartitionError):
            await consumer.getone()


async def test_checks_of_arguments(cluster: Cluster) -> None:
    async with consumer_of(cluster, "orders") as consumer:
        with pytest.raises(TypeError):
            consumer.subscribe("orders")
        with pytest.raises(TypeError):
            consumer.subscribe()
        with pytest.raises(TypeError):
            consumer.subscribe(["orders"], pattern="x")
        with pytest.raises(TypeError):
            consumer.subscribe(["orders"], listener=object())
        with pytest.raises(ValueError):
            consumer.subscribe(pattern="(")
        with pytest.raises(aiokafka.IllegalOperation):
            await consumer.commit()
        with pytest.raises(aiokafka.IllegalOperation):
            await consumer.committed(P0)
        with pytest.raises(ValueError):
            consumer.seek(P0, -1)
        with pytest.raises(theirs.IllegalStateError):
            consumer.seek(TopicPartition("orders", 9), 0)
        with pytest.raises(TypeError):
            await consumer.seek_to_beginning("orders")
        with pytest.raises(ValueError):
            await consumer.getmany(max_records=0)
        with pytest.raises(ValueError):
            await consumer.offsets_for_times({P0: -1})
        with pytest.raises(theirs.IllegalStateError):
            consumer.assign([P0])
    with pytest.raises(aiokafka.ConsumerStoppedError):
        await consumer.getone()
    with pytest.raises(aiokafka.ConsumerStoppedError):
        consumer.__aiter__()
    with pytest.raises(ValueError):
        AIOKafkaConsumer(max_poll_records=0)


async def test_offsets_and_positions(cluster: Cluster) -> None:
    await fill(cluster, 40)
    async with consumer_of(cluster, "orders", group_id="g") as consumer:
        assert await consumer.beginning_offsets([P0]) == {P0: 0}
        assert await consumer.end_offsets([P0]) == {P0: 10}
        found = await consumer.offsets_for_times({P0: 0, TopicPartition("orders", 1): 2**50})
        assert type(found[P0]) is OffsetAndTimestamp
        assert (found[P0].offset, found[TopicPartition("orders", 1)]) == (0, None)
        assert await consumer.seek_to_end(P0)
        assert await consumer.position(P0) == 10
        assert await consumer.seek_to_beginning()
        records = await consumer.getmany(P0, timeout_ms=5_000, max_records=4)
        assert [record.offset for record in records[P0]] == [0, 1, 2, 3]
        await consumer.commit({P0: (3, "note")})
        assert await consumer.committed(P0) == 3
        assert (await consumer.seek_to_committed(P0)) == {P0: 3}
        assert await consumer.position(P0) == 3
        assert consumer.highwater(P0) == 10
        assert consumer.last_stable_offset(P0) == -1
        for wrong in ({}, {P0: "3"}, {P0: (3,)}):
            with pytest.raises(ValueError):
                await consumer.commit(wrong)
        with pytest.raises(theirs.IllegalStateError):
            await consumer.commit({TopicPartition("orders", 9): 1})
        assert await consumer.topics() == {"orders"}


async def test_no_position_and_no_policy(cluster: Cluster) -> None:
    async with consumer_of(cluster, "orders", group_id="g", auto_offset_reset="none") as consumer:
        with pytest.raises(theirs.NoOffsetForPartitionError):
            await consumer.getone()


async def test_iteration_ends_when_the_consumer_is_stopped(cluster: Cluster) -> None:
    consumer = consumer_of(cluster, "orders")
    await consumer.start()

    async def read() -> list[Any]:
        return [record async for record in consumer]

    reading = asyncio.create_task(read())
    await fill(cluster, 3)
    await until(lambda: consumer.highwater(P0))
    await consumer.stop()
    assert len(await reading) <= 3


async def test_iteration_before_start_is_an_error(cluster: Cluster) -> None:
    """The iteration used to end at once, as if the topic had no records: a program that had forgotten `start` did nothing,
    without an error."""
    consumer = consumer_of(cluster, "orders")
    with pytest.raises(theirs.IllegalStateError, match="not started"):
        await anext(aiter(consumer))
    with pytest.raises(theirs.IllegalStateError, match="not started"):
        await consumer.getmany()


async def test_second_start_is_an_error_and_does_not_stop_the_consumer(cluster: Cluster) -> None:
    """It used to stop the consumer that was running."""
    await fill(cluster, 4)
    async with consumer_of(cluster, "orders", group_id="g") as consumer:
        with pytest.raises(AssertionError):
            await consumer.start()
        assert await asyncio.wait_for(consumer.getone(), 5)
    with pytest.raises(AssertionError):
        await consumer.start()


async def test_cancelled_start_leaves_the_group(cluster: Cluster) -> None:
    """`async with` calls no `__aexit__` if `__aenter__` was cancelled. The consumer used to stay a member that reads nothing, and
    kept its partitions until `max_poll_interval_ms`."""
    async with consumer_of(cluster, "orders", group_id="g") as first:
        assert len(first.assignment()) == 4
        second = consumer_of(cluster, "orders", group_id="g")
        starting = asyncio.create_task(second.start())
        await until(lambda: second.health().get("group", {}).get("member_epoch", 0) > 0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert second.health()["state"] == "stopped"
        await read_while(first, lambda: len(first.assignment()) == 4)


async def test_assign_after_stop_begins_nothing(cluster: Cluster) -> None:
    """Its look-up used to fail in the background: "Task exception was never retrieved"."""
    consumer = consumer_of(cluster)
    await consumer.start()
    await consumer.stop()
    tasks = asyncio.all_tasks()
    consumer.assign([P0])
    assert asyncio.all_tasks() == tasks


async def test_cancelled_iteration_goes_on(cluster: Cluster) -> None:
    """A program that waits with a time limit (`asyncio.wait_for(anext(...))`) loses no record."""
    async with consumer_of(cluster, "orders") as consumer:
        records = aiter(consumer)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(records), 0.05)
        await fill(cluster, 8)
        assert sorted([(await anext(records)).value for _ in range(8)]) == [b"%d" % number for number in range(8)]


# -- listeners --------------------------------------------------------------------------------------------------------


class Listener(ConsumerRebalanceListener):
    def __init__(self) -> None:
        self.calls: list[tuple[str, set[int]]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.calls.append(("revoked", {tp.partition for tp in revoked}))

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.calls.append(("assigned", {tp.partition for tp in assigned}))


async def read_while(consumer: AIOKafkaConsumer, condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await consumer.getmany(timeout_ms=10)


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost"])
async def test_consumer_that_stops_calls_no_listener(name: str) -> None:
    """As in aiokafka, also if the coordinator removes the consumer from the group meanwhile: the program is closing the resources
    that its listener would use."""
    calls = ListenerCalls(listener := Listener())
    await calls.callbacks()["on_assigned"]([P0])
    del listener.calls[:]
    calls.is_stopping = True
    await calls.callbacks()[name]([P0])
    assert listener.calls == []


async def test_listener_gets_complete_sets(cluster: Cluster) -> None:
    """Programs for aiokafka expect complete sets: they save and load the state of all partitions."""
    listener = Listener()
    first = consumer_of(cluster, group_id="g")
    first.subscribe(["orders"], listener=listener)
    async with first:
        assert listener.calls == [("revoked", set()), ("assigned", {0, 1, 2, 3})]
        starting = asyncio.create_task((second := consumer_of(cluster, "orders", group_id="g")).start())
        await read_while(first, lambda: len(listener.calls) == 4)
        await starting
        mine = {tp.partition for tp in first.assignment()}
        assert listener.calls[2:] == [("revoked", {0, 1, 2, 3}), ("assigned", mine)]
        await second.stop()
        await read_while(first, lambda: len(listener.calls) == 6)
        assert listener.calls[4:] == [("revoked", mine), ("assigned", {0, 1, 2, 3})]
    assert len(listener.calls) == 6, "`stop` calls no listener"


async def test_listener_that_knows_incremental_rebalances_gets_what_moves(cluster: Cluster) -> None:
    class Incremental(Listener):
        def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
            self.calls.append(("lost", {tp.partition for tp in lost}))

    listener = Incremental()
    first = consumer_of(cluster, group_id="g")
    first.subscribe(["orders"], listener=listener)
    async with first:
        starting = asyncio.create_task((second := consumer_of(cluster, "orders", group_id="g")).start())
        await read_while(first, lambda: len(first.assignment()) == 2)
        await starting
        gone = {tp.partition for tp in second.assignment()}
        assert listener.calls == [("assigned", {0, 1, 2, 3}), ("revoked", gone)]
        await second.stop()


async def test_error_of_a_listener_does_not_end_the_consumer(cluster: Cluster) -> None:
    class Broken(Listener):
        def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
            raise ValueError

    await fill(cluster, 1)
    consumer = consumer_of(cluster, group_id="g")
    consumer.subscribe(["orders"], listener=Broken())
    async with consumer:
        assert (await consumer.getone()).value == b"0"


async def test_pattern_in_a_group(cluster: Cluster) -> None:
    """As with aiokafka, an expression matches from the beginning of a name on, and need not match the rest."""
    await fill(cluster, 1)
    consumer = consumer_of(cluster, group_id="g")
    consumer.subscribe(pattern="^ord")
    async with consumer:
        assert (await consumer.getone()).topic == "orders"
        assert consumer.subscription() == {"orders"}


async def test_pattern_without_a_group_keeps_positions(cluster: Cluster) -> None:
    """A topic that is created later is added; reading the others continues at their positions."""
    await fill(cluster, 4)
    consumer = consumer_of(cluster, metadata_max_age_ms=50)
    consumer.subscribe(pattern="^(orders|later)")
    async with consumer:
        assert len([await consumer.getone() for _ in range(4)]) == 4
        await cluster.create_topic("later")
        await read_while(consumer, lambda: "later" in consumer.subscription() and len(consumer.assignment()) == 5)
        async with AIOKafkaProducer(bootstrap_servers=cluster.bootstrap_servers) as producer:
            await producer.send_and_wait("later", b"new")
        assert (await consumer.getone()).value == b"new"
        assert await consumer.getmany() == {}


def test_token_provider_can_be_derived() -> None:
    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return "token"

    assert Provider().extensions() == {}
