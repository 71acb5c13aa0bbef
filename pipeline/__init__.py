"""The data pipeline: Strandline as a source and a sink of Apache Spark, through PySpark alone.

`format("strandline")` reads and writes topics, in batch and in streams (`source.py`). Driver and executors are Python
processes that Spark starts, forks and ends as it likes, so nothing here keeps a connection where an object that Spark
pickles could see it: a process has one private loop (`session.py`), and each range of offsets that a task reads carries
everything that the task needs.
"""
