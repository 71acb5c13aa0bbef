"""A broker that stood still must not wake up believing that it leads.

A process can be stopped (SIGSTOP, `docker pause`, a hypervisor, a disk that hangs) for longer than its session. When it
wakes, it is in its own eyes the leader that it was: the requests that gathered in its sockets come first, the news that
another broker leads by now comes after. With acks=all nothing bad follows: the followers have left, so the high watermark
does not move and nothing is acknowledged. But acks=1 is answered after the leader's append, and what was taken that way
would be cut off again.

So a broker that finds that its loop did not turn for so long that its session may be over refuses to be written to
(NOT_LEADER_OR_FOLLOWER: the producer asks the others who leads) until the controllers' answer to a question that was
asked *after* the waking is applied. Rules:

- Only sleep counts. A broker whose controllers are silent while it is awake goes on serving, as Kafka's do: the data path
  needs no controller. One that slept cannot know what it missed.
- It is noticed by the first request after it as well as by the timer, whichever the loop hands over first.
- Reading goes on: below an old high watermark everything is committed.

Where this is weak: a request that was being handled in the very turn of the loop in which the process was stopped is
finished; and a suspended machine whose clock stood still too has slept without knowing it.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import ProducePartitionResponse, ProduceResponse
from strandline.protocol.rpc.server import ServerRequest

logger = get_logger(__name__)

TICK_MS = 200


def sleep_ms_max(session_timeout_ms: int, heartbeat_interval_ms: int) -> int:
    """A sleep that no session ends in: the last heartbeat before it may be an interval old, and one more on its way."""
    return max(session_timeout_ms // 2, session_timeout_ms - 2 * heartbeat_interval_ms)


_NEVER = float("-inf")


class Standstill:
    """The core: times are the loop's. `trusted_until` moves on with every tick of a loop that turns."""

    def __init__(self, *, limit_ms: int, heard_at: Callable[[], float]) -> None:
        """`limit_ms`: a longer sleep may have cost us the session.
        `heard_at`: when the newest question was asked that a controller has answered."""
        self._limit_s = limit_ms / 1000
        self._heard_at = heard_at
        self.trusted_until = float("inf")
        """Until then the session of the last tick cannot have ended. In the past: it slept."""
        self._woke_at: float | None = None
        """Since when it waits for news; None while it is trusted."""

    def tick(self, now: float) -> None:
        if self.is_trusted(now):
            self.trusted_until = now + self._limit_s

    def is_trusted(self, now: float) -> bool:
        """Whether the broker may act as what it last heard it is."""
        return now <= self.trusted_until or self._has_news(now)

    def _has_news(self, now: float) -> bool:
        if self._woke_at is None:
            slept_ms = round((now - self.trusted_until + self._limit_s) * 1000)
            logger.warning(
                "broker.standstill_detected", stood_still_ms=slept_ms, reason="takes no records until a controller has answered"
            )
            self._woke_at, self.trusted_until = now, _NEVER
        if self._heard_at() <= self._woke_at:
            return False
        logger.info("broker.standstill_ended", waited_ms=round((now - self._woke_at) * 1000))
        self._woke_at, self.trusted_until = None, now + self._limit_s
        return True


def while_trusted(standstill: Standstill, handle: Callable[[ServerRequest], None]) -> Callable[[ServerRequest], None]:
    """The handler of Produce, for as long as the broker may believe that it leads."""

    def guarded(request: ServerRequest) -> None:
        if request.received_at <= standstill.trusted_until or standstill.is_trusted(request.received_at):
            handle(request)
        else:
            _refuse(request)

    return guarded


def _refuse(request: ServerRequest) -> None:
    if request.body.acks == 0:
        request.no_reply()
        request.connection.close_because("a produce with acks=0 failed: the broker stood still", request.client_id)
        return
    code, text = ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker stood still and does not know yet who leads"
    refused = [ProducePartitionResponse(p.topic_id, p.partition) for p in request.body.partitions]
    for partition in refused:
        partition.error_code, partition.error_message = code, text
    request.reply(ProduceResponse(refused))
