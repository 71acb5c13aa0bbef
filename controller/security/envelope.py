"""Envelope: a client's request that a broker forwards, with the identity that the broker has authenticated (KIP-590).

The guard of Envelope has required CLUSTER_ACTION of the broker. The request in it then passes the guard of its own API, with the
principal and the address of the client: the rights that count are those of the client, not those of the broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from strandline.controller.metadata.security.guards.common import Handler
from strandline.controller.metadata.security.rights import FORWARDABLE
from strandline.protocol.apis import APIS, api_name
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.messages.common import Message
from strandline.protocol.messages.security import EnvelopeRequest, EnvelopeResponse
from strandline.protocol.rpc.server import ServerConnection, ServerRequest
from strandline.protocol.security.principal import Principal


class EnvelopeHandler:
    """Answers Envelope requests of a controller."""

    def __init__(self, find_handler: Callable[[int], Handler | None], *, has_authorizer: bool = True) -> None:
        """`find_handler` returns the handler of an API that the controller's server has: guarded, if there is an authorizer."""
        self._find_handler = find_handler
        self._has_authorizer = has_authorizer

    def handle(self, request: ServerRequest) -> Any:
        if request.body.needs_authorizer and not self._has_authorizer:
            raise _no_authorizer()
        inner = open_envelope(request)
        handler = self._find_handler(inner.api_key)
        if handler is None:
            raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"{api_name(inner.api_key)} is not served by this node")
        return handler(inner)


def _no_authorizer() -> BrokerError:
    """The error of a controller without an authorizer, which could not refuse what the client may not do."""
    return BrokerError(
        ErrorCode.SECURITY_DISABLED,
        "the broker has an authorizer and this controller has none: set authorizer.class.name on the controllers first",
    )


class _SenderConnection:
    """The broker's connection, as the client's request sees it. A client that is throttled must not mute the broker."""

    __slots__ = ("_connection",)

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def mute(self, duration_s: float) -> None:
        """Does nothing: the broker mutes its client, because the response carries the throttle time."""


class EnvelopedRequest:
    """The client's request. Stands in for a `ServerRequest`; its response is put into that of the envelope."""

    __slots__ = ("_envelope", "api_key", "api_version", "body", "client_host", "client_id", "connection", "principal")

    def __init__(self, envelope: ServerRequest, principal: Principal, body: Any) -> None:
        outer: EnvelopeRequest = envelope.body
        self._envelope = envelope
        self.connection = _SenderConnection(envelope.connection)
        self.principal = principal
        self.client_host = outer.client_host
        self.client_id = outer.client_id
        self.api_key = outer.api_key
        self.api_version = outer.api_version
        self.body = body

    @property
    def paying_client(self) -> tuple[str, str]:
        """The user and the client id whose quotas count."""
        return self.principal.name, self.client_id or ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._envelope, name)

    def reply(self, body: Message, records: Any = None) -> None:
        assert records is None, "no API that is forwarded has records"
        # The broker's channel looks for this code, to send the request to the active controller.
        if getattr(body, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            self.refuse(ErrorCode.NOT_CONTROLLER, getattr(body, "error_message", None))
        else:
            self._envelope.reply(EnvelopeResponse(0, None, msgspec.msgpack.encode(body)))

    def refuse(self, code: ErrorCode, message: str | None = None) -> None:
        self._envelope.reply(EnvelopeResponse(code, message))

    def __repr__(self) -> str:
        return f"<{api_name(self.api_key)} of {self.principal} at {self.client_host} in {self._envelope!r}>"


def open_envelope(request: ServerRequest) -> EnvelopedRequest:
    """The request in an envelope. Raises INVALID_REQUEST or UNSUPPORTED_VERSION."""
    outer: EnvelopeRequest = request.body
    if outer.api_key not in FORWARDABLE:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"{api_name(outer.api_key)} is not forwarded in an envelope")
    api = APIS[outer.api_key]
    if not api.min_version <= outer.api_version <= api.max_version:
        raise BrokerError(ErrorCode.UNSUPPORTED_VERSION, f"version {outer.api_version} of {api.name} is not supported")
    try:
        principal = Principal.parse(outer.principal)
        body = msgspec.msgpack.decode(outer.body, type=api.request)
    except UsageError as e:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"an envelope names no principal: {e}") from e
    except (msgspec.ValidationError, msgspec.DecodeError) as e:
        raise BrokerError(ErrorCode.INVALID_REQUEST, f"an envelope with a malformed {api.name}: {e}") from None
    return EnvelopedRequest(request, principal, body)
