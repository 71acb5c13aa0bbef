"""An outbox relay: what an application has committed to its database reaches the topic, whatever fails on the way.

The application writes an event into the table `outbox` in the transaction that changes its own tables. The relay sends
what is in it, in order, and marks a row when its record was acknowledged by all in-sync replicas. If it dies between the
two, the row is sent once more: at least once, and in the order of commits. Consumers find the row's number in the key.
"""

from __future__ import annotations

import asyncio
import sqlite3

from strandline import Producer

SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    number INTEGER PRIMARY KEY AUTOINCREMENT, event BLOB NOT NULL, sent INTEGER NOT NULL DEFAULT 0
);
"""
AT_ONCE = 20


def open_outbox(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    return database


def unsent(database: sqlite3.Connection) -> list[tuple[int, bytes]]:
    return list(database.execute("SELECT number, event FROM outbox WHERE NOT sent ORDER BY number LIMIT ?", (AT_ONCE,)))


async def relay(database: sqlite3.Connection, topic: str, producer: Producer, *, idle_s: float = 0.01) -> None:
    """For ever."""
    while True:
        rows = unsent(database)
        receipts = [await producer.send(topic, event, key=b"%d" % number, partition=0) for number, event in rows]
        for receipt in receipts:
            await receipt
        with database:
            database.executemany("UPDATE outbox SET sent = 1 WHERE number = ?", [(number,) for number, _ in rows])
        if not rows:
            await asyncio.sleep(idle_s)
