"""Answers of a coordinator that wait until the records that they depend on are committed.

Errors of the partition become those of a coordinator (as in Kafka's `CoordinatorOperationExceptionHelper`):

    not enough replicas, timeout, unknown topic or partition    COORDINATOR_NOT_AVAILABLE
    not the leader, a failed disk                               NOT_COORDINATOR
    a batch that is too large                                   UNKNOWN_SERVER_ERROR
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from strandline.broker.partition.partition import Partition
from strandline.broker.purgatory import DelayedOperation
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message

_AS_COORDINATOR = {
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def as_coordinator(error: BrokerError) -> BrokerError:
    """The error that a client of the coordinator gets for an error of its partition."""
    code = _AS_COORDINATOR.get(error.code)
    return error if code is None else BrokerError(code, error.message or error.code.name)


class Asker(Protocol):
    """A request that waits for its answer. The cores keep askers and return them with the answers, without looking into them."""

    def reply(self, response: Message) -> None: ...
    def refuse(self, code: ErrorCode, message: str | None = None) -> None: ...


Replies = list[tuple[Asker, Message | BrokerError]]
"""Askers and their answers. A `BrokerError` refuses the whole request of the asker."""


def send(replies: Iterable[tuple[Asker, object]]) -> None:
    for asker, answer in replies:
        if isinstance(answer, BrokerError):
            asker.refuse(answer.code, answer.message)
        else:
            asker.reply(answer)  # type: ignore[arg-type]


class DelayedReplies(DelayedOperation):
    """Replies that wait until the records that they depend on are committed."""

    __slots__ = ("_askers", "_make", "_partition")

    def __init__(self, partition: Partition, askers: list[Asker], make: Callable[[], Replies]) -> None:
        """`make`: called when the records are committed; returns the replies."""
        super().__init__()
        self._partition = partition
        self._askers = askers
        self._make = make

    def on_reached(self, index: int) -> None:
        self.complete()

    def on_failed(self, index: int, error_code: int) -> None:
        if not self.is_completed:
            self._leave()
            self._refuse(ErrorCode(error_code))

    def on_complete(self) -> None:
        send(self._make())

    def on_expiration(self) -> None:
        self._partition.waiters.discard(self)
        self._refuse(ErrorCode.REQUEST_TIMED_OUT)

    def _refuse(self, code: ErrorCode) -> None:
        text = f"could not confirm that the records of this answer are committed: {code.name}"
        error = as_coordinator(BrokerError(code, text))
        send([(asker, error) for asker in self._askers])


class OnCommit:
    """Calls `action` once the records below an offset are committed, however long that takes, unless the leadership ends."""

    __slots__ = ("_action", "_again", "is_completed")

    def __init__(self, action: Callable[[], None], again: Callable[[OnCommit], None]) -> None:
        """`again`: waits once more if the leadership still holds. Called if a wait fails because the ISR is too small."""
        self.is_completed = False
        self._action = action
        self._again = again

    def on_reached(self, index: int) -> None:
        self.is_completed = True
        self._action()

    def on_failed(self, index: int, error_code: int) -> None:
        self._again(self)
