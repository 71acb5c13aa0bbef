"""How a broker forwards a client's request to the active controller: as it is, or in an Envelope with the client's identity.

With an authorizer, the controller needs the client's identity, so the request is sent in an Envelope (KIP-590). So is a request
that a quota limits (`controller_mutation_rate`). Any other request is sent as the broker's own."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from strandline.broker.process.controller_channel import Channel
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.quota_lookup import CONTROLLER_MUTATION_RATE, has_quota
from strandline.protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, ENVELOPE, api_name
from strandline.protocol.errors import BrokerError, InternalError, to_code
from strandline.protocol.field_paths import with_field_names
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import EnvelopeRequest, EnvelopeResponse
from strandline.protocol.rpc.server import ServerRequest

_LIMITED = frozenset({CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS})
"""Requests that `controller_mutation_rate` limits."""


class Forwarder:
    """Forwards requests of clients."""

    def __init__(self, channel: Channel, image: Callable[[], MetadataImage], *, has_authorizer: bool) -> None:
        self._channel = channel
        self._image = image
        self._has_authorizer = has_authorizer

    async def forward(self, request: ServerRequest, timeout_ms: int) -> Message:
        """The controller's response. Raises the BrokerError by which it refuses the request, or REQUEST_TIMED_OUT."""
        if not self._has_authorizer and not self._is_limited(request):
            return await self._channel.request(request.api_key, request.body, timeout_ms)
        answer = await self._channel.request(ENVELOPE, envelope_of(request, self._has_authorizer), timeout_ms)
        assert isinstance(answer, EnvelopeResponse)
        return open_response(request.api_key, answer)

    def _is_limited(self, request: ServerRequest) -> bool:
        return request.api_key in _LIMITED and has_quota(self._image().client_quotas, CONTROLLER_MUTATION_RATE)


def envelope_of(request: ServerRequest, needs_authorizer: bool = True) -> EnvelopeRequest:
    return EnvelopeRequest(
        str(request.principal),
        request.client_host,
        request.client_id,
        request.api_key,
        request.api_version,
        msgspec.msgpack.encode(request.body),
        needs_authorizer,
    )


def open_response(api_key: int, answer: EnvelopeResponse) -> Message:
    """The response in an envelope. Raises the BrokerError that the envelope has instead, or InternalError if it is malformed."""
    if answer.error_code:
        raise BrokerError(to_code(answer.error_code), answer.error_message)
    try:
        response: Message = msgspec.msgpack.decode(answer.body, type=APIS[api_key].response)
    except (msgspec.ValidationError, msgspec.DecodeError) as e:
        problem = with_field_names(APIS[api_key].response, str(e))
        raise InternalError(f"the controller's {api_name(api_key)} in an envelope cannot be read: {problem}") from None
    return response
