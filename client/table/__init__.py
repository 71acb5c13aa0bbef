"""The table: the latest value of each key of a compacted topic, in memory and up to date.

table.py            the table: calls that read and write, start and stop
entry.py            entries, changes, VersionConflict
options.py          the options
rows.py, changes.py         the contents, and the changes that wait for watchers (pure)
progress.py                 how far each partition was read, and whether tombstones can be missing (pure)
snapshot.py                 the file format of a snapshot (pure)
reader.py, writer.py        read the topic in the background; write with and without a condition
snapshots.py, snapshot_files.py     load and save snapshots; the folder on the disk
"""
