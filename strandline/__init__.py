"""Strandline: a replicated log with Kafka's replication, in Python.

The public face. `Producer`, `Consumer` and `Admin` are imported on first use, so that the command line starts quickly.
"""
