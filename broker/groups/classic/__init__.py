"""Groups of the classic protocol: members join, one of them assigns the partitions, all fetch their assignment.

    protocol.py        the requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; replay and load
    rebalance.py       from one generation to the next, and the sessions of members
    group.py           one group: its members, their votes, the requests that wait; what offsets ask of it
    member.py          one member
    embedded.py        what members and their leader send each other through the coordinator: the types of its bytes
    subscription.py    what a consumer tells its leader: the embedded protocol `consumer`

Groups of consumers can change to the newer protocol and back while they have members: `broker/groups/migration/`.
"""
