"""Modules that confluent-kafka's tests import and that need not be installed here: the schema registry's client, and trivup,
which starts a Kafka.

A cluster with SASL, which some tests start through trivup, is a cluster of ours with one broker (`../one_broker.py`).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import confluent_kafka  # noqa: F401  # Before its parts are replaced.

sys.path.append(os.environ["STRANDLINE_SUITES"])

import pytest_suites


class Absent(ModuleType):
    """A module that is not installed. Its names can be imported, but not used."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class KafkaCluster:
    """The part of trivup's class of this name that the tests use."""

    def __init__(self, **conf: object) -> None:
        assert conf.get("sasl_mechanism") == "PLAIN", "only clusters with SASL are started here; for others there is BROKERS"
        self._stack = ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._ports = json.loads(self._stack.enter_context(pytest_suites.one_broker(Path(folder) / "cluster")))

    def wait_operational(self) -> None:
        """The cluster is ready when the constructor returns."""

    def client_conf(self) -> dict[str, str]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self._ports['sasl_plain']}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": "PLAIN",
            "sasl.username": "sasl_user",
            "sasl.password": "sasl_user",
        }

    def stop(self, cleanup: bool = False) -> None:
        self._stack.close()


def _absent(*names: str) -> None:
    for name in names:
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            sys.modules.setdefault(".".join(parts[:i]), Absent(".".join(parts[:i])))


_absent(
    "trivup.clusters.KafkaCluster",
    "confluent_kafka.avro",
    "confluent_kafka.schema_registry._async.schema_registry_client",
    "confluent_kafka.schema_registry.schema_registry_client",
)
sys.modules["trivup.clusters.KafkaCluster"].KafkaCluster = KafkaCluster
sys.modules["confluent_kafka.avro"].AvroConsumer = object
