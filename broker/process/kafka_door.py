"""The broker's listeners for Kafka's clients. A broker without such a listener does not import their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from strandline.broker.config import BrokerConfig
from strandline.broker.process.wiring import ControllerLink
from strandline.controller.metadata.security.access import Rights
from strandline.protocol.messages.common import Listener
from strandline.protocol.rpc.server import Server


def server_class(speaks_kafka: bool) -> type[Server]:
    """The class of a listener."""
    if not speaks_kafka:
        return Server
    from strandline.broker.kafka.server import KafkaServer

    return KafkaServer


def use_context(
    server: Server, config: BrokerConfig, link: ControllerLink, rights: Rights | None, wall_clock_ms: Callable[[], int]
) -> None:
    """Give a listener for Kafka's clients the parts of the broker that it needs, before it serves."""
    from strandline.broker.kafka.context import KafkaContext
    from strandline.broker.kafka.server import KafkaServer

    assert isinstance(server, KafkaServer)
    internal = (config.groups.offsets_topic, config.transactions.state_topic)
    server.context = KafkaContext(
        image=lambda: link.metadata.image,
        rights=rights,
        wall_clock_ms=wall_clock_ms,
        auto_create_topics=config.auto_create_topics_enable,
        internal_topics={topic.name: topic for topic in internal},
    )


def set_other_addresses(servers: Sequence[Server], advertised: Sequence[Listener], config: BrokerConfig) -> None:
    """Give each listener the address for clients that speak the other protocol. `advertised`: the address of each listener."""
    kafka = [listener for listener in advertised if config.speaks_kafka(listener.name)]
    if not kafka:
        return
    ours = [listener for listener in advertised if listener not in kafka]
    for_clients = [listener for listener in ours if listener.name != config.inter_broker_listener_name]
    to_kafka, to_ours = _address(kafka[0]), _address([*for_clients, *ours][0])
    for server in servers:
        if config.speaks_kafka(server.listener_name):
            server.strandline_address = to_ours  # type: ignore[attr-defined]  # a KafkaServer
        else:
            server.kafka_address = to_kafka


def _address(listener: Listener) -> str:
    host = f"[{listener.host}]" if ":" in listener.host else listener.host
    return f"{host}:{listener.port}"
