"""What a consumer may read: asked at each visit of a partition, by `broker/fetch/fetch_handler.py`.

A guard before the handler would not do. A fetch session names its partitions once, and a request may wait for minutes; the right
may be withdrawn meanwhile, or given."""

from __future__ import annotations

from strandline.controller.metadata.security.access import Rights
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages.security import READ
from strandline.protocol.rpc.server import ServerRequest


class Reading:
    """The rights of the sender of one Fetch request, at one visit."""

    __slots__ = ("_access",)

    def __init__(self, rights: Rights, request: ServerRequest) -> None:
        self._access = rights.access_of(request)

    def check(self, topic_id: bytes) -> None:
        """Raises TOPIC_AUTHORIZATION_FAILED, or UNKNOWN_TOPIC_ID if the sender may not even know that the topic exists."""
        code = self._access.topic_refusal(topic_id, READ)
        if code is not None:
            raise BrokerError(code)
