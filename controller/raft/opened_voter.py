"""A voter whose log and `quorum-state` are open, and checked against each other. It has not taken up a role yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strandline.controller.metadata.voters import Voter, check_quorum
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.metadata_log import DIRECTORY, MetadataLog
from strandline.controller.raft.node import RaftNode
from strandline.controller.raft.state_store import QuorumStateStore
from strandline.protocol.doors import Doors
from strandline.storage.files import Files, join


@dataclass(frozen=True, slots=True)
class OpenedVoter:
    """The opened files of a voter, and its node, which has not started."""

    node: RaftNode
    log: MetadataLog
    store: QuorumStateStore
    voters: Sequence[Voter]
    """Sorted by id."""

    @classmethod
    def open(
        cls,
        *,
        node_id: int,
        cluster_id: str,
        voters: Sequence[Voter],
        data_dir: str,
        files: Files,
        doors: Doors,
        config: RaftConfig,
    ) -> OpenedVoter:
        """Open the files of this voter, new ones if the directory is empty.

        Raises UsageError if the voters cannot be a quorum, or `node_id` is not one of them; or if a file is missing, damaged, or
        of another cluster."""
        check_quorum(voters, node_id)
        by_id = sorted(voters)
        voter_ids = [voter.id for voter in by_id]
        store = QuorumStateStore(files, join(data_dir, DIRECTORY), cluster_id=cluster_id, voter_ids=voter_ids)
        state = store.read()
        committed_offset = state.applied_offset if state else 0
        now_ms = doors.wall_clock_ms()
        log = MetadataLog.open(files, data_dir, config, committed_offset=committed_offset, now_ms=now_ms)
        try:
            election = store.check(state, log.end_offset)
        except BaseException:
            log.abandon()
            raise
        node = RaftNode(
            node_id=node_id,
            cluster_id=cluster_id,
            voter_ids=voter_ids,
            log=log,
            election=election,
            committed_offset=committed_offset,
            config=config,
            random=doors.random,
        )
        return cls(node, log, store, by_id)
