"""`format("strandline.segments")`: brokers' segment files as tables, read from disk without a broker or a client.

    spark.read.format("strandline.segments").load("/var/lib/strandline")                        one row per batch
    spark.read.format("strandline.segments").option("rows", "record").load("/a,/b,/c")          one row per record

The path is a data directory of one broker, a folder with the data directories of several brokers (as `strandline up` creates
it), the folder of one log, one `.log` file, or a list of these separated by commas. Log directories of Apache Kafka have the same
format.

    option                default   meaning
    rows                  batch     one row for each `batch` or for each `record`
    columns               all       the columns to read, separated by commas; Spark prunes no columns of Python sources
    topics                all       names, separated by commas; `__cluster_metadata` is read only if it is named here
    partitions            all       numbers, separated by commas
    startingOffset        0         batches and records before this offset are left out
    endingOffset          none      batches and records at or after this offset are left out
    splitBytes            64m       approximate number of bytes that one task reads
    ignoreMissingFiles    false     true: skip a file that was deleted after the read was planned; false: raise an error
    pushFilters           false     filters on topic, partition and offsets prune files and splits; Spark must have pushdown on
    rowsPerBatch          10000     largest number of rows in an Arrow batch
    isolation.level       read_uncommitted   read_committed (with rows=record): without markers, open and aborted transactions

**Every byte of a file belongs to exactly one row.** If the column `damage` is null, the row is a sound batch or a record of one.
Otherwise `damage` names the fault as `kind: sentence`; `walk.py` lists the kinds. Damage never raises an exception. Two kinds are
normal in the last segment of a log that a broker has open: `torn tail` and `preallocated`.

`task.py` has an API without Spark: `find_segments` lists the files, `read_batches` and `read_records` read one file as Arrow.

    layout.py                               finds the segment files below a path
    walk.py                                 divides bytes into batches and damage (pure)
    splits.py                               cuts large segments into ranges, packs small ones (pure)
    committed.py                            finds open and aborted transactions
    files.py                                opens the files
    plan.py                                 plans the tasks
    columns.py, arrow_types.py              names and types of the columns
    batch_rows.py, record_rows.py, codecs.py   turn batches into Arrow
    task.py                                 reads the ranges of one task
    source.py, reader.py, filtering.py      the classes that Spark calls
"""
