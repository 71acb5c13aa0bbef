"""Checks a history of clients' operations: did the cluster break any of its promises to these clients?

A history is a list of operations as the clients saw them; it contains nothing from inside the cluster. A send is *invoked* and
then ends in one of three ways: **ok** (acknowledged, at an offset), **fail** (certainly not appended: rejected before the
append) or **info** (outcome unknown: a timeout, a lost connection, NOT_ENOUGH_REPLICAS_AFTER_APPEND, a crash). A poll is the
records that one consumer read in one call. Values must be unique in a history, because a value identifies its record.

    history = History()                                   # History(clock=scheduler.now) under virtual time
    send = history.invoke("producer-1", ("orders", 0), b"17")
    send.ok(offset)                                       # or send.fail(), or send.info()
    history.poll("consumer-1", ("orders", 0), [(0, b"16"), (1, b"17")])
    history.poll("last", ("orders", 0), everything, final=True)
    verdict = check(history)
    assert verdict.good, str(verdict)                     # verdict.as_dict() for JSON

The simulator, the testing kit and tests of real processes use the same checker. Offsets give the order of versions, so every
check takes linear time apart from a few sorts per partition; there is no search as in a general linearizability check.

**Every acknowledgement is a promise.** A record whose producer received an offset, with acks=all or acks=1, must stay at that
offset. Kafka promises less for acks=1: the record may be lost with its leader. `check(history, acks="all")` is this weaker
check: it holds each send to Kafka's promise for its own acks. With acks=0 nothing is acknowledged. With every acks, a record
that was read once must stay readable. A record of an idempotent producer (with acks=all) must be at one offset, in the order
of sending. Copies of other producers' records are counted, not reported.

The names are those of Jepsen's checker for Kafka (`jepsen.tests.kafka`), so that results can be compared:

    inconsistent-offsets   one (partition, offset) with two values, in acknowledgements or polls
    duplicate              an idempotent producer's value at two offsets
    lost-write             an acknowledged send that no read shows though one read went beyond it, or that the final read does
                           not show; also any value, with any outcome of its send, that was read and is not in the final read
    aborted-read           (G1a) a value was read whose send certainly failed
    int-poll-skip          one poll skipped records that other polls read
    int-nonmonotonic-poll  one poll returned to a lower offset, or showed an offset twice
    poll-skip              the same two between consecutive polls of one process; not after a seek, a rebalance or a new
    nonmonotonic-poll      session
    nonmonotonic-send      of two sends of one producer the later was acknowledged at the lower offset
    unseen                 after `heal`, acknowledged records that no consumer has read at the end (with a final read: lost-write)
    realtime-lag           a poll was further behind than `lag_s_max`: a record was acknowledged so long before the poll began,
                           and the consumer did not reach it. Without the bound the worst lag is only measured

Records of other producers between two of one producer (Jepsen's int-send-skip) are correct. This checker adds:

    unwritten-read         a value was read that no producer sent to this partition
    gap                    offsets between the first and the last read that no record and no declaration explains
    producer-order         an idempotent producer's records, as they were read, are not in the order of sending (or of their
                           sequence numbers); for records whose acknowledgement was lost
    deleted-key            in a compacted partition, the final read shows a value of a key whose newest record is a tombstone, and
                           not the tombstone
    realtime-order         a send that began after another send, of any producer, was acknowledged got the lower offset
    nonmonotonic-latest    a client asked for the end of the log and got an offset below what had been acknowledged, read or
                           answered before it asked; or the final read ended below such an answer
    stale-leader-ack       acks=all was acknowledged by the leader of epoch e for a send that began after a client had seen e' > e
    follower-read-subset   a follower served a record that the leader's log does not have
    replica-mismatch       the dumps of a partition's replicas differ (`check(replicas=...)`, or `compare_dumps` alone)

**Intended losses are declared**: `log_start` (retention, DeleteRecords), `loss` (an unclean election), `no_records` (control
batches), `compacted`. A declaration disables checks: below a log start no record is ever missed, and inside a lost range only the
final read, and sends that began later, are checked. So declare no more than was done. In a compacted partition a record may be
missing since a newer one of its key was sent, if the newer one is known to be in the log (acknowledged or read), and a tombstone
may be missing at any time. The last value of a key may not. A send that names its `fencing_token` explains the offset that
stores the token.

**Limits.** The checker cannot see whether a value that ended in *info* should be there; data that no client touched (without a
final read, the tail that no consumer read; damage in bytes of a record outside its value); or records before the first read of
a consumer that was not told where to begin. It orders two operations only if one ended before the other began, so it cannot
tell whether an acknowledgement was late or early within an operation. Lag counts from acknowledgements, so a consumer that
begins at the start of a long log lags by all of it: measure a consumer that follows the end. A history with few polls or
acknowledgements proves little; `Verdict.judged`, `read` and `polls` tell how many there were.

Transactions have a checker of their own, `strandline.testing.history.transactions`. Groups are not checked (regress of committed
offsets, two owners of a partition in one generation).
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
    Compacted,
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
    "Compacted",
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
