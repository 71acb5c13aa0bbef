"""The size of the metadata of named producers: one record per task in the log, one name per task number in the image.

A Spark stream starts a work epoch of the same names with each batch, for months. So neither may grow over time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from controller_world import CLUSTER, registration
from handled_request import HandledRequest

from strandline.controller.controller import Controller
from strandline.controller.handlers import ControllerApis
from strandline.controller.metadata.records import encode_record
from strandline.controller.metadata.voters import Voter
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.metadata_log import DIRECTORY, SNAPSHOTS_KEPT
from strandline.controller.raft.quorum import Quorum
from strandline.controller.topic_control import TopicControl, TopicDefaults
from strandline.protocol import apis
from strandline.protocol.doors import Doors
from strandline.protocol.messages.cluster import BrokerHeartbeatRequest, InitNamedProducerRequest
from strandline.storage.files import MemoryFiles

TASKS = 4
NAMES = [f"spark/8c1c1c7e-4f0b-4a53-8df3-90f2a6b3c003/{task}" for task in range(TASKS)]
SNAPSHOT_AFTER_BYTES, SEGMENT_BYTES = 20 * 1024, 16 * 1024
"""A thousandth of the default sizes."""


class Node:
    """One controller with its quorum of one voter, on a disk in memory."""

    def __init__(self, config: RaftConfig, wall_clock_ms: Callable[[], int]) -> None:
        self.disk = MemoryFiles(Random(1))
        self.controller = Controller(node_id=1, session_timeout_ms=3000, now=asyncio.get_running_loop().time)
        self.quorum = Quorum.open(
            node_id=1,
            cluster_id=CLUSTER,
            voters=[Voter(1, "127.0.0.1", 1)],
            data_dir="d",
            files=self.disk,
            doors=Doors(wall_clock_ms, Random(1)),
            config=config,
            listener=self.controller,
            on_fatal=self.on_fatal,
        )
        topics = TopicControl(Random(1), TopicDefaults(num_partitions=1, replication_factor=1))
        self._handlers = ControllerApis(self.controller, topics, CLUSTER, wall_clock_ms, lambda callback: callback()).handlers()
        self.broker_epoch = 0

    @staticmethod
    def on_fatal(error: BaseException) -> None:
        raise error

    async def call(self, api_key: int, body: Any) -> Any:
        request = HandledRequest(body)
        self._handlers[api_key](request)
        async with asyncio.timeout(10):
            while not request.answers:
                await asyncio.sleep(0)
        (answer,) = request.answers
        assert not isinstance(answer, Exception), answer
        return answer

    async def start(self) -> None:
        self.quorum.start()
        async with asyncio.timeout(10):
            while self.controller.active is None:
                await asyncio.sleep(0)
        self.broker_epoch = (await self.call(apis.BROKER_REGISTRATION, registration(1))).broker_epoch
        offset = self.controller.image.offset
        await self.call(apis.BROKER_HEARTBEAT, BrokerHeartbeatRequest(1, self.broker_epoch, offset, False, False, []))

    async def batch(self, number: int, note: bytes) -> None:
        """The tasks of one batch of the stream."""
        for name in NAMES:
            await self.call(apis.INIT_NAMED_PRODUCER, InitNamedProducerRequest(1, self.broker_epoch, name, number, note))

    def files(self, suffix: str) -> list[int]:
        """The sizes of these files of the metadata log."""
        folder = f"d/{DIRECTORY}"
        return [self.disk.size(f"{folder}/{name}") for name in self.disk.list(folder) if name.endswith(suffix)]

    @property
    def image_bytes(self) -> int:
        return sum(len(encode_record(record)) for record in self.controller.image.to_records())


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    config = RaftConfig(snapshot_after_bytes=SNAPSHOT_AFTER_BYTES, segment_bytes=SEGMENT_BYTES)
    node = Node(config, lambda: 1_763_791_200_000)
    await node.start()
    yield node
    await node.quorum.stop()


async def test_stream_of_2000_tasks_leaves_a_bounded_log_and_image(node: Node) -> None:
    """The log keeps the records between two snapshots and up to the next one, and the rest of the segment before them."""
    bound = (SNAPSHOTS_KEPT + 1) * SNAPSHOT_AFTER_BYTES + 2 * SEGMENT_BYTES
    image_bytes, log_bytes = list[int](), list[int]()
    for number in range(500):
        await node.batch(1_000_000 + number, b"note" * 10)
        image_bytes.append(node.image_bytes)
        log_bytes.append(sum(node.files(".log")))
    assert set(node.controller.image.producer_names) == set(NAMES)
    assert len(set(image_bytes)) == 1
    assert max(log_bytes) < bound
    written = 2000 * (max(image_bytes) // TASKS)
    assert written > 2 * bound, "the stream has to write more than is kept"
    assert len(node.files(".checkpoint")) <= SNAPSHOTS_KEPT + 1
