"""`Admin.abort_transaction`: the marker reaches the leader, also if the leader changes."""

from __future__ import annotations

import pytest

from strandline.client import Admin, TopicPartition
from strandline.client.admin import transactions
from strandline.client.admin.transaction_types import OpenTransaction
from strandline.client.errors import UnknownTopic
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.transactions import (
    TxnPartitionResult,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from strandline.protocol.rpc.server import ServerRequest

from .scripted import ScriptedBroker, ScriptedCluster

OPENED = OpenTransaction(TopicPartition("orders", 0), 1000, 0, 0, 0, -1)


class Markers:
    """Leaders that write markers. Before the first one answers, the leadership moves to broker 2."""

    def __init__(self, cluster: ScriptedCluster, fault: str) -> None:
        self._cluster = cluster
        self._fault = fault
        self.written_by: list[int] = []
        cluster.more_handlers = lambda broker: {apis.WRITE_TXN_MARKERS: lambda request: self.write(broker, request)}

    def write(self, broker: ScriptedBroker, request: ServerRequest) -> None:
        partition = self._cluster.partition("orders")
        if partition.epoch == 0:
            self._cluster.move_leader("orders", 0, 2)
            if self._fault != "deposed":
                if self._fault == "killed":
                    broker.cut_connections()
                broker.hanging = True
                return
        assert isinstance(request.body, WriteTxnMarkersRequest)
        (marker,) = request.body.markers
        is_leader = partition.leader == broker.broker_id
        if is_leader:
            self.written_by.append(broker.broker_id)
        code = ErrorCode.NONE if is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        result = TxnPartitionResult(marker.topics[0].topic_id, 0, code)
        request.reply(WriteTxnMarkersResponse([WritableTxnMarkerResult(marker.producer_id, [result])]))


@pytest.mark.parametrize("fault", ["deposed", "killed", "paused"])
async def test_marker_is_written_by_the_new_leader(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The request was repeated to the old leader until the time limit, or waited for it until then."""
    monkeypatch.setattr(transactions, "MARKER_TIMEOUT_MS", 200)
    cluster = ScriptedCluster(2)
    cluster.create("orders")
    markers = Markers(cluster, fault)
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.abort_transaction(OPENED, timeout_ms=3000)
        assert markers.written_by == [2]
        cluster.brokers[1].answer_late()


async def test_partition_that_does_not_exist_is_unknown() -> None:
    """The topic may have been recreated with fewer partitions since the transaction was found."""
    cluster = ScriptedCluster(1)
    cluster.create("orders")
    async with cluster, Admin(bootstrap_servers=cluster.bootstrap) as admin:
        with pytest.raises(UnknownTopic, match="the topic has 1 partition"):
            await admin.abort_transaction(OpenTransaction(TopicPartition("orders", 3), 1000, 0, 0, 0, -1))
