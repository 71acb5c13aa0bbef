"""Spark's own Kafka connector (Java) on Strandline: it writes and reads topics, as batches and as streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

from confluent_kafka.admin import AdminClient, NewTopic  # noqa: E402
from jvm import artifact, missing  # noqa: E402
from suite import CACHE, Results, cluster, main, work_folder  # noqa: E402

SPARK = "4.2.0"
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK}",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
SETTINGS = {"group.initial.rebalance.delay.ms": 0}
SECONDS = 300.0


def python() -> str:
    """The Python of an environment with the Spark of the connector, which is older than this repository's."""
    folder = CACHE / f"spark-{SPARK}"
    if not (folder / ".complete").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "-q", f"pyspark=={SPARK}"], check=True)
        (folder / ".complete").touch()
    return str(folder / "bin/python")


def run_job(bootstrap: str, folder: Path) -> Results:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic("from_spark", 1, 3), NewTopic("streamed", 3, 3)]).values():
        future.result(30)
    environment = {**os.environ, "CONNECTOR_JARS": ",".join(str(artifact(name)) for name in JARS)}
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = python()
    command = [python(), str(HERE / "job.py"), bootstrap, str(folder)]
    with (folder / "spark.log").open("wb") as log:
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=log, timeout=SECONDS, check=False)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith(b"{")]
    return {row["test"]: (row["end"], "" if row["end"] == "passed" else row["why"]) for row in rows}


def results(_tests: list[str]) -> Results:
    """Run all tests, because they build on one another."""
    with work_folder("spark") as folder, cluster(folder / "cluster", settings=SETTINGS) as running:
        return {**run_job(running.bootstrap, folder), **running.result()}


if __name__ == "__main__":
    sys.exit(main(HERE, results, missing=missing(), requirement="STRANDLINE_REQUIRE_KAFKA"))
