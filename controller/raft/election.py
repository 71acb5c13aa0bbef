"""The durable state of a voter, in the file `quorum-state`: its epoch, its vote, and the leader that it knows.

The file is one line of JSON with Kafka's keys (data_version 0, the one with static voters):

    {"clusterId": "...", "leaderId": 101, "leaderEpoch": 5, "votedId": 101, "appliedOffset": 1200,
     "currentVoters": [{"voterId": 101}, ...], "data_version": 0, "crc32c": 305419896}

A voter that recovers from the loss of its disk (`voter_recovery.py`) also has `"learner": true`. `crc32c` is the checksum of the
line without this key. Kafka has no such key, and ignores keys that it does not know. Without the checksum, one flipped digit
of the epoch could make this voter vote a second time in an epoch. A file of an earlier version, without it, is accepted.

No other file could replace this one. A voter that forgot its vote could vote twice in one epoch, and two leaders in one epoch
lose committed records. So if the file is damaged, or is missing beside a log that is not empty, the node does not start; it
never writes a fresh file in its place.

`appliedOffset` was a committed and flushed offset when the file was written. A log that ends below it has lost committed
records (because of a corrupt disk, or a directory copied from elsewhere), and with the vote of such a voter a leader without
them could be elected. In that case, too, the node does not start.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from crc32c import crc32c

from strandline.protocol.errors import UsageError

DATA_VERSION = 0
NO_NODE = -1
_CHECKSUM = "crc32c"
_RECOVERING = "learner"
_HELP = (
    "It holds this voter's vote, which cannot be rebuilt: restore it, or, while a majority of the other controllers is healthy, "
    "empty this controller's metadata directory as a whole"
)


class ElectionState(NamedTuple):
    """The durable part of a voter's state. The epoch only grows, vote and leader are set at most once within an epoch, and
    `recovering` only turns from True to False."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    recovering: bool = False
    """The voter started with an empty disk, and an earlier disk may have held a vote. The voter has none until it has recovered
    (`voter_recovery.py`)."""

    def of_epoch(self, epoch: int) -> ElectionState:
        """The state at the start of a later epoch: no vote, no leader."""
        return ElectionState(epoch, recovering=self.recovering)


class QuorumFile(NamedTuple):
    """The content of `quorum-state`."""

    election: ElectionState
    applied_offset: int


def encode_quorum_state(cluster_id: str, voter_ids: Sequence[int], election: ElectionState, applied_offset: int) -> bytes:
    """The content of `quorum-state` as JSON in Kafka's form (KIP-595), with a checksum."""
    state: dict[str, Any] = {
        "clusterId": cluster_id,
        "leaderId": election.leader_id,
        "leaderEpoch": election.epoch,
        "votedId": election.voted_id,
        "appliedOffset": applied_offset,
        "currentVoters": [{"voterId": voter_id} for voter_id in voter_ids],
        "data_version": DATA_VERSION,
    }
    if election.recovering:
        state[_RECOVERING] = True
    state[_CHECKSUM] = crc32c(_line(state))
    return _line(state)


def _line(state: dict[str, Any]) -> bytes:
    return json.dumps(state, separators=(",", ":")).encode()


def decode_quorum_state(data: bytes, path: str, cluster_id: str, voter_ids: Sequence[int]) -> QuorumFile:
    """Decode the file's content. Raises UsageError that names the file and what is wrong with it."""
    state = _parse(data, path)
    checksum = state.pop(_CHECKSUM, None)
    version = state.get("data_version")
    if version != DATA_VERSION:
        raise UsageError(
            f"{path} has data_version {version!r}, but this program reads {DATA_VERSION}: another version has written it"
        )
    if checksum is not None and checksum != crc32c(_line(state)):
        raise UsageError(f"{path} is damaged: its checksum is wrong. {_HELP}")
    if state.get("clusterId") != cluster_id:
        raise UsageError(
            f"{path} belongs to cluster {state.get('clusterId')!r}, this node is configured for cluster {cluster_id!r}"
        )
    voters = _voters(state, path)
    if voters != sorted(voter_ids):
        raise UsageError(f"{path} was written with the voters {voters}, controller.quorum.voters names {sorted(voter_ids)}")
    recovering = state.get(_RECOVERING, False)
    if not isinstance(recovering, bool):
        raise UsageError(f"{path} is damaged: {_RECOVERING} is {recovering!r}")
    election = ElectionState(
        _whole(state, "leaderEpoch", 0, path),
        _whole(state, "leaderId", NO_NODE, path),
        _whole(state, "votedId", NO_NODE, path),
        recovering,
    )
    for name, node_id in (("leaderId", election.leader_id), ("votedId", election.voted_id)):
        if node_id != NO_NODE and node_id not in voters:
            raise UsageError(f"{path} is damaged: {name} {node_id} is not one of the voters {voters}")
    return QuorumFile(election, _whole(state, "appliedOffset", 0, path))


def _parse(data: bytes, path: str) -> dict[str, Any]:
    try:
        state = json.loads(data)
    except ValueError:
        state = None
    if not isinstance(state, dict):
        raise UsageError(f"{path} is damaged (not a JSON object). {_HELP}")
    return state


def _voters(state: dict[str, Any], path: str) -> list[int]:
    listed = state.get("currentVoters")
    if not isinstance(listed, list) or not all(isinstance(v, dict) and type(v.get("voterId")) is int for v in listed):
        raise UsageError(f"{path} is damaged: currentVoters is not a list of voter ids")
    return sorted(v["voterId"] for v in listed)


def _whole(state: dict[str, Any], key: str, at_least: int, path: str) -> int:
    value = state.get(key)
    if type(value) is not int or not at_least <= value < 2**63:
        raise UsageError(f"{path} is damaged: {key} is {value!r}")
    return value
