"""A worker of a chain of topics in a process of its own: it reads, and writes to the next topic, in transactions.

    python transaction_worker.py BOOTSTRAP GROUP TRANSACTIONAL_ID TOPIC TOPIC TOPIC

Each record of the first topic is written to the second, each of the second to the third, with the same key, value and partition.
The offsets are part of the transaction. One in twenty transactions is given up on purpose, after its records were sent.

SIGTERM ends it. When an error says so, it starts over with a new producer and a new consumer, as a supervisor would.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sys
from contextlib import suppress

from strandline.client import Consumer, Producer
from strandline.protocol.errors import StrandlineError

BOOTSTRAP, GROUP, TRANSACTIONAL_ID, *TOPICS = sys.argv[1:]
NEXT = dict(itertools.pairwise(TOPICS))
GIVEN_UP = 0.05


class GivenUp(Exception):
    """The program aborts a transaction on purpose."""


async def work(producer: Producer, consumer: Consumer) -> None:
    while True:
        found = await consumer.getmany(timeout_ms=200, max_records=50)
        if not found:
            continue
        async with producer.transaction():
            for tp, records in found.items():
                for record in records:
                    await producer.send(NEXT[tp.topic], record.value, key=record.key, partition=tp.partition)
            await producer.send_offsets_to_transaction({tp: records[-1].offset + 1 for tp, records in found.items()}, consumer)
            if random.random() < GIVEN_UP:
                raise GivenUp


async def stay() -> None:
    """Work until an error."""
    consumer = Consumer(
        *list(NEXT),
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = Producer(bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=10_000)
    async with producer, consumer:
        await work(producer, consumer)


async def main() -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        while True:
            try:
                await stay()
            except (StrandlineError, GivenUp) as e:
                print(f"starts over: {type(e).__name__}: {e}", flush=True)
                await asyncio.sleep(0.1)


asyncio.run(main())
