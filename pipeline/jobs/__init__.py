"""The jobs behind `strandline pipeline ...`: whole programs on top of the data sources.

`offload` copies topics into a lake of Parquet files, each record once. `lake.py` defines the lake and what readers may rely on;
`lake_folder.py` reads and writes it; neither needs Spark. `compact` joins the lake's small files. `audit` compares log, lake,
ledger and copies. `verify` compares brokers' data directories on the disk. `materialize` makes a table with the last value of
each key, `replay` writes records to a topic again, `simulate` runs seeds of the simulator, and `replication` analyses brokers'
logs.

Shared by jobs: `tasks.py` runs work on executors, `progress.py` reports how far a job is, and `results.py` has what the results
of `audit` and `verify` have in common.
"""
