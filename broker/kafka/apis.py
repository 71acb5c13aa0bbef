"""The table of the APIs that have a translation, joined from the tables of `translations/`."""

from __future__ import annotations

from strandline.broker.kafka.call import KafkaApi
from strandline.broker.kafka.translations import (
    acls,
    api_versions,
    classic_groups,
    client_quotas,
    cluster,
    committed_offsets,
    configs,
    consumer_groups,
    coordinators,
    fetch,
    group_admin,
    log_dirs,
    metadata,
    offsets,
    partitions,
    produce,
    sasl,
    scram,
    topic_partitions,
    topics,
    transaction_admin,
    transactions,
)

_FAMILIES = (
    api_versions,
    metadata,
    classic_groups,
    committed_offsets,
    consumer_groups,
    coordinators,
    group_admin,
    produce,
    fetch,
    offsets,
    topics,
    topic_partitions,
    configs,
    cluster,
    partitions,
    log_dirs,
    transactions,
    transaction_admin,
    sasl,
    acls,
    scram,
    client_quotas,
)

KAFKA_APIS: dict[int, KafkaApi] = {api.key: api for family in _FAMILIES for api in family.APIS}
"""Kafka's key -> the API."""
