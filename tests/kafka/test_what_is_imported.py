"""A broker without Kafka clients imports nothing of the Kafka door.

Each test uses its own process, because other tests of this one have imported everything."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOADED = """
import asyncio, sys
from strandline.testing import Cluster

def loaded(*names):
    return sorted(name for name in sys.modules if name.split(".")[0] in names or name.startswith("strandline.broker.kafka"))
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", LOADED + code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.strip()


@pytest.mark.processes
def test_a_cluster_without_kafka_imports_nothing_of_it() -> None:
    code = """
async def main():
    async with Cluster(brokers=1) as cluster:
        await cluster.create_topic("orders")
        print(loaded("kio"))
asyncio.run(main())
"""
    assert run(code) == "[]"


@pytest.mark.processes
def test_a_simulation_imports_nothing_of_it() -> None:
    code = "import strandline.testing.simulation.cluster.cluster, strandline.broker.process.server; print(loaded('kio'))"
    assert run(code) == "[]"


@pytest.mark.processes
def test_kio_is_imported_with_the_first_message_and_without_hypothesis() -> None:
    """If hypothesis is installed, kio imports it, which would stop a broker for half a second."""
    code = """
from strandline.client.cluster.port_probe import KAFKA_QUESTION
async def main():
    async with Cluster(brokers=1, kafka=True) as cluster:
        print("kio" in sys.modules)
        host, port = cluster.kafka_bootstrap.split(":")
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(KAFKA_QUESTION)
        await reader.read(4)
        writer.close()
        print("kio" in sys.modules, "hypothesis" in sys.modules)
asyncio.run(main())
"""
    assert run(code) == "False\nTrue False"
