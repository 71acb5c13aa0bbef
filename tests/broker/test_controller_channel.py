"""The channel to the active controller: one connection, and requests that reach the present controller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from strandline.broker.process.controller_channel import NodeToControllerChannel
from strandline.controller.metadata.voters import Voter
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from strandline.protocol.rpc.server import Server, ServerRequest

HEARTBEAT = BrokerHeartbeatRequest(1, 5, 10, False, False)


class Finder:
    def __init__(self) -> None:
        self.on_controller_changed: list[Callable[[], None]] = []
        self.controller: tuple[Voter, int] | None = None

    def found(self, voter: Voter | None, epoch: int = 1) -> None:
        self.controller = None if voter is None else (voter, epoch)
        for callback in self.on_controller_changed:
            callback()


class Controller:
    """A real server that answers heartbeats with the given function; None: it does not answer."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.answer: ErrorCode | None = ErrorCode.NONE
        self.refuses = False
        self.asked = 0
        self.server = Server(
            {apis.BROKER_HEARTBEAT: self.handle}, role="controller", node_id=node_id, cluster_id="c", incarnation_id=bytes(16)
        )

    async def start(self) -> Controller:
        self.voter = Voter(self.node_id, "127.0.0.1", await self.server.start("127.0.0.1", 0))
        return self

    def handle(self, request: ServerRequest) -> None:
        self.asked += 1
        if self.answer is not None and self.refuses:
            request.refuse(self.answer)
        elif self.answer is not None:
            request.reply(BrokerHeartbeatResponse(self.answer))


@pytest.fixture
async def controllers() -> AsyncIterator[list[Controller]]:
    started = [await Controller(101).start(), await Controller(102).start()]
    yield started
    for controller in started:
        await controller.server.stop()


@pytest.fixture
async def channel() -> AsyncIterator[tuple[NodeToControllerChannel, Finder]]:
    finder = Finder()
    made = NodeToControllerChannel(broker_id=1, finder=finder)
    yield made, finder
    made.close()


async def test_requests_share_one_connection(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    """The controller watches the connection. With two of them, a broker would look dead when the first one breaks."""
    sender, finder = channel
    finder.found(controllers[0].voter)
    answers = await asyncio.gather(*(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 5000) for _ in range(5)))
    assert [a.error_code for a in answers] == [0] * 5  # type: ignore[attr-defined]
    assert len(controllers[0].server.connections) == 1


async def test_a_request_waits_until_a_controller_is_known(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    sender, finder = channel
    waiting = asyncio.ensure_future(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 5000))
    await asyncio.sleep(0)
    assert not waiting.done()
    finder.found(controllers[1].voter)
    await waiting
    assert controllers[1].asked == 1


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_request_to_the_wrong_controller_goes_to_the_next(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller], refuses: bool
) -> None:
    sender, finder = channel
    old, new = controllers
    old.answer, old.refuses = ErrorCode.NOT_CONTROLLER, refuses
    finder.found(old.voter)
    waiting = asyncio.ensure_future(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 5000))
    async with asyncio.timeout(5):
        while old.asked < 2:
            await asyncio.sleep(0.001)
    finder.found(new.voter, 2)
    await waiting
    assert new.asked == 1


async def test_requests_to_a_silent_controller_go_to_its_successor_at_once(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    sender, finder = channel
    old, new = controllers
    old.answer = None
    finder.found(old.voter)
    waiting = asyncio.ensure_future(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 60_000))
    async with asyncio.timeout(5):
        while not old.asked:
            await asyncio.sleep(0.001)
        finder.found(new.voter, 2)
        await waiting


async def test_every_wait_ends(channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]) -> None:
    sender, finder = channel
    for found in (None, Voter(103, "127.0.0.1", 1), controllers[0].voter):
        controllers[0].answer = None
        finder.found(found)
        with pytest.raises(BrokerError) as e:
            await sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 60)
        assert e.value.code == ErrorCode.REQUEST_TIMED_OUT


async def test_a_refusal_that_another_controller_would_repeat_is_not_retried(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    sender, finder = channel
    controllers[0].answer, controllers[0].refuses = ErrorCode.STALE_BROKER_EPOCH, True
    finder.found(controllers[0].voter)
    with pytest.raises(BrokerError) as e:
        await sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 5000)
    assert e.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert controllers[0].asked == 1


async def test_a_controller_that_changes_while_the_connection_is_made_is_not_missed(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    """The former controller still answers, so the channel would keep its connection and send it all heartbeats until the next
    change."""
    sender, finder = channel
    old, new = controllers
    old.answer = ErrorCode.NOT_CONTROLLER
    finder.found(old.voter)
    waiting = asyncio.ensure_future(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 2000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    finder.found(new.voter, 2)
    await waiting
    assert new.asked == 1


async def test_a_cancelled_request_stays_cancelled_when_the_controller_changes(
    channel: tuple[NodeToControllerChannel, Finder], controllers: list[Controller]
) -> None:
    """Otherwise the cancelled task would continue, and the broker's stop would wait for it for ever."""
    sender, finder = channel
    finder.found(controllers[0].voter)
    waiting = asyncio.ensure_future(sender.request(apis.BROKER_HEARTBEAT, HEARTBEAT, 2000))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    finder.found(controllers[1].voter, 2)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
