"""Measures the client's cost per record, in nanoseconds of one core: `python benchmarks/client.py`.

It measures three layers separately, so that a slower figure can be located: the accumulator with its codec, the producer, and the
consumer. Producer and consumer talk to a broker in the same process that only stores bytes and checks nothing
(tests/client/scripted.py would be too slow).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from collections.abc import Callable
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import uvloop

from strandline.client import Consumer, Producer, arrow_batches
from strandline.client.options import ProducerOptions
from strandline.client.producer.accumulator import Accumulator
from strandline.protocol import apis
from strandline.protocol.messages import admin, data
from strandline.protocol.records.batch import iter_headers, read_header, stamp
from strandline.protocol.rpc.server import Server, ServerRequest

VALUE = b"x" * 100
TOPIC_ID = bytes(15) + b"\1"


class Sink:
    """A broker that acknowledges every batch at once, stores it, and returns it to fetches."""

    def __init__(self) -> None:
        self.ends: dict[int, int] = {}
        self.batches: dict[int, list[tuple[int, bytes]]] = {}
        self.server = Server(
            {apis.METADATA: self.metadata, apis.PRODUCE: self.produce, apis.INIT_PRODUCER_ID: self.init, apis.FETCH: self.fetch},
            role="broker",
            node_id=1,
            cluster_id="bench",
            incarnation_id=bytes(16),
        )
        self.keep = False
        self.port = 0

    async def start(self) -> None:
        self.port = await self.server.start("127.0.0.1", 0)

    def metadata(self, request: ServerRequest) -> None:
        partitions = [admin.MetadataPartition(0, i, 1, 0, 0, [1], [1], []) for i in range(6)]
        topic = admin.MetadataTopic(0, "t", TOPIC_ID, partitions)
        request.reply(admin.MetadataResponse([admin.MetadataBroker(1, "127.0.0.1", self.port)], "bench", 1, [topic]))

    def init(self, request: ServerRequest) -> None:
        request.reply(data.InitProducerIdResponse(0, 1, 0))

    def produce(self, request: ServerRequest) -> None:
        body: Any = request.body
        answers = []
        for part, records in zip(body.partitions, body.records, strict=True):
            base = self.ends.get(part.partition, 0)
            self.ends[part.partition] = base + read_header(records).record_count
            if self.keep:
                stamp(records, 0, base, 0)
                self.batches.setdefault(part.partition, []).append((base, bytes(records)))
            answers.append(data.ProducePartitionResponse(part.topic_id, part.partition, 0, base))
        request.reply(data.ProduceResponse(answers))

    def fetch(self, request: ServerRequest) -> None:
        body: Any = request.body
        answers, records = [], []
        for part in body.partitions:
            size, found = 0, []
            for _base, batch in self.batches.get(part.partition, ())[self._index(part) :]:
                if size and size + len(batch) > part.partition_max_bytes:
                    break
                found.append(batch)
                size += len(batch)
            end = self.ends.get(part.partition, 0)
            answers.append(data.FetchPartitionResponse(part.topic_id, part.partition, 0, end, end, 0))
            records.append(found)
        if any(records):
            request.reply(data.FetchResponse(0, 0, 0, answers, []), records)

    def _index(self, part: data.FetchPartition) -> int:
        batches = self.batches.get(part.partition, [])
        low, high = 0, len(batches)
        while low < high:
            middle = (low + high) // 2
            if batches[middle][0] < part.fetch_offset:
                low = middle + 1
            else:
                high = middle
        return low


def accumulator_alone(count: int, batch_size: int) -> float:
    queues: dict[Any, None] = {}
    options = ProducerOptions(batch_size=batch_size, buffer_memory=1 << 40)
    accumulator = Accumulator(
        options,
        now=time.perf_counter,
        wall_clock_ms=lambda: time.time_ns() // 1_000_000,
        on_ready=lambda queue: queues.setdefault(queue),
        first_sticky=lambda n: 0,
    )
    accumulator.update_topic("t", 6, range(6))
    producer = Producer()
    sender: Any = SimpleNamespace(failures=SimpleNamespace(fatal=None))
    producer._accumulator, producer._bare_open, producer._sender = accumulator, accumulator.bare_open, sender
    producer._checked_thread = get_ident()
    send = producer.send_nowait
    started = time.process_time()
    for i in range(count):
        send("t", VALUE)
        if not i % 2000:
            for queue in queues:
                if queue.needs_producer_id:
                    queue.set_producer_id(1, 0)
                while (batch := accumulator.take(queue, 0.0, partial=False)) is not None:
                    queue.on_acked(batch)
                    batch.complete(0)
                    accumulator.release(batch)
    return (time.process_time() - started) / count * 1e9


async def producing(count: int, batch_size: int, run: Callable[[Producer, int], Any]) -> float:
    sink = Sink()
    await sink.start()
    async with Producer(bootstrap_servers=f"127.0.0.1:{sink.port}", batch_size=batch_size, linger_ms=1) as producer:
        await producer.partitions_for("t")
        await producer.send_and_wait("t", VALUE)
        gc.collect()
        started = time.process_time()
        await run(producer, count)
        await producer.flush()
        spent = time.process_time() - started
    await sink.server.stop()
    return spent / count * 1e9


async def send_nowait(producer: Producer, count: int) -> None:
    for _ in range(count // 1000):
        for _ in range(1000):
            producer.send_nowait("t", VALUE)
        await producer.wait_for_room()
        await asyncio.sleep(0)


async def send_nowait_awaited(producer: Producer, count: int) -> None:
    for _ in range(count // 10_000):
        receipts = [producer.send_nowait("t", VALUE) for _ in range(10_000)]
        for receipt in receipts:
            await receipt


async def send(producer: Producer, count: int) -> None:
    for _ in range(count // 10_000):
        receipts = [await producer.send("t", VALUE) for _ in range(10_000)]
        for receipt in receipts:
            await receipt


async def send_keyed(producer: Producer, count: int) -> None:
    keys = [b"key-%d" % i for i in range(1000)]
    for _ in range(count // 1000):
        for key in keys:
            await producer.send("t", VALUE, key=key)


async def send_many(producer: Producer, count: int) -> None:
    values = [VALUE] * 10_000
    for _ in range(count // 10_000):
        producer.send_many("t", values)
        await producer.wait_for_room(2_000_000)
        await asyncio.sleep(0)


async def one_at_a_time(count: int) -> float:
    sink = Sink()
    await sink.start()
    async with Producer(bootstrap_servers=f"127.0.0.1:{sink.port}") as producer:
        for _ in range(200):
            await producer.send_and_wait("t", VALUE)
        started = time.perf_counter()
        for _ in range(count):
            await producer.send_and_wait("t", VALUE)
        spent = time.perf_counter() - started
    await sink.server.stop()
    return spent / count * 1e6


async def consuming(count: int, how: str) -> float:
    sink = Sink()
    sink.keep = True
    await sink.start()
    bootstrap = f"127.0.0.1:{sink.port}"
    async with Producer(bootstrap_servers=bootstrap, batch_size=65536, linger_ms=5) as producer:
        await producer.partitions_for("t")
        await send_many(producer, count)
    assert all(header for _, batch in sink.batches[0][:1] for _, header in iter_headers(batch))
    gc.collect()
    async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="error") as consumer:
        await consumer.assign([("t", i) for i in range(6)])
        for place in consumer.assignment():
            consumer.seek(place, 0)
        seen = 0
        started = time.process_time()
        if how == "getmany":
            while seen < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    seen += len(records)
        elif how == "fetch_batches":
            while seen < count:
                for batches in (await consumer.fetch_batches(timeout_ms=1000)).values():
                    seen += sum(map(len, batches))
        elif how == "Arrow":
            while seen < count:
                for batches in (await consumer.fetch_batches(timeout_ms=1000)).values():
                    seen += sum(rows.num_rows for rows in arrow_batches(batches))
        else:
            async for _ in consumer:
                seen += 1
                if seen == count:
                    break
        spent = time.process_time() - started
    await sink.server.stop()
    return spent / count * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--batch-size", type=int, default=65_536)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    n, size = args.records, args.batch_size
    figures = {"accumulator and codec, ns": accumulator_alone(n, size)}
    for name, run in [
        ("send_nowait, ns", send_nowait),
        ("send_nowait, receipts awaited, ns", send_nowait_awaited),
        ("await send, receipts awaited, ns", send),
        ("await send keyed, ns", send_keyed),
        ("send_many, ns", send_many),
    ]:
        figures[name] = uvloop.run(producing(n, size, run))
    figures["one at a time, us"] = uvloop.run(one_at_a_time(5000))
    for how in ("getmany", "async for", "fetch_batches", "Arrow"):
        figures[f"{how}, ns"] = uvloop.run(consuming(n, how))
    if args.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:36} {figure:8.1f}")


if __name__ == "__main__":
    main()
