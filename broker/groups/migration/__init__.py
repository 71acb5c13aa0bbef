"""Online migration: a group changes its protocol while it has members, so that an application is upgraded process by
process.

    Classic group ------------> group of the newer protocol       a process of the newer protocol joins
    group of the newer one ---> classic group                     its last process of the newer protocol leaves, or is replaced

In between, members of both protocols are in a group of the newer protocol. The coordinator assigns partitions to all of
them, and answers each member in its own protocol. `group.consumer.migration.policy` selects which of the two conversions
are allowed.

    assignment.py         the assignment of the embedded protocol `consumer`
    upgrade.py            converts a classic group
    downgrade.py          converts a group of the newer protocol
    conversions.py        decides whether a group is converted, and updates the state that is in no record
    classic_members.py    JoinGroup, SyncGroup and Heartbeat of classic members in a group of the newer protocol
    timers.py             the deadlines of these members for JoinGroup and SyncGroup

The rules are those of KIP-848 and Kafka 4.3.
"""
