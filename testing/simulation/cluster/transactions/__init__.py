"""The clients of a run with transactions: programs that write them, and readers of committed records.

    writer.py    a program that writes one transaction after the other, and writes down what became of each
    shipper.py   a program that consumes, transforms and produces
    reader.py    a consumer of committed records
    work.py      begins them, and says at the end what is still open or unread

They write a history of their own (`testing/history/transactions/`). It contains what the programs were told: a transaction is
*committed* or *aborted* if the producer says so, and *unknown* if it does not, or if the process dies first.
"""
