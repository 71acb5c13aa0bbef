"""Every committed event reaches the topic in order, although brokers die and responses are lost."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from outbox import open_outbox, relay

from strandline.testing import Cluster

EVENTS = [b"event %d" % number for number in range(200)]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    database = open_outbox(str(tmp_path / "shop.db"))
    yield database
    database.close()


def commit(database: sqlite3.Connection, events: list[bytes]) -> None:
    with database:
        database.executemany("INSERT INTO outbox (event) VALUES (?)", [(event,) for event in events])


async def until_sent(database: sqlite3.Connection, count: int) -> None:
    async with asyncio.timeout(20):
        while database.execute("SELECT count(*) FROM outbox WHERE sent").fetchone()[0] < count:
            await asyncio.sleep(0.005)


def without_repetitions(values: list[bytes]) -> list[bytes]:
    return list(dict.fromkeys(values))


async def test_events_arrive_once_and_in_order_despite_faults(cluster: Cluster, database: sqlite3.Connection) -> None:
    topic = await cluster.create_topic("events")
    commit(database, EVENTS[:100])
    async with cluster.producer() as producer:
        relaying = asyncio.create_task(relay(database, topic, producer))
        with cluster.drop("Produce", where="response", p=0.3):
            await until_sent(database, 50)
            leader = await cluster.leader_of(topic)
            await cluster.kill(leader)
            commit(database, EVENTS[100:])
            await until_sent(database, 150)
            await cluster.start(leader)
        await until_sent(database, len(EVENTS))
        relaying.cancel()
    assert [record.value for record in await cluster.read_all(topic)] == EVENTS
    await cluster.assert_no_acked_loss()


async def test_a_killed_relay_repeats_unmarked_events_and_skips_none(cluster: Cluster, database: sqlite3.Connection) -> None:
    topic = await cluster.create_topic("events")
    commit(database, EVENTS)
    for sent in (1, 30, 120, len(EVENTS)):
        async with cluster.producer() as producer:
            relaying = asyncio.create_task(relay(database, topic, producer))
            await until_sent(database, sent)
            relaying.cancel()  # Up to twenty records may be sent and not marked yet.
    values = [record.value for record in await cluster.read_all(topic)]
    assert without_repetitions(values) == EVENTS
