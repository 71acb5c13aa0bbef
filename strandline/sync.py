"""The clients without asyncio: the same names, without `await` (docs/client.md).

    from strandline.sync import Admin, Consumer, Producer, Table

What they take, what they return and what they raise is imported from `strandline`, as for the clients for asyncio.
"""

from strandline.client.sync import Admin, Consumer, Producer, Receipt, Receipts, Table, TableChanges

__all__ = ["Admin", "Consumer", "Producer", "Receipt", "Receipts", "Table", "TableChanges"]
