"""Names of named producers and transactional ids share one namespace: the second use of a name is refused with INVALID_REQUEST.

Names of producers are in the metadata of each broker, but only the coordinator of a transactional id knows that id. So of two
requests at the same time, one may take a name for a named producer and the other may take it as a transactional id. That does no
harm to records, because the producer ids differ.
"""

from __future__ import annotations

from collections.abc import Callable

from strandline.broker.coordination.partitioning import partition_of
from strandline.broker.transactions.marker_sender import Channels
from strandline.controller.metadata.image import NO_LEADER, MetadataImage
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC
from strandline.protocol.apis import DESCRIBE_TRANSACTIONS
from strandline.protocol.errors import BrokerError, ErrorCode, to_code
from strandline.protocol.messages.transactions import DescribeTransactionsRequest, DescribeTransactionsResponse

TIMEOUT_MS = 5000


def check_transactional_id(transactional_id: str, image: MetadataImage) -> None:
    """Raises INVALID_REQUEST if a named producer has this name."""
    if transactional_id in image.producer_names:
        reason = "is the name of a named producer, so it cannot be a transactional id"
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{transactional_id!r} {reason}")


class ProducerNameCheck:
    """Checks a name before it is given to a new named producer."""

    def __init__(self, channels: Channels, image: Callable[[], MetadataImage]) -> None:
        self._channels = channels
        self._image = image

    async def check(self, name: str) -> None:
        """Raises INVALID_REQUEST if the name is a transactional id, and COORDINATOR_NOT_AVAILABLE if its coordinator does not
        answer."""
        image = self._image()
        topic = image.topic(TRANSACTION_STATE_TOPIC)
        if topic is None or name in image.producer_names:
            return
        code = await self._describe(topic.partitions[partition_of(name, len(topic.partitions))].leader, name)
        if code is ErrorCode.NONE:
            reason = "is a transactional id, so it cannot be the name of a named producer"
            raise BrokerError(ErrorCode.INVALID_REQUEST, f"{name!r} {reason}")
        if code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            reason = f"the coordinator of {name!r}, if that is a transactional id, did not answer ({code.name})"
            raise BrokerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, reason)

    async def _describe(self, coordinator: int, name: str) -> ErrorCode:
        if coordinator == NO_LEADER:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        request = DescribeTransactionsRequest([name])
        try:
            response = await self._channels.request(coordinator, DESCRIBE_TRANSACTIONS, request, TIMEOUT_MS)
        except BrokerError as e:
            return e.code
        assert isinstance(response, DescribeTransactionsResponse)
        return to_code(response.transactions[0].error_code)
