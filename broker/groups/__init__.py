"""The group coordinator: the members of consumer groups, what they may read, and how far they have read.

A group belongs to one partition of the internal topic `__consumer_offsets`, and the leader of that partition is its coordinator;
what all kinds of coordinators share is in `broker/coordination/`. Everything that must survive a fail-over is a record there, in
Kafka's bytes (`records/`), so Kafka's tools read it. The rooms, from the inside out:

    records/        the records: their types, and Kafka's bytes for them
    offsets.py      the committed offsets of all groups of one partition; offset_table.py keeps them, pending_offsets.py
                    those of open transactions
    consumer/       groups of the newer protocol (KIP-848): heartbeats, target assignments, reconciliation; assignors/
    classic/        groups of the classic protocol: join, sync, heartbeat, leave
    migration/      groups that change between the two protocols while they have members
    shard.py        the groups and offsets of one partition: a state machine that turns requests into records and replies
    loader.py       reads a partition's records when its leadership arrives
    coordinator.py  the shell: it carries out what a shard decides
    handlers.py     which request goes to which shard, and the form of its answer
    txn_offset_commits.py   asks the transaction coordinator before offsets are stored in a transaction
    member_connections.py   refuses late requests of members, on connections that they have given up
    metrics.py      what is counted; census.py counts the groups by state
    lag.py          how far groups lag behind; lag_monitor.py asks the leaders, lag_handler.py answers

**The cores decide, the shell acts.** A decision is a `Result` (`result.py`): records and replies. The shell appends the records
to the partition, has the shard replay them, and sends the replies when the high watermark has passed all that the shard knows.
State that must survive changes only by replaying records; after an append that fails, nothing has changed. A new coordinator
replays the same records with the same code.

A shard lives as long as one leader epoch of its partition. What was appended and not committed when the leadership ends is
dropped with the shard; the next coordinator loads what is in the log.
"""
