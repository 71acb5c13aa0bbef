"""Random and broken requests of every API, to a broker: it answers or closes, nothing fails inside, nothing is left behind.

A failure names the seed, and has the frame. Again, and longer:

    PYTHONPATH=tests/kafka:tests/common python tests/kafka/test_fuzz.py SEED SECONDS [KIND]
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from fuzzing import Fuzzer
from random_messages import plain
from waiting import until
from wire import KafkaWire, response_fields

from strandline.broker.kafka.apis import KAFKA_APIS
from strandline.client import QuotaEntity
from strandline.client.quota_types import DEFAULT
from strandline.protocol import apis
from strandline.protocol.security.principal import Principal
from strandline.testing import Cluster
from strandline.testing.kit.lines import Line

CLIENTS = 8
ANSWERS_MIN, CLOSED_MIN, PATIENCE_S = 30, 5, 20.0
ANSWER_S = 0.1
"""Requests that wait longer, for members of a group or for records, are given up."""
SEED = 21
_API_VERSIONS = 18
_ALL_TOPICS = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


class Run:
    """A broker, and what its clients have seen."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.seed = seed
        self.requests = self.answers = self.closed = self.given_up = 0
        self.failures: list[str] = []
        self._seen = 0

    async def fuzz(self, seconds: float) -> None:
        async with KafkaWire.at(self.cluster.kafka_bootstrap) as wire:
            topics = (await wire.call(3, 12, _ALL_TOPICS)).topics
        fuzzer = Fuzzer(self.seed, [*(topic.topic_id for topic in topics), bytes(16), bytes(range(16))])
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(self._client(fuzzer, until_s) for _ in range(CLIENTS)))

    async def _client(self, fuzzer: Fuzzer, until_s: float) -> None:
        while self._goes_on(until_s):
            with contextlib.suppress(ConnectionError, TimeoutError, OSError):
                async with KafkaWire.at(self.cluster.kafka_bootstrap, timeout_s=ANSWER_S) as wire:
                    while self._goes_on(until_s):
                        await self._exchange(wire, fuzzer.burst())

    def _goes_on(self, until_s: float) -> bool:
        """Whether to send more: until the time is over, or longer on a busy machine that has tried little by then."""
        now = time.monotonic()
        is_enough = self.answers >= ANSWERS_MIN and self.closed >= CLOSED_MIN
        return not self.failures and (now < until_s or (not is_enough and now < until_s + PATIENCE_S))

    async def _exchange(self, wire: KafkaWire, frames: list[bytes]) -> None:
        """Send some requests together, and check the answers, which arrive in the same order. A broken Produce may have acks=0
        and so no answer."""
        self.requests += len(frames)
        wire.send_bytes(b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))
        unanswered = iter(frames)
        try:
            for _ in frames:
                answer = await wire.receive_frame()
                self.answers += 1
                self._look_at(next((frame for frame in unanswered if frame[4:8] == answer[:4]), b""), answer)
        except ConnectionError:
            self.closed += 1
            raise
        except TimeoutError:
            self.given_up += 1
            raise
        finally:
            self._look_at_log(b"|".join(frames))

    def _look_at(self, frame: bytes, answer: bytes) -> None:
        """Check that an answer follows its schema to the last byte, and has only Kafka's error codes."""
        if not frame:
            self._fail(f"an answer to {answer[:4].hex()}, which is none of the requests, or comes too early", answer)
            return
        api_key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big", signed=True)
        api = KAFKA_APIS[api_key]
        if not api.min_version <= version <= api.max_version:
            assert api_key == _API_VERSIONS
            version = 0
        codes = own_codes(plain(response_fields(api_key, version, answer)))
        if codes:
            self._fail(f"{api.name} version {version} is answered with codes {codes}", frame)

    def _look_at_log(self, frame: bytes) -> None:
        for line in errors_in(self.cluster):
            self._fail(str(line.fields.get("exception", line)), frame)

    def _fail(self, what: str, frame: bytes) -> None:
        self.failures.append(f"seed {self.seed}, request {self.requests}: {what}\nframe {frame.hex()}")


