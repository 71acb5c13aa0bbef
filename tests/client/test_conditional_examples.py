"""The programs in `examples/conditional/` keep their promises while leaders die. On virtual time, so that a run is short."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType

import pytest

from strandline import Consumer, OffsetConflict, Producer, TokenFenced, TopicPartition
from strandline.testing import Cluster, simulated

FOLDER = Path(__file__).parents[2] / "examples" / "conditional"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"conditional_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LOCK, EVENT_STORE = example("lock"), example("event_store")


@asynccontextmanager
async def clients(cluster: Cluster) -> AsyncIterator[tuple[Producer, Consumer]]:
    servers = cluster.bootstrap_servers
    async with (
        Producer(bootstrap_servers=servers) as producer,
        Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer,
    ):
        yield producer, consumer


async def kill_leaders(cluster: Cluster, topic: str, times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.3)
        leader = await cluster.leader_of(topic)
        await cluster.kill(leader)
        await asyncio.sleep(0.3)
        await cluster.make_whole()


@simulated(seeds=3, faults=None)
async def test_lock_has_one_holder_at_a_time(cluster: Cluster) -> None:
    topic = await cluster.create_topic("lock")
    holders: list[str] = []
    tokens: list[int] = []

    async def work(name: str) -> None:
        async with clients(cluster) as (producer, consumer):
            lock = LOCK.Lock(topic, producer, consumer)
            for _ in range(5):
                token = await lock.acquire(name.encode())
                holders.append(name)
                assert holders == [name], "another one has the lock"
                tokens.append(token)
                await asyncio.sleep(0.02)
                holders.remove(name)
                await lock.release(token)

    await asyncio.gather(kill_leaders(cluster, topic, 2), *map(work, ("alice", "bob", "carol")))
    assert len(tokens) == 15
    assert tokens == sorted(tokens)


@simulated(seeds=3, faults=None)
async def test_paused_holder_writes_nothing_behind_its_successor(cluster: Cluster) -> None:
    topic, ledger = await cluster.create_topic("lock"), await cluster.create_topic("ledger")
    written: list[bytes] = []

    async def write(producer: Producer, value: bytes, token: int) -> None:
        await producer.send_and_wait(ledger, value, partition=0, fencing_token=token)
        written.append(value)

    async with clients(cluster) as (alices, alices_consumer), clients(cluster) as (bobs, bobs_consumer):
        alice, bob = LOCK.Lock(topic, alices, alices_consumer), LOCK.Lock(topic, bobs, bobs_consumer)
        older = await alice.acquire(b"alice")
        await write(alices, b"alice 1", older)
        newer = await bob.acquire(b"bob", patience_s=0.5)
        await write(alices, b"alice 2", older)
        await write(bobs, b"bob 1", newer)
        for _ in range(2):
            with pytest.raises(TokenFenced):
                await write(alices, b"alice 3", older)
            await kill_leaders(cluster, ledger, 1)
        await write(bobs, b"bob 2", newer)
        with pytest.raises(OffsetConflict):
            await alice.release(older)
        await bob.release(newer)
        assert await alice.acquire(b"alice") > newer
    async with clients(cluster) as (_, consumer):
        await consumer.assign([TopicPartition(ledger, 0)])
        found = [(await consumer.getone()).value for _ in written]
    assert found == written == [b"alice 1", b"alice 2", b"bob 1", b"bob 2"]


@simulated(seeds=3, faults=None)
async def test_no_command_overdraws_an_account(cluster: Cluster) -> None:
    topic = await cluster.create_topic("accounts")
    taken: list[int] = []

    async def spend() -> None:
        async with clients(cluster) as (producer, consumer):
            accounts = EVENT_STORE.Accounts(topic, producer, consumer)
            await accounts.open()
            try:
                while True:
                    await accounts.withdraw("alice", 30)
                    taken.append(30)
            except EVENT_STORE.Refused:
                assert accounts.balances["alice"] == 10

    async with clients(cluster) as (producer, consumer):
        accounts = EVENT_STORE.Accounts(topic, producer, consumer)
        await accounts.open()
        await accounts.deposit("alice", 1000)
        await asyncio.gather(kill_leaders(cluster, topic, 1), spend(), spend(), spend())
    assert sum(taken) == 990
