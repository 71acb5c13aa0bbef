"""What the coordinators of a broker share: the group coordinator (`broker/groups/`) and the transaction coordinator
(`broker/transactions/`).

A coordinator keeps its state as records of an internal topic. Each partition of that topic has one shard of the state, on the
broker that leads the partition.

    partitioning.py      which partition a group or a transactional id belongs to
    topics.py            the internal topics, as they are created
    find_coordinator.py  which broker coordinates; the first request has the topic created
    loader.py            reads a partition into a new shard, in slices
    replies.py           answers that wait until the records behind them are committed
    gathered.py          answers whose parts come from several shards
    coordinator.py       the shards of one broker: loaded when it becomes a leader, dropped when its leadership ends
"""
