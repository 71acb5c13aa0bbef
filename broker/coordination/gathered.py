"""The response to a request about several groups or transactional ids, sent when the parts of all of them are known."""

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
    """The parts of one response. When all are known, `finish` builds the response from them; without parts, at once."""

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
        """An asker whose reply becomes this part. `on_error`: builds the part if the asker is refused."""
        return _PartAsker(self, index, on_error)

    def _maybe_finish(self) -> None:
        if not self._missing:
            self._request.reply(self._finish([part for part in self._parts if part is not None]))


class _PartAsker:
    """Puts its answer into a `Gathered` response."""

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
    """Answer a request about several groups or transactional ids. The shard of each describes it. The response is sent when all
    that these shards know now is committed, also if it says that there is no such group: its deletion may not be committed."""
    distinct = list(dict.fromkeys(keys))
    gathered = Gathered(request, len(distinct), lambda parts: response(parts))  # type: ignore[arg-type]
    for index, key in enumerate(distinct):
        asker = gathered.part(index, partial(on_error, key))
        try:
            active = coordinator.shard_of(key)
        except BrokerError as e:
            send([(asker, e)])
            continue
        try:
            answer: Answer | BrokerError = describe(active.shard, key)
        except BrokerError as e:
            answer = e
        coordinator.when_committed(active, [(asker, answer)])
