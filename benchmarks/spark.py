"""`make bench-spark`: compares Strandline's data source with Spark's Kafka connector on a real Apache Kafka; medians and ratios.

Both clusters (three controllers and three brokers each) and both Sparks (`local[2]`) run all the time. The two systems do each
job one after the other, so that both find the machine in the same state. The first pass is not counted. The Spark versions
differ, as the report says: the connector is available for Spark 4.0.0, and Strandline's data source needs 4.2.

    python benchmarks/spark.py [--rows 2000000] [--rounds 3] [--only write,stream] [--skip-kafka] [--json FILE]

Needs the launcher of Apache Kafka (as compare.py does), Maven for the connector's jars, and a network for both the first time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from python_build import this_python
from systems import ROOT, Kafka, KafkaUnavailable, Ours, System

PARTITIONS, VALUE_BYTES = 4, 100
HOME = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "strandline-bench-spark"
CONNECTOR_SPARK = "4.0.0"
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{CONNECTOR_SPARK}",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
WORKS = {
    "aggregate": "batch read, aggregate over all columns",
    "parquet": "batch read to Parquet",
    "write": "batch write, acks=all",
    "write_keys": "batch write with keys, acks=all",
    "stream": "stream into noop, 4 partitions, 20 batches",
    "long_stream": "stream into noop, 4 partitions, 200 batches",
    "wide_stream": "stream into noop, 100 partitions, 20 batches",
    "copy_stream": "stream into a topic, acks=all, 4 partitions, 50 batches",
}
STREAMS = {"stream": 20, "long_stream": 200, "wide_stream": 20, "copy_stream": 50}
"""Number of batches that a stream splits the rows into."""
WIDE_PARTITIONS = 100


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# -- the other Spark --------------------------------------------------------------------------------------------------


def connector() -> tuple[str, str]:
    """Return the Python with the connector's Spark and its jars. The first call installs them."""
    venv, jars = HOME / f"venv-{CONNECTOR_SPARK}", HOME / f"jars-{CONNECTOR_SPARK}"
    if not (venv / ".complete").exists():
        log(f"installing PySpark {CONNECTOR_SPARK} into {venv}")
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin/pip", "install", "-q", f"pyspark=={CONNECTOR_SPARK}"], check=True)
        (venv / ".complete").touch()
    for artifact in JARS:
        if not list(jars.glob(artifact.split(":")[1] + "-*.jar")):
            command = ["mvn", "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"]
            subprocess.run(command, check=True, stdout=sys.stderr)
    return str(venv / "bin/python"), ",".join(str(jar) for jar in sorted(jars.glob("*.jar")))


class Spark:
    """A process of spark_works.py, which runs one Spark."""

    def __init__(self, system: str) -> None:
        environment = dict(os.environ)
        python = sys.executable
        if system == "kafka":
            python, environment["CONNECTOR_JARS"] = connector()
        environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = python
        self._process = subprocess.Popen(
            [python, ROOT / "benchmarks/spark_works.py", system],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark ended with exit code {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    async def run(self, work: str, **arguments: Any) -> dict[str, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"work": work, **arguments}) + "\n")
        self._process.stdin.flush()
        return await asyncio.to_thread(self._answer)

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


# -- the rounds -------------------------------------------------------------------------------------------------------


