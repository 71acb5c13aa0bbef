"""Jobs of the pipeline that are whole programs: what `strandline pipeline ...` runs.

`offload` brings topics into a lake of Parquet files, each record once. What a lake is, and what a reader may trust in it, is
in `lake.py`; `lake_folder.py` reads and writes it, and neither of them needs Spark. `compact` makes its small files larger.
`audit` compares log, lake, ledger and copies; what its answer means is in `audit_result.py`. `materialize` makes a table of the
last values, `replay` brings records into a topic once more, `simulate` sweeps seeds. `tasks.py` is work of ours on executors.
"""
