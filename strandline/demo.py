"""The demo: does a cluster that loses a leader and the active controller keep every acknowledged record?

1. Start three controllers and three brokers as real processes.
2. Send every line of every `.py` file of the running Python's standard library with acks=all: key = file, value = the
   line, header = its number.
3. Half way, send SIGKILL to the leader of the busiest partition; start it again later; then kill the active controller.
4. Read everything back, rebuild every file and compare its SHA-256; check the history; compare the logs of all replicas
   byte by byte.

The verdict uses only what the clients saw and the logs on disk, not what the cluster reports about itself.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from strandline.client import Admin, Consumer, NewTopic, Producer, TopicPartition
from strandline.client.producer.receipts import Receipt
from strandline.local_cluster import ClusterError, LocalCluster
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach
from strandline.testing.history import History, Send, check
from strandline.testing.replicas import compare_replicas

TOPIC = "python-lines"
PARTITIONS = 6
REPLICAS = 3
LINE_HEADER = "line"
HEAL_TIMEOUT_MS = 30_000
READ_TIMEOUT_MS = 10_000

Progress = Callable[[str], None]


@dataclass(slots=True)
class Source:
    """The input: files and their lines. Line `n` of a file (from 1) has the number `first + n - 1` over all files."""

    name: str
    """Path below the library's folder, `/`-separated."""
    first: int
    lines: list[bytes]
    digest: str


@dataclass(slots=True)
class Result:
    """The verdict, and the figures behind it."""

    files: int = 0
    records_sent: int = 0
    records_acknowledged: int = 0
    records_read: int = 0
    records_lost: int = 0
    records_doubled: int = 0
    records_reordered: int = 0
    other_anomalies: int = 0
    files_rebuilt: int = 0
    replicas_compared: int = 0
    replicas_different: int = 0
    longest_gap_ms: float = 0.0
    """The longest time that a partition with records on their way got no acknowledgement."""
    ready_s: float = 0.0
    send_s: float = 0.0
    read_s: float = 0.0
    events: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": "ok" if self.good else "bad"}


def library_sources(folder: Path | None = None, limit: int | None = None) -> list[Source]:
    """Every `.py` file of the standard library, without installed packages."""
    root = folder or Path(sysconfig.get_paths()["stdlib"])
    sources: list[Source] = []
    first = 0
    for path in sorted(_python_files(root)):
        content = path.read_bytes()
        # Lines keep their ends and are split at \n alone, so that joined they equal the file byte for byte.
        lines = io.BytesIO(content).readlines()
        if lines:
            sources.append(Source(path.relative_to(root).as_posix(), first, lines, hashlib.sha256(content).hexdigest()))
            first += len(lines)
        if limit and first >= limit:
            break
    return sources


def _python_files(root: Path) -> Iterator[Path]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [n for n in subfolders if n not in ("site-packages", "dist-packages", "__pycache__")]
        yield from (Path(folder, n) for n in names if n.endswith(".py"))


