"""Serving DescribeProducers: what the log of a partition that we lead knows of its producers (KIP-664).

It is how a new attempt of a named producer finds out how many rows the attempts before it have written. Part of that may
not be committed yet, and go with this leader: so the high watermark is told with it, of the same moment. Who asks waits
until it has passed the offset that was found, in the same leader epoch.

Who must know that nobody else writes under the name any more names its own epoch: then only a leader answers that has
heard from the controllers that nothing older may be written, and takes nothing older (`produce.py`). Whoever leads later has
heard of it too, for the metadata that made it leader came after.

Else an answer may be old by the time it is read, for the attempt before may still be writing. That does no harm: what is sent
on the strength of it is refused, as a duplicate or for its epoch, and the asker asks again.
"""

from __future__ import annotations

from strandline.broker.partition.directory import PartitionDirectory
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.data import (
    DescribeProducersPartition,
    DescribeProducersPartitionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ProducerState,
)
from strandline.protocol.partitions import refuse_repeated
from strandline.protocol.producer_names import is_named, number_of, work_epoch_of
from strandline.protocol.rpc.server import ServerRequest
from strandline.storage.log.producer_state import KnownProducer


class DescribeProducersHandler:
    """Answers DescribeProducers requests of a broker."""

    def __init__(self, directory: PartitionDirectory) -> None:
        self._directory = directory

    def handle(self, request: ServerRequest) -> None:
        body = request.body
        assert isinstance(body, DescribeProducersRequest)
        refuse_repeated(body.partitions)
        request.reply(DescribeProducersResponse([self._describe(item, body) for item in body.partitions]))

    def _describe(self, item: DescribeProducersPartition, asked: DescribeProducersRequest) -> DescribeProducersPartitionResponse:
        answer = DescribeProducersPartitionResponse(item.topic_id, item.partition)
        try:
            partition = self._directory.partition((item.topic_id, item.partition))
            answer.leader_epoch = partition.leading(item.current_leader_epoch).epoch
            self._check_is_alone(asked)
        except BrokerError as e:
            answer.error_code, answer.error_message = e.code, e.message
            return answer
        answer.high_watermark = partition.log.high_watermark
        answer.active_producers = [self._state(known) for known in partition.log.producers.describe(asked.producer_ids)]
        return answer

    def _check_is_alone(self, asked: DescribeProducersRequest) -> None:
        for producer_id in asked.producer_ids or () if asked.producer_epoch >= 0 else ():
            wanted = work_epoch_of(producer_id), asked.producer_epoch
            if is_named(producer_id) and self._directory.image.oldest_of(producer_id) < wanted:
                text = (
                    f"that nothing before epoch {asked.producer_epoch} of producer {producer_id} is written is not known here yet"
                )
                raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, text)

    def _state(self, known: KnownProducer) -> ProducerState:
        named = is_named(known.producer_id)
        return ProducerState(*known, self._directory.image.producer_numbers.get(number_of(known.producer_id)) if named else None)
