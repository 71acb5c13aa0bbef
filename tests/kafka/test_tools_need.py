"""Requirements of Kafka's command line tools that the transcript of the tools has shown."""

from __future__ import annotations

from data_world import new_topic
from wire import KafkaWire

from strandline.protocol.errors import ErrorCode
from strandline.testing import ThreadedCluster

INCREMENTAL_ALTER_CONFIGS = 44
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def change(resource_type: int, name: str, key: str, operation: int, value: str | None) -> dict[str, object]:
    config = {"name": key, "config_operation": operation, "value": value}
    return {"resources": [{"resource_type": resource_type, "resource_name": name, "configs": [config]}], "validate_only": False}


async def test_the_keys_of_kafkas_throttles_can_be_unset_and_not_set(data_cluster: ThreadedCluster) -> None:
    """kafka-reassign-partitions unsets them after each reassignment, even if it had no throttle."""
    topic = new_topic(data_cluster)
    keys = [(TOPIC, topic, "leader.replication.throttled.replicas"), (BROKER, "1", "follower.replication.throttled.rate")]
    async with KafkaWire.at(data_cluster.kafka_bootstrap) as wire:
        for kind, name, key in keys:
            unset = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change(kind, name, key, DELETE, None))
            assert [row.error_code for row in unset.responses] == [ErrorCode.NONE]
            set_ = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change(kind, name, key, SET, "1"))
            assert [row.error_code for row in set_.responses] == [ErrorCode.INVALID_CONFIG]


async def test_a_mistyped_key_cannot_be_unset(data_cluster: ThreadedCluster) -> None:
    """Kafka accepts it silently. Strandline's error names the key that may have been meant."""
    topic = new_topic(data_cluster)
    async with KafkaWire.at(data_cluster.kafka_bootstrap) as wire:
        answer = await wire.call(INCREMENTAL_ALTER_CONFIGS, 1, change(TOPIC, topic, "retentoin.ms", DELETE, None))
    assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
    assert "retention.ms" in answer.responses[0].error_message
