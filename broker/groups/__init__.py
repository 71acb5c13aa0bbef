"""The group coordinator: the members of consumer groups, their partitions, and their committed offsets.

A group belongs to one partition of the internal topic `__consumer_offsets`, and the leader of that partition is its coordinator.
State that must survive a fail-over is in the records of this partition, in Kafka's bytes (`records/`), so that Kafka's tools can
read it. Code that all kinds of coordinators share is in `broker/coordination/`. The rooms, from the inside out:

    records/        the records: their types, and Kafka's bytes for them
    offsets.py      the committed offsets of all groups of one partition; offset_table.py keeps them, pending_offsets.py
                    those of open transactions
    consumer/       groups of the newer protocol (KIP-848): heartbeats, target assignments, reconciliation; assignors/
    classic/        groups of the classic protocol: join, sync, heartbeat, leave
    migration/      groups that change between the two protocols while they have members
    shard.py        the groups and offsets of one partition: a state machine that turns requests into records and replies
    loader.py       reads a partition's records when this broker becomes its leader
    coordinator.py  the shell: it carries out the decisions of the shards
    handlers.py     the handlers of requests: they pass each to its shard, and build the response
    txn_offset_commits.py   asks the transaction coordinator before offsets are stored in a transaction
    member_connections.py   refuses late requests of members, on connections that they have given up
    metrics.py      the counters; census.py counts the groups by state
    lag.py          the lag of groups; lag_monitor.py asks the leaders, lag_handler.py answers

**The cores decide, the shell acts.** A decision is a `Result` (`result.py`): records and replies. The shell appends the records
to the partition, lets the shard replay them, and sends the replies when the high watermark has passed all records that the shard
has replayed. State that must survive changes only by replay; after an append that fails, nothing has changed. A new coordinator
replays the same records with the same code.

A shard lives as long as one leader epoch of its partition. When the leadership ends, the shard is dropped, with the records that
are not committed; the next coordinator loads the records of its own log.
"""
