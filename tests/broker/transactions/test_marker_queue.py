"""Markers find the leaders of their partitions, one request for each broker, and are done when a leader has them."""

from __future__ import annotations

from leaders_image import image_with

from strandline.broker.transactions.marker_queue import (
    REQUEST_PARTITIONS,
    Batch,
    MarkerQueue,
    Sending,
    all_failed,
    apply_response,
)
from strandline.broker.transactions.shard import Markers
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.transactions import (
    TxnPartitionResult,
    WritableTxnMarkerResult,
    WriteTxnMarkersResponse,
)

OWNER = object()
IMAGE = image_with(orders={0: 1, 1: 2}, bills={0: 1, 1: -1})


def sending(*partitions: tuple[str, int], name: str = "t", owner: object = OWNER) -> Sending:
    return Sending(owner, Markers(name, 7, 3, True, partitions, 2), 5, dict.fromkeys(partitions), 0.0)


def put(queue: MarkerQueue, *sendings: Sending) -> list[tuple[str, int]]:
    return [without_leader for each in sendings for without_leader in queue.put(each, each.markers.partitions, IMAGE)]


def answer(batch: Batch, code: int = 0) -> WriteTxnMarkersResponse:
    results = [WritableTxnMarkerResult(7, [TxnPartitionResult(*key, code) for key in part]) for _, part in batch.parts]
    return WriteTxnMarkersResponse(results)


def test_markers_of_several_transactions_share_a_request_to_each_leader() -> None:
    queue, first, second = MarkerQueue(), sending(("orders", 0), ("orders", 1)), sending(("bills", 0), name="u")
    assert put(queue, first, second) == []
    assert sorted(queue.brokers) == [1, 2]
    batch = queue.take(1, IMAGE)
    assert batch is not None
    assert [marker.topics[0].topic_id for marker in batch.request.markers] == [
        IMAGE.topic("orders").topic_id,  # type: ignore[union-attr]
        IMAGE.topic("bills").topic_id,  # type: ignore[union-attr]
    ]
    marker = batch.request.markers[0]
    assert (marker.producer_id, marker.producer_epoch, marker.committed) == (7, 3, True)
    assert (marker.coordinator_epoch, marker.transaction_version) == (5, 2)
    assert queue.take(1, IMAGE) is None
    assert apply_response(batch, answer(batch)) == []
    assert (list(first.left), list(second.left)) == ([("orders", 1)], [])


def test_partition_that_no_longer_exists_needs_no_marker() -> None:
    each = sending(("gone", 0), ("orders", 9))
    assert put(MarkerQueue(), each) == []
    assert not each.left


def test_topic_that_is_deleted_while_its_marker_waits_needs_none() -> None:
    queue, each = MarkerQueue(), sending(("orders", 0), ("bills", 0))
    put(queue, each)
    batch = queue.take(1, image_with(bills={0: 1}))
    assert batch is not None
    assert list(each.left) == [("bills", 0)]
    assert len(batch.request.markers[0].topics) == 1


def test_partition_without_a_leader_is_returned() -> None:
    each = sending(("bills", 1), ("orders", 0))
    assert put(MarkerQueue(), each) == [("bills", 1)]
    assert len(each.left) == 2


def test_failed_partitions_are_returned_by_their_error() -> None:
    queue, each = MarkerQueue(), sending(("orders", 0), ("bills", 0))
    put(queue, each)
    batch = queue.take(1, IMAGE)
    assert batch is not None
    response = answer(batch)
    response.markers[0].partitions[1].error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    (failed,) = apply_response(batch, response)
    assert (failed.partitions, failed.code, failed.is_superseded) == ([("bills", 0)], ErrorCode.NOT_LEADER_OR_FOLLOWER, False)
    assert list(each.left) == [("bills", 0)]


def test_answer_that_lacks_a_partition_is_a_failure() -> None:
    """A peer's mistake must not count as a marker."""
    queue, each = MarkerQueue(), sending(("orders", 0))
    put(queue, each)
    batch = queue.take(1, IMAGE)
    assert batch is not None
    assert [failed.partitions for failed in apply_response(batch, WriteTxnMarkersResponse([]))] == [[("orders", 0)]]
    assert [failed.code for failed in all_failed(batch, ErrorCode.REQUEST_TIMED_OUT)] == [ErrorCode.REQUEST_TIMED_OUT]
    assert each.left


def test_fenced_coordinator_is_superseded() -> None:
    queue, each = MarkerQueue(), sending(("orders", 0))
    put(queue, each)
    batch = queue.take(1, IMAGE)
    assert batch is not None
    for code in (ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH):
        (failed,) = apply_response(batch, answer(batch, code))
        assert failed.is_superseded


def test_markers_of_an_earlier_leadership_are_not_sent() -> None:
    queue, mine, other = MarkerQueue(), sending(("orders", 0)), sending(("orders", 0), owner=object(), name="u")
    put(queue, mine, other)
    mine.is_dropped = True
    batch = queue.take(1, IMAGE)
    assert batch is not None
    assert [each for each, _ in batch.parts] == [other]


def test_request_is_bounded() -> None:
    """A coordinator that takes over many prepared transactions must not stop a leader."""
    partitions, count = [("orders", 0), ("bills", 0)], REQUEST_PARTITIONS
    queue = MarkerQueue()
    put(queue, *(sending(*partitions, name=str(number)) for number in range(count)))
    sizes = []
    while (batch := queue.take(1, IMAGE)) is not None:
        sizes.append(len(batch.parts))
    assert sizes == [count // 2, count // 2]
