"""The start of a broker, as Kafka's clients see it."""

from __future__ import annotations

import socket

import pytest
from waiting import until
from wire import KafkaWire

from strandline.broker.kafka.server import KafkaServer
from strandline.broker.process.lifecycle import BrokerLifecycle
from strandline.controller.metadata.image import MetadataImage
from strandline.testing import Cluster, KitError

METADATA = 3
NOTHING_ELSE = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


async def brokers_of(address: str) -> list[int]:
    async with KafkaWire.at(address) as wire:
        answer = await wire.call(METADATA, 12, {"topics": [], **NOTHING_ELSE})
    return sorted(broker.node_id for broker in answer.brokers)


async def test_broker_accepts_kafkas_clients_once_it_is_unfenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then its own Metadata response would not have this broker, and librdkafka gives up brokers that are missing there.
    Our own clients are accepted earlier, because the broker's start needs their listener."""
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
        await cluster.create_topic(partitions=2, replication_factor=1)  # so that the broker checks again whether it is unfenced
        await cluster.make_whole()
        assert await brokers_of(address) == await brokers_of(other) == [1, 2]


async def test_broker_fails_if_it_cannot_accept_kafkas_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may take the port after the broker has bound it. If the broker continued, it would look healthy, but no
    Kafka client could reach it."""
    async with Cluster(brokers=1, kafka=True) as cluster:
        host, _, port = cluster.kafka_bootstrap.rpartition(":")
        await cluster.stop(1)
        with monkeypatch.context() as patched, socket.socket() as other:
            serve = KafkaServer.serve

            async def serve_too_late(self: KafkaServer) -> None:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind((host, int(port)))
                other.listen()
                await serve(self)

            patched.setattr(KafkaServer, "serve", serve_too_late)
            with pytest.raises(KitError, match=f"broker-1.*cannot listen on {host}:{port}: Address already in use"):
                await cluster.start(1)
