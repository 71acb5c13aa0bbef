"""The clients without asyncio: the same names, without `await` (docs/client.md).

    from strandline.sync import Admin, Consumer, Producer, Table

Types of parameters and results, and errors, are imported from `strandline`, as for the clients for asyncio.
"""

from strandline.client.sync import Admin, Consumer, Producer, Receipt, Receipts, Table, TableChanges

__all__ = ["Admin", "Consumer", "Producer", "Receipt", "Receipts", "Table", "TableChanges"]
