"""Online migration: a group changes its protocol while it has members, so that an application is upgraded process by process.

    Classic group ------------> group of the newer protocol       a process of the newer protocol joins
    group of the newer one ---> classic group                     its last process of the newer protocol leaves, or is replaced

In between, members of both protocols are in a group of the newer protocol. The coordinator assigns for all of them, and speaks to
each in its own protocol: `group.consumer.migration.policy` says which of the two steps are allowed.

    assignment.py         the embedded protocol `consumer`: what a leader assigns
    upgrade.py            the group of the newer protocol that a classic group becomes
    downgrade.py          the classic group that a group of the newer protocol becomes
    conversions.py        whether a group may change, and what happens beside its records
    classic_members.py    JoinGroup, SyncGroup and Heartbeat of members in a group of the newer protocol
    timers.py             how long such a member may take for JoinGroup and SyncGroup

The rules are those of KIP-848 and Kafka 4.3.
"""
