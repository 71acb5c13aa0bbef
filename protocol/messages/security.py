"""Security: SaslHandshake, SaslAuthenticate, ACLs, SCRAM credentials, client quotas, and Envelope."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from strandline.protocol.messages.common import (
    MANY,
    Count,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Name,
    Text,
)

# -- SASL -------------------------------------------------------------------------------------------------------------

SaslBytes = Annotated[bytes, Meta(max_length=512 * 1024)]
"""A bound for the decoder only. A listener refuses frames above its `sasl.server.max.receive.size`."""


class SaslHandshakeRequest(Message):
    """Chooses the mechanism of the authentication that follows; also begins a re-authentication (KIP-368)."""

    mechanism: Name


class SaslHandshakeResponse(Message):
    error_code: Int16
    mechanisms: list[Name]
    """The mechanisms that the listener offers."""


class SaslAuthenticateRequest(Message):
    """One message of the mechanism, from the client."""

    auth_bytes: SaslBytes


class SaslAuthenticateResponse(Message):
    """One message of the mechanism, from the server. `session_lifetime_ms`: after this time the server closes the connection,
    unless the client has authenticated again before (KIP-368); 0: never."""

    error_code: Int16
    error_message: Text | None
    auth_bytes: SaslBytes
    session_lifetime_ms: Int64 = 0


# -- ACLs -------------------------------------------------------------------------------------------------------------

ANY_TYPE = 1
"""In filters only: every value."""
TOPIC_RESOURCE, GROUP_RESOURCE, CLUSTER_RESOURCE, TRANSACTIONAL_ID_RESOURCE, USER_RESOURCE = 2, 3, 4, 5, 7
"""Kafka's numbers of resource types (ResourceType)."""
CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type CLUSTER, as in Kafka."""
MATCH_PATTERN, LITERAL_PATTERN, PREFIXED_PATTERN = 2, 3, 4
"""Kafka's numbers of pattern types. MATCH is for filters: every pattern that applies to the named resource."""
ALL, READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, CLUSTER_ACTION = range(2, 10)
DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 10, 11, 12
"""Kafka's numbers of operations (AclOperation)."""
DENY, ALLOW = 2, 3
"""Kafka's numbers of permission types."""


class AclBinding(Message):
    """One access rule: whether `principal` may perform `operation` on the resources of the pattern from `host`."""

    resource_type: Int8
    resource_name: Text
    pattern_type: Int8
    principal: Text
    """`User:name`, or `User:*` for everyone."""
    host: Name
    """An address, a network in CIDR notation, or `*`."""
    operation: Int8
    permission_type: Int8


class AclFilter(Message):
    """Which rules to describe or delete: nil, or `ANY_TYPE`, matches everything."""

    resource_type: Int8 = ANY_TYPE
    resource_name: Text | None = None
    pattern_type: Int8 = ANY_TYPE
    principal: Text | None = None
    host: Name | None = None
    operation: Int8 = ANY_TYPE
    permission_type: Int8 = ANY_TYPE


class DescribeAclsRequest(Message):
    filter: AclFilter


class DescribeAclsResponse(Message):
    error_code: Int16
    error_message: Text | None
    acls: list[AclBinding]
    throttle_time_ms: Count = 0


class CreateAclsRequest(Message):
    creations: Annotated[list[AclBinding], MANY]


class AclResult(Message):
    error_code: Int16 = 0
    error_message: Text | None = None


class CreateAclsResponse(Message):
    """`results[i]` belongs to `creations[i]`."""

    results: list[AclResult]
    throttle_time_ms: Count = 0


class DeleteAclsRequest(Message):
    filters: Annotated[list[AclFilter], MANY]


class DeleteAclsResult(Message):
    error_code: Int16 = 0
    error_message: Text | None = None
    deleted: list[AclBinding] = []


class DeleteAclsResponse(Message):
    """`results[i]` belongs to `filters[i]`."""

    results: list[DeleteAclsResult]
    throttle_time_ms: Count = 0


# -- SCRAM credentials ------------------------------------------------------------------------------------------------

SCRAM_SHA_256, SCRAM_SHA_512 = 1, 2
"""Kafka's numbers of mechanisms (KIP-554)."""
SCRAM_ITERATIONS_MIN, SCRAM_ITERATIONS_MAX = 4096, 16384


class DescribeUserScramCredentialsRequest(Message):
    """`users` nil: all users that have a credential."""

    users: Annotated[list[Name], MANY] | None


class ScramCredentialInfo(Message):
    """The public part of a credential. The salt and the keys are in no response."""

    mechanism: Int8
    iterations: Int32


