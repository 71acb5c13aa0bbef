"""One `RaftNode` without network or disk: a test hands in the events one by one, and looks at the messages that it sends."""

from __future__ import annotations

from random import Random
from typing import Any

from raft_memory_log import Batch, LogState, MemoryRaftLog, Platter

from strandline.controller.metadata.records import METADATA_TOPIC_ID
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.node import RaftNode
from strandline.controller.raft.outbox import Reply, Send
from strandline.protocol import apis
from strandline.protocol.messages.cluster import BeginQuorumEpochRequest, VoteRequest, VoteResponse
from strandline.protocol.messages.common import CurrentLeader
from strandline.protocol.messages.data import FetchPartition, FetchPartitionResponse, FetchRequest, FetchResponse
from strandline.protocol.records.builder import encode_values

CLUSTER = "c"


def batch(base: int, epoch: int, count: int = 1) -> Batch:
    """The batch that the leader of `epoch` would have written at offset `base`."""
    values = [b"%d/%d" % (epoch, base + i) for i in range(count)]
    return Batch(base, base + count, epoch, encode_values(values, 0, base_offset=base, leader_epoch=epoch))


def log_of(*epochs: int) -> LogState:
    """A log with one record of each of these epochs, from offset 0."""
    return LogState(0, tuple(batch(offset, epoch) for offset, epoch in enumerate(epochs)))


class Bench:
    def __init__(
        self,
        node_id: int = 1,
        voters: int = 3,
        *,
        platter: Platter | None = None,
        election: ElectionState | None = None,
        log: LogState | None = None,
        config: RaftConfig | None = None,
    ) -> None:
        self.platter = platter or Platter()
        if election is not None:
            self.platter.election = election
        if log is not None:
            self.platter.log = log
        self.now = 100.0
        self.log = MemoryRaftLog(self.platter)
        self.node = RaftNode(
            node_id=node_id,
            cluster_id=CLUSTER,
            voter_ids=range(1, voters + 1),
            log=self.log,
            election=self.platter.election,
            config=config or RaftConfig(),
            random=Random(7),
        )
        self.node.start(self.now)

    # -- time and disk -------------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> list[Send | Reply]:
        """Let time pass, deadline by deadline; returns the messages that the node sends in that time."""
        end, out = self.now + seconds, self.settle()
        while self.node.next_deadline() <= end:
            self.now = max(self.now, self.node.next_deadline())
            self.node.tick(self.now)
            out += self.settle()
        self.now = end
        return out

    def settle(self) -> list[Send | Reply]:
        """Returns the messages that the node sends at once, and those that wait for the disk."""
        out = self.at_once()
        while self.node.state.needs_sync:
            out += self.sync()
            out += self.at_once()
        return out

    def at_once(self) -> list[Send | Reply]:
        self.node.complete_fetches(self.now)
        return self.node.state.outbox.take_at_once()

    def sync(self) -> list[Send | Reply]:
        waiting = self.node.state.outbox.take_after_sync()
        self.write_election()
        self.log.flush()
        self.node.on_synced(self.now)
        return waiting

    def write_election(self) -> None:
        self.platter.election, self.node.state.election_dirty = self.node.state.election, False

    # -- requests to the node -------------------------------------------------------------------------------------------

    def request(self, api_key: int, body: Any, session: int = 1) -> Any:
        """Hand in a request; returns its response, or None while it is parked."""
        ticket = object()
        self.node.on_request(api_key, body, ticket, session, self.now)
        return self.answer_to(ticket, self.settle())

    @staticmethod
    def answer_to(ticket: object, out: list[Send | Reply]) -> Any:
        replies = [message for message in out if isinstance(message, Reply) and message.ticket is ticket]
        assert len(replies) <= 1
        return replies[0].body if replies else None

    def ask_vote(self, candidate: int, epoch: int, last: tuple[int, int] = (0, 0), *, pre_vote: bool = False) -> VoteResponse:
        """Request a vote. `last`: (epoch, end offset) of the candidate's log."""
        body = VoteRequest(CLUSTER, self.node.state.node_id, epoch, candidate, *last, pre_vote)
        answer: VoteResponse = self.request(apis.VOTE, body)
        return answer

    def begin_epoch(self, leader_id: int, epoch: int) -> Any:
        return self.request(apis.BEGIN_QUORUM_EPOCH, BeginQuorumEpochRequest(CLUSTER, self.node.state.node_id, leader_id, epoch))

    def fetch(self, replica_id: int, epoch: int, offset: int, last_epoch: int, session: int = 1, wait_ms: int = 500) -> Any:
        return self.request(apis.FETCH, fetch_request(replica_id, epoch, offset, last_epoch, wait_ms=wait_ms), session)

    # -- responses to the node ------------------------------------------------------------------------------------------

    def respond(self, send: Send, body: Any) -> list[Send | Reply]:
        self.node.on_response(send, body, self.now)
        return self.settle()

    # -- ready-made situations -----------------------------------------------------------------------------------------

    def become_leader(self) -> None:
        """Win an election in which all voters grant their votes."""
        asked = sends(self.advance(0.2), apis.VOTE)
        while not self.node.state.is_leader:
            send = asked.pop(0)
            asked += sends(self.respond(send, VoteResponse(0, -1, self.node.state.epoch, True)), apis.VOTE)

    def follow(self, leader_id: int, epoch: int) -> Send:
        """Follow this leader; returns the fetch in flight."""
        ticket = object()
        self.node.on_request(
            apis.BEGIN_QUORUM_EPOCH,
            BeginQuorumEpochRequest(CLUSTER, self.node.state.node_id, leader_id, epoch),
            ticket,
            1,
            self.now,
        )
        return sends(self.advance(0.0), apis.FETCH)[-1]


def sends(out: list[Send | Reply], api_key: int) -> list[Send]:
    return [message for message in out if isinstance(message, Send) and message.api_key == api_key]


def fetch_request(
    replica_id: int, epoch: int, offset: int, last_epoch: int, *, cluster_id: str | None = CLUSTER, wait_ms: int = 500
) -> FetchRequest:
    partition = FetchPartition(METADATA_TOPIC_ID, 0, epoch, offset, last_epoch, 0, 1 << 20)
    return FetchRequest(replica_id, -1, wait_ms, 0, 1 << 20, 0, 0, -1, [partition], cluster_id=cluster_id)


def fetch_response(leader_id: int, epoch: int, *batches: Batch, high_watermark: int = 0, **fields: Any) -> FetchResponse:
    part = FetchPartitionResponse(
        METADATA_TOPIC_ID, 0, high_watermark=high_watermark, current_leader=CurrentLeader(leader_id, epoch), **fields
    )
    return FetchResponse(0, 0, 0, [part], [memoryview(b"".join(b.data for b in batches))])
