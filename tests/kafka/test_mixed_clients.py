"""Different clients in one group, and producers of different clients on its topic, while members and nodes are killed.

Our own client speaks the newer protocol only, so a group with classic members beside it is one that was converted (KIP-848): the
coordinator assigns, and answers each member in its own protocol.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from foreign_load import ForeignLoad
from group_trial import PROGRAM, Members, perform
from load import Load
from real_kafka import kafka_tools

from strandline.local_cluster import LocalCluster

pytestmark = [pytest.mark.kafka, pytest.mark.processes, pytest.mark.slow]

HERE = Path(__file__).parent
SETTINGS = {
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.session.timeout.ms": 6000,
    "group.consumer.heartbeat.interval.ms": 500,
}
SECONDS = float(os.environ.get("STRANDLINE_MIXED_SECONDS", "12"))


def java() -> list[str]:
    """The command of a Java program, up to the program."""
    libraries = subprocess.run([kafka_tools(), "jars"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return ["java", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{libraries}/*"]


class Mixed(Members):
    """A slot is named after its client and protocol: ours, java-classic, java-consumer, librdkafka-classic, aiokafka, ..."""

    def command(self, slot: str, file: Path) -> list[str]:
        client, _, protocol = slot.partition(".")[0].rpartition("-")[0].partition("-")
        kafka = [self.cluster.kafka_bootstrap, self.topic, self.group, str(file)]
        if client == "ours":
            return [sys.executable, str(PROGRAM), self.cluster.bootstrap, self.topic, self.group, str(file), "manual"]
        if client == "java":
            return [*java(), str(HERE / "GroupMember.java"), *kafka, protocol]
        if client == "aiokafka":
            return [sys.executable, str(HERE / "member_of_aiokafka.py"), *kafka]
        return [sys.executable, str(HERE / "member_of_librdkafka.py"), *kafka, protocol]


class AllInOne(Mixed):
    slots = ("ours-1", "java-classic-2", "librdkafka-classic-3", "aiokafka-classic-4")


class Classic(Mixed):
    slots = ("java-classic-1", "librdkafka-classic-2", "aiokafka-classic-3", "librdkafka-classic-4")


class Newer(Mixed):
    slots = ("ours-1", "java-consumer-2", "librdkafka-consumer-3", "ours-4")


def producers_of_others(cluster: LocalCluster) -> Callable[[Load], object]:
    @asynccontextmanager
    async def beside(load: Load) -> AsyncIterator[None]:
        foreign = ForeignLoad(load, cluster.kafka_bootstrap, java())
        foreign.start()
        try:
            yield
            await foreign.stop()
        finally:
            foreign.abandon()

    return beside


@pytest.mark.parametrize("kind", [Classic, Newer, AllInOne], ids=["classic", "newer", "converted"])
async def test_a_group_of_different_clients_reads_everything_while_members_and_nodes_are_killed(
    kind: type[Mixed], tmp_path: Path
) -> None:
    """Every acknowledged record is read, no commit regresses, no partition has two owners, and the history has no anomaly."""
    kafka_tools()
    async with LocalCluster(tmp_path / "cluster", kafka=True, settings=SETTINGS) as cluster:
        await perform(cluster, tmp_path, f"mixed-{kind.__name__}", SECONDS, kind=kind, beside=producers_of_others(cluster))
