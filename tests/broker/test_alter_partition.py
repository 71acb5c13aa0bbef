"""The AlterPartition queue and its manager: proposals are neither lost nor doubled (S18, S19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from waiting import until

from strandline.broker.partition import alter_partition
from strandline.broker.partition.alter_partition import AlterPartitionItem, AlterPartitionManager, AlterPartitionQueue
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import (
    AlterPartitionPartitionResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
)
from strandline.protocol.messages.common import Message

TOPIC = b"t" * 16


def item(partition: int, results: list[AlterPartitionPartitionResponse], partition_epoch: int = 3) -> AlterPartitionItem:
    return AlterPartitionItem(
        TOPIC, partition, 1, partition_epoch, ((1, 10), (2, 11)), lambda answer, is_doubtful: results.append(answer)
    )


def answer(request: AlterPartitionRequest, error: int = 0) -> AlterPartitionResponse:
    return AlterPartitionResponse(
        0,
        [
            AlterPartitionPartitionResponse(p.topic_id, p.partition, error, 1, p.leader_epoch, [1, 2], 0, p.partition_epoch + 1)
            for p in request.partitions
        ],
    )


class Controller:
    """A scripted controller: `script` answers each request in turn."""

    def __init__(self, *script: Callable[[AlterPartitionRequest], AlterPartitionResponse | BrokerError]) -> None:
        self.script = list(script)
        self.requests: list[AlterPartitionRequest] = []
        self.in_flight = 0
        self.in_flight_max = 0

    async def request(self, api_key: int, body: Message, timeout_ms: int, on_lost: Callable[[], None] | None = None) -> Message:
        assert isinstance(body, AlterPartitionRequest)
        self.requests.append(body)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight, self.in_flight_max)
        await asyncio.sleep(0)
        self.in_flight -= 1
        reply = self.script.pop(0)(body)
        if isinstance(reply, BrokerError):
            raise reply
        return reply


class Registration:
    def __init__(self) -> None:
        self.broker_epoch = 10
        self.renewed: list[int] = []

    async def renew(self, stale_epoch: int) -> None:
        self.renewed.append(stale_epoch)
        self.broker_epoch = 20


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alter_partition, "RETRY_BACKOFF_MS", 1)


def test_a_second_proposal_for_a_partition_is_refused_until_the_first_is_decided() -> None:
    queue, results = AlterPartitionQueue(), []
    assert queue.submit(item(0, results))
    assert not queue.submit(item(0, results))
    request = queue.next_request(1, 10)
    assert request is not None
    assert not queue.submit(item(0, results)), "on the wire counts as pending"
    assert len(queue.on_response(answer(request))) == 1
    assert queue.submit(item(0, results))


def test_only_one_request_is_on_the_wire_and_the_next_carries_all_that_waited() -> None:
    queue, results = AlterPartitionQueue(), []
    queue.submit(item(0, results))
    first = queue.next_request(1, 10)
    queue.submit(item(1, results))
    queue.submit(item(2, results))
    assert queue.next_request(1, 10) is None
    assert first is not None
    queue.on_response(answer(first))
    second = queue.next_request(1, 10)
    assert second is not None
    assert [p.partition for p in second.partitions] == [1, 2]


def test_the_answer_to_a_cancelled_proposal_is_dropped() -> None:
    """The answer belongs to an earlier leadership: taking it would install an ISR that was never committed (S17, S18)."""
    queue, results = AlterPartitionQueue(), []
    queue.submit(item(0, results, partition_epoch=3))
    request = queue.next_request(1, 10)
    assert request is not None
    queue.cancel((TOPIC, 0))
    assert queue.submit(item(0, results, partition_epoch=7))
    assert queue.on_response(answer(request)) == []
    again = queue.next_request(1, 10)
    assert again is not None
    assert again.partitions[0].partition_epoch == 7


async def test_a_lost_answer_is_repeated_until_the_old_epoch_is_refused() -> None:
    """S18: the controller committed, the answer was lost. The retry is refused with INVALID_UPDATE_VERSION; nothing stays
    pending."""
    results: list[AlterPartitionPartitionResponse] = []
    controller = Controller(
        lambda r: BrokerError(ErrorCode.REQUEST_TIMED_OUT),
        lambda r: answer(r, ErrorCode.INVALID_UPDATE_VERSION),
        lambda r: answer(r),
    )
    manager = AlterPartitionManager(1, controller, Registration())
    manager.start()
    manager.submit(item(0, results, partition_epoch=3))
    await until(lambda: bool(results))
    assert results[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert manager.submit(item(0, results, partition_epoch=4)), "ISR changes go on with the committed epoch"
    await until(lambda: len(results) == 2)
    assert results[1].error_code == 0
    await manager.stop()


async def test_retriable_errors_are_retried_until_the_controller_works() -> None:
    """S19: N refusals, then it works: the change is committed, once, with one request on the wire at a time."""
    results: list[AlterPartitionPartitionResponse] = []
    refusals = [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION] * 3
    controller = Controller(
        *[lambda r, c=c: BrokerError(c) for c in refusals],
        lambda r: AlterPartitionResponse(ErrorCode.NOT_CONTROLLER, []),
        lambda r: answer(r, ErrorCode.NOT_CONTROLLER),
        lambda r: answer(r),
    )
    manager = AlterPartitionManager(1, controller, Registration())
    manager.start()
    assert manager.submit(item(0, results))
    await until(lambda: bool(results))
    assert [r.error_code for r in results] == [0]
    assert len(controller.requests) == len(refusals) + 3
    assert controller.in_flight_max == 1
    await manager.stop()


async def test_a_partition_may_propose_again_from_its_own_callback() -> None:
    """S19: the entry leaves the queue before the callback is called, so the retry is not refused as a second proposal."""
    results: list[AlterPartitionPartitionResponse] = []
    controller = Controller(lambda r: answer(r, ErrorCode.INELIGIBLE_REPLICA), lambda r: answer(r))
    manager = AlterPartitionManager(1, controller, Registration())

    def propose_again(result: AlterPartitionPartitionResponse) -> None:
        results.append(result)
        if result.error_code:
            assert manager.submit(first._replace(partition_epoch=9))

    first = item(0, results)._replace(on_result=lambda answer, is_doubtful: propose_again(answer))
    manager.start()
    manager.submit(first)
    await until(lambda: len(results) == 2)
    assert [p.partition_epoch for r in controller.requests for p in r.partitions] == [3, 9]
    await manager.stop()


async def test_a_stale_broker_epoch_waits_for_the_next_registration() -> None:
    results: list[AlterPartitionPartitionResponse] = []
    registration = Registration()
    controller = Controller(lambda r: AlterPartitionResponse(ErrorCode.STALE_BROKER_EPOCH, []), lambda r: answer(r))
    manager = AlterPartitionManager(1, controller, registration)
    manager.start()
    manager.submit(item(0, results))
    await until(lambda: bool(results))
    assert registration.renewed == [10]
    assert [r.broker_epoch for r in controller.requests] == [10, 20]
    await manager.stop()


async def test_a_cancelled_proposal_stops_being_retried() -> None:
    results: list[AlterPartitionPartitionResponse] = []
    controller = Controller(*[lambda r: BrokerError(ErrorCode.NETWORK_EXCEPTION)] * 3, *[lambda r: answer(r)] * 3)
    manager = AlterPartitionManager(1, controller, Registration())
    manager.start()
    manager.submit(item(0, results))
    await until(lambda: len(controller.requests) == 2)
    manager.cancel((TOPIC, 0))
    manager.submit(item(1, results))
    await until(lambda: bool(results))
    assert [p.partition for p in controller.requests[-1].partitions] == [1]
    assert [r.partition for r in results] == [1]
    await manager.stop()


async def test_an_unknown_error_does_not_end_isr_changes() -> None:
    """I24: the task that sends the proposals runs as long as the broker."""
    results: list[AlterPartitionPartitionResponse] = []
    controller = Controller(lambda request: AlterPartitionResponse(12345, []), answer)
    manager = AlterPartitionManager(1, controller, Registration())
    manager.start()
    manager.submit(item(0, results))
    await until(lambda: bool(results))
    await manager.stop()


async def test_a_copy_that_got_no_answer_makes_the_answer_to_the_next_one_doubtful() -> None:
    """A request without an answer may arrive after the next one, so a refusal of the next one does not mean that it was refused,
    too."""
    doubtful: list[bool] = []

    class Lossy(Controller):
        async def request(
            self, api_key: int, body: Message, timeout_ms: int, on_lost: Callable[[], None] | None = None
        ) -> Message:
            if len(self.requests) == 1:
                assert on_lost is not None
                on_lost()
            return await super().request(api_key, body, timeout_ms)

    controller = Lossy(*[lambda r: answer(r, ErrorCode.INELIGIBLE_REPLICA)] * 3)
    manager = AlterPartitionManager(1, controller, Registration())
    proposal = item(0, [])._replace(on_result=lambda answer, is_doubtful: doubtful.append(is_doubtful))
    manager.start()
    for count in (1, 2, 3):
        manager.submit(proposal)
        await until(lambda count=count: len(doubtful) == count)
    assert doubtful == [False, True, False]
    await manager.stop()
