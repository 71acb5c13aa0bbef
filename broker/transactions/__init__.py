"""The transaction coordinator: which transactional id has which producer id and epoch, and how its transaction stands.

A transactional id belongs to one partition of the internal topic `__transaction_state`, and the leader of that partition is its
coordinator. The rooms, from the inside out:

    states.py     the state of one transactional id, and which state may follow which
    records.py    the records of `__transaction_state`, in Kafka's bytes
    shard.py      the transactional ids of one partition: a state machine that turns requests into records, replies and markers

**A transaction is decided when its Prepare record is committed.** From then on it can only be completed: the coordinator, or the
next one, writes a marker into every partition of the transaction until all have it, and then the Complete record.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit
                     -> PrepareAbort  -> CompleteAbort

This room is not connected to the broker yet: there is no shell that appends the records and sends the markers.
"""
