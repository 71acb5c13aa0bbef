"""Checks a history of transactions: list-append over several partitions, as read_committed consumers see them.

A partition is a list, and a transaction appends values to several of them. Nothing from inside the cluster is in the history.

    history = TransactionHistory()                        # TransactionHistory(scheduler.now) under virtual time
    transaction = history.begin("worker-1", "orders-1")   # process, transactional id
    append = transaction.append(("orders", 0), b"17")
    append.ok(offset)                                     # or append.fail()
    transaction.read(("input", 2), [(4, b"x")])           # what its appends depend on
    transaction.commit()                                  # the producer asks
    transaction.committed()                               # or aborted(), or unknown()
    history.read("reader", ("orders", 0), [(0, b"17")], position=2)
    history.final(("orders", 0), [(0, b"17")], position=2)
    verdict = check_transactions(history)
    assert verdict.good, str(verdict)

**An unknown outcome counts as either, but as the same for all consumers:** once a consumer has seen one record of the
transaction, all of its records must be there, in all partitions.

A read covers the offsets up to its `position`. Of a transaction whose records lie in the covered ranges of a consumer, the
consumer must have seen all or nothing. The names are Adya's and Jepsen's where they have one:

    aborted-read           (G1a) a value of a transaction that was aborted or never asked to commit, or whose send had failed
    intermediate-read      (G1b) a part of a transaction's records in one partition, or a record before the commit was asked for
    fractured-read         the records of a transaction in one partition, and not those in another
    lost-write             a record of a committed transaction, or one that was read, is not in the final log
    skipped-read           a consumer passed a committed record without seeing it; it saw nothing else of the transaction
    write-cycle            (G0) transactions lie before each other in different partitions. Kafka permits it for transactions that
                           run at the same time, so it is an anomaly only with `isolated_writes=True`
    information-cycle      (G1c) transactions have read from each other in a circle
    transaction-order      a record of an earlier transaction of one transactional id follows one of a later transaction
    realtime-order         the same between ids, if the later transaction began after the other had ended
    producer-order         records of one transaction in one partition, in another order than they were sent
    zombie-commit          a commit that was asked for after the transactional id had been taken over
    duplicate              one value at two offsets
    inconsistent-offsets   one offset with two values
    unwritten-read         a value that no transaction sent to this partition
    nonmonotonic-read      a consumer returned to a lower offset

`check_exactly_once` judges a program that consumes, transforms and produces, by its input, its output and its committed
positions: `lost-input`, `duplicate-output`, `unexplained-output`, `uncommitted-input`, `output-order`.

**Limits.** If no client knows the offset of a record, only the final read can show that the record is missing. Whether a
committed transaction becomes visible soon is not checked, and neither are cycles with anti-dependencies (G2): Kafka does not
promise that they do not exist.
"""

from strandline.testing.history.transactions.checker import check_transactions
from strandline.testing.history.transactions.exactly_once import check_exactly_once
from strandline.testing.history.transactions.operations import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Append,
    Initialization,
    Read,
    Transaction,
    TransactionHistory,
)
from strandline.testing.history.transactions.verdict import TRANSACTION_MEANINGS, TransactionVerdict

__all__ = [
    "ABORTED",
    "COMMITTED",
    "TRANSACTION_MEANINGS",
    "UNKNOWN",
    "Append",
    "Initialization",
    "Read",
    "Transaction",
    "TransactionHistory",
    "TransactionVerdict",
    "check_exactly_once",
    "check_transactions",
]
