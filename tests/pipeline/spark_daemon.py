"""The daemon that forks Spark's Python workers, with our client already imported. A worker ends when its task fails, and many
tests make tasks fail. Modules that start threads (pyarrow, numpy) are not imported, because threads do not survive a fork."""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import strandline.pipeline.source
import strandline.pipeline.task_reader  # noqa: F401

if __name__ == "__main__":
    manager()
