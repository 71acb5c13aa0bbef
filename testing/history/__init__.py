"""The checker of a client's history: given what clients did and what they saw, was any promise broken?

A history is a list of operations as the clients saw them, nothing from inside the cluster. A send is *invoked* and then
ends in one of three ways: **ok** (acknowledged, at an offset), **fail** (certainly not appended: refused before the
append) or **info** (nobody knows: a timeout, a lost connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND, a crash). A poll is what
one consumer read in one go. Values must be unique in a history, so that a value is its own identity.

    history = History()                                   # History(clock=scheduler.now) under virtual time
    send = history.invoke("producer-1", ("orders", 0), b"17")
    send.ok(offset)                                       # or send.fail(), or send.info()
    history.poll("consumer-1", ("orders", 0), [(0, b"16"), (1, b"17")])
    history.poll("last", ("orders", 0), everything, final=True)
    verdict = check(history)
    assert verdict.good, str(verdict)                     # verdict.as_dict() for JSON

The same checker serves the simulator, the testing kit and real processes. Offsets give the order of versions, so every
check is linear (a sort or two per partition apart); no search as for a general linearizability check.

**Every acknowledgement is a promise.** A record whose producer was told an offset, with acks=all or acks=1, must stay at that
offset. Kafka promises less for acks=1: the record may be lost with its leader. Callers that want this weaker judge say so:
`check(history, acks="all")` holds each send to Kafka's promise for its own acks. With acks=0 nothing is acknowledged. Whatever
the acks, a record that was read once must stay readable. Idempotent (with acks=all): one place, in the order of sending. Not
idempotent: copies are counted, not reported.

The names are those of Jepsen's checker for Kafka (`jepsen.tests.kafka`), so that results compare:

    inconsistent-offsets   one (partition, offset) with two values, in acknowledgements or polls
    duplicate              an idempotent producer's value at two offsets
    lost-write             an acknowledged send that no read shows though one went beyond it, or that the final read does
                           not show; also any value, whatever its send's outcome, that was read and is gone from the final read
    aborted-read           (G1a) a value was read whose send failed for certain
    int-poll-skip          one poll went over records that others read
    int-nonmonotonic-poll  one poll went back, or showed an offset twice
    poll-skip              the same two from one poll to the next of one process; not after a seek, a rebalance or a new
    nonmonotonic-poll      session
    nonmonotonic-send      of two sends of one producer the later was acknowledged at the lower offset
    unseen                 after `heal`, acknowledged records that nobody has read at the end (with a final read: lost-write)
    realtime-lag           a poll was further behind than `lag_s_max`: a record was acknowledged so long before the poll began,
                           and the consumer did not reach it. Without the bound the worst lag is measured

Sends of others between two of one producer (Jepsen's int-send-skip) are as it should be. Ours in addition:

    unwritten-read         a value was read that nobody sent to this partition
    gap                    offsets between the first and the last read that no record and no declaration explains
    producer-order         an idempotent producer's records, as they were read, are not in the order of sending (or of their
                           sequence numbers); for records whose acknowledgement was lost
    realtime-order         a send that began after another, of anybody, was acknowledged got the lower offset
    nonmonotonic-latest    an answer to "where is the end of the log?" lay below what had been acknowledged, read or answered
                           before the question was asked; or the final read did not come as far as an answer
    stale-leader-ack       acks=all was acknowledged by the leader of epoch e for a send that began after a client had seen e' > e
    follower-read-subset   a follower showed a record that the leader's log does not have
    replica-mismatch       the dumps of a partition's replicas differ (`check(replicas=...)`, or `compare_dumps` alone)

**What is done on purpose is declared**: `log_start` (retention, DeleteRecords), `loss` (an unclean election), `no_records`
(compaction, control batches). A declaration makes the checker blind where it must: below a log start nothing is missed at
any time, and inside a lost range only the final read, and sends that began later, are judged. So declare no more than was done.

**What cannot be seen.** Whether a value that ended in *info* should have been there. What no client touched: the tail that
nobody read without a final read, corruption in records whose bytes are not the value. What came before the first read of a
consumer that was not told to begin anywhere. Whether an acknowledgement was late or early within an operation: only what
ended before the other began is in an order. Lag counts from acknowledgements, so a consumer that begins at the start of a
long log lags by all of it: measure one that follows. A history with few polls or acknowledgements proves little;
`Verdict.judged`, `read` and `polls` say how many there were.

Not checked, since there is nothing yet that could break it: transactions (precommitted reads, G1c, torn transactions) and groups
(regress of committed offsets, two owners of a partition in one generation).
"""

from strandline.testing.history.checker import check
from strandline.testing.history.dumps import Dump, DumpComparison, compare_dumps
from strandline.testing.history.operations import (
    ALL,
    EVERY_ACK,
    FAIL,
    INFO,
    LEADER,
    NONE,
    OK,
    OPEN,
    Acks,
    Declared,
    History,
    Latest,
    Loss,
    Partition,
    Poll,
    SeenEpoch,
    Send,
    Value,
)
from strandline.testing.history.verdict import MEANINGS, Anomaly, Lag, Unseen, Verdict

__all__ = [
    "ALL",
    "EVERY_ACK",
    "FAIL",
    "INFO",
    "LEADER",
    "MEANINGS",
    "NONE",
    "OK",
    "OPEN",
    "Acks",
    "Anomaly",
    "Declared",
    "Dump",
    "DumpComparison",
    "History",
    "Lag",
    "Latest",
    "Loss",
    "Partition",
    "Poll",
    "SeenEpoch",
    "Send",
    "Unseen",
    "Value",
    "Verdict",
    "check",
    "compare_dumps",
]
