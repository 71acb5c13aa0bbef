"""A listener for Kafka's clients: a `Server` whose connections speak Kafka's protocol.

It advertises the APIs that have both a handler in the broker and a translation here, in the versions that are translated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.broker.kafka.call import KafkaApi
from strandline.broker.kafka.connection import KafkaConnection
from strandline.broker.kafka.context import KafkaContext
from strandline.broker.kafka.translations.api_versions import UNKNOWN_API_VERSIONS
from strandline.protocol.rpc.request_memory import RequestMemory
from strandline.protocol.rpc.server import Server
from strandline.protocol.rpc.server_connection import ServerConnection

_NO_LIMIT = 1 << 62


class KafkaServer(Server):
    """A listener for Kafka's clients. `context` must be set before it serves."""

    context: KafkaContext
    strandline_address = ""
    """The address at which Strandline's clients reach this broker. One that connects here by mistake gets it in the error."""
    kafka_apis: Mapping[int, KafkaApi] = KAFKA_APIS
    """The APIs with a translation, by Kafka's key."""
    unknown_api_versions: KafkaApi = UNKNOWN_API_VERSIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unbounded = RequestMemory(_NO_LIMIT)

    def advertised(self) -> list[KafkaApi]:
        """The APIs that are served, by ascending key."""
        served = {**self.handlers, **self.handlers_of_login}
        return [api for _, api in sorted(self.kafka_apis.items()) if api.ours in served]

    @property
    def handlers_of_login(self) -> Mapping[int, Any]:
        """The handlers of the authentication, if the listener has one."""
        return {} if self._sasl_door is None else self._sasl_door.handlers

    def _new_connection(self) -> ServerConnection:
        return KafkaConnection(self, next(self._ids), self.memory or self._unbounded)
