"""An idempotent consumer: it books payments, and none of them twice.

A topic may contain a payment twice, because a producer without idempotence resent it after a lost response. A consumer may read a
record twice, because it died before it stored its position. One database transaction solves both: it changes the balance, the
payment's id and the position together.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any

from strandline import Consumer

SCHEMA = """
CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, cents INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS booked (payment TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS positions (part INTEGER PRIMARY KEY, next INTEGER NOT NULL);
"""


class Ledger:
    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database
        database.executescript(SCHEMA)

    def book(self, partition: int, offset: int, payment: dict[str, Any]) -> None:
        with self.database as transaction:
            transaction.execute("INSERT OR REPLACE INTO positions VALUES (?, ?)", (partition, offset + 1))
            new = transaction.execute("INSERT OR IGNORE INTO booked VALUES (?)", (payment["id"],)).rowcount
            if new:
                transaction.execute(
                    "INSERT INTO balances VALUES (?, ?) ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
                    (payment["account"], payment["cents"]),
                )

    def positions(self) -> dict[int, int]:
        return dict(self.database.execute("SELECT part, next FROM positions"))

    def balances(self) -> dict[str, int]:
        return dict(self.database.execute("SELECT account, cents FROM balances"))


async def book_payments(topic: str, bootstrap_servers: str, ledger: Ledger) -> None:
    """Book payments from the ledger's positions on, until cancelled."""
    async with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as consumer:
        partitions = sorted(await consumer.partitions_for_topic(topic))
        await consumer.assign([(topic, partition) for partition in partitions])
        for partition, position in ledger.positions().items():
            consumer.seek((topic, partition), position)
        async for record in consumer:
            ledger.book(record.partition, record.offset, json.loads(record.value))
