"""Finding the cluster, accepting metadata, and errors that say what is wrong with an address."""

from __future__ import annotations

import asyncio
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from functools import partial
from random import Random

import pytest
from waiting import until

from strandline.client import Admin, NewTopic, Producer
from strandline.client.admin import leader_offsets
from strandline.client.cluster import refresh_gap
from strandline.client.cluster.cluster import Cluster
from strandline.client.cluster.connection_state import ConnectionState
from strandline.client.cluster.metadata import MetadataCache
from strandline.client.errors import NoBrokersAvailable, RequestFailed, RequestTimeout, UnknownTopic, UsageError
from strandline.client.option_types import parse_bootstrap
from strandline.client.options import ClientOptions
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)
from strandline.protocol.messages.data import LATEST_TIMESTAMP
from strandline.protocol.rpc.server import ServerRequest

from .scripted import ScriptedBroker, ScriptedCluster

ID_1, ID_2 = bytes(15) + b"\1", bytes(15) + b"\2"


def answer(leader_id: int, leader_epoch: int, topic_id: bytes = ID_1, partitions: int = 1, error: int = 0) -> MetadataResponse:
    listed = [MetadataPartition(0, i, leader_id, leader_epoch, 0, [1, 2], [1, 2], []) for i in range(partitions)]
    brokers = [MetadataBroker(1, "a", 1), MetadataBroker(2, "b", 2)]
    return MetadataResponse(brokers, "c", 101, [MetadataTopic(error, "orders", topic_id, [] if error else listed)])


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_lower_leader_epoch_is_ignored() -> None:
    """Answers of brokers that lag behind arrive late; accepting them would send everything to a deposed leader."""
    cache = MetadataCache()
    cache.update(answer(1, 5))
    assert cache.update(answer(2, 4)) == []
    assert cache.leader("orders", 0) == 1
    assert cache.update(answer(2, 6)) == ["orders"]
    assert cache.leader("orders", 0) == 2


def test_other_topic_id_is_another_topic() -> None:
    cache = MetadataCache()
    cache.update(answer(1, 5, partitions=3))
    cache.update(answer(2, 0, ID_2))
    assert cache.leader("orders", 0) == 2
    assert list(cache.topics["orders"].partitions) == [0]
    assert cache.names == {ID_2: "orders"}


def test_deleted_topic_is_forgotten_and_old_leader_hint_ignored() -> None:
    cache = MetadataCache()
    cache.update(answer(1, 5))
    assert not cache.update_leader("orders", 0, 2, 5)
    assert not cache.update_leader("orders", 0, 9, 6), "an unknown broker cannot be asked"
    assert cache.update_leader("orders", 0, 2, 6)
    cache.forget_leader("orders", 0, 1)
    assert cache.leader("orders", 0) == 2
    cache.forget_leader("orders", 0, 2)
    assert cache.leader("orders", 0) == -1
    assert cache.update(answer(-1, -1, error=3)) == ["orders"]
    assert not cache.topics
    assert not cache.names


# -- addresses --------------------------------------------------------------------------------------------------------


def test_bootstrap_addresses() -> None:
    assert parse_bootstrap("a:1, b:2,,a:1") == [("a", 1), ("b", 2)]
    assert parse_bootstrap(["[::1]:9092"]) == [("::1", 9092)]
    for wrong in ("", "host", "host:", ":9", "host:x", "host:70000"):
        with pytest.raises(UsageError):
            parse_bootstrap(wrong)


async def test_unreachable_cluster_is_reported_soon() -> None:
    producer = Producer(bootstrap_servers="127.0.0.1:1,127.0.0.1:2", connect_timeout_ms=100)
    with pytest.raises(NoBrokersAvailable, match=r"127.0.0.1:1, 127.0.0.1:2: .*127.0.0.1:1: Connection refused") as down:
        async with asyncio.timeout(2):
            await producer.start()
    assert "\n" not in str(down.value)
    assert down.value.retriable


async def test_repeated_error_does_not_keep_frames() -> None:
    """While a broker is away, each request to it fails at once with the error of the last attempt; its traceback must not
    grow."""
    options = ClientOptions(reconnect_backoff_ms=60_000, reconnect_backoff_max_ms=60_000)
    state = ConnectionState(("127.0.0.1", 1), options, lambda *_: None)
    with pytest.raises(BrokerError):
        await state.attempt()
    lengths = set()
    for _ in range(5):
        with pytest.raises(BrokerError) as raised:
            state.attempt()
        lengths.add(len(traceback.extract_tb(raised.value.__traceback__)))
    assert len(lengths) == 1


