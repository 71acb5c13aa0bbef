"""A producer's requests to one broker: the requests in flight, and the partitions that wait to be part of the next one."""

from __future__ import annotations

import asyncio

from strandline.client.producer.partition_queue import PartitionQueue


class BrokerQueue:
    """The produce requests that one broker has not answered, and the partitions that wait for their turn."""

    __slots__ = ("broker_id", "gather_timer", "in_flight_max", "requests", "throttle_timer", "waiting")

    def __init__(self, broker_id: int, in_flight_max: int) -> None:
        self.broker_id = broker_id
        self.in_flight_max = in_flight_max
        """`max_in_flight_requests_per_connection`; 0 during a throttle time."""
        self.throttle_timer: asyncio.TimerHandle | None = None
        """Set during a throttle time of the broker."""
        self.requests: dict[int, float] = {}
        """Requests in flight, oldest first: number -> time of sending, on the loop's clock."""
        self.waiting: dict[PartitionQueue, None] = {}
        """Queues that may have a batch for this broker, in the order in which they were added."""
        self.gather_timer: asyncio.TimerHandle | None = None

    def waits_since(self) -> float | None:
        """When the oldest request in flight was sent."""
        return next(iter(self.requests.values()), None)
