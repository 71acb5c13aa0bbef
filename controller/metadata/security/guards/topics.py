"""Guards of requests that read or change topics and configurations: Metadata, topics, configs, reports of elections.

The existence of a topic is hidden from a sender that may not describe it. A topic by name gets TOPIC_AUTHORIZATION_FAILED,
whether it exists or not. A topic by id gets UNKNOWN_TOPIC_ID, as any id that does not exist. Lists of all topics leave it out."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.controller.metadata.security.access import Access
from strandline.controller.metadata.security.guards.common import Guard, Handler, items, pass_filtered
from strandline.controller.metadata.security.partial_request import PartialRequest, put_back
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import (
    RESOURCE_GROUP,
    RESOURCE_TOPIC,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    CreatableTopic,
    CreatableTopicResult,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    DeletableTopicResult,
    DeleteTopicState,
    DescribeConfigsResource,
    DescribeConfigsResult,
    DescribeUncleanElectionsResponse,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataTopicRequest,
)
from strandline.protocol.messages.common import ZERO_UUID
from strandline.protocol.messages.security import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_NAME,
    CLUSTER_RESOURCE,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
)

_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED

# -- Metadata ---------------------------------------------------------------------------------------------------------


def metadata(access: Access, request: Any, handler: Handler) -> Any:
    """DESCRIBE on each topic."""
    body: MetadataRequest = request.body
    if body.topics is not None:
        return _named_topics(access, request, handler)

    def complete(response: MetadataResponse) -> None:
        response.topics = [topic for topic in response.topics if access.sees(DESCRIBE, TOPIC_RESOURCE, topic.name or "")]

    return pass_filtered(request, handler, complete)


def _refuse_topic(access: Access, asked: MetadataTopicRequest) -> MetadataTopic | None:
    if asked.name is not None:
        may = access.may(DESCRIBE, TOPIC_RESOURCE, asked.name)
        return None if may else MetadataTopic(_DENIED, asked.name, ZERO_UUID, [])
    code = access.topic_refusal(asked.topic_id, DESCRIBE)
    return None if code is None else MetadataTopic(code, None, asked.topic_id, [])


def _named_topics(access: Access, request: Any, handler: Handler) -> Any:
    """The handler is always called, even if no topic is left: the response has the brokers, too."""
    refused = {i: row for i, asked in enumerate(request.body.topics) if (row := _refuse_topic(access, asked)) is not None}
    if not refused:
        return handler(request)
    left = [asked for i, asked in enumerate(request.body.topics) if i not in refused]

    def complete(response: MetadataResponse) -> None:
        response.topics = put_back(response.topics, refused)

    return handler(PartialRequest(request, replace(request.body, topics=left), complete))


# -- topics -----------------------------------------------------------------------------------------------------------


def _refuse_creation(access: Access, topic: CreatableTopic) -> CreatableTopicResult | None:
    if access.sees(CREATE, CLUSTER_RESOURCE, CLUSTER_NAME) or (topic.name in INTERNAL_TOPICS and access.is_node):
        return None
    if access.may(CREATE, TOPIC_RESOURCE, topic.name):
        return None
    return CreatableTopicResult(topic.name, ZERO_UUID, _DENIED, _text(access, CREATE, topic.name))


create_topics: Guard = items("topics", "topics", _refuse_creation)
"""CREATE on the cluster, or on each topic. Brokers (CLUSTER_ACTION) create the internal topics."""


def _refuse_deletion(access: Access, state: DeleteTopicState) -> DeletableTopicResult | None:
    if access.sees(DELETE, CLUSTER_RESOURCE, CLUSTER_NAME):
        return None
    if state.name is not None:
        may = access.may(DELETE, TOPIC_RESOURCE, state.name)
        return None if may else DeletableTopicResult(state.name, ZERO_UUID, _DENIED, _text(access, DELETE, state.name))
    code = access.topic_refusal(state.topic_id, DELETE)
    if code is None:
        return None
    if code is ErrorCode.UNKNOWN_TOPIC_ID:
        return DeletableTopicResult(None, state.topic_id, code, f"there is no topic with id {state.topic_id.hex()}")
    name = access.image.topics_by_id[state.topic_id].name
    return DeletableTopicResult(name, state.topic_id, code, _text(access, DELETE, name))


delete_topics: Guard = items("topics", "topics", _refuse_deletion)
"""DELETE on the cluster, or on each topic."""


def _refuse_partitions(access: Access, topic: CreatePartitionsTopic) -> CreatePartitionsTopicResult | None:
    may = access.may(ALTER, TOPIC_RESOURCE, topic.name)
    return None if may else CreatePartitionsTopicResult(topic.name, _DENIED, _text(access, ALTER, topic.name))


create_partitions: Guard = items("topics", "results", _refuse_partitions)
"""ALTER on each topic."""


def _text(access: Access, operation: int, name: str) -> str | None:
    return access.denial(operation, TOPIC_RESOURCE, name).message


# -- configurations ---------------------------------------------------------------------------------------------------


_NAMED = {RESOURCE_TOPIC: TOPIC_RESOURCE, RESOURCE_GROUP: GROUP_RESOURCE}


def _config_denial(access: Access, operation: int, resource_type: int, name: str) -> BrokerError | None:
    """The error if the sender lacks the right on a topic or group or, for the configuration of a broker, on the cluster."""
    named = _NAMED.get(resource_type)
    resource = (CLUSTER_RESOURCE, CLUSTER_NAME) if named is None else (named, name)
    return None if access.may(operation, *resource) else access.denial(operation, *resource)


def _refuse_description(access: Access, resource: DescribeConfigsResource) -> DescribeConfigsResult | None:
    denial = _config_denial(access, DESCRIBE_CONFIGS, resource.resource_type, resource.resource_name)
    if denial is None:
        return None
    return DescribeConfigsResult(denial.code, denial.message, resource.resource_type, resource.resource_name)


describe_configs: Guard = items("resources", "results", _refuse_description)
"""DESCRIBE_CONFIGS on each topic or group, or on the cluster for brokers."""


def _refuse_alteration(access: Access, resource: AlterConfigsResource) -> AlterConfigsResourceResponse | None:
    denial = _config_denial(access, ALTER_CONFIGS, resource.resource_type, resource.resource_name)
    if denial is None:
        return None
    return AlterConfigsResourceResponse(denial.code, denial.message, resource.resource_type, resource.resource_name)


alter_configs: Guard = items("resources", "responses", _refuse_alteration)
"""ALTER_CONFIGS on each topic or group, or on the cluster for brokers."""

# -- unclean elections ------------------------------------------------------------------------------------------------


def unclean_elections(access: Access, request: Any, handler: Handler) -> Any:
    """The reports of topics that the sender may describe."""

    def complete(response: DescribeUncleanElectionsResponse) -> None:
        response.reports = [report for report in response.reports if access.sees(DESCRIBE, TOPIC_RESOURCE, report.topic)]

    return pass_filtered(request, handler, complete)
