"""A request or response in one line, for the transcripts: the fields that matter to the protocol, without those that are drawn.

    Fetch request: orders-0 from 12, last epoch 1, leader epoch 2
    Fetch response: orders-0 diverges, epoch 0 ends at 12

Messages carry topic ids and no names, so these lines contain the id in hex. `transcript.py` replaces it by the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strandline.protocol.errors import ErrorCode
from strandline.protocol.frames import Refusal
from strandline.protocol.messages import cluster, data
from strandline.protocol.records.batch import Buffer, iter_headers
from strandline.testing.simulation.story.picture import ids, offsets

ACKS = {-1: "all", 0: "0", 1: "1"}


def message_text(body: Any) -> str:
    """The line without the name of the API. Empty for a fetch that names no partition, and for APIs without an entry in
    `_WORDS`."""
    if isinstance(body, Refusal):
        return ErrorCode(body.error_code).name
    words = _WORDS.get(type(body))
    return "" if words is None else words(body)


def _partition(of: Any) -> str:
    return f"{of.topic_id.hex()}-{of.partition}"


def _error(code: int, *rest: str) -> str:
    return ", ".join([ErrorCode(code).name, *(text for text in rest if text)])


def _leader(of: Any) -> str:
    return f"leader {of.leader_id} in epoch {of.leader_epoch}" if of.leader_epoch >= 0 else ""


def _batches(records: Buffer) -> str:
    """Offsets and epoch of each run of batches: `10..11@e0 12@e2`."""
    runs: list[list[int]] = []
    for _, header in iter_headers(records):
        if runs and runs[-1][2] == header.leader_epoch:
            runs[-1][1] = header.last_offset
        else:
            runs.append([header.base_offset, header.last_offset, header.leader_epoch])
    return " ".join(f"{offsets(base, last)}@e{epoch}" for base, last, epoch in runs) or "no records"


# -- data


def _produce(request: data.ProduceRequest) -> str:
    parts = []
    for partition, records in zip(request.partitions, request.records, strict=True):
        header = next(iter_headers(records))[1]
        count = sum(each.record_count for _, each in iter_headers(records))
        text = f"{_partition(partition)} {count} record{'s' * (count != 1)}"
        if header.producer_id >= 0:
            sequences = offsets(header.base_sequence, header.base_sequence + count - 1)
            text += f" of producer {header.producer_id}, epoch {header.producer_epoch}, sequence {sequences}"
        parts.append(text)
    return f"{'; '.join(parts)}, acks={ACKS.get(request.acks, request.acks)}"


def _produced(response: data.ProduceResponse) -> str:
    return "; ".join(
        f"{_partition(each)} {_error(each.error_code, _leader(each.current_leader))}"
        if each.error_code
        else f"{_partition(each)} at {each.base_offset}"
        for each in response.partitions
    )


def _fetch(request: data.FetchRequest) -> str:
    wanted = [
        f"{_partition(of)} from {of.fetch_offset}, last epoch {of.last_fetched_epoch}, leader epoch {of.current_leader_epoch}"
        for of in request.partitions
    ]
    return "; ".join([*wanted, *(f"{_partition(each)} no more" for each in request.forgotten)])


def _fetched(response: data.FetchResponse) -> str:
    if response.error_code:
        return ErrorCode(response.error_code).name
    pairs = zip(response.partitions, response.records, strict=True)
    return "; ".join(f"{_partition(each)} {_fetched_partition(each, records)}" for each, records in pairs)


def _fetched_partition(of: data.FetchPartitionResponse, records: Buffer) -> str:
    if of.error_code:
        return _error(of.error_code, _leader(of.current_leader))
    if of.diverging_epoch.end_offset >= 0:
        return f"diverges, epoch {of.diverging_epoch.epoch} ends at {of.diverging_epoch.end_offset}"
    if of.snapshot_id.end_offset >= 0:
        return f"snapshot up to {of.snapshot_id.end_offset}, epoch {of.snapshot_id.epoch}"
    return f"{_batches(records)}, HW {of.high_watermark}"


def _producer(response: data.InitProducerIdResponse) -> str:
    if response.error_code:
        return ErrorCode(response.error_code).name
    return f"producer {response.producer_id}, epoch {response.producer_epoch}"


def _list_offsets(request: data.ListOffsetsRequest) -> str:
    named = {data.LATEST_TIMESTAMP: "latest", data.EARLIEST_TIMESTAMP: "earliest", data.MAX_TIMESTAMP: "of the latest timestamp"}
    return "; ".join(f"{_partition(each)} {named.get(each.timestamp, each.timestamp)}" for each in request.partitions)


def _listed(response: data.ListOffsetsResponse) -> str:
    return "; ".join(
        f"{_partition(each)} {ErrorCode(each.error_code).name if each.error_code else each.offset}"
        for each in response.partitions
    )


# -- brokers and controllers


def _alter(request: cluster.AlterPartitionRequest) -> str:
    return "; ".join(
        f"{_partition(each)} ISR {ids([member.broker_id for member in each.new_isr])}, leader epoch {each.leader_epoch}, "
        f"partition epoch {each.partition_epoch}"
        for each in request.partitions
    )


def _altered(response: cluster.AlterPartitionResponse) -> str:
    if response.error_code:
        return ErrorCode(response.error_code).name
    return "; ".join(f"{_partition(each)} {_altered_partition(each)}" for each in response.partitions)


def _altered_partition(of: cluster.AlterPartitionPartitionResponse) -> str:
    if of.error_code:
        return ErrorCode(of.error_code).name
    return f"ISR {ids(of.isr)}, leader {of.leader_id} in epoch {of.leader_epoch}, partition epoch {of.partition_epoch}"


def _registration(request: cluster.BrokerRegistrationRequest) -> str:
    clean = request.previous_broker_epoch >= 0
    return f"broker {request.broker_id}, after {'a clean shutdown' if clean else 'none or an unclean shutdown'}"


def _registered(response: cluster.BrokerRegistrationResponse) -> str:
    return ErrorCode(response.error_code).name if response.error_code else "registered"


# -- the quorum


def _vote(request: cluster.VoteRequest) -> str:
    kind = "pre-vote" if request.pre_vote else "vote"
    end = f"log ends at {request.last_offset} in epoch {request.last_offset_epoch}"
    return f"{kind} for {request.replica_id} in epoch {request.replica_epoch}, {end}"


def _voted(response: cluster.VoteResponse) -> str:
    if response.error_code:
        return _error(response.error_code, _leader(response))
    return f"{'granted' if response.vote_granted else 'rejected'} in epoch {response.leader_epoch}"


def _quorum_epoch(request: cluster.BeginQuorumEpochRequest) -> str:
    return f"leader {request.leader_id} in epoch {request.leader_epoch}"


def _quorum_epoch_ends(request: cluster.EndQuorumEpochRequest) -> str:
    return f"leader {request.leader_id} in epoch {request.leader_epoch}, candidates {_in_order(request.preferred_candidates)}"


def _in_order(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or "none"


def _quorum_answer(response: Any) -> str:
    return _error(response.error_code, _leader(response)) if response.error_code else "accepted"


_WORDS: dict[type, Callable[[Any], str]] = {
    data.ProduceRequest: _produce,
    data.ProduceResponse: _produced,
    data.FetchRequest: _fetch,
    data.FetchResponse: _fetched,
    data.ListOffsetsRequest: _list_offsets,
    data.ListOffsetsResponse: _listed,
    data.InitProducerIdResponse: _producer,
    cluster.AlterPartitionRequest: _alter,
    cluster.AlterPartitionResponse: _altered,
    cluster.BrokerRegistrationRequest: _registration,
    cluster.BrokerRegistrationResponse: _registered,
    cluster.VoteRequest: _vote,
    cluster.VoteResponse: _voted,
    cluster.BeginQuorumEpochRequest: _quorum_epoch,
    cluster.BeginQuorumEpochResponse: _quorum_answer,
    cluster.EndQuorumEpochRequest: _quorum_epoch_ends,
    cluster.EndQuorumEpochResponse: _quorum_answer,
}
