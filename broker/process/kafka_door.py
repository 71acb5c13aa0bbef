"""The broker's listeners for Kafka's clients. A broker without any imports nothing of them."""

from __future__ import annotations

from strandline.broker.config import BrokerConfig
from strandline.broker.process.wiring import ControllerLink
from strandline.controller.metadata.security.access import Rights
from strandline.protocol.rpc.server import Server


def server_class(speaks_kafka: bool) -> type[Server]:
    """The class of a listener."""
    if not speaks_kafka:
        return Server
    from strandline.broker.kafka.server import KafkaServer

    return KafkaServer


def use_context(server: Server, config: BrokerConfig, link: ControllerLink, rights: Rights | None) -> None:
    """Tell a listener for Kafka's clients what it needs of the broker, before it serves."""
    from strandline.broker.kafka.context import KafkaContext
    from strandline.broker.kafka.server import KafkaServer

    assert isinstance(server, KafkaServer)
    server.context = KafkaContext(
        image=lambda: link.metadata.image, rights=rights, auto_create_topics=config.auto_create_topics_enable
    )
