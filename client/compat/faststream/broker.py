"""FastStream's `KafkaBroker` with this client's producer, consumers and admin client.

Differences: without `acks` and with FastStream's default `enable_idempotence=False`, the producer has this client's defaults,
`acks="all"` and idempotence; `acks=1` selects aiokafka's. The errors of `publish` are those of
`strandline.compat.aiokafka.errors`. The option `transactional_id` raises UnsupportedByStrandline: FastStream has no call that
begins a transaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import faststream.kafka
from aiokafka.partitioner import DefaultPartitioner
from faststream.kafka.helpers.admin import AdminService, CreateResult
from faststream.kafka.schemas.params import ConsumerConnectionParams

from strandline.client.admin.admin import Admin
from strandline.client.admin_types import NewTopic
from strandline.client.compat.aiokafka.errors import UnsupportedByStrandline
from strandline.client.compat.aiokafka.options import common
from strandline.client.compat.aiokafka.producer import AIOKafkaProducer
from strandline.client.compat.faststream.consumer import FastStreamConsumer
from strandline.client.errors import RequestFailed
from strandline.protocol.errors import ErrorCode, StrandlineError


class KafkaBroker(faststream.kafka.KafkaBroker):
    """`faststream.kafka.KafkaBroker` for a Strandline cluster; the arguments are the same."""

    async def _connect(self) -> Callable[..., FastStreamConsumer]:
        """Start the producer and the admin client, unless the broker is `consumer_only`. Returns the factory of consumers."""
        config, options = self.config.broker_config, dict(self._connection_kwargs)
        if not config.consumer_only:
            await config.producer.connect(
                AIOKafkaProducer(**_producer_options(options)),
                serializer=config.fd_config._serializer,
                codec=config.broker_codec,
            )
            config.admin = Topics()
            await config.admin.connect(**options)
        names = ConsumerConnectionParams.__annotations__
        consumer = {name: value for name, value in options.items() if name in names}
        if config.client_rack is not None:
            consumer["client_rack"] = config.client_rack
        config.builder = partial(FastStreamConsumer, **consumer)
        return config.builder


def _producer_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the broker as those of `AIOKafkaProducer`."""
    given = dict(options)
    if given.get("transactional_id") is not None:
        name = given["transactional_id"]
        raise UnsupportedByStrandline(f"option transactional_id={name!r} is not supported: FastStream begins no transactions")
    if given.get("acks") not in (0, 1, -1, "all"):  # aiokafka's sentinel for "not given".
        given["acks"] = None
        given["enable_idempotence"] = given.get("enable_idempotence") or None
    if isinstance(given.get("partitioner"), DefaultPartitioner):
        given["partitioner"] = None
    return given


CLUSTER_DEFAULT = -1
"""Selects the cluster's `default.replication.factor`. It replaces FastStream's default of one replica for a topic that a
subscriber only names: with a single replica, one lost disk loses acknowledged records, whatever `acks` is."""


class Topics(AdminService):
    """Creates the topics of subscribers, and answers `broker.ping`."""

    __slots__ = ()

    async def connect(self, **options: Any) -> None:
        """Start the admin client. NoBrokersAvailable if no bootstrap server answers."""
        if self.admin_client is None:
            admin = Admin(**common(options))
            await admin.start()
            self.admin_client = admin

    async def disconnect(self) -> None:
        admin, self.admin_client = self.admin_client, None
        if admin is not None:
            await admin.stop()

    async def create_topics(self, topics: list[Any]) -> list[CreateResult]:
        """Create the topics that do not exist. The error of each topic is in its result, because a subscriber starts all the
        same."""
        return [CreateResult(topic.name, await self._create(topic)) for topic in topics]

    async def _create(self, topic: Any) -> StrandlineError | None:
        replicas = topic.replication_factor if topic.replication_factor > 1 else CLUSTER_DEFAULT
        new = NewTopic(topic.name, partitions=topic.num_partitions, replication_factor=replicas)
        try:
            await self.client.create_topics([new])
        except RequestFailed as e:
            return None if e.code == ErrorCode.TOPIC_ALREADY_EXISTS else e
        except StrandlineError as e:
            return e
        return None


__all__ = ["KafkaBroker"]
