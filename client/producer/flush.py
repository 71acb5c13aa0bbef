"""Waits until every record that was handed over is acknowledged or has failed."""

from __future__ import annotations

import asyncio

from strandline.client.errors import RequestTimeout
from strandline.client.producer.accumulator import Accumulator
from strandline.client.producer.receipts import Receipt, settled


async def flush(accumulator: Accumulator, timeout_ms: float) -> None:
    """Close all batches, and wait until each is done. RequestTimeout after `timeout_ms`."""
    # No `asyncio.timeout`: in a task that is being cancelled, Python 3.11.2 turns its expiry into another cancellation.
    deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
    receipts = [record.receipt for lot in accumulator.parked.values() for record in lot.records]
    receipts += [Receipt(batch, 0) for batch in accumulator.incomplete]
    for receipt in receipts:
        accumulator.close_batch_of(receipt.batch)
    for receipt in receipts:
        while not receipt.done:
            accumulator.close_batch_of(receipt.batch)  # A parked record may have been appended to an open batch.
            if not await settled(receipt.batch, deadline):
                left = accumulator.waiting_records
                text = f"flush: {left} record{' is' if left == 1 else 's are'} not acknowledged yet"
                raise RequestTimeout(text, elapsed_ms=timeout_ms)