class Side:
    """One of the two systems: its cluster, its Spark and the measured figures."""

    def __init__(self, system: System, rows: int) -> None:
        self.system, self.rows = system, rows
        self.spark: Spark
        self.results: dict[str, list[dict[str, float]]] = {}
        self.topics = 0

    async def start(self, works: list[str]) -> None:
        log(f"{self.system.name}: cluster and Spark")
        await self.system.start()
        self.spark = Spark(self.system.name)
        await self._fill("input", PARTITIONS)
        if "wide_stream" in works:
            await self._fill("wide", WIDE_PARTITIONS, keys=True)

    async def _fill(self, topic: str, partitions: int, times: int = 1, *, keys: bool = False) -> None:
        await self.system.create_topic(topic, partitions)
        for _ in range(times):
            await self._work("write", topic, self.rows, keys=keys)

    async def _work(self, work: str, topic: str, rows: int, **arguments: Any) -> dict[str, float]:
        brokers = self.system.broker_cpu_s()
        figures = await self.spark.run(work, topic=topic, rows=rows, servers=self.system.bootstrap, **arguments)
        return {**figures, "brokers_cpu_s": self.system.broker_cpu_s() - brokers}

    async def round(self, name: str, counted: bool) -> None:
        work, topic, arguments = name, "input", dict[str, Any]()
        if name in STREAMS:
            work, topic = "stream", "wide" if name == "wide_stream" else "input"
            arguments = {"batches": STREAMS[name], "into": await self._new_topic() if name == "copy_stream" else None}
        elif name.startswith("write"):
            work, topic, arguments = "write", await self._new_topic(), {"keys": name == "write_keys"}
            await self._work("make", topic, self.rows, **arguments)
        figures = await self._work(work, topic, self.rows, **arguments)
        warming = "" if counted else " (warming)"
        batch = f", {figures['batch_ms']:.0f} ms a batch" if name in STREAMS else ""
        log(f"{self.system.name}: {name}: {figures['seconds']:.2f} s, {figures['cpu_s']:.1f} CPU s{batch}{warming}")
        if counted:
            self.results.setdefault(name, []).append(figures)

    async def _new_topic(self) -> str:
        self.topics += 1
        await self.system.create_topic(f"output-{self.topics}", PARTITIONS)
        return f"output-{self.topics}"

    async def memory(self) -> list[float]:
        """Return the memory of the largest Python worker in MB after N rows and after 4 N rows, in a separate Spark."""
        await self._fill("input4", PARTITIONS, times=4)
        self.spark.stop()
        self.spark = Spark(self.system.name)
        sizes = (("input", self.rows), ("input4", 4 * self.rows))
        return [(await self._work("aggregate", topic, rows))["workers_mb"] for topic, rows in sizes]

    def median(self, work: str, figure: str) -> float:
        return statistics.median(each[figure] for each in self.results[work])

    async def stop(self) -> None:
        try:
            if hasattr(self, "spark"):
                self.spark.stop()
        finally:
            await self.system.stop()


def table(sides: list[Side], works: list[str], rows: int) -> str:
    lines = [
        "| work | strandline, M rows/s | Kafka's connector, M rows/s | ratio | CPU s, Spark + brokers |",
        "|---|---|---|---|---|",
    ]
    for work in works:
        speeds = [rows / side.median(work, "seconds") / 1e6 for side in sides]
        cpu = " / ".join(f"{side.median(work, 'cpu_s'):.1f} + {side.median(work, 'brokers_cpu_s'):.1f}" for side in sides)
        other, ratio = (f"{speeds[1]:.2f}", f"{speeds[0] / speeds[1]:.1f} x") if len(speeds) > 1 else ("-", "-")
        lines.append(f"| {WORKS[work]} | {speeds[0]:.2f} | {other} | {ratio} | {cpu} |")
        if work in STREAMS:
            lines += batch_lines(sides, work)
    return "\n".join(lines)


def batch_lines(sides: list[Side], work: str) -> Iterator[str]:
    names = {"batch_ms": "a batch after the first"}
    if STREAMS[work] >= 100:
        names |= {"first_20_ms": "of the 20 after the first", "last_20_ms": "of the last 20"}
    for figure, name in names.items():
        times = [side.median(work, figure) for side in sides]
        other, ratio = (f"{times[1]:.0f} ms", f"{times[1] / times[0]:.2f} x") if len(times) > 1 else ("-", "-")
        yield f"| - {name} | {times[0]:.0f} ms | {other} | {ratio} | |"


async def measure(arguments: argparse.Namespace) -> str:
    works = [work for work in WORKS if not arguments.only or work in arguments.only.split(",")]
    sides = [Side(Ours(), arguments.rows)]
    if not arguments.skip_kafka:
        try:
            sides.append(Side(Kafka(), arguments.rows))
        except KafkaUnavailable as e:
            log(f"Kafka is not measured: {e}")
    try:
        for side in sides:
            await side.start(works)
        for number in range(arguments.rounds + 1):
            for work in works:
                # The first one alternates, because the second finds a warm page cache.
                for side in sides if number % 2 else sides[::-1]:
                    await side.round(work, counted=number > 0)
        memory = [] if arguments.skip_memory else await sides[0].memory()
    finally:
        for side in sides:
            await side.stop()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({side.system.name: side.results for side in sides}, indent=1))
    head = f"{this_python()}; {arguments.rows:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, `local[2]`"
    head += f"; medians of {arguments.rounds} warm runs"
    sizes = f"{arguments.rows:,} and {4 * arguments.rows:,}"
    peaks = f"largest Python worker after {sizes} rows: {memory[0]:.0f} and {memory[1]:.0f} MB" if memory else ""
    return f"{head}\n\n{table(sides, works, arguments.rows)}\n\n{peaks}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help=f"of {','.join(WORKS)}")
    parser.add_argument("--skip-kafka", action="store_true")
    parser.add_argument(
        "--skip-memory", action="store_true", help="do not measure the memory of workers, which needs 4 times as many rows"
    )
    parser.add_argument("--json", help="every run, to this file")
    print(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
