"""A broker whose process was paused must not accept records for partitions that it may no longer lead.

A process can be paused (SIGSTOP, `docker pause`, a hypervisor, a disk that hangs) for longer than its session. When it resumes,
it still considers itself the leader: it serves the requests that waited in its sockets before it learns that another broker leads
now. With acks=all this is harmless: the followers have left, so the high watermark does not move and nothing is acknowledged. But
acks=1 is answered after the leader's append, and records acknowledged that way would be truncated later.

So a broker measures whether its event loop stopped for so long that its session may have ended. If it did, the broker refuses
produce requests (NOT_LEADER_OR_FOLLOWER: the producer then asks other brokers for the leader) until it has applied a controller's
answer to a request that was sent *after* the pause. Rules:

- Only a pause counts. If the controllers are silent while the broker runs, it goes on serving, as Kafka's brokers do: the
  data path needs no controller. A broker that was paused cannot know what it missed.
- The pause is detected by the timer or by the first request after it, whichever the loop runs first.
- Reads go on: everything below an old high watermark is committed.
- A produce request whose batches a thread prepares is checked when it arrives and again before its append, because the process
  may have been paused in between.

Where this is weak: a request that was being handled when the process was paused is completed; and if the machine's clock stopped
as well, the broker cannot detect the pause.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.protocol.errors import ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.data import ProducePartitionResponse, ProduceResponse
from strandline.protocol.rpc.server import ServerRequest

logger = get_logger(__name__)

TICK_MS = 200


def pause_ms_max(session_timeout_ms: int, heartbeat_interval_ms: int) -> int:
    """The longest pause in ms during which the session cannot end. It allows for a last heartbeat that is an interval old, and
    for as long again until a heartbeat in flight arrives."""
    return max(session_timeout_ms // 2, session_timeout_ms - 2 * heartbeat_interval_ms)


_NEVER = float("-inf")


class PauseDetector:
    """Detects that the process was paused. Times are the loop's, in seconds. Each tick of the loop extends `trusted_until`."""

    def __init__(self, *, limit_ms: int, heard_at: Callable[[], float]) -> None:
        """`limit_ms`: a longer pause may have ended the session.
        `heard_at`: when the newest request that a controller has answered was sent."""
        self._limit_s = limit_ms / 1000
        self._heard_at = heard_at
        self.trusted_until = float("inf")
        """The session of the last tick cannot end before this time. If it is in the past, the process was paused."""
        self._resumed_at: float | None = None
        """When the broker began to wait for a controller's answer; None while it is trusted."""

    def tick(self, now: float) -> None:
        if self.is_trusted(now):
            self.trusted_until = now + self._limit_s

    def is_trusted(self, now: float) -> bool:
        """Whether the broker may still act in its last known roles."""
        return now <= self.trusted_until or self._has_news(now)

    def _has_news(self, now: float) -> bool:
        if self._resumed_at is None:
            paused_ms = round((now - self.trusted_until + self._limit_s) * 1000)
            logger.warning("broker.pause_detected", paused_ms=paused_ms, reason="refuses records until a controller has answered")
            self._resumed_at, self.trusted_until = now, _NEVER
        if self._heard_at() <= self._resumed_at:
            return False
        logger.info("broker.pause_ended", waited_ms=round((now - self._resumed_at) * 1000))
        self._resumed_at, self.trusted_until = None, now + self._limit_s
        return True


def while_trusted(detector: PauseDetector, handle: Callable[[ServerRequest], None]) -> Callable[[ServerRequest], None]:
    """Wrap the handler of Produce: it is called only while the broker is trusted; otherwise the request is refused."""

    def guarded(request: ServerRequest) -> None:
        if request.received_at <= detector.trusted_until or detector.is_trusted(request.received_at):
            handle(request)
        else:
            refuse_produce(request)

    return guarded


def refuse_unless_trusted(detector: PauseDetector, now: Callable[[], float]) -> Callable[[ServerRequest], bool]:
    """The check of a produce request that had to wait before its append: whether the broker is still trusted. If it is not, the
    check refuses the request."""

    def may_append(request: ServerRequest) -> bool:
        if detector.is_trusted(now()):
            return True
        refuse_produce(request)
        return False

    return may_append


def refuse_produce(request: ServerRequest) -> None:
    """Refuse the request as a broker that does not lead, so that the producer asks for the present leader."""
    if request.body.acks == 0:
        request.no_reply()
        request.connection.close_because("a produce with acks=0 failed: the broker was paused", request.client_id)
        return
    code, text = ErrorCode.NOT_LEADER_OR_FOLLOWER, "the broker was paused and does not know the present leader yet"
    refused = [ProducePartitionResponse(p.topic_id, p.partition) for p in request.body.partitions]
    for partition in refused:
        partition.error_code, partition.error_message = code, text
    request.reply(ProduceResponse(refused))
