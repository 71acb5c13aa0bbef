"""Asks the leader of a partition where its log starts and ends, below which offset it is compacted, and which producers it knows:
for followers that are out of range, have an unknown history, or need a fresh copy.

The number of rows that a named producer has written is known from its last batch, which may be deleted while the name is still in
use. A follower that starts over at the leader's log start never sees that batch, so it asks the leader for the state of producers
(`storage/log/producer_state.py`), which includes the fencing tokens. Batches that are appended between two answers reach the
follower through the log. The request for the producers is sent last, and a leader answers in order. So its answer covers all
batches below the log start that the leader has answered, even those that were appended and deleted in between.
"""

from __future__ import annotations

from typing import NamedTuple

from strandline.broker.partition.partition import FetchPosition
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.data import (
    EARLIEST_TIMESTAMP,
    FIRST_DIRTY_TIMESTAMP,
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
    """The leader's log start, log end and producers."""

    start: int
    end: int
    producers: list[KnownProducer]
    """All producers that the leader knows. Batches of named producers before `start` are deleted, so the log does not
    contain their states."""
    clean_below: int = 0
    """The leader's first dirty offset (`LogState.first_dirty_offset`); 0 if the leader is too old to answer."""


class RangeQuestion:
    """Three ListOffsets requests and a DescribeProducers request, sent together, and their answers."""

    TIMESTAMPS = (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, FIRST_DIRTY_TIMESTAMP)

    def __init__(self, broker_id: int, asked: dict[TopicIdPartition, FetchPosition]) -> None:
        self.asked = asked
        self._broker_id = broker_id
        self._answers: dict[int, dict[TopicIdPartition, int]] = {}
        self._producers: dict[TopicIdPartition, list[KnownProducer]] = {}
        self.open = len(self.TIMESTAMPS) + 1

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
        """The leader's range of one partition; None if an answer is missing or an error. The first dirty offset may be missing:
        an older leader does not answer for it."""
        start = self._answers.get(EARLIEST_TIMESTAMP, {}).get(key)
        end = self._answers.get(LATEST_TIMESTAMP, {}).get(key)
        producers = self._producers.get(key)
        clean_below = self._answers.get(FIRST_DIRTY_TIMESTAMP, {}).get(key, 0)
        return None if start is None or end is None or producers is None else LeaderRange(start, end, producers, clean_below)


def _known(state: ProducerState) -> KnownProducer:
    return KnownProducer(state.producer_id, state.producer_epoch, state.last_sequence, state.last_offset, state.last_timestamp)
