"""A member of a classic group with aiokafka that writes what it does, as tests/processes/group_member.py does.

python member_of_aiokafka.py BOOTSTRAP TOPIC GROUP FILE
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

BOOTSTRAP, TOPIC, GROUP, FILE = sys.argv[1:5]
FD = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def number_of(value: bytes) -> int:
    return int(value[value.index(b"/") + 1 :].split(maxsplit=1)[0])


def new_consumer() -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        group_id=GROUP,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        partition_assignment_strategy=(RangePartitionAssignor,),
    )


class Member(ConsumerRebalanceListener):
    """A member. aiokafka reports lost partitions as revoked ones."""

    def __init__(self) -> None:
        self.consumer = new_consumer()
        self.owned: set[int] = set()

    async def start_again(self, error: KafkaError) -> None:
        """Begin with a new consumer, as an application would have to: aiokafka does not handle REBALANCE_IN_PROGRESS from
        JoinGroup, which Kafka, too, returns when the group is converted to the newer protocol."""
        if "RebalanceInProgress" not in str(error):
            raise error
        self.on_partitions_revoked({TopicPartition(TOPIC, partition) for partition in self.owned})
        await self.consumer.stop()
        self.consumer = new_consumer()

    def note(self, do: str, **fields: Any) -> None:
        coordinator = self.consumer._coordinator
        epoch = max(0, getattr(coordinator, "generation", 0))
        os.write(FD, json.dumps({"at": time.monotonic(), "do": do, "epoch": epoch, **fields}).encode() + b"\n")

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.owned = {tp.partition for tp in assigned}
        self.note("assigned", partitions=sorted(self.owned))

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.note("revoked", partitions=sorted(self.owned & {tp.partition for tp in revoked}))
        self.owned = set()

    async def work(self) -> None:
        while True:
            found = await self.consumer.getmany(timeout_ms=200, max_records=200)
            positions = {}
            for tp, records in found.items():
                numbers = [number_of(record.value) for record in records]
                self.note(
                    "records", partition=tp.partition, numbers=numbers, first=records[0].offset, next=records[-1].offset + 1
                )
                positions[tp] = records[-1].offset + 1
            if positions:
                try:
                    await self.consumer.commit(positions)
                except KafkaError as e:
                    self.note("commit failed", reason=type(e).__name__)


async def main() -> None:
    member = Member()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        while True:
            await member.consumer.start()
            member.consumer.subscribe([TOPIC], listener=member)
            try:
                await member.work()
            except KafkaError as e:
                await member.start_again(e)
    except asyncio.CancelledError:
        # aiokafka does not call the listener when the consumer stops.
        member.on_partitions_revoked({TopicPartition(TOPIC, partition) for partition in member.owned})
        await member.consumer.stop()
        member.note("ended")


asyncio.run(main())
