"""Strandline's listener for Kafka's clients beside a real Apache Kafka: the same runs, with Kafka's own clients on both.

    python benchmarks/kafka_door.py [--rounds 3] [--only produce_100,latency] [--small] [--json FILE]

Java: kafka-producer-perf-test at 100 and 1,000 bytes, kafka-consumer-perf-test, kafka-e2e-latency. librdkafka (confluent-kafka):
producing, consuming, and the longest time without an acknowledgement after kill -9 of a leader, with the client's defaults; so,
too, with aiokafka. Each round starts both clusters (three controllers and three brokers) with empty data, one after the other;
the first one alternates. The report has medians and ratios; only ratios within one run mean something. `--small`: a tenth of the
records, to see that it runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

import loads_kafka
import trickle
from systems import Kafka, KafkaUnavailable, System

from strandline.local_cluster import LocalCluster

PARTITIONS = 6
FAULT = "kill -9 of a leader"
Figures = dict[str, float]


class Door(Kafka):
    """Strandline, as Kafka's clients see it. Topics and tools are those of Kafka."""

    name = "strandline"

    def __init__(self) -> None:
        super().__init__()
        self._data: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> float:
        self._data = tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True)
        self.cluster = LocalCluster(Path(self._data.name) / "cluster", kafka=True, settings={"http.listener": ""})
        started = time.monotonic()
        await self.cluster.start()
        self.bootstrap = self.cluster.kafka_bootstrap
        return time.monotonic() - started

    async def stop(self) -> None:
        await self.cluster.stop()
        if self._data:
            self._data.cleanup()

    def pids(self) -> dict[str, int]:
        return {node.name: node.pid for node in self.cluster.nodes.values() if node.running}

    def signal(self, node: str, number: Signals) -> None:
        assert number == SIGKILL
        self.cluster.kill(node)

    async def restart(self, node: str) -> None:
        await self.cluster.wait_ended(node)
        await self.cluster.start_node(node)
        await self.cluster.wait_ready()


# -- rows -------------------------------------------------------------------------------------------------------------


async def produce_100(system: Kafka, topic: str, scale: float) -> Figures:
    records = int(2_000_000 * scale)
    java = (await loads_kafka._java_producer(system, topic, records, 100))[0]
    rdkafka = await asyncio.to_thread(loads_kafka._confluent_producer, system.bootstrap, topic, records // 2)
    return {"produce 100 B, java, records/s": java, "produce 100 B, librdkafka, records/s": rdkafka}


async def produce_1000(system: Kafka, topic: str, scale: float) -> Figures:
    java = await loads_kafka._java_producer(system, topic, int(1_000_000 * scale), 1000)
    return {"produce 1,000 B, java, MiB/s": java[1]}


async def consume(system: Kafka, topic: str, scale: float) -> Figures:
    records = int(2_000_000 * scale)
    await loads_kafka._java_producer(system, topic, records, 100)
    rdkafka = await asyncio.to_thread(loads_kafka._confluent_consumer, system.bootstrap, topic, records)
    pausing = await asyncio.to_thread(loads_kafka._confluent_consumer, system.bootstrap, topic, records, 1000)
    java = await loads_kafka._java_consumer(system, topic, records)
    return {
        "consume 100 B, java, records/s": java,
        "consume 100 B, librdkafka, records/s": rdkafka,
        "consume 100 B, librdkafka that pauses for 1 s (default), records/s": pausing,
    }


async def latency(system: Kafka, topic: str, scale: float) -> Figures:
    out = await system.run_tool(
        "kafka-e2e-latency", "--bootstrap-server", system.bootstrap, "--topic", topic, "--num-records",
        str(int(5_000 * scale)), "--producer-acks", "all", "--record-size", "100",
    )  # fmt: skip
    found = re.search(r"50th = ([\d.]+), 99th = ([\d.]+)", out)
    average = re.search(r"Avg latency: ([\d.]+) ms", out)
    if found is None or average is None:
        raise RuntimeError(out[-500:])
    return {"end to end, average, ms": float(average[1]), "end to end, p99, ms": float(found[2])}


async def failover(system: Kafka, topic: str, _scale: float) -> Figures:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": system.bootstrap, "enable.idempotence": True, "log_level": 0})
    loop = asyncio.get_running_loop()

    async def send(partition: int, value: bytes) -> None:
        done: asyncio.Future[None] = loop.create_future()

        def delivered(error: Any, _message: Any) -> None:
            result = RuntimeError(str(error)) if error else None
            loop.call_soon_threadsafe(lambda: done.set_exception(result) if result else done.set_result(None))

        producer.produce(topic, value, partition=partition, on_delivery=delivered)
        await done

    async def poll() -> None:
        while True:
            await asyncio.to_thread(producer.poll, 0.005)

    polling = asyncio.create_task(poll())
    try:
        gap = (await trickle.measure(system, topic, FAULT, send))[f"{FAULT}: longest gap, ms"]
    finally:
        polling.cancel()
    await system.create_topic(f"{topic}-aiokafka", PARTITIONS)
    aiokafka = (await loads_kafka.failover(system, f"{topic}-aiokafka", FAULT))[f"{FAULT}: longest gap, ms"]
    return {f"{FAULT}, librdkafka, longest gap, ms": gap, f"{FAULT}, aiokafka, longest gap, ms": aiokafka}


ROWS: dict[str, Callable[[Kafka, str, float], Awaitable[Figures]]] = {
    "produce_1000": produce_1000,
    "produce_100": produce_100,
    "consume": consume,
    "latency": latency,
    "failover": failover,
}


# -- rounds -----------------------------------------------------------------------------------------------------------


async def measure(system: Kafka, rows: list[str], scale: float, figures: dict[str, list[float]]) -> None:
    """One round of one system. A row that fails is reported, and the others run."""
    await system.start()
    try:
        for row in rows:
            topic = row.replace("_", "-")
            try:
                await system.create_topic(topic, PARTITIONS)
                for name, value in (await ROWS[row](system, topic, scale)).items():
                    figures.setdefault(name, []).append(value)
                    print(f"{system.name:11} {name}: {value:,.1f}", file=sys.stderr, flush=True)
            except Exception as e:
                print(f"{system.name:11} {row} failed: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
    finally:
        await system.stop()


def report(ours: dict[str, list[float]], kafka: dict[str, list[float]]) -> str:
    lines = [f"{'':46} {'strandline':>12} {'kafka':>12} {'ratio':>7}"]
    for name in ours:
        if name in kafka:
            a, b = statistics.median(ours[name]), statistics.median(kafka[name])
            lines.append(f"{name:46} {a:12,.1f} {b:12,.1f} {a / b:7.2f}")
    return "\n".join(lines)


async def main(args: argparse.Namespace) -> None:
    rows = args.only.split(",") if args.only else list(ROWS)
    figures: dict[str, dict[str, list[float]]] = {"strandline": {}, "kafka": {}}
    for number in range(args.rounds):
        systems: list[type[System]] = [Door, Kafka] if number % 2 == 0 else [Kafka, Door]
        for kind in systems:
            system = kind()
            assert isinstance(system, Kafka)
            await measure(system, rows, 0.1 if args.small else 1.0, figures[system.name])
    print(report(figures["strandline"], figures["kafka"]))
    if args.json:
        Path(args.json).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help=", ".join(ROWS))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json")
    try:
        asyncio.run(main(parser.parse_args()))
    except KafkaUnavailable as e:
        raise SystemExit(str(e)) from None
