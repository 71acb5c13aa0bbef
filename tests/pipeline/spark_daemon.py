"""The daemon that forks Spark's Python workers, with our client already imported: a worker whose task fails is thrown away, and
many tests make one fail. What starts threads (pyarrow, numpy) stays out of it: after a fork they would be missing."""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import strandline.pipeline.source
import strandline.pipeline.task_reader  # noqa: F401

if __name__ == "__main__":
    manager()
