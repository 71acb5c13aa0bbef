"""The rights of the sender of one request, as the guards of the APIs ask for them (`guards/`).

A denial of a right that the request needs is logged (`authorizer.denied`): one line a minute for the same principal, address,
operation, resource and API, and a hundred for all. A check that only filters what the sender may see is not logged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.security.authorizer import Authorizer
from strandline.protocol.apis import api_name
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.log_limits import LineLimits, printable
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.security import (
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    DESCRIBE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    TRANSACTIONAL_ID_RESOURCE,
)
from strandline.protocol.security.acl_names import operation_name, resource_name
from strandline.protocol.security.principal import Principal

logger = get_logger(__name__)

DENIED_BY_TYPE = {
    TOPIC_RESOURCE: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP_RESOURCE: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER_RESOURCE: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_RESOURCE: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""Resource type -> the error of a request that needs a right on a resource of this type."""


class DenialLog:
    """Writes the audit lines of a node."""

    def __init__(self) -> None:
        self._limits = LineLimits()

    def write(self, access: Access, operation: int, resource: str) -> None:
        request = access.request
        api, principal = api_name(request.api_key), printable(access.principal)
        subject = f"{principal} {access.host} {api} {operation} {printable(resource)}"
        suppressed = self._limits.admit(subject, request.received_at)
        if suppressed is not None:
            logger.warning(
                "authorizer.denied",
                principal=principal,
                operation=operation_name(operation),
                resource=printable(resource),
                host=access.host,
                api=api,
                client_id=printable(request.client_id),
                **suppressed.fields,
            )


class Rights:
    """The state that all requests of a node are checked with: the rules, the names of topics, and the audit log."""

    def __init__(self, authorizer: Authorizer, image: Callable[[], MetadataImage]) -> None:
        """`image` returns the newest image whose rules count. While that has no record (offset -1), its rules are not used."""
        self.authorizer = authorizer
        self._image = image
        self.denials = DenialLog()

    def access_of(self, request: Any) -> Access:
        """The rights of the sender of a `ServerRequest`, by the newest rules."""
        image = self._image()
        if image.offset >= 0:
            self.authorizer.use(image)
        return Access(self, request, image)


class Access:
    """The rights of the sender of one request."""

    __slots__ = ("_authorize", "host", "image", "principal", "request", "rights")

    def __init__(self, rights: Rights, request: Any, image: MetadataImage) -> None:
        self.rights = rights
        self.request = request
        self.image = image
        self._authorize = rights.authorizer.authorize
        self.principal: Principal = request.principal
        self.host: str = request.client_host

    @property
    def is_node(self) -> bool:
        """Whether the sender is a broker or a controller: it has CLUSTER_ACTION."""
        return self.rights.authorizer.acts_for_cluster(self.principal, self.host)

    def sees(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether the sender has the right. A denial is not logged, because the caller only filters what the sender may see."""
        return self._authorize(self.principal, self.host, operation, resource_type, name)

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether the sender has the right that the request needs. A denial is logged."""
        if self._authorize(self.principal, self.host, operation, resource_type, name):
            return True
        self.rights.denials.write(self, operation, resource_name(resource_type, name))
        return False

    def may_any(self, operation: int, resource_type: int) -> bool:
        """Whether the sender has the right on any resource of the type. A denial is logged."""
        if self.rights.authorizer.authorize_by_resource_type(self.principal, self.host, operation, resource_type):
            return True
        self.rights.denials.write(self, operation, resource_name(resource_type, "(any)"))
        return False

    def require(self, operation: int, resource_type: int, name: str) -> None:
        """Raise the error of the resource's type if the sender lacks the right."""
        if not self.may(operation, resource_type, name):
            raise self.denial(operation, resource_type, name)

    def denial(self, operation: int, resource_type: int, name: str) -> BrokerError:
        text = f"{self.principal} lacks the right {operation_name(operation)} on {resource_name(resource_type, name)}"
        return BrokerError(DENIED_BY_TYPE[resource_type], text)

    def require_cluster(self, *operations: int) -> None:
        """Raise CLUSTER_AUTHORIZATION_FAILED if the sender has none of these rights on the cluster."""
        for operation in operations:
            if self.sees(operation, CLUSTER_RESOURCE, CLUSTER_NAME):
                return
        self.rights.denials.write(self, operations[0], resource_name(CLUSTER_RESOURCE, CLUSTER_NAME))
        raise self.denial(operations[0], CLUSTER_RESOURCE, CLUSTER_NAME)

    # -- topics by id -------------------------------------------------------------------------------------------------

    def topic_refusal(self, topic_id: bytes, operation: int) -> ErrorCode | None:
        """The error if the sender may not perform the operation on the topic with this id; None if it may, or if there is no such
        topic, which the handler reports. A sender that may not even describe the topic gets the error of an id that does not
        exist."""
        topic = self.image.topics_by_id.get(topic_id)
        if topic is None or self._authorize(self.principal, self.host, operation, TOPIC_RESOURCE, topic.name):
            return None
        self.rights.denials.write(self, operation, resource_name(TOPIC_RESOURCE, topic.name))
        if operation != DESCRIBE and self.sees(DESCRIBE, TOPIC_RESOURCE, topic.name):
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return ErrorCode.UNKNOWN_TOPIC_ID
