"""A stream from one topic to another that two drivers run with one checkpoint (test_spark_rival.py). The program is one of them.

python rival_stream.py SERVERS SOURCE TARGET CHECKPOINT
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from strandline.pipeline.spark import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery


def begin(spark: SparkSession, servers: str, source: str, target: str, checkpoint: str) -> StreamingQuery:
    """Starts the stream: batches of 200 rows in two tasks, distributed by a shuffle."""
    reader = spark.readStream.format("strandline").option("bootstrap.servers", servers).option("subscribe", source)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200").option("minPartitions", "2")
    rows = reader.load().select("value").repartition(2, "value")
    writer = rows.writeStream.format("strandline").option("bootstrap.servers", servers).option("topic", target)
    writer = writer.option("rowOrder", "unknown").option("strandline.linger_ms", "0")
    return writer.option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    begin(spark_session("rival", "local[2]", {"spark.sql.shuffle.partitions": "2"}), *sys.argv[1:]).awaitTermination()