def own_codes(value: Any) -> list[int]:
    """The error codes in an answer that Kafka does not have."""
    if isinstance(value, list):
        return [code for part in value for code in own_codes(part)]
    if not isinstance(value, dict):
        return []
    own = [code for name, code in value.items() if name.endswith("error_code") and code >= 200]
    return own + [code for part in value.values() for code in own_codes(part)]


def errors_in(cluster: Cluster) -> list[Line]:
    return [line for line in cluster.nodes.lines(50) if isinstance(line, Line) and line.level in ("error", "critical")]


@contextlib.asynccontextmanager
async def an_open_cluster() -> AsyncIterator[Cluster]:
    async with Cluster(brokers=1, kafka=True) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def with_quotas() -> AsyncIterator[Cluster]:
    """All requests are measured, and none is muted."""
    async with an_open_cluster() as cluster:
        await cluster.create_topic("first")
        async with cluster.admin() as admin:
            values = {"request_percentage": 1e6, "producer_byte_rate": 1e9, "consumer_byte_rate": 1e9}
            await admin.alter_client_quotas(QuotaEntity(user=DEFAULT), values)
        yield cluster


@contextlib.asynccontextmanager
async def with_rights(user: str) -> AsyncIterator[Cluster]:
    """The clients are a user of few rights, without having authenticated."""
    async with Cluster(brokers=1, kafka=True, secure=True) as cluster:
        door = kafka_door(cluster)
        door._sasl_door, admit = None, door.admit
        del door.handlers[apis.SASL_HANDSHAKE], door.handlers[apis.SASL_AUTHENTICATE]

        def admit_as_user(connection: Any) -> bool:
            connection.principal = Principal("User", user)
            return bool(admit(connection))

        door.admit = admit_as_user
        yield cluster


CLUSTERS = {
    "open": an_open_cluster,
    "quotas": with_quotas,
    "producer": partial(with_rights, "producer"),
    "consumer": partial(with_rights, "consumer"),
    "nobody": partial(with_rights, "nobody"),
}


async def run(seed: int, seconds: float, kind: str = "open") -> Run:
    async with CLUSTERS[kind]() as cluster:
        for name in ("fuzz", "fuzz-2"):
            await cluster.create_topic(name, partitions=2)
        state = Run(cluster, seed)
        await state.fuzz(seconds)
        if not state.failures:
            await still_works(cluster)
        return state


def kafka_door(cluster: Cluster) -> Any:
    nodes: Any = cluster.nodes
    (door,) = [each for each in nodes.server(1).servers if each.listener_name == "KAFKA"]
    return door


async def still_works(cluster: Cluster) -> None:
    """The clients have left nothing behind, and another client is served."""
    door = kafka_door(cluster)
    await until(lambda: not door.connections and not door._tasks, "all connections and tasks have ended")
    async with KafkaWire.at(cluster.kafka_bootstrap) as wire:
        assert (await wire.call(3, 12, _ALL_TOPICS)).brokers
    await cluster.create_topic("afterwards", partitions=1)


@pytest.mark.parametrize("kind", CLUSTERS)
async def test_random_and_broken_requests_do_no_harm(kind):
    state = await run(SEED, 3.0 if kind == "open" else 0.5, kind)
    assert not state.failures, state.failures[0]
    assert state.answers >= ANSWERS_MIN
    assert state.closed >= CLOSED_MIN


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
async def test_many_random_and_broken_requests_do_no_harm(seed):
    state = await run(seed, 60.0, list(CLUSTERS)[seed % len(CLUSTERS)])
    assert not state.failures, state.failures[0]


if __name__ == "__main__":
    found = asyncio.run(run(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "open"))
    print(f"{found.requests} requests, {found.answers} answers, {found.closed} closed, {found.given_up} given up")
    print("\n".join(found.failures))
