"""Asking the leader where its logs start and end, and whom they know, for followers that are out of its range.

The rows that a named producer has written are known by its last batch, which may be deleted while the name still counts. A
follower that begins again at the leader's log start never sees that batch, so the leader tells (`storage/log/producer_state.py`).
The order of the answers does not matter: whoever writes between two of them is seen in the log.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.broker.partition.partition import FetchPosition
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    DescribeProducersPartition,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ProducerState,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.storage.log.producer_state import KnownProducer


class LeaderRange(NamedTuple):
    """What the leader says of its log, for a follower that begins again at its start."""

    start: int
    end: int
    producers: list[KnownProducer]
    """All that it knows: what named ones wrote before `start`, no batch will tell."""


class RangeQuestion:
    """Two ListOffsets requests and a DescribeProducers, sent together, and what came back."""

    def __init__(self, broker_id: int, asked: dict[TopicIdPartition, FetchPosition]) -> None:
        self.asked = asked
        self._broker_id = broker_id
        self._answers: dict[int, dict[TopicIdPartition, int]] = {}
        self._producers: dict[TopicIdPartition, list[KnownProducer]] = {}
        self.open = 3

    def request(self, timestamp: int) -> ListOffsetsRequest:
        partitions = [
            ListOffsetsPartition(key[0], key[1], position.leader_epoch, timestamp) for key, position in self.asked.items()
        ]
        return ListOffsetsRequest(self._broker_id, 0, partitions)

    @property
    def producers_request(self) -> DescribeProducersRequest:
        return DescribeProducersRequest(
            [DescribeProducersPartition(key[0], key[1], position.leader_epoch) for key, position in self.asked.items()]
        )

    def on_answer(self, timestamp: int, response: Message | Exception) -> None:
        self.open -= 1
        if isinstance(response, ListOffsetsResponse):
            self._answers[timestamp] = {(p.topic_id, p.partition): p.offset for p in response.partitions if not p.error_code}

    def on_producers(self, response: Message | Exception) -> None:
        self.open -= 1
        if isinstance(response, DescribeProducersResponse):
            for p in response.partitions:
                if not p.error_code:
                    self._producers[p.topic_id, p.partition] = [_known(state) for state in p.active_producers]

    def range_of(self, key: TopicIdPartition) -> LeaderRange | None:
        start = self._answers.get(EARLIEST_TIMESTAMP, {}).get(key)
        end = self._answers.get(LATEST_TIMESTAMP, {}).get(key)
        producers = self._producers.get(key)
        return None if start is None or end is None or producers is None else LeaderRange(start, end, producers)


def _known(state: ProducerState) -> KnownProducer:
    return KnownProducer(state.producer_id, state.producer_epoch, state.last_sequence, state.last_offset, state.last_timestamp)
