"""An answer whose parts become known one after the other: a request about many groups or transactional ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

from strandline.broker.coordination.coordinator import Coordinator
from strandline.broker.coordination.loader import Shard
from strandline.broker.coordination.replies import Asker, send
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.common import Message
from strandline.protocol.rpc.server import ServerRequest

Answer = TypeVar("Answer", bound=Message)


class Gathered:
    """The parts of one answer, which become known one after the other."""

    def __init__(self, request: ServerRequest, count: int, finish: Callable[[list[Message]], Message]) -> None:
        self._request = request
        self._finish = finish
        self._parts: list[Message | None] = [None] * count
        self._missing = count
        self._maybe_finish()

    def put(self, index: int, part: Message) -> None:
        self._missing -= self._parts[index] is None
        self._parts[index] = part
        self._maybe_finish()

    def part(self, index: int, on_error: Callable[[BrokerError], Message]) -> Asker:
        """An asker for one part."""
        return _PartAsker(self, index, on_error)

    def _maybe_finish(self) -> None:
        if not self._missing:
            self._request.reply(self._finish([part for part in self._parts if part is not None]))


class _PartAsker:
    """Takes the answer for one part of a request."""

    def __init__(self, gathered: Gathered, index: int, on_error: Callable[[BrokerError], Message]) -> None:
        self._gathered = gathered
        self._index = index
        self._on_error = on_error

    def reply(self, response: Message) -> None:
        self._gathered.put(self._index, response)

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self.reply(self._on_error(BrokerError(code, message)))


def answer_for_each(
    coordinator: Coordinator[Shard],
    request: ServerRequest,
    keys: Iterable[str],
    describe: Callable[[Shard, str], Answer],
    on_error: Callable[[str, BrokerError], Answer],
    response: Callable[[list[Answer]], Message],
) -> None:
    """Answer for each group or transactional id by its shard, when what the shard knows is committed."""
    distinct = list(dict.fromkeys(keys))
    gathered = Gathered(request, len(distinct), lambda parts: response(parts))  # type: ignore[arg-type]
    for index, key in enumerate(distinct):
        asker = gathered.part(index, partial(on_error, key))
        try:
            active = coordinator.shard_of(key)
            answer = describe(active.shard, key)
        except BrokerError as e:
            send([(asker, e)])
        else:
            coordinator.when_committed(active, [(asker, answer)])
