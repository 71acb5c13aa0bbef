"""Idempotent producers of other clients (librdkafka, aiokafka, Java) beside those of a `SteadyLoad`, in the same history."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from strandline.chaos.load import SteadyLoad
from strandline.testing.history import Send

LIMIT_MS = 180_000
INTERVAL_S = 0.05


class ForeignLoad:
    """From `start` on, each producer sends records to the partitions in turn. `stop` returns when each record has an outcome."""

    def __init__(self, load: SteadyLoad, bootstrap: str, java: Sequence[str]) -> None:
        self.load, self.bootstrap = load, bootstrap
        self._java = java
        """The command of Java, without the class."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(work) for work in (self._librdkafka(), self._aiokafka(), self._java_client())]

    async def stop(self) -> None:
        """Wait for the outcome of each record. Call it after the load has stopped."""
        await asyncio.gather(*self._tasks)

    def abandon(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _next(self, name: str, number: int) -> Send:
        partition = number % len(self.load.acked_at)
        return self.load.history.invoke(name, partition, self.load.next_value(partition), idempotent=True)

    def _failed(self, send: Send, why: object) -> None:
        send.info()
        self.load.failed.append(f"{send.process}: {why}")

    async def _librdkafka(self) -> None:
        from confluent_kafka import Producer

        settings = {"enable.idempotence": True, "delivery.timeout.ms": LIMIT_MS, "log_level": 0}
        producer = Producer({"bootstrap.servers": self.bootstrap, **settings})
        number = 0
        while self.load.going:
            send = self._next("librdkafka", number)
            number += 1

            def done(error, message, send=send):  # type: ignore[no-untyped-def]
                self._failed(send, error) if error else send.ok(message.offset())

            producer.produce(self.load.topic, send.value, partition=send.partition, on_delivery=done)
            producer.poll(0)
            await asyncio.sleep(INTERVAL_S)
        while len(producer):
            producer.poll(0)
            await asyncio.sleep(0.01)

    async def _aiokafka(self) -> None:
        from aiokafka import AIOKafkaProducer
        from aiokafka.errors import KafkaError

        waiting: list[tuple[Send, asyncio.Future[object]]] = []

        def ended(future: asyncio.Future[object], send: Send) -> None:
            error = future.exception()
            self._failed(send, error) if error else send.ok(future.result().offset)  # type: ignore[attr-defined]

        async with AIOKafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=True, request_timeout_ms=LIMIT_MS
        ) as producer:
            number = 0
            while self.load.going:
                send = self._next("aiokafka", number)
                number += 1
                future = await producer.send(self.load.topic, send.value, partition=send.partition)
                future.add_done_callback(lambda future, send=send: ended(future, send))
                waiting.append((send, future))
                await asyncio.sleep(INTERVAL_S)
            for _, future in waiting:
                with suppress(KafkaError):
                    await future

    async def _java_client(self) -> None:
        pipe = asyncio.subprocess.PIPE
        program = str(Path(__file__).with_name("JavaLoad.java"))
        process = await asyncio.create_subprocess_exec(
            *self._java, program, self.bootstrap, self.load.topic, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdin is not None
        assert process.stdout is not None
        open_sends: dict[bytes, Send] = {}

        async def read() -> None:
            assert process.stdout is not None
            async for line in process.stdout:
                offset, _, value = line.rstrip(b"\n").partition(b" ")
                send = open_sends.pop(value)
                self._failed(send, "not delivered") if offset == b"-" else send.ok(int(offset))

        reading = asyncio.create_task(read())
        try:
            number = 0
            while self.load.going:
                send = self._next("java", number)
                number += 1
                open_sends[send.value] = send
                process.stdin.write(b"%d %b\n" % (send.partition, send.value))
                await process.stdin.drain()
                await asyncio.sleep(INTERVAL_S)
            process.stdin.close()
            await reading
        finally:
            reading.cancel()
            if process.returncode is None:
                process.kill()
            await process.wait()
