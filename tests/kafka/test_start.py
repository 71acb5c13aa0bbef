"""The start of a broker, as Kafka's clients see it."""

from __future__ import annotations

import pytest
from waiting import until
from wire import KafkaWire

from strandline.broker.process.lifecycle import BrokerLifecycle
from strandline.controller.metadata.image import MetadataImage
from strandline.testing import Cluster

METADATA = 3
NOTHING_ELSE = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


async def brokers_of(address: str) -> list[int]:
    async with KafkaWire.at(address) as wire:
        answer = await wire.call(METADATA, 12, {"topics": [], **NOTHING_ELSE})
    return sorted(broker.node_id for broker in answer.brokers)


async def test_broker_accepts_kafkas_clients_once_it_is_unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, its answer to Metadata would lack itself, and librdkafka gives up brokers that are missing there. Our own clients
    are accepted earlier: the broker's start needs this listener."""
    asked = 0
    original = BrokerLifecycle.is_unfenced_in

    def still_fenced(self: BrokerLifecycle, image: MetadataImage) -> bool:
        nonlocal asked
        asked += original(self, image)
        return False

    async with Cluster(brokers=2, kafka=True) as cluster:
        other, address = cluster.kafka_bootstrap.split(",")
        await cluster.stop(2)
        with monkeypatch.context() as patched:
            patched.setattr(BrokerLifecycle, "is_unfenced_in", still_fenced)
            await cluster.start(2, wait=False)
            await until(lambda: asked)
            with pytest.raises(ConnectionRefusedError):
                await brokers_of(address)
        await cluster.create_topic(partitions=2, replication_factor=1)  # so that the broker looks again
        await cluster.make_whole()
        assert await brokers_of(address) == await brokers_of(other) == [1, 2]
