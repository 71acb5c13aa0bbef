"""Code that the coordinators of a broker share: the group coordinator (`broker/groups/`) and the transaction coordinator
(`broker/transactions/`).

A coordinator keeps its state as records of an internal topic. Each partition of that topic has one shard of the state, on the
broker that leads the partition.

    partitioning.py      maps a group or a transactional id to its partition
    topics.py            the settings with which the internal topics are created
    find_coordinator.py  finds the coordinating broker; the first request has the topic created
    loader.py            reads a partition into a new shard, in slices
    replies.py           answers that wait until the records that they depend on are committed
    gathered.py          answers whose parts come from several shards
    coordinator.py       the shards of one broker: loaded when it becomes a leader, dropped when its leadership ends
"""
