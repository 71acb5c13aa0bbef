"""FindCoordinator while the internal topic cannot be created: the client and the log learn the reason."""

from __future__ import annotations

from typing import Any

from handled_request import HandledRequest
from structlog.testing import capture_logs

from strandline.broker.coordination.find_coordinator import FindCoordinatorHandler
from strandline.broker.coordination.topics import InternalTopic
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import CreatableTopicResult, CreateTopicsResponse
from strandline.protocol.messages.groups import KEY_TYPE_TRANSACTION, FindCoordinatorRequest

TOPIC = InternalTopic("__transaction_state", 50, 3, 100 << 20, "none", "transaction.state.log.replication.factor")


class Controller:
    """A controller that does not create the topic."""

    def __init__(self, outcome: CreateTopicsResponse | BrokerError) -> None:
        self.outcome, self.now = outcome, 0.0
        self.handler = FindCoordinatorHandler({KEY_TYPE_TRANSACTION: TOPIC}, lambda: MetadataImage.EMPTY, self, lambda: self.now)

    async def request(self, *_: Any) -> Any:
        if isinstance(self.outcome, BrokerError):
            raise self.outcome
        return self.outcome

    async def find(self) -> str:
        """The message of the answer to one request."""
        request = HandledRequest(FindCoordinatorRequest(["orders-1"], KEY_TYPE_TRANSACTION))
        await self.handler.handle(request)  # type: ignore[arg-type]
        (coordinator,) = request.answer.coordinators
        assert coordinator.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        return str(coordinator.error_message)


async def test_refused_topic_is_logged_with_its_name() -> None:
    """The reason is often a replication factor above the number of brokers, which only an operator can change."""
    refused = CreatableTopicResult(TOPIC.name, error_code=ErrorCode.INVALID_REPLICATION_FACTOR, error_message="1 broker")
    controller = Controller(CreateTopicsResponse([refused]))
    with capture_logs() as lines:
        message = await controller.find()
    reason = "1 broker (see transaction.state.log.replication.factor)"
    assert message == f"the topic __transaction_state could not be created: {reason}"
    (line,) = lines
    assert (line["event"], line["topic"], line["reason"]) == ("coordinator.topic_creation_failed", TOPIC.name, reason)


async def test_silent_controller_is_logged_once_a_minute() -> None:
    """Clients repeat the request many times a second, and each one tries to create the topic."""
    controller = Controller(BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no controller has answered"))
    with capture_logs() as lines:
        for _ in range(3):
            assert "no controller has answered" in await controller.find()
        controller.now = 61.0
        await controller.find()
    assert [line["event"] for line in lines] == ["coordinator.topic_creation_failed"] * 2
    assert lines[1]["suppressed"] == 2


async def test_another_reason_is_logged_at_once() -> None:
    """While a cluster starts, the first request often finds no controller. The refusal that only an operator can end must not
    wait for a minute behind that line."""
    controller = Controller(BrokerError(ErrorCode.REQUEST_TIMED_OUT, "no controller has answered"))
    with capture_logs() as lines:
        await controller.find()
        refused = CreatableTopicResult(TOPIC.name, error_code=ErrorCode.INVALID_REPLICATION_FACTOR, error_message="1 broker")
        controller.outcome = CreateTopicsResponse([refused])
        for _ in range(3):
            await controller.find()
    assert [line["reason"].partition(" (")[0] for line in lines][1:] == ["1 broker"]
    assert len(lines) == 2
