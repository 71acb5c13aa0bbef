"""The consumer as a member of a group (KIP-848): the coordinator assigns the partitions.

    membership.py        the state machine of a member: what a heartbeat says, and what follows from its answer (pure)
    handed_over.py       which records the program has got, and which of them it has finished (pure)
    coordinator.py       finds the coordinator of the group, and sends it requests
    heartbeats.py        sends the heartbeats: owns the membership, on an event loop of its own if there is a thread
    link.py              how the consumer's loop and the heartbeats exchange state
    heartbeat_thread.py  the same across a thread, so that heartbeats go on while the program blocks its loop
    callbacks.py         the callbacks of `subscribe`, each with a deadline
    commits.py           commits offsets and looks up committed ones
    committer.py         what is committed, and as whom; automatic commits
    assignment.py        the partitions that were taken, and which of them are held
    rebalancer.py        takes and gives up partitions, step by step
    member.py            the membership as the consumer uses it

Two event loops may take part, and neither waits for the other. The heartbeats' side owns the membership: it publishes an
immutable `MemberView` after each change. The consumer's side owns the partitions' states: it compares the view with what it
owns, acts, and reports what it owns then. Both sides look at the newest state and not at a list of events, so nothing is missed
or repeated when one of them has not run for a while.
"""
