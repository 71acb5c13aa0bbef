"""Producer ids: handed to brokers in blocks, so that one record in the log serves a thousand producers."""

from __future__ import annotations

from strandline.controller.decision import Decision
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import ProducerIdsRecord
from strandline.controller.replication_control import check_broker_epoch
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.cluster import AllocateProducerIdsRequest, AllocateProducerIdsResponse

BLOCK_SIZE = 1000
PRODUCER_ID_MAX = 2**63 - 1


def allocate_producer_ids(image: MetadataImage, request: AllocateProducerIdsRequest) -> Decision[AllocateProducerIdsResponse]:
    """The block [start, start + 1000) belongs to the broker once the record is committed; an unused rest is lost."""
    check_broker_epoch(image, request.broker_id, request.broker_epoch)
    start = image.next_producer_id
    if start > PRODUCER_ID_MAX - BLOCK_SIZE:
        raise BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, "there are no producer ids left")
    record = ProducerIdsRecord(request.broker_id, request.broker_epoch, start + BLOCK_SIZE)
    return Decision(AllocateProducerIdsResponse(0, start, BLOCK_SIZE), [record])
