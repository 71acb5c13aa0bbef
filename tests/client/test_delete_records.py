"""`Admin.delete_records`: one result per partition, and a repeated request deletes no more than the first one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from waiting import until

from strandline.client import Admin, DeletedRecords, Producer, TopicPartition, UnknownTopic, UsageError
from strandline.client.admin import record_deletion
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.rpc.server import ServerRequest

from .scripted import ScriptedBroker, ScriptedCluster

P0, P1, P2 = (TopicPartition("orders", index) for index in range(3))


@pytest.fixture
async def cluster() -> AsyncIterator[ScriptedCluster]:
    async with ScriptedCluster(brokers=2) as cluster:
        cluster.create("orders", 3)
        async with Producer(bootstrap_servers=cluster.bootstrap) as producer:
            for index in range(3):
                for number in range(4):
                    await producer.send_and_wait("orders", b"%d" % number, partition=index)
        yield cluster


@pytest.fixture
async def admin(cluster: ScriptedCluster) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        yield admin


def before_answer(broker: ScriptedBroker, act: Callable[[], None], *, lose: bool) -> None:
    """Call `act` before the broker's first answer to DeleteRecords. `lose`: the broker deletes, and its answer is lost."""
    assert broker.server is not None
    handlers, usual = broker.server.handlers, broker.server.handlers[apis.DELETE_RECORDS]

    def handle(request: ServerRequest) -> None:
        handlers[apis.DELETE_RECORDS] = usual
        if lose:
            broker.delete_records(_Unanswered(request))  # type: ignore[arg-type]
            request.connection.close()
        act()
        if not lose:
            usual(request)

    handlers[apis.DELETE_RECORDS] = handle


class _Unanswered:
    """A request whose answer is dropped."""

    def __init__(self, request: ServerRequest) -> None:
        self.body = request.body

    def reply(self, body: object) -> None: ...


async def test_each_partition_has_its_low_watermark(cluster: ScriptedCluster, admin: Admin) -> None:
    found = await admin.delete_records({P0: 2, ("orders", 1): -1, P2: 0})
    assert found == {P0: DeletedRecords(2), P1: DeletedRecords(4), P2: DeletedRecords(0)}
    assert [cluster.partition("orders", index).start_offset for index in range(3)] == [2, 4, 0]


async def test_refused_partition_does_not_stop_the_others(admin: Admin) -> None:
    found = await admin.delete_records({P0: 5, P1: 3})
    assert found[P0] == DeletedRecords(-1, ErrorCode.OFFSET_OUT_OF_RANGE, "above the high watermark")
    assert found[P1] == DeletedRecords(3)


async def test_unknown_topics_and_partitions_are_errors(cluster: ScriptedCluster, admin: Admin) -> None:
    for tp in (("missing", 0), ("orders", 3)):
        with pytest.raises(UnknownTopic):
            await admin.delete_records({P0: 2, tp: 1})
    assert cluster.partition("orders").start_offset == 0, "nothing is deleted before all names are known"


@pytest.mark.parametrize("before", [[P0], {P0: 1.0}, {P0: -2}, {P0: True}, {"orders": 1}, "orders"])
async def test_wrong_arguments_are_refused(cluster: ScriptedCluster, admin: Admin, before: Any) -> None:
    with pytest.raises(UsageError):
        await admin.delete_records(before)
    assert cluster.partition("orders").start_offset == 0


async def test_new_leader_is_asked(cluster: ScriptedCluster, admin: Admin) -> None:
    before_answer(cluster.brokers[1], lambda: cluster.move_leader("orders", 0, 2), lose=False)
    assert await admin.delete_records({P0: 2}) == {P0: DeletedRecords(2)}


async def test_repeated_request_deletes_no_later_records(cluster: ScriptedCluster, admin: Admin) -> None:
    """The end is the one at the time of the call, also if the first answer is lost and records are written meanwhile."""
    partition = cluster.partition("orders")

    def write() -> None:
        partition.log.values.append(b"later")

    before_answer(cluster.brokers[1], write, lose=True)
    assert await admin.delete_records({P0: -1}) == {P0: DeletedRecords(4)}
    assert (partition.start_offset, partition.end_offset) == (4, 5)


async def test_recreated_topic_loses_nothing(cluster: ScriptedCluster, admin: Admin) -> None:
    before_answer(cluster.brokers[1], lambda: cluster.recreate("orders", 3), lose=False)
    found = await admin.delete_records({P0: 2})
    assert found[P0].code == ErrorCode.UNKNOWN_TOPIC_ID
    assert "created again" in str(found[P0].message)
    assert cluster.partition("orders").start_offset == 0


async def test_silent_leader_is_a_timeout_of_its_partitions(cluster: ScriptedCluster, admin: Admin) -> None:
    cluster.brokers[2].hanging = True
    found = await admin.delete_records({P0: 2, P1: 2}, timeout_ms=300)
    assert found[P0] == DeletedRecords(2)
    assert (found[P1].code, found[P1].low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    cluster.brokers[2].resume()


async def test_new_leader_is_asked_if_the_old_one_hangs(
    cluster: ScriptedCluster, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default the request had as much time as the whole call, so that no time was left for the new leader."""
    monkeypatch.setattr(record_deletion, "LEADER_TIMEOUT_MS", 200)
    old = cluster.brokers[1]
    old.hanging = True
    deleted = asyncio.create_task(admin.delete_records({P0: 2}, timeout_ms=3000))
    await until(lambda: any(request.api_key == apis.DELETE_RECORDS for request in old.held))
    cluster.move_leader("orders", 0, 2)
    assert await deleted == {P0: DeletedRecords(2)}
    old.answer_late()


@pytest.mark.parametrize("fault", ["cut", "stopped"])
async def test_leader_that_cannot_be_reached_is_a_network_error(cluster: ScriptedCluster, admin: Admin, fault: str) -> None:
    """A timeout would mean that the leader was silent, and may have deleted the records."""
    broker = cluster.brokers[1]
    assert broker.server is not None
    if fault == "cut":
        broker.server.handlers[apis.DELETE_RECORDS] = lambda request: request.connection.close()
    else:
        await broker.stop()
    found = await admin.delete_records({P0: 2, P1: 2}, timeout_ms=500)
    assert (found[P0].code, found[P0].low_watermark) == (ErrorCode.NETWORK_EXCEPTION, -1)
    assert found[P1] == DeletedRecords(2)


async def test_partition_without_leader_says_so(cluster: ScriptedCluster, admin: Admin) -> None:
    cluster.partition("orders").leader = -1
    found = await admin.delete_records({P0: 2, P1: -1}, timeout_ms=200)
    assert found[P0].code == ErrorCode.LEADER_NOT_AVAILABLE
    assert found[P1] == DeletedRecords(4)
