"""The cluster: DescribeCluster, DescribeQuorum, UpdateFeatures and UnregisterBroker.

The controllers of a Strandline cluster speak Strandline's protocol only. So the controller that a response names is a broker,
which forwards requests to the real controller; and a request for the addresses of the controllers is refused."""

from __future__ import annotations

from typing import Any

from strandline.broker.kafka.call import KafkaApi, KafkaCall, refused_at_top
from strandline.broker.kafka.translations.authorized_operations import cluster_operations
from strandline.broker.kafka.translations.metadata import controller_of
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.admin import (
    SAFE_DOWNGRADE,
    UPGRADE,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FeatureUpdate,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from strandline.protocol.messages.cluster import DescribeQuorumRequest, DescribeQuorumResponse, QuorumReplicaState
from strandline.protocol.messages.common import ZERO_UUID

_BROKERS = 1
"""Kafka's number for endpoints that are brokers."""
_CONTROLLERS = 2
_MISMATCHED_ENDPOINT_TYPE, _UNSUPPORTED_ENDPOINT_TYPE = 114, 115
"""Kafka's codes for a client that asks a broker for controllers, or for something else. They are no codes of ours."""
METADATA_TOPIC = "__cluster_metadata"

# -- DescribeCluster --------------------------------------------------------------------------------------------------


def _describe(call: KafkaCall) -> DescribeClusterRequest:
    """The response has fenced brokers only if the request asks for them, which is possible from version 2 on."""
    return DescribeClusterRequest(call.fields.get("include_fenced_brokers", False))


def _described(call: KafkaCall, body: DescribeClusterResponse) -> dict[str, Any]:
    fields = call.fields
    endpoint_type = fields.get("endpoint_type", _BROKERS)
    if endpoint_type != _BROKERS:
        return _no_brokers(call, endpoint_type)
    alive = [broker.broker_id for broker in body.brokers if not broker.is_fenced]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "endpoint_type": _BROKERS,
        "cluster_id": body.cluster_id,
        "controller_id": controller_of(call, alive),
        "brokers": [
            {"broker_id": b.broker_id, "host": b.host, "port": b.port, "rack": b.rack, "is_fenced": b.is_fenced}
            for b in body.brokers
        ],
        "cluster_authorized_operations": cluster_operations(call, fields.include_cluster_authorized_operations),
    }


def _no_brokers(call: KafkaCall, endpoint_type: int) -> dict[str, Any]:
    if endpoint_type == _CONTROLLERS:
        code, message = _MISMATCHED_ENDPOINT_TYPE, "this is a broker; the controllers have no listener for Kafka's clients"
    else:
        code, message = _UNSUPPORTED_ENDPOINT_TYPE, f"there are no endpoints of type {endpoint_type}"
    return refused_at_top(call, ErrorCode.NONE, message) | {"error_code": code, "brokers": []}


# -- DescribeQuorum ---------------------------------------------------------------------------------------------------


def _quorum(call: KafkaCall) -> DescribeQuorumRequest:
    return DescribeQuorumRequest()


def _described_quorum(call: KafkaCall, body: DescribeQuorumResponse) -> dict[str, Any]:
    """The quorum of partition 0 of the metadata topic. If the request names any other partition, all of its partitions get an
    error."""
    asked = [(topic.topic_name, [p.partition_index for p in topic.partitions]) for topic in call.fields.topics]
    if asked != [(METADATA_TOPIC, [0])]:
        return _no_quorum(asked)
    now_ms = call.context.wall_clock_ms()
    partition = {
        "partition_index": 0,
        "error_code": body.error_code,
        "error_message": body.error_message,
        "leader_id": body.leader_id,
        "leader_epoch": body.leader_epoch,
        "high_watermark": body.high_watermark,
        "current_voters": [_replica(state, now_ms) for state in body.current_voters],
        "observers": [_replica(state, now_ms) for state in body.observers],
    }
    nodes = [{"node_id": n.node_id, "listeners": [{"name": "CONTROLLER", "host": n.host, "port": n.port}]} for n in body.nodes]
    topics = [{"topic_name": METADATA_TOPIC, "partitions": [partition]}]
    return {"error_code": body.error_code, "error_message": body.error_message, "topics": topics, "nodes": nodes}


def _no_quorum(asked: list[tuple[str, list[int]]]) -> dict[str, Any]:
    row = {
        "error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "error_message": f"only partition 0 of {METADATA_TOPIC} has a quorum",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }
    topics = [{"topic_name": name, "partitions": [{"partition_index": i, **row} for i in indexes]} for name, indexes in asked]
    return {"error_code": ErrorCode.NONE, "error_message": None, "topics": topics, "nodes": []}


def _replica(state: QuorumReplicaState, now_ms: int) -> dict[str, Any]:
    return {
        "replica_id": state.replica_id,
        "replica_directory_id": ZERO_UUID,
        "log_end_offset": state.log_end_offset,
        "last_fetch_timestamp": _time_of(state.last_fetch_age_ms, now_ms),
        "last_caught_up_timestamp": _time_of(state.last_caught_up_age_ms, now_ms),
    }


def _time_of(age_ms: int, now_ms: int) -> int:
    return -1 if age_ms < 0 else now_ms - age_ms


# -- UpdateFeatures, UnregisterBroker ---------------------------------------------------------------------------------

_FIRST_WITHOUT_RESULTS = 2


def _update(call: KafkaCall) -> UpdateFeaturesRequest:
    fields = call.fields
    updates = [FeatureUpdate(u.feature, u.max_version_level, _upgrade_type(u)) for u in fields.feature_updates]
    return UpdateFeaturesRequest(max(fields.timeout_ms, 0), updates, fields.get("validate_only", False))


def _upgrade_type(update: Any) -> int:
    """The type of the change. Version 0 of the request only has whether a downgrade is allowed."""
    default = SAFE_DOWNGRADE if update.get("allow_downgrade", False) else UPGRADE
    return max(0, int(update.get("upgrade_type", default)))


def _updated(call: KafkaCall, body: UpdateFeaturesResponse) -> dict[str, Any]:
    """From version 2 on, the first error of a feature is the error of the whole request (KIP-1022)."""
    failed = next((result for result in body.results if result.error_code), None)
    is_at_top = failed is not None and not body.error_code and call.version >= _FIRST_WITHOUT_RESULTS
    top: Any = failed if is_at_top else body
    rows = [{"feature": r.feature, "error_code": r.error_code, "error_message": r.error_message} for r in body.results]
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": top.error_code,
        "error_message": top.error_message,
        "results": rows,
    }


def _unregister(call: KafkaCall) -> UnregisterBrokerRequest:
    return UnregisterBrokerRequest(call.fields.broker_id)


def _unregistered(call: KafkaCall, body: UnregisterBrokerResponse) -> dict[str, Any]:
    return {
        "throttle_time_ms": body.throttle_time_ms,
        "error_code": body.error_code,
        "error_message": body.error_message,
    }


APIS = (
    KafkaApi(60, "DescribeCluster", apis.DESCRIBE_CLUSTER, 0, 2, _describe, _described, refused_at_top),
    KafkaApi(55, "DescribeQuorum", apis.DESCRIBE_QUORUM, 0, 2, _quorum, _described_quorum, refused_at_top),
    KafkaApi(57, "UpdateFeatures", apis.UPDATE_FEATURES, 0, 2, _update, _updated, refused_at_top),
    KafkaApi(64, "UnregisterBroker", apis.UNREGISTER_BROKER, 0, 0, _unregister, _unregistered, refused_at_top),
)
