"""The times that brokers make this client wait because of quotas (KIP-219).

A broker answers at once, names the throttle time in the response, and reads nothing from the connection until it has passed. So
the client holds back its next fetches or batches for that broker, and does not suspect a broker that is silent meanwhile of being
gone.
"""

from __future__ import annotations


class ThrottleTimes:
    """The throttle times of one client, by broker, and their sum and maximum."""

    __slots__ = ("_until", "max_ms", "throttled", "total_ms")

    def __init__(self) -> None:
        self._until: dict[int, float] = {}
        self.throttled = 0
        """Responses with a throttle time."""
        self.total_ms = 0
        self.max_ms = 0

    def on_throttled(self, broker_id: int, throttle_ms: int, now: float) -> float:
        """A response of this broker has a throttle time. Returns the time on the loop's clock at which it ends."""
        self.throttled += 1
        self.total_ms += throttle_ms
        self.max_ms = max(self.max_ms, throttle_ms)
        until = self._until[broker_id] = max(self.until(broker_id), now + throttle_ms / 1000)
        return until

    def until(self, broker_id: int) -> float:
        """The time until which the broker reads nothing, on the loop's clock; 0 if no response of it had a throttle time."""
        return self._until.get(broker_id, 0.0)

    def metrics(self, prefix: str, responses: int) -> dict[str, float]:
        """Kafka's two metrics: the average throttle time over this number of responses, and the largest throttle time, in ms."""
        average = self.total_ms / responses if responses else 0.0
        return {f"{prefix}_throttle_time_avg": average, f"{prefix}_throttle_time_max": self.max_ms}
