"""Checks whether a consumer may read a partition, each time that `broker/fetch/fetch_handler.py` reads the partition.

A check before the handler would not be enough, because the right may be granted or withdrawn later: a fetch session names its
partitions only once, and a request may wait for minutes."""

from __future__ import annotations

from strandline.controller.metadata.security.access import Rights
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.security import READ
from strandline.protocol.rpc.server import ServerRequest


class Reading:
    """The rights of the sender of a Fetch request, as they are when this is created."""

    __slots__ = ("_access",)

    def __init__(self, rights: Rights, request: ServerRequest) -> None:
        self._access = rights.access_of(request)

    def check(self, topic_id: bytes) -> None:
        """Check the right READ on a topic. Raises TOPIC_AUTHORIZATION_FAILED, or UNKNOWN_TOPIC_ID if the sender may not even
        know that the topic exists."""
        code = self._access.topic_refusal(topic_id, READ)
        if code is not None:
            raise BrokerError(code)
