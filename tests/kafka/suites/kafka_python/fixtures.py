"""Takes the place of kafka-python's test/integration/fixtures.py: its brokers are the listeners of one Strandline cluster.

STRANDLINE_SUITE_CLUSTER has the line that `one_broker.py` printed.
"""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any

from kafka import KafkaAdminClient
from test.testutil import env_kafka_version, random_string

PORT_OF_TRANSPORT = {"PLAINTEXT": "plain", "SSL": "ssl", "SASL_PLAINTEXT": "sasl_plain", "SASL_SSL": "sasl_ssl"}


def create_topics(
    broker: KafkaFixture, topic_names: list[str], num_partitions: int | None = None, replication_factor: int | None = None
) -> None:
    """As the suite's function of this name."""
    topic = {
        "num_partitions": broker.partitions if num_partitions is None else num_partitions,
        "replication_factor": 1 if replication_factor is None else replication_factor,
    }
    with KafkaAdminClient(**client_params(broker, "topic_creator", api_version=env_kafka_version())) as admin:
        admin.create_topics(dict.fromkeys(topic_names, topic), wait_for_metadata=True)


def client_params(broker: KafkaFixture, client_id: str = "client", **overrides: Any) -> dict[str, Any]:
    """As the suite's function of this name."""
    return broker._enrich_client_params(overrides, client_id=f"{client_id}_{random_string(4)}")


class ZookeeperFixture:
    """Not used, but the suite imports it."""


class KafkaFixture:
    """Stands in for a broker of the suite: a listener of the cluster."""

    broker_user, broker_password = "alice", "alice-secret"

    def __init__(self, transport: str, sasl_mechanism: str | None, partitions: int) -> None:
        cluster = json.loads(os.environ["STRANDLINE_SUITE_CLUSTER"])
        self.transport = transport
        self.sasl_mechanism = sasl_mechanism
        self.partitions = partitions
        self.host = "127.0.0.1"
        self.port = cluster[PORT_OF_TRANSPORT[transport]]
        self.ssl_dir = cluster["folder"]
        self.zookeeper = None
        self.child = SimpleNamespace(dump_logs=lambda: None)

    @classmethod
    def instance(
        cls, broker_id: int, transport: str = "PLAINTEXT", sasl_mechanism: str | None = None, partitions: int = 4, **_: Any
    ) -> KafkaFixture:
        return cls(transport, sasl_mechanism, partitions)

    def start(self) -> None:
        """The cluster runs already."""

    def close(self) -> None:
        """Does nothing, because other tests use the cluster, too."""

    def get_topic_names(self) -> list[str]:
        with KafkaAdminClient(**client_params(self)) as admin:
            return list(admin.list_topics())

    def _enrich_client_params(self, params: dict[str, Any], **defaults: Any) -> dict[str, Any]:
        known: dict[str, Any] = {**defaults, "bootstrap_servers": f"{self.host}:{self.port}", "security_protocol": self.transport}
        if self.sasl_mechanism:
            known |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.broker_user,
                "sasl_plain_password": self.broker_password,
            }
        if self.transport in ("SSL", "SASL_SSL"):
            known |= {"ssl_cafile": f"{self.ssl_dir}/ca-cert", "ssl_check_hostname": False}
        return known | params
