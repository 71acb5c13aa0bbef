"""I45: in the committed log no record with a lower fencing token follows one with a higher token.

A batch of records does not contain the token with which it was sent. So the probe of `Log.append_as_leader` notes the token of
each append, and the batches are judged in the order of the log when they become committed: the fence before a batch must have the
token of its append, and each fence must have a higher token than the one before it. The state of a broker is not used here.

A record is rejected for a committed token only. At rest the state of every log has the token of the last committed fence, even if
its own part of the log no longer contains the fence.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

from strandline.protocol.messages.data import ProducePartitionResponse
from strandline.protocol.records.fence import FIRST_FENCE, NO_TOKEN, token_of
from strandline.testing.simulation.invariants.ghosts import Ghosts, PartitionGhost, ReplicaGhost
from strandline.testing.simulation.invariants.paths import Batch


def on_sent(partition: PartitionGhost, epoch: int, base: int, token: int) -> None:
    """The leader of this epoch has appended records with this token from offset `base` on."""
    partition.tokens[epoch, base] = token


def on_committed(partition: PartitionGhost, epoch: int, batch: Batch) -> None:
    """The batch has just become committed, after all batches before it."""
    if batch.is_control and batch.producer_id >= FIRST_FENCE:
        token = token_of(batch.producer_id, batch.sequence)
        if token <= partition.token and not partition.loss_permitted:
            text = f"the fence at offset {batch.base} has token {token}, but the token before it is {partition.token}"
            raise partition.violation("I45", text)
        partition.token = token
        return
    sent = partition.tokens.get((epoch, batch.base), NO_TOKEN) if partition.tokens else NO_TOKEN
    if sent != NO_TOKEN and sent != partition.token and not partition.loss_permitted:
        text = f"the record at offset {batch.base} was sent with fencing token {sent}, but a fence has {partition.token}"
        raise partition.violation("I45", text)


def on_rejected(ghosts: Ghosts, response: ProducePartitionResponse) -> None:
    """A leader rejects an append because of a higher token. That token must be committed, because the answer is final."""
    partition = ghosts.partitions.get((response.topic_id, response.partition))
    if partition is not None and response.fencing_token > partition.token and not partition.loss_permitted:
        text = f"a record is rejected for fencing token {response.fencing_token}, but the committed one is {partition.token}"
        raise partition.violation("I45", text)


def check_state(replica: ReplicaGhost) -> None:
    """Check that the state of the log has the token of the committed log. Runs at rest only, when all records are committed."""
    log, partition = replica.log, replica.partition
    if log is None or replica.damage is not None or partition.loss_permitted:
        return
    if log.producers.fences.token != partition.token:
        text = f"broker {replica.node} has fencing token {log.producers.fences.token}, but the newest fence has {partition.token}"
        raise partition.violation("I45", text, replica.node)
