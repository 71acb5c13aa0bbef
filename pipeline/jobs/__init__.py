"""Jobs of the pipeline that are whole programs: what `strandline pipeline ...` runs.

`offload` brings topics into a lake of Parquet files, each record once. What a lake is, and what a reader may trust in it, is
in `lake.py`; `lake_folder.py` reads and writes it, and neither of them needs Spark.
"""
