"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: with this one installed,
`format("strandline")` needs no registration."""

from strandline.pipeline.source import StrandlineDataSource as DefaultSource

__all__ = ["DefaultSource"]
