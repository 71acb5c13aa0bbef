"""`make bench`: compares a Strandline cluster with a real Apache Kafka in several rounds; prints medians and ratios.

Each round starts both clusters with empty data, one after the other, and runs the same rows in the same order. The first
cluster alternates, because the second finds a warm page cache. Rows are independent: a failed row is reported, the others run.
The machine's speed varies, so only ratios within one run are meaningful.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import loads_kafka
import loads_ours
import transactions
import ways_kafka
import ways_ours
from json_values import CODECS
from python_build import this_python
from shapes import shapes
from systems import Kafka, KafkaUnavailable, Ours, System, cpu_s

ROWS = (
    "start",
    "memory",
    "produce_1000",
    "produce_100",
    "raw",
    "latency",
    "consume",
    "send",
    "read",
    "transactions",
    "codecs",
    "clean",
    "failover",
    "controller",
    "partitions_1000",
)
FAULTS = ("kill -9 of a leader", "SIGTERM of a leader")
CLEAN_TIMEOUT_S = 600
Kind = tuple[type[System], Any]
"""A cluster and the functions that measure it."""
CONTROLLER_FAULT = "kill -9 of the active controller"


class Sizes(NamedTuple):
    produce_1000: int = 2_000_000
    produce_100: int = 3_000_000
    raw_bytes: int = 1_000_000_000
    latency: int = 5_000
    consume: int = 3_000_000
    send: int = 1_000_000
    read: int = 2_000_000
    transactions: int = 2_000
    codecs: int = 1_000_000
    keys: int = 1_000_000
    idle_s: float = 10.0

    def scaled(self, factor: float) -> Sizes:
        return Sizes(*(type(v)(max(1, v * factor)) for v in self[:-1]), max(2.0, self.idle_s * factor))


class Results:
    """The values of each figure, one per round and system."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, list[float]]] = {}
        self.failures: list[str] = []

    def add(self, system: str, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.values.setdefault(name, {}).setdefault(system, []).append(value)

    def medians(self) -> dict[str, dict[str, float]]:
        return {name: {s: statistics.median(v) for s, v in by.items()} for name, by in self.values.items()}


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


async def run_round(system: System, loads: Any, sizes: Sizes, rows: set[str], results: Results) -> None:
    async def row(name: str, work: Callable[[], Awaitable[dict[str, float]]]) -> None:
        if name not in rows:
            return
        log(f"{system.name}: {name}")
        try:
            results.add(system.name, await work())
        except Exception as e:
            log(f"{system.name}: {name} failed: {e}")
            results.failures.append(f"{system.name}, {name}: {e}")

    @asynccontextmanager
    async def cluster() -> AsyncIterator[float]:
        try:
            yield await system.start()
        except Exception as e:
            log(f"{system.name}: {e}")
            results.failures.append(f"{system.name}: {e}")
        finally:
            await system.stop()

    async with cluster() as ready_s:
        results.add(system.name, {"3 + 3 processes, start to ready, s": ready_s})
        await asyncio.sleep(2)
        results.add(system.name, {"memory of the six, idle, MB": system.rss_mb()})
        for topic in ("t1000", "t100", "traw", "tlatency", "tconsume", "tsend", "tfail"):
            await system.create_topic(topic, 6)
        await row("produce_1000", lambda: loads.produce_1000(system, "t1000", sizes.produce_1000))
        await row("produce_100", lambda: loads.produce_100(system, "t100", sizes.produce_100))
        await row("raw", lambda: loads.raw(system, "traw", sizes.raw_bytes))
        await row("latency", lambda: loads.one_at_a_time(system, "tlatency", sizes.latency))
        await row("consume", lambda: loads.backlog(system, "tconsume", sizes.consume))
        ways: Any = ways_ours if isinstance(system, Ours) else ways_kafka
        await row("send", lambda: ways.send(system, "tsend", sizes.send))
        await row("read", lambda: ways.read(system, "tread", sizes.read))
        await row("transactions", lambda: transactions.measure(system, sizes.transactions))
        for codec in CODECS if "codecs" in rows else ():
            await system.create_topic(f"tcodec-{codec}", 6)
            await row("codecs", lambda codec=codec: loads.codec(system, f"tcodec-{codec}", codec, sizes.codecs))  # type: ignore[misc]
        for size in (100, 1000):
            await row(
                "clean",
                lambda size=size: asyncio.wait_for(  # type: ignore[misc]
                    loads.clean(system, f"tclean{size}", size, sizes.keys, sizes.keys * 5 // 4), CLEAN_TIMEOUT_S
                ),
            )
        results.add(system.name, {"memory of the six, after load, MB": system.rss_mb()})
        for fault in FAULTS:
            await row("failover", lambda fault=fault: loads.failover(system, "tfail", fault))  # type: ignore[misc]
        await row("controller", lambda: loads.failover(system, "tfail", CONTROLLER_FAULT))
        if isinstance(system, Ours):
            await row("controller", lambda: _metadata_outage(system))
    if "partitions_1000" in rows:
        async with cluster():
            await row("partitions_1000", lambda: partitions_1000(system, sizes.idle_s))


async def _metadata_outage(system: Ours) -> dict[str, float]:
    return {f"{CONTROLLER_FAULT}: until a topic can be created, ms": await loads_ours.metadata_outage_ms(system)}


async def partitions_1000(system: System, idle_s: float) -> dict[str, float]:
    """Measure the idle CPU of brokers with 1,000 partitions, and the time from a broker's death until all have a leader."""
    import signal

    await system.create_topic("many", 1000)
    await asyncio.sleep(3)
    pids = system.broker_pids()
    before, started = {p: cpu_s(p) for p in pids}, time.monotonic()
    await asyncio.sleep(idle_s)
    seconds = time.monotonic() - started
    idle = [(cpu_s(p) - before[p]) / seconds * 100 for p in pids]
    victim = (await system.leaders("many"))[0]
    system.signal(f"broker-{victim}", signal.SIGKILL)
    killed = time.monotonic()
    while any(leader in (victim, -1) for leader in (await system.leaders("many")).values()):
        if time.monotonic() - killed > 60:
            raise RuntimeError("partitions were without a leader for a minute")
        await asyncio.sleep(0.02)
    return {
        "1,000 partitions, idle, % of a core per broker": max(idle),
        "1,000 partitions: a broker's death until all have a leader, s": time.monotonic() - killed,
    }


PAIRS = (
    ("1,000 B, against Java", "1,000 B, strandline, MiB/s", "1,000 B, java, MiB/s"),
    ("100 B send_nowait, against Java", "100 B, strandline send_nowait, records/s", "100 B, java, records/s"),
    (
        "100 B send_nowait, against confluent-kafka",
        "100 B, strandline send_nowait, records/s",
        "100 B, confluent-kafka, records/s",
    ),
    ("100 B await send, against aiokafka", "100 B, strandline await send, records/s", "100 B, aiokafka, records/s"),
    ("one at a time, p50, against aiokafka", "one at a time, strandline p50, ms", "one at a time, aiokafka p50, ms"),
    ("one at a time, p99, against aiokafka", "one at a time, strandline p99, ms", "one at a time, aiokafka p99, ms"),
    ("backlog, against aiokafka", "backlog, strandline, records/s", "backlog, aiokafka, records/s"),
    ("backlog, against Java", "backlog, strandline, records/s", "backlog, java, records/s"),
    *(
        (
            f"send {way}, {shape.name}, against {client}",
            f"send {way}, {shape.name}, strandline, records/s",
            f"send {way}, {shape.name}, {client}, records/s",
        )
        for shape in shapes()
        for way, client in (
            ("unawaited", "confluent-kafka"),
            ("awaited", "confluent-kafka asyncio"),
            ("awaited", "aiokafka"),
        )
    ),
    *(
        (
            f"read {ours}, {size} B, against {client}, {theirs}",
            f"read {ours}, {size} B, strandline, records/s",
            f"read {theirs}, {size} B, {client}, records/s",
        )
        for size in (100, 1000)
        for ours, theirs, client in (
            ("async for", "async for", "aiokafka"),
            ("async for", "poll", "confluent-kafka"),
            ("async for", "await poll", "confluent-kafka asyncio"),
            ("getmany", "getmany", "aiokafka"),
            ("getmany", "consume", "confluent-kafka"),
            ("fetch_batches", "getmany", "aiokafka"),
            ("run", "async for", "aiokafka"),
        )
    ),
    *(
        (f"{codec}, {way}, against {client}", f"{codec}, {way}, strandline, records/s", f"{codec}, {way}, {client}, records/s")
        for codec in CODECS
        for way in ("produce", "consume")
        for client in ("confluent-kafka", "aiokafka")
    ),
)
"""Pairs of figures with different names, because the clients differ. Figures of the same name are paired without an entry."""


def report(results: Results, note: str) -> str:
    medians = results.medians()
    lines = [f"{this_python()}; {platform.machine()}; {note}", ""]
    lines.append(f"{'figure (median)':<66} {'kafka':>14} {'strandline':>14} {'ratio':>14}")
    for name, by in medians.items():
        cells = [f"{by[s]:,.2f}" if s in by else "" for s in ("kafka", "strandline")]
        ratio = f"{by['strandline'] / by['kafka']:.2f}" if by.get("kafka") and "strandline" in by else ""
        lines.append(f"{name:<66} {cells[0]:>14} {cells[1]:>14} {ratio:>14}")
    for title, ours, theirs in PAIRS:
        if ours in medians and theirs in medians:
            a, b = medians[ours]["strandline"], medians[theirs]["kafka"]
            lines.append(f"{title:<66} {b:>14,.2f} {a:>14,.2f} {a / b:>14.2f}")
    lines += [f"FAILED {failure}" for failure in results.failures]
    return "\n".join(lines)


def turns(kinds: Sequence[Kind], rounds: int) -> list[list[Kind]]:
    """The clusters of each round, in order: the first one alternates."""
    return [list(kinds) if number % 2 == 0 else list(reversed(kinds)) for number in range(rounds)]


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4, help="an even number, so that each cluster goes first equally often")
    parser.add_argument("--only", help=f"rows, separated by commas: {', '.join(ROWS)}")
    parser.add_argument("--skip-kafka", action="store_true")
    parser.add_argument("--skip-ours", action="store_true")
    parser.add_argument("--scale", type=float, default=1.0, help="of the loads; 0.1 for a quick look")
    parser.add_argument("--json", metavar="FILE", help="write every value of every round")
    args = parser.parse_args()
    rows = set(args.only.split(",")) if args.only else set(ROWS)
    if unknown := rows - set(ROWS):
        parser.error(f"unknown rows: {', '.join(sorted(unknown))}")
    kinds: list[Kind] = [] if args.skip_ours else [(Ours, loads_ours)]
    reason = "skipped on request" if args.skip_kafka else ""
    if not reason:
        try:
            Kafka()
            kinds.append((Kafka, loads_kafka))
        except KafkaUnavailable as e:
            reason = str(e)
    if reason:
        log(f"Apache Kafka is not measured: {reason}")
    results = Results()
    for number, order in enumerate(turns(kinds, args.rounds), start=1):
        for kind, loads in order:
            log(f"round {number} of {args.rounds}: {kind.__name__.lower()}")
            await run_round(kind(), loads, Sizes().scaled(args.scale), rows, results)
    free = shutil.disk_usage("/").free // 10**9
    note = f"{args.rounds} rounds, scale {args.scale}, {free} GB of disk free"
    if len(kinds) > 1 and args.rounds % 2:
        note += f"; {kinds[0][0].name} went first once more than {kinds[1][0].name}"
    print(report(results, note + (f"; Apache Kafka not measured: {reason}" if reason else "")))
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"values": results.values, "failures": results.failures}, file, indent=1)
    return 1 if results.failures else 0


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(main()))
