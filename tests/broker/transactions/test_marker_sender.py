"""Markers are sent until all leaders have answered, whatever happens to leaders, connections and the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from leaders_image import image_with
from waiting import until

from strandline.broker.transactions.marker_handler import TIMEOUT_MS
from strandline.broker.transactions.marker_queue import Sending
from strandline.broker.transactions.marker_sender import REQUEST_TIMEOUT_MS, MarkerSender
from strandline.broker.transactions.shard import Markers
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.apis import WRITE_TXN_MARKERS
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.transactions import (
    TxnPartitionResult,
    WritableTxnMarkerResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

OWNER = object()


class Leaders:
    """Stands in for the channels, and for the leaders behind them."""

    def __init__(self) -> None:
        self.image: MetadataImage = image_with(orders={0: 1, 1: 2})
        self.code_of: Callable[[int], int] = lambda broker_id: 0
        """Broker id -> the error of each partition; raises `BrokerError` if the request gets no answer."""
        self.gates: dict[int, asyncio.Event] = {}
        """Brokers that answer only when their gate is open."""
        self.asked: list[tuple[int, int]] = []
        """Broker id and number of markers of each request."""
        self.written: list[Markers] = []
        self.sender = MarkerSender(
            self, lambda: self.image, on_written=lambda sending: self._on_written(sending), on_answered=lambda count: None
        )

    def _on_written(self, sending: Sending) -> None:
        self.written.append(sending.markers)

    async def request(self, broker_id: int, api_key: int, body: Message, timeout_ms: int) -> Message:
        assert isinstance(body, WriteTxnMarkersRequest)
        assert api_key == WRITE_TXN_MARKERS
        self.asked.append((broker_id, len(body.markers)))
        if broker_id in self.gates:
            await self.gates[broker_id].wait()
        code = self.code_of(broker_id)
        return WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    marker.producer_id,
                    [TxnPartitionResult(topic.topic_id, number, code) for topic in marker.topics for number in topic.partitions],
                )
                for marker in body.markers
            ]
        )

    def send(self, *partitions: tuple[str, int], name: str = "t", owner: object = OWNER) -> None:
        self.sender.send(owner, Markers(name, 7, 3, True, partitions, 2), 5)

    async def until_written(self, count: int = 1) -> None:
        await until(lambda: len(self.written) == count, "all markers are written")
        assert len(self.sender) == 0


async def test_transaction_is_written_when_all_leaders_have_answered() -> None:
    leaders = Leaders()
    leaders.gates[2] = asyncio.Event()
    leaders.send(("orders", 0), ("orders", 1))
    await until(lambda: len(leaders.asked) == 2, "both leaders are asked")
    assert not leaders.written
    leaders.gates[2].set()
    await leaders.until_written()


async def test_transaction_without_partitions_is_written_at_once() -> None:
    leaders = Leaders()
    leaders.send()
    assert len(leaders.written) == 1


async def test_transactions_of_one_moment_share_a_request() -> None:
    leaders = Leaders()
    for number in range(10):
        leaders.send(("orders", 0), name=str(number))
    await leaders.until_written(10)
    assert leaders.asked == [(1, 10)]


async def test_what_comes_during_a_request_waits_for_its_answer_and_goes_together() -> None:
    leaders = Leaders()
    leaders.gates[1] = asyncio.Event()
    leaders.send(("orders", 0), name="first")
    await until(lambda: leaders.asked, "the first request is sent")
    for number in range(10):
        leaders.send(("orders", 0), name=str(number))
    leaders.gates[1].set()
    await leaders.until_written(11)
    assert leaders.asked == [(1, 1), (1, 10)]


async def test_slow_request_does_not_hold_up_the_next_one() -> None:
    """A replica that hangs delays the markers of one partition, for up to ten seconds; other transactions do not wait for it."""
    leaders = Leaders()
    gate = leaders.gates[1] = asyncio.Event()
    leaders.send(("orders", 0), name="slow")
    await until(lambda: leaders.asked, "the first request is sent")
    del leaders.gates[1]
    leaders.send(("orders", 0), name="fast")
    await until(lambda: [each.transactional_id for each in leaders.written] == ["fast"], "the second one is written")
    gate.set()
    await leaders.until_written(2)


async def test_marker_follows_its_partition_to_the_next_leader() -> None:
    leaders = Leaders()
    leaders.code_of = lambda broker_id: ErrorCode.NOT_LEADER_OR_FOLLOWER if broker_id == 1 else 0
    leaders.send(("orders", 0))
    await until(lambda: leaders.asked, "the old leader is asked")
    leaders.image = image_with(orders={0: 2, 1: 2})
    await leaders.until_written()
    assert leaders.asked[-1] == (2, 1)


async def test_broker_that_does_not_answer_is_asked_again() -> None:
    """The marker may be written already. A leader accepts the second one as a repetition."""
    leaders, lost = Leaders(), [1, 1]

    def code_of(broker_id: int) -> int:
        if lost:
            lost.pop()
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT, "lost")
        return 0

    leaders.code_of = code_of
    leaders.send(("orders", 0))
    await leaders.until_written()
    assert len(leaders.asked) == 3


async def test_partition_without_a_leader_is_waited_for() -> None:
    leaders = Leaders()
    leaders.image = image_with(orders={0: -1})
    leaders.send(("orders", 0))
    assert leaders.sender.without_leader == 1
    leaders.image = image_with(orders={0: 1})
    await leaders.until_written()
    assert leaders.sender.without_leader == 0


async def test_topic_that_is_deleted_needs_no_marker() -> None:
    """Otherwise its transactions would never be complete, and their producers could not go on."""
    leaders = Leaders()
    leaders.code_of = lambda broker_id: ErrorCode.UNKNOWN_TOPIC_ID
    leaders.send(("orders", 0))
    await until(lambda: leaders.asked, "the leader is asked")
    leaders.image = image_with()
    await leaders.until_written()


async def test_fenced_coordinator_gives_the_transaction_up() -> None:
    """Another coordinator completes the transaction. A Complete record of this one could be taken for the end of a later
    transaction."""
    leaders = Leaders()
    leaders.code_of = lambda broker_id: ErrorCode.TRANSACTION_COORDINATOR_FENCED
    leaders.send(("orders", 0))
    await until(lambda: not len(leaders.sender), "the transaction is given up")
    assert not leaders.written


async def test_markers_end_with_the_leadership() -> None:
    leaders = Leaders()
    leaders.gates[1] = asyncio.Event()
    leaders.send(("orders", 0))
    leaders.send(("orders", 1), name="other", owner=object())
    await until(lambda: leaders.written, "the other one is written")
    leaders.sender.cancel(OWNER)
    assert len(leaders.sender) == 0
    leaders.gates[1].set()
    leaders.send(("orders", 0), name="later")
    await until(lambda: len(leaders.written) == 2, "the later one is written")
    assert [each.transactional_id for each in leaders.written] == ["other", "later"]


async def test_nothing_is_sent_after_the_stop() -> None:
    leaders = Leaders()
    leaders.send(("orders", 0))
    leaders.sender.stop()
    leaders.send(("orders", 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not leaders.asked
    assert not leaders.written


def test_leader_answers_before_the_coordinator_gives_up() -> None:
    assert TIMEOUT_MS < REQUEST_TIMEOUT_MS
