"""The consumer as a member of a group (KIP-848): the coordinator assigns the partitions.

    membership.py        the state machine of a member: the fields of a heartbeat, and the effect of its response (pure)
    handed_over.py       which records were returned to the program, and which of them it has finished (pure)
    heartbeats.py        sends the heartbeats: owns the membership, on an event loop of its own if there is a thread
    link.py              how the consumer's loop and the heartbeats exchange state
    heartbeat_thread.py  the same across a thread, so that heartbeats go on while the program blocks its loop
    callbacks.py         the callbacks of `subscribe`, each with a deadline
    commits.py           commits offsets and looks up committed ones
    committer.py         which offsets are committed, with which membership; automatic commits
    assignment.py        the partitions that were taken, and which of them are held
    rebalancer.py        takes and gives up partitions, step by step
    member.py            the membership as the consumer uses it

../../cluster/coordinator.py finds the group's coordinator, and sends it requests.

There may be two event loops, and neither waits for the other. The heartbeats' side owns the membership: it publishes an immutable
`MemberView` after each change. The consumer's side owns the partitions' states: it compares the view with the partitions that it
has taken, takes or gives up some, and reports the result. Both sides read the newest state and not a list of events, so no change
is missed or applied twice when one of the loops was blocked for a while.
"""
