"""The clients of a run with transactions: programs that write them, and readers of committed records.

    writer.py    a program that writes one transaction after the other, and records the outcome of each
    shipper.py   a program that consumes, transforms and produces
    reader.py    a consumer of committed records
    work.py      begins them, and reports at the end which transactions are open and which records unread

They write a history of their own (`testing/history/transactions/`), from the results that the programs get: a transaction is
*committed* or *aborted* if the producer reports that, and *unknown* if it does not, or if the process dies first.
"""