async def test_one_live_bootstrap_address_is_enough() -> None:
    async with ScriptedCluster() as cluster:
        cluster.create("orders")
        servers = f"127.0.0.1:1,127.0.0.1:{cluster.brokers[2].port}"
        async with Producer(bootstrap_servers=servers) as producer:
            assert (await producer.send_and_wait("orders", b"v")).offset == 0


async def test_wrong_advertised_addresses_are_named() -> None:
    """A frequent mistake: the bootstrap address answers, and the addresses that it advertises cannot be reached from here."""
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        cluster.advertised[1] = ("127.0.0.1", 1)
        async with Producer(bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=300, connect_timeout_ms=200) as producer:
            with pytest.raises(Exception, match=r"127.0.0.1:1\b") as lost:
                await producer.send_and_wait("orders", b"v")
            assert "Connection refused" in str(lost.value)


async def assert_start_fails(bootstrap: str, reason: str) -> None:
    """Starting a client that has time for one attempt fails and names this reason. On a busy machine one attempt may need more
    than 200 ms."""
    for connect_timeout_ms in (200, 1000, 5000, 20_000):
        with pytest.raises(NoBrokersAvailable) as failed:
            await Producer(bootstrap_servers=bootstrap, connect_timeout_ms=connect_timeout_ms).start()
        if reason in str(failed.value):
            return
    pytest.fail(f"{failed.value} does not say that {reason!r}")


