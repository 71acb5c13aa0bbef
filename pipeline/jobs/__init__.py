"""The jobs behind `strandline pipeline ...`: whole programs on top of the data sources.

`offload` copies topics into a lake of Parquet files, each record once. `lake.py` defines the lake and what readers may rely on;
`lake_folder.py` reads and writes it; neither needs Spark. `compact` joins the lake's small files. `audit` compares log, lake,
ledger and copies; `audit_result.py` defines its findings. `verify` checks brokers' data directories at rest. `materialize` builds
a table with the last value of each key, `replay` writes records to a topic again, `simulate` sweeps simulator seeds, and
`replication` analyses brokers' logs. `tasks.py` runs our own work on executors.
"""
