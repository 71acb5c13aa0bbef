"""Groups of the newer protocol (KIP-848), in which the coordinator assigns the partitions. The modules:

    protocol.py             heartbeats, members that leave, load and replay: the methods that the shard calls
    requests.py             the checks of a heartbeat that do not depend on the group
    membership.py           finds the member of a heartbeat, checks its epoch, and merges its metadata
    group.py                one group: the state that its records describe
    groups.py               the groups of this type in the table that both protocols share
    draft.py                a decision about a group while it is prepared: its records, and the group after them
    reconciliation.py       the steps by which a member reaches its target assignment
    target.py               the target assignment of a group, which assignors/ compute
    assignment_schedule.py  the times at which the target assignment is computed
    subscriptions.py        the existing topics to which a member subscribes
    topic_changes.py        topics that are created, changed or deleted
    regex_scans.py          finds the topics that match a regular expression; regex_lookups.py runs the scans slice by slice
    member_timers.py        the sessions of members, and their rebalance timeouts
    description.py          the description of a group for operators

Only the replay of records changes a group. Some state is in no record: the deadlines, the look-ups in progress, and the two
marks of a group whose topics have to be compared (`ConsumerGroup.is_metadata_stale`, `is_regex_stale`). A new coordinator does
not inherit it.
"""
