"""The transaction coordinator: it keeps the producer id, the epoch and the state of the transaction of each transactional id.

A transactional id belongs to one partition of the internal topic `__transaction_state`, and the leader of that partition is its
coordinator. The rooms, from the inside out:

    states.py         the state of one transactional id, and which state may follow which
    records.py        the records of `__transaction_state`, in Kafka's bytes
    shard.py          the transactional ids of one partition: a state machine of decisions: records, replies and markers
    loader.py         reads a partition's records when this broker becomes its leader
    marker_queue.py   the markers that wait for each leader; marker_sender.py sends each marker until its leader has written it
    coordinator.py    the shell: it carries out the decisions of the shards (on top of `broker/coordination/`)
    handlers.py       passes requests to their shards, and builds the responses; listing.py shows transactions to operators
    completion_waiters.py   requests that wait until the previous transaction of their transactional id is complete
    names.py          names of named producers and transactional ids do not overlap
    metrics.py        the coordinator's counters and histograms

On every broker, for the partitions that it leads:

    partition_adder.py  asks coordinators to add partitions to transactions
    admission.py        whether a batch of a transaction may be appended
    marker_handler.py   writes markers

**A transaction is decided when its Prepare record is committed.** From then on it can only be completed: the coordinator, or the
next one, writes a marker into every partition of the transaction until all have it, and then the Complete record.

    Empty -> Ongoing -> PrepareCommit -> CompleteCommit
                     -> PrepareAbort  -> CompleteAbort

The coordinator may change at any point. A change that was not committed is lost, and the client repeats its request to the next
coordinator. The next coordinator completes each decided transaction, and sends all its markers again: a leader that has written
one already writes it once more, and nothing changes for readers. Markers carry the leader epoch of the coordinator's partition,
so an old coordinator that still sends is fenced.
"""
