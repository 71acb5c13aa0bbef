"""Elections: votes, pre-votes, restarts, the start and end of epochs (KafkaRaftClientTest, QuorumStateTest)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from raft_bench import CLUSTER, Bench, batch, fetch_request, fetch_response, log_of, sends

from strandline.controller import raft
from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.log import EpochEnd
from strandline.controller.raft.roles import (
    Candidate,
    Follower,
    Leader,
    Prospective,
    Resigned,
    Unattached,
)
from strandline.controller.raft.transitions import TRANSITIONS, check_transition
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode, InternalError
from strandline.protocol.messages.cluster import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    FetchSnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from strandline.protocol.messages.common import SnapshotId


def role_name(bench: Bench) -> str:
    return type(bench.node.state.role).__name__


# -- the table ----------------------------------------------------------------------------------------------------------


def test_only_a_candidate_becomes_leader_and_a_resigned_leader_only_waits() -> None:
    """The safety of elections rests on these transitions, which are read from the table itself."""
    assert [before for before, after in TRANSITIONS if after is Leader] == [Candidate]
    assert {after for before, after in TRANSITIONS if before is Resigned} == {Unattached, Follower}
    assert {before for before, after in TRANSITIONS if after is Candidate} == {Prospective}


def test_a_transition_that_is_not_in_the_table_is_a_bug() -> None:
    with pytest.raises(InternalError, match="no transition from Follower to Leader"):
        check_transition(Follower(2, 0.0, 0.0), Leader(0, 0.0, 0, {}))


def test_role_and_election_are_assigned_only_by_the_transitions() -> None:
    """So no change of role bypasses the table, not even the first one. `RaftState` starts with no role."""
    assigned = {(path.name, *found) for path in Path(raft.__file__).parent.glob("*.py") for found in assignments(path)}
    assert {name for name, *_ in assigned} == {"raft_state.py", "transitions.py"}
    assert {(function, field) for name, function, field in assigned if name == "raft_state.py"} == {
        ("__init__", "role"),
        ("__init__", "election"),
    }
    assert len(assigned) == 4


def assignments(path: Path) -> Iterator[tuple[str, str]]:
    """The functions of a module that assign an attribute `role` or `election`."""
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in ("role", "election"):
                yield function.name, node.attr


# -- restarts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("election", "role"),
    [
        (ElectionState(), "Unattached"),
        (ElectionState(5), "Unattached"),
        (ElectionState(5, -1, 2), "Voted"),
        (ElectionState(5, -1, 1), "Voted"),
        (ElectionState(5, 2, 3), "Follower"),
        (ElectionState(5, 1, 1), "Resigned"),
    ],
)
def test_initialize_from_the_stored_election(election: ElectionState, role: str) -> None:
    """A node never starts as leader or candidate of an epoch that it knew before the restart (KAFKA-10527, S48)."""
    bench = Bench(election=election)
    assert (role_name(bench), bench.node.state.epoch) == (role, election.epoch)


def test_a_leader_that_restarts_never_leads_its_old_epoch_again() -> None:
    bench = Bench(election=ElectionState(5, 1, 1), log=log_of(5, 5))
    out = bench.advance(0.0)
    assert {send.body.leader_epoch for send in sends(out, apis.END_QUORUM_EPOCH)} == {5}  # type: ignore[attr-defined]
    assert not bench.ask_vote(2, 5, (5, 9)).vote_granted, "it has voted for itself in 5"
    out = bench.advance(5.0)
    assert all(send.body.pre_vote for send in sends(out, apis.VOTE))  # type: ignore[attr-defined]
    assert bench.node.state.epoch == 5


def test_a_single_voter_leads_once_its_vote_is_on_the_disk() -> None:
    bench = Bench(voters=1, election=ElectionState(5, 1, 1), log=log_of(5))
    assert not bench.node.state.is_leader
    bench.settle()
    assert bench.node.state.is_leader
    assert bench.node.state.epoch == 6
    assert bench.node.state.high_watermark == bench.log.end_offset == 2
    assert bench.platter.election == ElectionState(6, 1, 1)


def test_the_log_may_be_ahead_of_the_stored_epoch() -> None:
    """The log may survive a kill before quorum-state was written: then no vote of that epoch was sent."""
    bench = Bench(election=ElectionState(3, 2, 2), log=log_of(3, 4))
    assert (role_name(bench), bench.node.state.epoch) == ("Unattached", 4)


# -- votes --------------------------------------------------------------------------------------------------------------


def test_a_vote_is_given_once_in_an_epoch() -> None:
    bench = Bench()
    assert bench.ask_vote(2, 1).vote_granted
    assert not bench.ask_vote(3, 1).vote_granted
    assert bench.ask_vote(2, 1).vote_granted, "the answer may have been lost"
    assert bench.ask_vote(3, 2).vote_granted


@pytest.mark.parametrize(("last", "granted"), [((2, 4), False), ((2, 5), True), ((3, 1), True), ((1, 9), False)])
def test_a_vote_goes_to_a_log_that_is_as_complete_as_ours(last: tuple[int, int], granted: bool) -> None:
    bench = Bench(election=ElectionState(2), log=log_of(1, 1, 1, 2, 2))
    assert bench.ask_vote(2, 3, last).vote_granted is granted
    assert bench.node.state.epoch == 3


def test_a_lower_epoch_is_fenced_with_the_current_one() -> None:
    bench = Bench(election=ElectionState(5))
    answer = bench.ask_vote(2, 4)
    assert (answer.error_code, answer.leader_epoch) == (ErrorCode.FENCED_LEADER_EPOCH, 5)


@pytest.mark.parametrize("crash_after", ["request", "quorum-state", "flush"])
def test_a_voter_killed_in_the_vote_handler_does_not_vote_twice(crash_after: str) -> None:
    """S48: at every point the vote is either on the disk or not sent yet."""
    bench = Bench()
    ticket = object()
    bench.node.on_request(apis.VOTE, VoteRequest(CLUSTER, 1, 1, 2, 0, 0), ticket, None, bench.now)
    assert bench.answer_to(ticket, bench.at_once()) is None, "the vote left before the disk had it"
    if crash_after != "request":
        bench.write_election()
    if crash_after == "flush":
        bench.log.flush()
    again = Bench(platter=bench.platter)
    assert again.ask_vote(3, 1).vote_granted is (crash_after == "request")


def test_a_candidate_asks_only_when_its_own_vote_is_on_the_disk() -> None:
    bench = Bench()
    asked = sends(bench.advance(0.2), apis.VOTE)
    assert [send.body.pre_vote for send in asked] == [True, True]  # type: ignore[attr-defined]
    bench.node.on_response(asked[0], VoteResponse(0, -1, 0, True), bench.now)
    assert role_name(bench) == "Candidate"
    assert not sends(bench.at_once(), apis.VOTE)
    assert len(sends(bench.sync(), apis.VOTE)) == 2
    assert bench.platter.election == ElectionState(1, -1, 1)


def test_a_late_answer_to_an_older_round_does_not_count() -> None:
    bench = Bench()
    old = sends(bench.advance(0.2), apis.VOTE)
    bench.advance(3.0)
    before = bench.node.state.role
    bench.respond(old[0], VoteResponse(0, -1, 0, True))
    assert bench.node.state.role is before


def test_a_split_vote_ends_when_all_live_voters_have_answered() -> None:
    """If the candidate waited for the dead voter, it would lose a whole election timeout."""
    bench = Bench(voters=5)
    out = bench.advance(0.2)
    for send in sends(out, apis.VOTE)[:2]:
        out = bench.respond(send, VoteResponse(0, -1, 0, True))
    asked = sends(out, apis.VOTE)
    assert role_name(bench) == "Candidate"
    bench.respond(asked[0], VoteResponse(0, -1, 1, True))
    for send in asked[1:3]:
        bench.respond(send, VoteResponse(0, -1, 1, False))
    bench.node.on_failure(asked[3], ErrorCode.NETWORK_EXCEPTION, bench.now)
    bench.advance(0.101)
    assert role_name(bench) == "Prospective"


# -- pre-votes (KIP-996) ------------------------------------------------------------------------------------------------


def test_a_follower_with_a_live_leader_refuses_a_pre_vote() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.respond(fetch, fetch_response(2, 4))
    answer = bench.ask_vote(3, 4, (4, 9), pre_vote=True)
    assert not answer.vote_granted
    assert (answer.leader_id, answer.leader_epoch) == (2, 4)
    assert role_name(bench) == "Follower"


def test_a_follower_that_has_lost_its_leader_grants_a_pre_vote() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    next_fetch = sends(bench.respond(fetch, fetch_response(2, 4)), apis.FETCH)[0]
    bench.node.on_failure(next_fetch, ErrorCode.NETWORK_EXCEPTION, bench.now)
    assert bench.ask_vote(3, 4, pre_vote=True).vote_granted
    assert bench.node.state.election.voted_id == -1, "a pre-vote is no vote"


def test_a_lost_connection_to_the_leader_starts_a_pre_vote_within_the_backoff() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    next_fetch = sends(bench.respond(fetch, fetch_response(2, 4)), apis.FETCH)[0]
    bench.node.on_failure(next_fetch, ErrorCode.NETWORK_EXCEPTION, bench.now)
    assert sends(bench.advance(0.101), apis.VOTE)


def test_a_voter_without_pre_votes_follows_its_leader_again() -> None:
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.node.on_failure(fetch, ErrorCode.NETWORK_EXCEPTION, bench.now)
    asked = sends(bench.advance(0.101), apis.VOTE)
    bench.respond(asked[1], VoteResponse(0, 2, 4, False))
    assert (role_name(bench), bench.node.state.epoch) == ("Follower", 4)


def test_a_granted_pre_vote_counts_although_it_names_the_lost_leader() -> None:
    """Otherwise two followers of a silent leader would send each other back to it forever."""
    bench = Bench()
    bench.follow(2, 4)
    asked = sends(bench.advance(1.01), apis.VOTE)
    bench.respond(asked[1], VoteResponse(0, 2, 4, True))
    assert (role_name(bench), bench.node.state.epoch) == ("Candidate", 5)


def test_leader_rejects_a_pre_vote() -> None:
    bench = Bench()
    bench.become_leader()
    assert not bench.ask_vote(2, 1, (1, 99), pre_vote=True).vote_granted
    assert bench.node.state.is_leader


# -- the end of an epoch ------------------------------------------------------------------------------------------------


def test_the_best_successor_starts_before_the_next_one() -> None:
    body = EndQuorumEpochRequest(CLUSTER, 2, 4, [1, 3])
    for node_id, at_once in ((1, True), (3, False)):
        bench = Bench(node_id=node_id)
        fetch = bench.follow(2, 4)
        bench.respond(fetch, fetch_response(2, 4))
        bench.request(apis.END_QUORUM_EPOCH, body)
        assert (role_name(bench) == "Prospective") is at_once
        bench.advance(0.201)
        assert role_name(bench) == "Prospective"


def test_a_resigned_leader_is_not_followed_again_in_its_epoch() -> None:
    """A voter that does not know of the resignation yet still names that leader."""
    bench = Bench()
    fetch = bench.follow(2, 4)
    bench.respond(fetch, fetch_response(2, 4))
    ticket = object()
    bench.node.on_request(apis.END_QUORUM_EPOCH, EndQuorumEpochRequest(CLUSTER, 2, 4, [1, 3]), ticket, None, bench.now)
    asked = sends(bench.settle(), apis.VOTE)
    bench.respond(asked[1], VoteResponse(0, 2, 4, False))
    assert role_name(bench) == "Prospective"


def test_a_resigning_leader_names_the_most_complete_voter_first() -> None:
    bench = Bench()
    bench.become_leader()
    bench.fetch(3, 1, 1, 1)
    ticket = object()
    bench.node.on_request(apis.FETCH, fetch_request(3, 1, 1, 1), ticket, 1, bench.now)
    bench.node.resign(bench.now)
    out = bench.settle()
    parked = bench.answer_to(ticket, out)
    assert parked.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.node.tick(bench.now)
    told = sends(bench.settle(), apis.END_QUORUM_EPOCH)
    assert [send.body.preferred_candidates for send in told] == [[3, 2], [3, 2]]  # type: ignore[attr-defined]


def test_a_leader_resigns_when_no_majority_fetches() -> None:
    """KAFKA-15489: within 1.5 times the fetch timeout. Fetches of one of two followers are enough to stay."""
    bench = Bench()
    bench.become_leader()
    for _ in range(5):
        bench.advance(1.0)
        bench.fetch(3, 1, 1, 1)
    assert bench.node.state.is_leader
    bench.advance(1.51)
    assert role_name(bench) == "Resigned"


# -- S51, and requests that are not for us ------------------------------------------------------------------------------


def test_another_cluster_is_refused_in_every_request() -> None:
    """S51: the epochs in such a request are ignored, too."""
    bench = Bench()
    bench.become_leader()
    fetch = bench.request(apis.FETCH, fetch_request(2, 9, 0, 0, cluster_id="other"))
    answers = [
        bench.request(apis.VOTE, VoteRequest("other", 1, 9, 2, 9, 9)),
        bench.request(apis.BEGIN_QUORUM_EPOCH, BeginQuorumEpochRequest("other", 1, 2, 9)),
        bench.request(apis.END_QUORUM_EPOCH, EndQuorumEpochRequest("other", 2, 9, [])),
        bench.request(apis.FETCH_SNAPSHOT, FetchSnapshotRequest(2, "other", 100, 9, SnapshotId(1, 1), 0)),
        fetch,
        fetch.partitions[0],
    ]
    assert {answer.error_code for answer in answers} == {ErrorCode.INCONSISTENT_CLUSTER_ID}
    assert bench.node.state.is_leader
    assert bench.node.state.epoch == 1


def test_a_response_from_another_cluster_changes_no_epoch() -> None:
    bench = Bench()
    asked = sends(bench.advance(0.2), apis.VOTE)
    bench.respond(asked[0], VoteResponse(ErrorCode.INCONSISTENT_CLUSTER_ID, 2, 99, False))
    assert bench.node.state.epoch == 0


@pytest.mark.parametrize("candidate", [1, 4])
def test_a_candidate_that_is_no_other_voter_is_refused(candidate: int) -> None:
    bench = Bench()
    assert bench.ask_vote(candidate, 1).error_code == ErrorCode.INCONSISTENT_VOTER_SET
    assert bench.node.state.epoch == 0


def test_a_request_meant_for_another_voter_is_refused() -> None:
    bench = Bench()
    assert bench.request(apis.VOTE, VoteRequest(CLUSTER, 3, 1, 2, 0, 0)).error_code == ErrorCode.INCONSISTENT_VOTER_SET
    begin = BeginQuorumEpochRequest(CLUSTER, 3, 2, 1)
    assert bench.request(apis.BEGIN_QUORUM_EPOCH, begin).error_code == ErrorCode.INCONSISTENT_VOTER_SET


def test_a_second_leader_of_an_epoch_is_refused() -> None:
    bench = Bench()
    bench.follow(2, 4)
    assert bench.begin_epoch(3, 4).error_code == ErrorCode.INVALID_REQUEST
    assert bench.node.state.leader_id == 2


# -- figure 8 -----------------------------------------------------------------------------------------------------------


def test_older_records_commit_only_with_one_of_the_leaders_epoch() -> None:
    """Raft's figure 8 (M13): a majority holds the record of epoch 2, but a later leader could still replace it."""
    bench = Bench(voters=5, election=ElectionState(3), log=log_of(1, 2))
    bench.become_leader()
    epoch = bench.node.state.epoch
    for voter in (2, 3):
        bench.fetch(voter, epoch, 2, 2)
    assert bench.log.end_offset_for_epoch(2) == EpochEnd(2, 2)
    assert bench.node.state.high_watermark == 0
    for voter in (2, 3):
        bench.fetch(voter, epoch, 3, epoch)
    assert bench.node.state.high_watermark == 3
    assert bench.log.batches[1] == batch(1, 2)


def test_a_silent_leader_is_given_up_after_the_fetch_timeout() -> None:
    bench = Bench()
    bench.follow(2, 4)
    bench.advance(0.99)
    assert isinstance(bench.node.state.role, Follower)
    bench.advance(0.02)
    assert isinstance(bench.node.state.role, Prospective)
