"""Handlers behind the guards of a node, with access rules, a metadata image, and handlers that record what reaches them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from handled_request import HandledConnection, HandledRequest

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.access import Rights
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.controller.metadata.security.rights import guarded
from strandline.protocol.apis import BROKER
from strandline.protocol.errors import BrokerError
from strandline.protocol.messages import security as s
from strandline.protocol.messages.security import AclBinding
from strandline.protocol.security.principal import Principal

ALICE, BOB, ADMIN, NODE = (Principal("User", name) for name in ("alice", "bob", "admin", "broker"))
HOST = "10.0.0.1"
ORDERS, SECRET, UNKNOWN = (name * 16 for name in (b"o", b"s", b"u"))
TOPICS = {ORDERS: "orders", SECRET: "secret"}


def allow(operation: int, kind: int, name: str, principal: Principal = ALICE, *, pattern: int = s.LITERAL_PATTERN) -> AclBinding:
    return AclBinding(kind, name, pattern, str(principal), "*", operation, s.ALLOW)


def topic(operation: int, name: str = "orders", principal: Principal = ALICE) -> AclBinding:
    return allow(operation, s.TOPIC_RESOURCE, name, principal)


def group(operation: int, name: str = "readers") -> AclBinding:
    return allow(operation, s.GROUP_RESOURCE, name)


def txn(operation: int, name: str = "payments") -> AclBinding:
    return allow(operation, s.TRANSACTIONAL_ID_RESOURCE, name)


def cluster(operation: int, principal: Principal = ALICE) -> AclBinding:
    return allow(operation, s.CLUSTER_RESOURCE, s.CLUSTER_NAME, principal)


class PeerRequest(HandledRequest):
    """A request that belongs to a principal."""

    def __init__(self, body: Any, api_key: int, principal: Principal, connection: HandledConnection | None = None) -> None:
        super().__init__(body, api_key=api_key, connection=connection)
        self.principal, self.client_host = principal, HOST


class GuardedWorld:
    """One node. `ask` sends a request, which `answer` answers if it reaches the handler."""

    def __init__(self, *acls: AclBinding, role: str = BROKER, topics: Mapping[bytes, str] = TOPICS) -> None:
        self.role = role
        self.authorizer = Authorizer([ADMIN])
        self.image = SimpleNamespace(
            offset=7,
            acls={},
            topics_by_id={topic_id: SimpleNamespace(topic_id=topic_id, name=name) for topic_id, name in topics.items()},
            producer_numbers={0: "etl"},
            next_producer_number=1,
            knows_producer=lambda number: MetadataImage.knows_producer(self.image, number),  # type: ignore[arg-type]
        )
        self.rights = Rights(self.authorizer, lambda: self.image)  # type: ignore[arg-type, return-value]
        self.grant(*acls, cluster(s.CLUSTER_ACTION, NODE))
        self.reached: list[Any] = []
        """The requests that have reached the handler."""

    def grant(self, *acls: AclBinding) -> None:
        """Replace all rules with these."""
        self.image.acls = {bytes([index]) * 16: acl for index, acl in enumerate(acls)}

    def ask(
        self, api_key: int, body: Any, answer: Callable[[Any], Any] = lambda body: None, principal: Principal = ALICE
    ) -> PeerRequest:
        """Send the request; returns it with its response: from `answer`, from a guard, or the BrokerError that a guard has
        raised."""
        request = PeerRequest(body, api_key, principal)

        def handle(reached: Any) -> None:
            self.reached.append(reached)
            response = answer(reached.body)
            if response is not None:
                reached.reply(response)

        handler = guarded({api_key: handle}, self.role, self.rights)[api_key]
        try:
            handler(request)
        except BrokerError as e:
            request.refuse(e.code, e.message)
        return request