class _Gaps:
    """The longest time that a partition with records on their way got no acknowledgement."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._last: dict[int, float] = {}

    def on_ack(self, partition: int, sent_at: float, now: float) -> None:
        waited = now - max(self._last.get(partition, sent_at), sent_at)
        self.longest_s = max(self.longest_s, waited)
        self._last[partition] = now


class Demo:
    """One run against a ready cluster. `say` receives one line per event."""

    def __init__(self, cluster: LocalCluster, sources: list[Source], say: Progress) -> None:
        self.cluster = cluster
        self.sources = sources
        self.total = sum(len(s.lines) for s in sources)
        self.say = say
        self.result = Result(files=len(sources), records_sent=self.total)
        self.history = History()
        self.acknowledged = 0
        self._watched: list[tuple[int, asyncio.Event]] = []
        """Numbers of acknowledged records to wait for, lowest last, each with the event to set."""
        self._down: list[str] = []

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        async with Admin(**reach(self.cluster.bootstrap)) as admin:
            await admin.create_topics([NewTopic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICAS)])
            started = loop.time()
            faults = asyncio.create_task(self._break_things(admin))
            await self._send_all()
            await faults
            self.result.send_s = loop.time() - started
            await self._heal(admin)
        started = loop.time()
        rebuilt = await self._read_all()
        self.result.read_s = loop.time() - started
        self._judge(rebuilt)
        return self.result

    def _tell(self, text: str) -> None:
        line = f"{self.acknowledged:,} of {self.total:,} acknowledged: {text}"
        self.result.events.append(line)
        self.say(line)

    # -- sending

    async def _send_all(self) -> None:
        gaps = _Gaps()
        loop = asyncio.get_running_loop()
        settling: deque[asyncio.Task[None]] = deque()
        async with Producer(
            **reach(self.cluster.bootstrap),
            acks="all",
            linger_ms=5,
            batch_size=65_536,
            buffer_memory=4 << 20,  # small, so that the producer is busy when the faults happen
            delivery_timeout_ms=60_000,
        ) as producer:
            run: list[tuple[Send, Receipt]] = []
            for source in self.sources:
                key = source.name.encode()
                for number, line in enumerate(source.lines):
                    receipt = await producer.send(TOPIC, line, key=key, headers=[(LINE_HEADER, b"%d" % (number + 1))])
                    run.append((self.history.invoke("producer", None, source.first + number), receipt))
                if len(run) >= 1000:
                    settling.append(asyncio.create_task(self._settle(run, gaps, loop.time())))
                    run = []
                    while settling and settling[0].done():
                        settling.popleft().result()
            await producer.flush()
            await self._settle(run, gaps, loop.time())
            await asyncio.gather(*settling)
        self.result.longest_gap_ms = round(gaps.longest_s * 1000, 1)

    async def _settle(self, run: list[tuple[Send, Receipt]], gaps: _Gaps, sent_at: float) -> None:
        """Wait for a run of receipts, and note each outcome in the history."""
        loop = asyncio.get_running_loop()
        for send, receipt in run:
            try:
                metadata = await receipt
            except StrandlineError as e:
                send.info()
                self._problem(f"a record was not delivered: {e}")
                continue
            send.ok(metadata.offset, partition=metadata.partition)
            gaps.on_ack(metadata.partition, sent_at, loop.time())
            self.acknowledged += 1
        while self._watched and self.acknowledged >= self._watched[-1][0]:
            self._watched.pop()[1].set()

    # -- faults

    async def _break_things(self, admin: Admin) -> None:
        await self._until_acknowledged(0.5)
        (topic,) = await admin.describe_topics([TOPIC])
        victim = self.cluster.broker(topic.partitions[0].leader_id)
        led = [p.partition for p in topic.partitions if p.leader_id == victim.id]
        self._tell(f"SIGKILL {victim.name} (pid {victim.pid}), leader of partitions {', '.join(map(str, led))}")
        self.cluster.kill(victim.name)
        await self._until_acknowledged(0.65)
        await self.cluster.wait_ended(victim.name)
        await self.cluster.start_node(victim.name)
        self._tell(f"{victim.name} starts again (pid {victim.pid})")
        await self._until_acknowledged(0.8)
        quorum = await admin.describe_quorum()
        active = self.cluster.node(f"controller-{quorum.leader_id}")
        self._tell(f"SIGKILL {active.name} (pid {active.pid}), the active controller")
        self.cluster.kill(active.name)
        self._down.append(active.name)

    async def _until_acknowledged(self, share: float) -> None:
        count = int(self.total * share)
        if self.acknowledged >= count:
            return  # sending may have ended, and would not set the event
        reached = asyncio.Event()
        self._watched.append((count, reached))
        await reached.wait()

    async def _heal(self, admin: Admin) -> None:
        """Start every node again, and wait until every replica is in the ISR. Then the logs must be equal."""
        for name in self._down:
            await self.cluster.wait_ended(name)
            await self.cluster.start_node(name)
        await self.cluster.wait_ready(timeout_ms=HEAL_TIMEOUT_MS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + HEAL_TIMEOUT_MS / 1000
        while True:
            (topic,) = await admin.describe_topics([TOPIC])
            behind = [p.partition for p in topic.partitions if set(p.isr) != set(p.replicas)]
            if not behind:
                break
            if loop.time() > deadline:
                raise ClusterError(f"partitions {behind} were not fully replicated again within {HEAL_TIMEOUT_MS} ms")
            await asyncio.sleep(0.02)
        self._tell("every node is up, every replica in sync")

    # -- reading back

    async def _read_all(self) -> int:
        """Read every partition from beginning to end; returns the number of files that equal their source."""
        partitions = [TopicPartition(TOPIC, p) for p in range(PARTITIONS)]
        rebuilt: dict[bytes, list[tuple[int, bytes]]] = {}
        firsts = {s.name.encode(): s.first for s in self.sources}
        async with Consumer(**reach(self.cluster.bootstrap), auto_offset_reset="earliest") as consumer:
            await consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            left = {tp for tp, end in ends.items() if end > 0}
            while left:
                polled = await consumer.getmany(timeout_ms=READ_TIMEOUT_MS)
                if not polled:
                    raise ClusterError(f"no records arrived for {READ_TIMEOUT_MS} ms, while {sorted(left)} have more")
                for tp, records in polled.items():
                    seen = []
                    for record in records:
                        assert record.key is not None
                        number = int(record.headers[0][1] or b"")
                        rebuilt.setdefault(record.key, []).append((number, record.value))
                        seen.append((record.offset, firsts[record.key] + number - 1))
                    self.history.poll("reader", tp.partition, seen, final=True)
                    if records[-1].offset + 1 >= ends[tp]:
                        left.discard(tp)
        return sum(self._is_whole(source, rebuilt.get(source.name.encode(), [])) for source in self.sources)

    def _is_whole(self, source: Source, lines: list[tuple[int, bytes]]) -> bool:
        """Whether the file equals its source. It is built in the order of reading, so a reordered line makes it differ."""
        return hashlib.sha256(b"".join(line for _, line in lines)).hexdigest() == source.digest

    # -- the verdict

    def _judge(self, rebuilt: int) -> None:
        verdict, result = check(self.history), self.result
        counts = verdict.counts()
        result.records_acknowledged, result.records_read = verdict.acknowledged, verdict.read
        result.records_lost = counts.pop("lost-write", 0)
        result.records_doubled = counts.pop("duplicate", 0)
        result.records_reordered = counts.pop("nonmonotonic-send", 0)
        result.other_anomalies = sum(counts.values())
        result.files_rebuilt = rebuilt
        for anomaly in verdict.anomalies[:10]:
            self._problem(str(anomaly))
        if not verdict.judged:
            self._problem("no acknowledged record was judged, so the run proves nothing")
        if verdict.acknowledged != self.total:
            self._problem(f"{self.total - verdict.acknowledged} records were not acknowledged")
        if rebuilt != len(self.sources):
            self._problem(f"{len(self.sources) - rebuilt} files are not what they were")
        comparisons = compare_replicas({n.name: n.data for n in self.cluster.brokers}, TOPIC)
        if len(comparisons) != PARTITIONS:
            self._problem(f"the logs of {len(comparisons)} partitions were compared, and there are {PARTITIONS}")
        for comparison in comparisons:
            result.replicas_compared += len(comparison.logs)
            if not comparison.equal or len(comparison.logs) != REPLICAS:
                result.replicas_different += 1
                self._problem(str(comparison))

    def _problem(self, text: str) -> None:
        if len(self.result.problems) < 50:
            self.result.problems.append(text)


async def run_demo(folder: Path, *, say: Progress, limit: int | None = None) -> Result:
    """Run the demo in `folder`, with a new cluster. `limit`: stop after about this many lines."""
    sources = library_sources(limit=limit)
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with LocalCluster(folder) as cluster:
        ready_s = loop.time() - started
        say(f"3 controllers and 3 brokers are ready after {ready_s:.2f} s; {len(sources):,} files to send")
        result = await Demo(cluster, sources, say).run()
    result.ready_s = round(ready_s, 2)
    result.send_s, result.read_s = round(result.send_s, 2), round(result.read_s, 2)
    return result
