"""`format("strandline.segments")`: the segment files of brokers as tables, read at rest and without any client.

    spark.read.format("strandline.segments").load("/var/lib/strandline")                        one row per batch
    spark.read.format("strandline.segments").option("rows", "record").load("/a,/b,/c")          one row per record

The path is a data directory of one broker, a folder with those of several brokers (as `strandline up` makes it), a single log's
folder, a single `.log` file, or a list of these separated by commas. Log directories of Apache Kafka have the same format.

    option                default   meaning
    rows                  batch     `batch` or `record`: what a row is
    columns               all       the columns to read, separated by commas; Spark prunes no columns of Python sources
    topics                all       names, separated by commas; `__cluster_metadata` is read only if it is named here
    partitions            all       numbers, separated by commas
    startingOffset        0         batches and records before this offset are left out
    endingOffset          none      batches and records at or after this offset are left out
    splitBytes            64m       how much of the files one task reads, about
    ignoreMissingFiles    false     true: a file that was deleted since the read was planned is left out; else it is an error
    pushFilters           false     filters on topic, partition and offsets prune files and splits; Spark must have pushdown on
    rowsPerBatch          10000     rows of an Arrow batch, at most

**Every byte of a file is in one row.** A row with `damage` is null is a sound batch (or a record of one); every other row says in
`damage` what is wrong, as `kind: sentence` (`walk.py` has the kinds). Damage is never an exception and never hidden. Two kinds
are normal in the last segment of a log that a broker has open: `torn tail` and `preallocated`.

Python's API, without Spark: `find_segments` (files on the disk), `read_batches` and `read_records` (Arrow batches of one file).

The parts: `layout.py` which files; `walk.py` from bytes to batches and damage (pure); `splits.py` which ranges (pure);
`plan.py` the tasks; `columns.py`, `arrow_types.py`, `batch_rows.py`, `record_rows.py`, `codecs.py` from batches to Arrow;
`task.py` one task; `source.py`, `reader.py` and `filtering.py` what Spark calls.
"""
