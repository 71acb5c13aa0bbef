"""An outbox relay: every event that an application commits to its database reaches the topic, despite failures.

The application writes an event into the table `outbox` in the transaction that changes its own tables. The relay sends the rows
in order, and marks a row when all in-sync replicas have acknowledged its record. If the relay dies in between, it sends the row
again: delivery is at least once, in the order of commits. The record's key is the row's number, so consumers can detect repeats.
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
    """Send unsent rows and mark acknowledged ones, until cancelled. `idle_s` is the pause when the outbox is empty."""
    while True:
        rows = unsent(database)
        receipts = [await producer.send(topic, event, key=b"%d" % number, partition=0) for number, event in rows]
        for receipt in receipts:
            await receipt
        with database:
            database.executemany("UPDATE outbox SET sent = 1 WHERE number = ?", [(number,) for number, _ in rows])
        if not rows:
            await asyncio.sleep(idle_s)
