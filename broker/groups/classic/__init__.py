"""Groups of the classic protocol: members join, one of them assigns the partitions, all fetch their assignment.

    protocol.py        the requests: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; replay and load
    rebalance.py       the rebalances between generations, and the sessions of members
    group.py           one group: its members, their votes, the requests that wait; the checks of offset requests
    member.py          one member
    embedded.py        the field types of the bytes that members and their leader exchange through the coordinator
    subscription.py    the subscription that a consumer sends to its leader: the embedded protocol `consumer`

Groups of consumers can change to the newer protocol and back while they have members: `broker/groups/migration/`.
"""
