"""The data pipeline: Strandline as a source and a sink of Apache Spark, through PySpark alone.

`format("strandline")` reads and writes topics, in batch and in streams (`source.py`). Spark starts, forks and ends
the Python processes of driver and executors as it likes, so no object that Spark pickles holds a connection. Each process has one
private event loop with its clients (`session.py`), and each range of offsets that a task reads carries all that the task needs.

For users: `spark.register` and `spark.spark_session`, the options in `docs/spark.md`, and the errors in `errors.py`. The jobs
behind `strandline pipeline` are in `jobs/`, the reader of segment files in `segments/`.
"""