@pytest.mark.parametrize(
    ("reply", "spoken"), [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"), (b"\x15\x03\x01\x00\x02\x02\x46", "TLS")]
)
async def test_port_of_another_protocol_is_recognised(reply: bytes, spoken: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await assert_start_fails(f"127.0.0.1:{port}", f"this port speaks {spoken}")
    assert ssl.PROTOCOL_TLS_CLIENT


async def test_a_controller_is_not_a_broker() -> None:
    async with ScriptedCluster(1) as cluster:
        assert cluster.brokers[1].server is not None
        cluster.brokers[1].server.role = "controller"
        await assert_start_fails(cluster.bootstrap, "is a controller")


async def test_a_thousand_askers_make_one_request() -> None:
    async with ScriptedCluster(1) as cluster:
        client = Cluster(ClientOptions(bootstrap_servers=cluster.bootstrap), Random(1))
        await client.start()
        before = cluster.metadata_requests
        await asyncio.gather(*(client.metadata.refresh(1000) for _ in range(1000)))
        assert cluster.metadata_requests - before == 1
        await client.close()


async def test_hanging_broker_delays_metadata_briefly() -> None:
    async with ScriptedCluster() as cluster:
        client = Cluster(ClientOptions(bootstrap_servers=cluster.bootstrap), Random(1))
        await client.start()
        cluster.brokers[1].hanging = cluster.brokers[2].hanging = True
        loop = asyncio.get_running_loop()
        started = loop.time()
        for _ in range(3):
            await client.metadata.refresh(5000)
        assert loop.time() - started < 3, "without the second broker that is asked meanwhile it would be 5 s each"
        await client.close()


async def test_new_topic_does_not_wait_for_the_gap_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap spares brokers repeated requests; after many refreshes it is 250 ms. Every new client used to wait 20 ms of it,
    because it finds the cluster and asks for its topic right after that."""
    monkeypatch.setattr(refresh_gap, "REFRESH_GAP_MS", (60_000,) * 3)
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        cluster.create("payments")
        client = Cluster(ClientOptions(bootstrap_servers=cluster.bootstrap), Random(1))
        await client.start()
        async with asyncio.timeout(10):
            await client.metadata.topic("orders", 20_000)
            repeated = asyncio.create_task(client.metadata.refresh(20_000))
            await asyncio.sleep(0)
            assert not repeated.done()
            await client.metadata.topic("payments", 20_000)
            await repeated
        await client.close()


async def test_known_topic_waits_for_the_gap_between_refreshes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refresh_gap, "REFRESH_GAP_MS", (60_000,) * 3)
    async with ScriptedCluster(1) as cluster:
        cluster.create("orders")
        client = Cluster(ClientOptions(bootstrap_servers=cluster.bootstrap), Random(1))
        await client.start()
        await client.metadata.topic("orders", 5_000)
        asked = cluster.metadata_requests
        client.metadata.want_topics(["orders"])
        with pytest.raises(NoBrokersAvailable):
            await client.metadata.refresh(200)
        assert cluster.metadata_requests == asked
        await client.close()


async def test_a_cancelled_background_task_is_started_again() -> None:
    """Test frameworks cancel all tasks; the next caller starts the refresh again."""
    async with ScriptedCluster(1) as cluster:
        client = Cluster(ClientOptions(bootstrap_servers=cluster.bootstrap), Random(1))
        await client.start()
        client.metadata.request_refresh()
        await asyncio.sleep(0)
        assert client.metadata._task is not None
        client.metadata._task.cancel()
        await client.metadata.refresh(1000)
        await client.close()


# -- admin ------------------------------------------------------------------------------------------------------------


async def test_topics_are_created_described_and_deleted() -> None:
    async with ScriptedCluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        (orders,) = await admin.create_topics([NewTopic("orders", partitions=3)])
        assert [p.leader_id for p in orders.partitions] == [1, 2, 3]
        assert await admin.list_topics() == ["orders"]
        with pytest.raises(RequestFailed, match=r"orders.*TOPIC_ALREADY_EXISTS") as exists:
            await admin.create_topics(["orders"])
        assert not exists.value.retriable
        await admin.delete_topics(["orders"])
        with pytest.raises(UnknownTopic):
            await admin.delete_topics(["orders"])
        with pytest.raises(UnknownTopic, match="orders"):
            await admin.describe_topics(["orders"])
        assert [broker.broker_id for broker in (await admin.describe_cluster()).brokers] == [1, 2, 3]


def losing_first_response(handle: Callable[[ServerRequest], None]) -> Callable[[ServerRequest], None]:
    """Handles requests; the response to the first one is lost with its connection."""
    is_first = True

    def lossy(request: ServerRequest) -> None:
        nonlocal is_first
        if is_first:
            request.connection.close()
        is_first = False
        handle(request)

    return lossy


@pytest.fixture
async def growing() -> AsyncIterator[ScriptedCluster]:
    """A cluster that loses the response to the first request to add partitions to the topic "orders"."""
    cluster = ScriptedCluster(1)
    cluster.create("orders")

    def grow(request: ServerRequest) -> None:
        assert isinstance(request.body, CreatePartitionsRequest)
        (asked,) = request.body.topics
        present = len([key for key in cluster.partitions if key[0] == cluster.topics[asked.name]])
        if asked.count > present and not request.body.validate_only:
            cluster.create(asked.name, asked.count)
        code = ErrorCode.NONE if asked.count > present else ErrorCode.INVALID_PARTITIONS
        request.reply(CreatePartitionsResponse([CreatePartitionsTopicResult(asked.name, code)]))

    cluster.more_handlers = lambda broker: {apis.CREATE_PARTITIONS: losing_first_response(grow)}
    async with cluster:
        yield cluster


async def test_partitions_are_added_although_the_response_was_lost(growing: ScriptedCluster) -> None:
    """The controller rejects the repeated request, because the topic has that many partitions already."""
    async with Admin(bootstrap_servers=growing.bootstrap) as admin:
        await admin.create_partitions("orders", 3)
        (orders,) = await admin.describe_topics(["orders"])
        assert len(orders.partitions) == 3
        with pytest.raises(RequestFailed, match="INVALID_PARTITIONS"):
            await admin.create_partitions("orders", 3)


@pytest.mark.parametrize(("count", "validate_only"), [(2, False), (4, True)])
async def test_repeated_request_for_partitions_does_not_hide_a_refusal(
    growing: ScriptedCluster, count: int, validate_only: bool
) -> None:
    growing.create("orders", 4)
    async with Admin(bootstrap_servers=growing.bootstrap) as admin:
        with pytest.raises(RequestFailed, match="INVALID_PARTITIONS"):
            await admin.create_partitions("orders", count, validate_only=validate_only)


async def test_repeated_request_gives_the_broker_only_the_time_that_is_left() -> None:
    """A broker without a controller keeps a request for the time that it names, and would make the change after the call has
    failed."""
    cluster = ScriptedCluster(1)
    named: list[int] = []

    def hang_up_late(request: ServerRequest) -> None:
        assert isinstance(request.body, CreatePartitionsRequest)
        named.append(request.body.timeout_ms)
        asyncio.get_running_loop().call_later(0.3, request.connection.close)

    cluster.more_handlers = lambda broker: {apis.CREATE_PARTITIONS: hang_up_late}
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=800) as admin:
        with pytest.raises(RequestTimeout):
            await admin.create_partitions("orders", 3, timeout_ms=1000)
    first, second, *_ = named
    assert first == 800, "the client waits no longer for one response"
    assert second <= 700, "the first attempt has taken 300 of the 1000 ms"


async def test_repeated_check_of_a_new_topic_finds_the_one_that_exists() -> None:
    """A request that only checks has not created the topic."""
    cluster = ScriptedCluster(1)
    cluster.create("orders")
    cluster.more_handlers = lambda broker: {apis.CREATE_TOPICS: losing_first_response(broker.create_topics)}
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        with pytest.raises(RequestFailed, match="TOPIC_ALREADY_EXISTS"):
            await admin.create_topics(["orders"], validate_only=True)


async def test_new_leader_is_asked_for_offsets_if_the_old_one_hangs() -> None:
    """The call waited for the old leader until its own time limit, and returned without the partition."""
    async with ScriptedCluster(2) as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        cluster.create("orders")
        await admin.list_offsets({("orders", 0): LATEST_TIMESTAMP})
        cluster.brokers[1].hanging = True
        asked = asyncio.create_task(admin.list_offsets({("orders", 0): LATEST_TIMESTAMP}))
        await until(lambda: bool(cluster.brokers[1].held))
        cluster.move_leader("orders", 0, 2)
        async with asyncio.timeout(10):
            (end,) = (await asked).values()
        assert end is not None
        assert end.leader_epoch == 1
        cluster.brokers[1].answer_late()


async def test_leader_that_needs_long_for_the_offsets_is_given_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look up a time in many partitions, a leader decodes a batch of each. If each repetition gave it as little time as the
    first request, the call would never get an answer."""
    monkeypatch.setattr(leader_offsets, "ANSWER_TIMEOUT_MS", 20)
    cluster = ScriptedCluster(1)
    cluster.create("orders")

    def answer_slowly(broker: ScriptedBroker, request: ServerRequest) -> None:
        asyncio.get_running_loop().call_later(0.1, broker.list_offsets, request)

    cluster.more_handlers = lambda broker: {apis.LIST_OFFSETS: partial(answer_slowly, broker)}
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert await admin.list_offsets({("orders", 0): LATEST_TIMESTAMP}, timeout_ms=5000)


async def test_an_admin_call_ends_at_its_timeout() -> None:
    async with ScriptedCluster() as cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        for broker in cluster.brokers.values():
            broker.hanging = True
        async with asyncio.timeout(2):
            with pytest.raises(RequestTimeout):
                await admin.create_topics(["orders"], timeout_ms=200)
            with pytest.raises(RequestTimeout):
                await admin.describe_cluster(timeout_ms=200)
            with pytest.raises(UsageError):
                await admin.describe_configs("planet", "x")


# -- brokers that are cut off ------------------------------------------------------------------------------------------


async def test_metadata_without_controller_is_last_choice() -> None:
    """A broker that is cut off from its cluster, but not from the client, answers at once with old metadata."""
    async with ScriptedCluster() as cluster:
        for cut_off in cluster.brokers.values():
            cut_off.controller_id = -1
            async with Admin(bootstrap_servers=f"127.0.0.1:{cut_off.port},{cluster.bootstrap}") as admin:
                for _ in range(4):  # every broker has its turn to be asked first
                    assert (await admin.describe_cluster()).controller_id == 101
            cut_off.controller_id = 101


async def test_without_controller_first_answer_counts() -> None:
    """All controllers may be down for a while: the data path and all requests that only read still work."""
    async with ScriptedCluster() as cluster:
        for broker in cluster.brokers.values():
            broker.controller_id = -1
        cluster.brokers[2].mute = True
        async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
            assert (await admin.describe_cluster(timeout_ms=5_000)).controller_id == -1


async def test_topics_are_asked_for_by_their_ids_once() -> None:
    """A group's coordinator assigns topics by their ids, and the consumer may know none of these topics."""
    async with ScriptedCluster() as there:
        there.create("orders")
        cluster = Cluster(ClientOptions(bootstrap_servers=there.bootstrap), Random(1))
        await cluster.start()
        cluster.metadata.want_topic_ids([there.topics["orders"], b"x" * 16])
        await cluster.metadata.refresh(1000)
        assert cluster.cache.names == {there.topics["orders"]: "orders"}
        assert cluster.metadata.topics_wanted == 0, "it is kept fresh only if it is wanted by name"
        await cluster.close()
