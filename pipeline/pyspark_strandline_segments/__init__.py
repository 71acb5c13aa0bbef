"""Spark looks for modules named `pyspark_*` and registers their `DefaultSource`: with this one installed,
`format("strandline.segments")` needs no registration."""

from strandline.pipeline.segments.source import SegmentsDataSource as DefaultSource

__all__ = ["DefaultSource"]
