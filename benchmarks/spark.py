"""`make bench-spark`: our data source in Spark, and Spark's own Kafka connector on a real Apache Kafka; medians and ratios.

Both clusters (three controllers and three brokers each) and both Sparks (`local[2]`) are up all the time; each work is done
by the one and then by the other, so that both meet the same machine. The first pass is not counted. What differs is said in
the report: the connector of Spark 4.0.0 is what can be had, ours needs 4.2.

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
    "stream": "stream, 100,000 rows a trigger, AvailableNow, noop",
}


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# -- the other Spark --------------------------------------------------------------------------------------------------


def connector() -> tuple[str, str]:
    """The Python with the Spark of the connector, and its jars; made the first time."""
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
    """A process of spark_works.py."""

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
    """One of the two: a cluster, a Spark, and what came out."""

    def __init__(self, system: System, rows: int) -> None:
        self.system, self.rows = system, rows
        self.spark: Spark
        self.results: dict[str, list[dict[str, float]]] = {}
        self.topics = 0

    async def start(self) -> None:
        log(f"{self.system.name}: cluster and Spark")
        await self.system.start()
        self.spark = Spark(self.system.name)
        inputs = [("input", self.rows)]
        if isinstance(self.system, Ours):
            inputs.append(("input4", 4 * self.rows))
        for topic, rows in inputs:
            await self.system.create_topic(topic, PARTITIONS)
            for _ in range(rows // self.rows):
                await self._work("write", topic, self.rows)

    async def _work(self, work: str, topic: str, rows: int, **arguments: Any) -> dict[str, float]:
        brokers = self.system.broker_cpu_s()
        figures = await self.spark.run(work, topic=topic, rows=rows, servers=self.system.bootstrap, **arguments)
        return {**figures, "brokers_cpu_s": self.system.broker_cpu_s() - brokers}

    async def round(self, name: str, counted: bool) -> None:
        topic, arguments = "input", {}
        if name.startswith("write"):
            self.topics += 1
            topic = f"output-{self.topics}"
            await self.system.create_topic(topic, PARTITIONS)
            arguments["keys"] = name == "write_keys"
            await self._work("make", topic, self.rows, **arguments)
        figures = await self._work(name.removesuffix("_keys"), topic, self.rows, **arguments)
        warming = "" if counted else " (warming)"
        log(f"{self.system.name}: {name}: {figures['seconds']:.2f} s, {figures['cpu_s']:.1f} CPU s{warming}")
        if counted:
            self.results.setdefault(name, []).append(figures)

    async def memory(self) -> list[float]:
        """Of the largest worker, in a Spark of its own: after N rows, and after 4 N."""
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
        if work == "stream":
            batch_ms = [side.median(work, "batch_ms") for side in sides]
            other, ratio = (f"{batch_ms[1]:.0f} ms", f"{batch_ms[1] / batch_ms[0]:.1f} x") if len(batch_ms) > 1 else ("-", "-")
            lines.append(f"| the same, of a batch behind the first | {batch_ms[0]:.0f} ms | {other} | {ratio} | |")
    return "\n".join(lines)


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
            await side.start()
        for number in range(arguments.rounds + 1):
            for work in works:
                # They take turns in going first: the second finds a warm page cache.
                for side in sides if number % 2 else sides[::-1]:
                    await side.round(work, counted=number > 0)
        memory = await sides[0].memory()
    finally:
        for side in sides:
            await side.stop()
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({side.system.name: side.results for side in sides}, indent=1))
    head = f"{this_python()}; {arguments.rows:,} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, `local[2]`"
    head += f"; medians of {arguments.rounds} warm runs"
    sizes = f"{arguments.rows:,} and {4 * arguments.rows:,}"
    peaks = f"largest Python worker after {sizes} rows: {memory[0]:.0f} and {memory[1]:.0f} MB"
    return f"{head}\n\n{table(sides, works, arguments.rows)}\n\n{peaks}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", default="", help=f"of {','.join(WORKS)}")
    parser.add_argument("--skip-kafka", action="store_true")
    parser.add_argument("--json", help="every run, to this file")
    print(asyncio.run(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