class UserScramCredentials(Message):
    user: Name
    error_code: Int16 = 0
    error_message: Text | None = None
    credentials: list[ScramCredentialInfo] = []


class DescribeUserScramCredentialsResponse(Message):
    error_code: Int16
    error_message: Text | None
    users: list[UserScramCredentials]
    throttle_time_ms: Count = 0


class ScramCredentialDeletion(Message):
    user: Name
    mechanism: Int8


class ScramCredentialUpsertion(Message):
    """`salted_password`: Hi(SASLprep(password), salt, iterations) of RFC 5802. It is secret: the controller derives the stored
    key and the server key from it, and does not keep it (KAFKA-14881)."""

    user: Name
    mechanism: Int8
    iterations: Int32
    salt: Annotated[bytes, Meta(max_length=1024)]
    salted_password: Annotated[bytes, Meta(max_length=1024)]

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion(user={self.user!r}, mechanism={self.mechanism}, iterations={self.iterations})"


class AlterUserScramCredentialsRequest(Message):
    deletions: Annotated[list[ScramCredentialDeletion], MANY] = []
    upsertions: Annotated[list[ScramCredentialUpsertion], MANY] = []


class AlterUserScramCredentialsResult(Message):
    user: Name
    error_code: Int16 = 0
    error_message: Text | None = None


class AlterUserScramCredentialsResponse(Message):
    """One result per user."""

    results: list[AlterUserScramCredentialsResult]
    throttle_time_ms: Count = 0


# -- client quotas ----------------------------------------------------------------------------------------------------

USER_ENTITY, CLIENT_ID_ENTITY, IP_ENTITY = "user", "client-id", "ip"
EXACT_MATCH, DEFAULT_MATCH, ANY_MATCH = 0, 1, 2


class QuotaEntityPart(Message, frozen=True):  # type: ignore[misc]  # msgspec allows it
    """A part of a quota's entity; `name` nil: the default of the type."""

    entity_type: Name
    name: Name | None


class QuotaValue(Message):
    key: Name
    value: float


class QuotaFilterPart(Message):
    """`match_type` 0: the entity's part is `match`; 1: it is the default; 2: any part of this type."""

    entity_type: Name
    match_type: Int8
    match: Name | None = None


class DescribeClientQuotasRequest(Message):
    """`strict`: only entities that have no other parts than those of the filter (KIP-546)."""

    filters: Annotated[list[QuotaFilterPart], MANY]
    strict: bool = False


class QuotaEntry(Message):
    entity: list[QuotaEntityPart]
    values: list[QuotaValue]


class DescribeClientQuotasResponse(Message):
    error_code: Int16
    error_message: Text | None
    entries: list[QuotaEntry]
    throttle_time_ms: Count = 0


class QuotaOperation(Message):
    """Sets `key` to `value`, or removes it if `value` is nil."""

    key: Name
    value: float | None


class QuotaAlteration(Message):
    entity: list[QuotaEntityPart]
    operations: list[QuotaOperation]


class AlterClientQuotasRequest(Message):
    entries: Annotated[list[QuotaAlteration], MANY]
    validate_only: bool = False


class AlterClientQuotasResult(Message):
    error_code: Int16
    error_message: Text | None
    entity: list[QuotaEntityPart]


class AlterClientQuotasResponse(Message):
    """`results[i]` belongs to `entries[i]`."""

    results: list[AlterClientQuotasResult]
    throttle_time_ms: Count = 0


# -- Envelope ---------------------------------------------------------------------------------------------------------


class EnvelopeRequest(Message):
    """A client's request that a broker forwards to the controller, with the identity that the broker has authenticated (KIP-590).

    `body`: the msgpack array of the request's message. The sender needs CLUSTER_ACTION; the rights that count for the request
    itself are those of `principal` from `client_host`. The body may hold a secret, so it is not shown.

    `needs_authorizer`: the broker has an authorizer, so a controller that has none refuses. A broker without one uses envelopes
    only so that the controller knows whose quota counts."""

    principal: Text
    client_host: Name
    client_id: Name | None
    api_key: Int16
    api_version: Int16
    body: bytes
    needs_authorizer: bool = True

    def __repr__(self) -> str:
        return f"EnvelopeRequest(api_key={self.api_key}, principal={self.principal!r}, client_host={self.client_host!r})"


class EnvelopeResponse(Message):
    """`error_code`: of the envelope, or the refusal of the request in it; without an error, `body` is the msgpack array of the
    response's message."""

    error_code: Int16
    error_message: Text | None = None
    body: bytes = b""
