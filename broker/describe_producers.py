"""Serving DescribeProducers: what the log of a partition that we lead knows of its producers (KIP-664).

It is how a new attempt of a named producer finds out how many rows the attempts before it have written. Part of that may
not be committed yet, and go with this leader: so the high watermark is told with it, of the same moment. Who asks waits
until it has passed the offset that was found, in the same leader epoch.

An answer may be old by the time it is read, for the attempt before may still be writing. That does no harm: what is sent
on the strength of it is refused, as a duplicate or for its epoch, and the asker asks again.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.fetch import PartitionDirectory
from strandline.controller.metadata.image import MetadataImage
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
)
from strandline.protocol.producer_names import is_named, number_of
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.producer_state import KnownProducer


class DescribeProducersHandler:
    """Answers DescribeProducers requests of a broker."""

    def __init__(self, directory: PartitionDirectory, image: Callable[[], MetadataImage]) -> None:
        self._directory = directory
        self._image = image

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeProducersRequest)
        seen: set[tuple[bytes, int]] = set()
        answers = []
        for item in body.partitions:
            if (item.topic_id, item.partition) in seen:
                raise BrokerError(ErrorCode.INVALID_REQUEST, "the same partition twice in one request")
            seen.add((item.topic_id, item.partition))
            answers.append(self._describe(item, body.producer_ids))
        request.reply(DescribeProducersResponse(answers))

    def _describe(self, item: DescribeProducersPartition, producer_ids: list[int] | None) -> DescribeProducersPartitionResponse:
        answer = DescribeProducersPartitionResponse(item.topic_id, item.partition)
        try:
            partition = self._directory.partition((item.topic_id, item.partition))
            answer.leader_epoch = partition.leading(item.current_leader_epoch).epoch
        except BrokerError as e:
            answer.error_code, answer.error_message = e.code, e.message
            return answer
        answer.high_watermark = partition.log.high_watermark
        answer.active_producers = [self._state(known) for known in partition.log.producers.describe(producer_ids)]
        return answer

    def _state(self, known: KnownProducer) -> ProducerState:
        named = is_named(known.producer_id)
        return ProducerState(*known, self._image().producer_numbers.get(number_of(known.producer_id)) if named else None)
