"""Real brokers: what a cleaning costs the requests beside it, and how fast it is on an idle and on a busy broker.

    python benchmarks/cleaner_beside.py [--brokers 1] [--rounds 6] [--rate 500] [--batch 16384]

Each round writes two logs in which every key occurs twice, and sets the `cleanup.policy` of one after the other to `compact`. The
first one is cleaned without other work. Beside the cleaning of the second one, and for some seconds before it, a client sends
records at a fixed pace, one per request and with acks=all, to another topic. With several brokers, each has all replicas and
cleans. The report has medians over the rounds; the ratio of a percentile is the median of the ratios of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time

from keyed_log import key_of
from loads_ours import cleaned_lines

from strandline.client import Admin, NewTopic, Producer
from strandline.local_cluster import LocalCluster

LOADED = "loaded"
CLEAN_TIMEOUT_S = 300
Figures = dict[str, float]


class Bench:
    """One cluster, its client, and the sizes of the measurement."""

    def __init__(self, cluster: LocalCluster, args: argparse.Namespace) -> None:
        self.cluster = cluster
        self.args = args
        self.admin = Admin(bootstrap_servers=cluster.bootstrap)
        self.producer = Producer(bootstrap_servers=cluster.bootstrap, acks="all", linger_ms=0)
        self._topics = 0

    async def start(self) -> None:
        await self.admin.start()
        await self.producer.start()
        await self.admin.create_topics([NewTopic(LOADED, partitions=6, replication_factor=len(self.cluster.brokers))])
        await self.produce(asyncio.create_task(asyncio.sleep(2)))

    async def stop(self) -> None:
        await self.producer.stop()
        await self.admin.stop()

    async def round(self) -> Figures:
        idle = await self._clean(await self._filled())
        topic = await self._filled()
        without = await self.produce(asyncio.create_task(asyncio.sleep(self.args.seconds)))
        cleaning = asyncio.create_task(self._clean(topic))
        beside = await self.produce(cleaning)
        figures = {"cleaning alone, MB/s": idle, "cleaning beside requests, MB/s": cleaning.result()}
        for name, percent in (("p50", 50), ("p99", 99)):
            before, after = percentile(without, percent), percentile(beside, percent)
            figures |= {f"{name} without, ms": before, f"{name} beside a cleaning, ms": after, f"{name}, ratio": after / before}
        return figures

    async def _filled(self) -> str:
        """A new topic with a log that is to be cleaned."""
        args = self.args
        self._topics += 1
        topic = f"compacted-{self._topics}"
        configs = {"cleanup.policy": "delete", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(8 << 20)}
        await self.admin.create_topics([NewTopic(topic, 1, len(self.cluster.brokers), configs=configs)])
        keys, value = args.megabytes * 500_000 // (args.size + 8), b"v" * (args.size - 12)
        async with Producer(bootstrap_servers=self.cluster.bootstrap, batch_size=args.batch, linger_ms=20) as producer:
            for number in range(2 * keys):
                await producer.send(topic, value, key=key_of(number * 7919 % keys))
            await producer.flush()
        return topic

    async def _clean(self, topic: str) -> float:
        """Have the topic cleaned. Returns MB/s of log: of the slowest broker."""
        await self.admin.alter_configs("topic", topic, {"cleanup.policy": "compact"})
        deadline = time.monotonic() + CLEAN_TIMEOUT_S
        brokers = self.cluster.brokers
        while len(lines := [line for broker in brokers for line in cleaned_lines(broker, topic)]) < len(brokers):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic} was not cleaned within {CLEAN_TIMEOUT_S} s")
            await asyncio.sleep(0.1)
        await self.admin.alter_configs("topic", topic, {"cleanup.policy": "delete"})
        return min(line["previous_size_bytes"] / line["took_ms"] for line in lines) / 1e3

    async def produce(self, until: asyncio.Future[object]) -> list[float]:
        """Milliseconds of each send, one after the other; a late one does not delay the next."""
        rate, times, sends = self.args.rate, [], []

        async def send(partition: int) -> None:
            began = time.perf_counter()
            await self.producer.send_and_wait(LOADED, b"x" * 100, partition=partition)
            times.append((time.perf_counter() - began) * 1000)

        loop = asyncio.get_running_loop()
        start = loop.time()
        while not until.done():
            sends.append(asyncio.create_task(send(len(sends) % 6)))
            await asyncio.sleep(start + len(sends) / rate - loop.time())
        await asyncio.gather(*sends)
        return times


def percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


async def measure(args: argparse.Namespace) -> list[Figures]:
    with tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True) as folder:
        settings = {"log.cleaner.backoff.ms": 50}
        async with LocalCluster(folder, brokers=args.brokers, controllers=1, settings=settings) as cluster:
            bench = Bench(cluster, args)
            await bench.start()
            rounds = [await bench.round() for _ in range(args.rounds)]
            await bench.stop()
            return rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=500, help="records per second that the client sends")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement without a cleaning")
    parser.add_argument("--megabytes", type=int, default=64, help="size of each log that is cleaned")
    parser.add_argument("--size", type=int, default=100, help="bytes of key and value of a record in it")
    parser.add_argument("--batch", type=int, default=16_384, help="bytes of a batch in it")
    parser.add_argument("--json", action="store_true", help="print every round as JSON")
    args = parser.parse_args()

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rounds = runner.run(measure(args))
    if args.json:
        print(json.dumps(rounds))
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"{name:<34} {statistics.median(values):>9.2f}   {' '.join(f'{value:.2f}' for value in values)}")


if __name__ == "__main__":
    main()
