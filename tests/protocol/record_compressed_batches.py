"""Writes `compressed_batches.json`: batches of each codec as three clients compress them and a real Apache Kafka stores them.

    pip install aiokafka confluent-kafka
    ../shared/tools/apache-kafka up --brokers 1 --controllers 0
    python tests/protocol/record_compressed_batches.py ../shared/tools/apache-kafka localhost:19092 BROKER_DATA_DIR

None of these is needed to run the tests: the bytes are checked in. Made with Kafka 4.3.1 (Java), confluent-kafka 2.16.1 and
aiokafka 0.14.0.
"""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path

TARGET = Path(__file__).parent / "compressed_batches.json"
CODECS = ("gzip", "snappy", "lz4", "zstd")
RECORDS = [(f"k{i:02}", f"value {i} of many that look alike") for i in range(40)] + [
    ("long", " ".join(str(n * n % 977) for n in range(28_000)))
]
"""The last value has more than 64 KiB: Java's snappy and lz4 have several blocks then."""


def by_java(tools: str, server: str, topic: str, codec: str) -> None:
    command = [tools, "run", "kafka-console-producer", "--bootstrap-server", server, "--topic", topic]
    command += ["--compression-codec", codec, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    command += ["--command-property", "linger.ms=1000", "--command-property", "batch.size=1000000"]
    lines = "".join(f"{key}:{value}\n" for key, value in RECORDS)
    subprocess.run(command, input=lines, text=True, check=True, timeout=60)


def by_confluent(tools: str, server: str, topic: str, codec: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": server, "compression.type": codec, "linger.ms": 1000})
    for key, value in RECORDS:
        producer.produce(topic, key=key, value=value)
    assert producer.flush(30) == 0


def by_aiokafka(tools: str, server: str, topic: str, codec: str) -> None:
    async def run() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(
            bootstrap_servers=server, compression_type=codec, linger_ms=1000, max_batch_size=1_000_000, enable_idempotence=True
        )
        await producer.start()
        sent = [await producer.send(topic, key=key.encode(), value=value.encode()) for key, value in RECORDS]
        await asyncio.gather(*sent)
        await producer.stop()

    asyncio.run(run())


def main(tools: str, server: str, data: str) -> None:
    found = {}
    for client, produce in (("java", by_java), ("confluent-kafka", by_confluent), ("aiokafka", by_aiokafka)):
        for codec in CODECS:
            topic = f"{client}-{codec}"
            create = ["--create", "--topic", topic, "--partitions", "1", "--replication-factor", "1"]
            subprocess.run([tools, "run", "kafka-topics", "--bootstrap-server", server, *create], check=True, timeout=60)
            produce(tools, server, topic, codec)
            found[f"{client} {codec}"] = base64.b64encode((Path(data) / f"{topic}-0" / f"{0:020d}.log").read_bytes()).decode()
    TARGET.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
