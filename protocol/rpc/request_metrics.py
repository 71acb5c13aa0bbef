"""Request metrics of a server by API: number, size, times, and the error codes of the responses.

    arrived         handler called      handler returns     answered
       |---- queue ------|----- local --------|-- parked -------|
       |------------------------- total ------------------------|

A request has arrived when its last byte was read; requests of the same read wait for each other. While a handler runs, the
event loop does nothing else. Fetches of consumers and of followers are counted separately. All listeners of a node share one
instance.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache

import msgspec

from strandline.protocol.apis import APIS, FETCH
from strandline.protocol.messages.common import Message
from strandline.protocol.metrics import Histogram

FETCH_FOLLOWER = -FETCH - 1
"""The key under which fetches of followers are counted, beside the API keys."""


class ApiMetrics:
    """The counters of one API."""

    __slots__ = (
        "_has_code",
        "_lists",
        "answers",
        "error_codes",
        "failed",
        "local_s",
        "name",
        "queue",
        "request_bytes",
        "requests",
        "total",
    )

    def __init__(self, name: str, response: type[Message]) -> None:
        self.name = name
        self.requests = 0
        self.request_bytes = 0
        self.local_s = 0.0
        self.queue = Histogram()
        self.total = Histogram()
        self.failed = 0
        """Responses with an error code, of the whole response or of a part of it."""
        self.error_codes: dict[int, int] = {}
        """How often each code was sent. A response with three partitions may have three codes."""
        self._has_code = "error_code" in response.__struct_fields__
        self._lists = _lists_with_codes(response)

    def on_request(self, size: int, queued_s: float) -> None:
        """Count a request of `size` bytes that waited `queued_s` for its handler."""
        self.requests += 1
        self.request_bytes += size
        if queued_s:
            self.queue.observe(queued_s)
        else:  # The only request of its read, as most are.
            self.queue.counts[0] += 1

    def on_answer(self, elapsed_s: float, body: Message) -> None:
        """Count a response, `elapsed_s` after the request arrived, and its error codes."""
        total = self.total  # `observe`, without the call
        total.counts[bisect_left(total.bounds, elapsed_s)] += 1
        total.sum += elapsed_s
        failed = self._has_code and body.error_code != 0  # type: ignore[attr-defined]
        if failed:
            self._count(body.error_code)  # type: ignore[attr-defined]
        for name in self._lists:
            for part in getattr(body, name):
                if part.error_code:
                    self._count(part.error_code)
                    failed = True
        self.failed += failed

    def on_refusal(self, elapsed_s: float, code: int) -> None:
        """Count a request that was refused as a whole."""
        self.total.observe(elapsed_s)
        self._count(code)
        self.failed += 1

    def _count(self, code: int) -> None:
        self.error_codes[code] = self.error_codes.get(code, 0) + 1


@cache
def _lists_with_codes(response: type[Message]) -> tuple[str, ...]:
    """The fields that are lists of parts with an error code. Cached, because the inspection takes a millisecond and many nodes
    may share a process."""
    found = []
    for field in msgspec.inspect.type_info(response).fields:  # type: ignore[attr-defined]
        kind = field.type
        item = kind.item_type if isinstance(kind, msgspec.inspect.ListType) else None
        if isinstance(item, msgspec.inspect.StructType) and "error_code" in item.cls.__struct_fields__:
            found.append(field.name)
    return tuple(found)


class RequestMetrics(dict[int, ApiMetrics]):
    """`ApiMetrics` by API key, created at the first request of an API."""

    def __init__(self, stopwatch: Callable[[], float]) -> None:
        super().__init__()
        self.stopwatch = stopwatch

    @property
    def requests(self) -> int:
        """The number of requests of all APIs."""
        return sum(each.requests for each in self.values())

    def __missing__(self, key: int) -> ApiMetrics:
        if key == FETCH_FOLLOWER:
            made = ApiMetrics("FetchFollower", APIS[FETCH].response)
        else:
            made = ApiMetrics("FetchConsumer" if key == FETCH else APIS[key].name, APIS[key].response)
        self[key] = made
        return made
