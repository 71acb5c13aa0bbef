"""A voter with an empty disk: what it must not do before it has recovered. Without each of these rules a committed record is
lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from raft_bench import Bench, batch, fetch_response, log_of, sends
from raft_memory_log import Platter
from raft_simulation import WIPES, SimNode, Simulation, Violation, empty_platter

from strandline.controller.raft.election import ElectionState
from strandline.controller.raft.outbox import Send
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import VoterWithoutState
from strandline.controller.raft.voter_recovery import VoterRecovery
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import VoteResponse

ONLY = os.environ.get("RAFT_SEED")
RECOVERING = ElectionState(recovering=True)


def recovering_voter(voters: int = 3, **more: Any) -> Bench:
    return Bench(1, voters, platter=Platter(election=RECOVERING), **more)


def answer(bench: Bench, send: Send, epoch: int = 0, leader: int = -1, error: int = 0) -> None:
    bench.respond(send, VoteResponse(error, leader, epoch, False))


def asked(bench: Bench) -> dict[int, Send]:
    """The requests for epochs that the voter sends now, by receiver."""
    return {send.to_id: send for send in sends(bench.advance(0.0), apis.VOTE)}


# -- one voter ----------------------------------------------------------------------------------------------------------


def test_a_recovering_voter_grants_no_vote_and_is_no_candidate() -> None:
    bench = recovering_voter()
    out = bench.advance(5.0)
    assert bench.node.state.epoch == 0
    assert all(send.body.pre_vote for send in sends(out, apis.VOTE)), "it asks, and opens no epoch"
    assert not bench.ask_vote(2, 1, pre_vote=True).vote_granted
    assert not bench.ask_vote(2, 1).vote_granted
    assert bench.platter.election == ElectionState(1, recovering=True), "the epoch is taken over, as ever"


def test_a_voter_recovers_when_all_voters_are_at_epoch_0() -> None:
    bench = recovering_voter()
    sent = asked(bench)
    answer(bench, sent[2])
    assert not bench.ask_vote(2, 0, pre_vote=True).vote_granted, "3 might know better"
    answer(bench, sent[3])
    assert bench.platter.election == ElectionState(), "and that is on the disk"
    assert bench.ask_vote(2, 1).vote_granted


def test_the_end_of_the_recovery_is_on_the_disk_first() -> None:
    """If a voter voted before that, and a crash undid the end of its recovery, the cluster could be left without enough votes."""
    bench = recovering_voter()
    for send in asked(bench).values():
        bench.node.on_response(send, VoteResponse(0, -1, 0, False), bench.now)
    assert bench.node.state.recovery is not None
    assert bench.platter.election.recovering
    bench.sync()
    assert bench.node.state.recovery is None
    assert not bench.platter.election.recovering


@pytest.mark.parametrize("error", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET])
def test_an_answer_of_another_cluster_does_not_count(error: ErrorCode) -> None:
    bench = recovering_voter()
    for send in asked(bench).values():
        answer(bench, send, error=error)
    bench.advance(0.05)
    assert bench.node.state.recovery is not None
    assert bench.node.state.recovery.unanswered == {2, 3}
    assert asked(bench) == {}, "it is asked again, a little later"
    assert {send.to_id for send in sends(bench.advance(0.1), apis.VOTE)} == {2, 3}


def test_a_voter_that_sends_a_request_is_asked_at_once() -> None:
    """At a first start, the last voter to start asks all others: after one round trip every voter has an answer of all others."""
    bench = recovering_voter()
    for send in asked(bench).values():
        bench.node.on_failure(send, ErrorCode.NETWORK_EXCEPTION, bench.now)
    assert asked(bench) == {}
    bench.ask_vote(3, 0, pre_vote=True)
    assert bench.node.state.recovery is not None
    assert bench.node.state.recovery.unanswered == {2, 3}, "it is not heard by that: its request may be older than this process"
    assert set(bench.node.state.recovery.ask_at) == {2}


def test_a_restart_does_not_end_the_recovery() -> None:
    bench = recovering_voter()
    answer(bench, asked(bench)[2], epoch=7, leader=2, error=ErrorCode.FENCED_LEADER_EPOCH)
    assert bench.platter.election == ElectionState(7, 2, recovering=True)
    again = Bench(1, platter=bench.platter)
    assert again.node.state.recovery is not None
    assert again.node.state.recovery.unanswered == {2, 3}, "only this process's own ears count"


def test_a_recovering_voter_fetches_after_every_voter_has_answered() -> None:
    """The leader counts the voter's fetches: they might help a leader that the voter's lost disk had voted to replace."""
    bench = recovering_voter()
    sent = asked(bench)
    answer(bench, sent[2], epoch=7, leader=2, error=ErrorCode.FENCED_LEADER_EPOCH)
    assert bench.node.state.leader_id == 2
    assert sends(bench.advance(0.05), apis.FETCH) == []
    bench.node.on_response(sent[3], VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, 3, 8, False), bench.now)
    (fetch,) = sends(bench.settle(), apis.FETCH)
    assert (fetch.to_id, bench.node.state.epoch) == (3, 8)


def follower_of_5() -> tuple[Bench, Send]:
    """A recovering voter that both others have answered, and its first fetch from the leader of epoch 5."""
    bench = recovering_voter()
    sent = asked(bench)
    answer(bench, sent[3], epoch=5, leader=2, error=ErrorCode.FENCED_LEADER_EPOCH)
    bench.node.on_response(sent[2], VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, 2, 5, False), bench.now)
    (fetch,) = sends(bench.settle(), apis.FETCH)
    return bench, fetch


@pytest.mark.parametrize(
    ("epochs", "high_watermark", "has_vote"),
    [
        ((), 0, False),
        ((3, 3), 2, False),
        ((3, 3, 5), 2, False),
        ((3, 3, 5), 3, True),
        ((3, 3, 5, 5), 3, True),
        ((3, 3, 5), 4, False),
        ((5,), 1, True),
        ((5,), 0, False),
    ],
    ids=[
        "nothing is committed",
        "the leader's own epoch has not begun here",
        "the high watermark is an earlier leader's: it may lie too low",
        "caught up",
        "beyond the high watermark",
        "behind the high watermark",
        "the leader's epoch is the first",
        "no record of the leader's own epoch is committed",
    ],
)
def test_a_voter_recovers_when_it_has_what_its_leader_committed(
    epochs: tuple[int, ...], high_watermark: int, has_vote: bool
) -> None:
    bench, fetch = follower_of_5()
    batches = [batch(offset, epoch) for offset, epoch in enumerate(epochs)]
    bench.respond(fetch, fetch_response(2, 5, *batches, high_watermark=high_watermark))
    assert (bench.node.state.recovery is None) is has_vote
    assert bench.platter.election == ElectionState(5, 2, recovering=not has_vote)
    assert not bench.ask_vote(3, 5).vote_granted, "in this epoch there is a leader"
    assert bench.ask_vote(3, 6, (5, 9)).vote_granted is has_vote


def test_a_voter_recovers_only_after_its_flush() -> None:
    bench, fetch = follower_of_5()
    bench.node.on_response(fetch, fetch_response(2, 5, batch(0, 5), high_watermark=1), bench.now)
    assert bench.node.state.election.recovering, "the record is not on the disk yet"
    bench.settle()
    assert bench.node.state.recovery is None


def test_a_late_fetch_of_an_earlier_process_is_not_counted() -> None:
    """The disk of that process may be lost: the leader would commit records that only it holds."""
    bench = Bench(1, election=ElectionState(1), log=log_of(1))
    bench.become_leader()
    end = bench.log.end_offset
    assert bench.fetch(2, bench.node.state.epoch, 0, 0, session=7).partitions[0].error_code == 0
    late = bench.fetch(2, bench.node.state.epoch, end, bench.node.state.epoch, session=6)
    assert late.partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert bench.node.state.high_watermark == 0


# -- a quorum: stories ----------------------------------------------------------------------------------------------------


INIT, HAS_RECOVERED = RaftState.__init__, VoterRecovery._has_recovered


def forget_that_the_disk_was_empty(self: RaftState, *, election: ElectionState, **more: Any) -> None:
    """A mutant of RaftState.__init__: an empty disk counts as one that has never held a vote."""
    INIT(self, election=election._replace(recovering=False), **more)


def recover_with_a_majority(self: VoterRecovery, recovery: VoterWithoutState) -> bool:
    return len(recovery.unanswered) <= 1 and HAS_RECOVERED(self, VoterWithoutState(set()))


MUTANTS: dict[str, tuple[type, str, object]] = {
    "votes with an empty disk": (RaftState, "__init__", forget_that_the_disk_was_empty),
    "fetches before every other voter has answered": (RaftState, "may_fetch", True),
    "recovers with the answers of a majority": (VoterRecovery, "_has_recovered", recover_with_a_majority),
}


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Remove a rule from the node until the test is over."""
    return lambda mutant: monkeypatch.setattr(*MUTANTS[mutant])


def steady(seed: int, voters: int = 3) -> tuple[Simulation, list[SimNode]]:
    """A quorum with some committed records: the leader, then the other voters."""
    simulation = Simulation(seed, voters)
    simulation.start_all()
    simulation.recover()
    leader = simulation.leader()
    assert leader is not None
    return simulation, [leader, *(sim for sim in simulation.nodes.values() if sim is not leader)]


def committed_by(simulation: Simulation, leader: SimNode, seconds: float = 0.5) -> None:
    end = simulation.append(leader.id, 2) + 1
    simulation.run_until(lambda: simulation.committed_end >= end, seconds, "a commit")


def the_holder_of_a_committed_record_loses_its_disk(seed: int) -> Simulation:
    """Leader and second voter commit while the third is cut off. The second loses its disk, the leader dies, and the third
    returns."""
    simulation, (leader, second, third) = steady(seed)
    simulation.partition([third.id])
    committed_by(simulation, leader)
    simulation.crash(leader.id)
    simulation.wipe(second.id)
    simulation.heal()
    simulation.start(second.id)
    simulation.run(10.0)
    return simulation


@pytest.mark.parametrize("seed", range(10))
def test_a_committed_record_survives_the_loss_of_a_disk_that_held_it(seed: int) -> None:
    """No voter without the record may lead: there is no leader until the voter that has it returns."""
    simulation = the_holder_of_a_committed_record_loses_its_disk(seed)
    assert simulation.leader() is None
    simulation.recover()
    simulation.run(0.5)
    assert not any(sim.platter.election.recovering for sim in simulation.nodes.values())


def test_without_the_guard_that_record_is_lost(mutate: Callable[[str], None]) -> None:
    mutate("votes with an empty disk")
    with pytest.raises(Violation, match=r"misses the committed batch|was committed there"):
        the_holder_of_a_committed_record_loses_its_disk(0).recover()


def a_deposed_leader_meets_the_voter_that_deposed_it(seed: int) -> Simulation:
    """The leader is cut off, and does not know that the others have elected a successor. The successor loses its disk, and
    afterwards reaches only the old leader."""
    simulation, (old, second, third) = steady(seed)
    simulation.partition([old.id])
    simulation.append(old.id, 3)
    epoch = old.state.epoch
    simulation.run_until(lambda: any(sim.state.is_leader for sim in (second, third)), 3.0, "a successor")
    successor, voter = (second, third) if second.state.is_leader else (third, second)
    committed_by(simulation, successor)
    assert (old.state.is_leader, old.state.epoch) == (True, epoch), "this seed replaces it too late: it has resigned"
    simulation.wipe(successor.id)
    simulation.partition([voter.id])
    simulation.start(successor.id)
    simulation.run(10.0)
    simulation.recover()
    return simulation


@pytest.mark.parametrize("seed", [0, 1, 3, 6, 7, 8, 9])
def test_a_deposed_leader_cannot_commit_with_a_recovering_voter(seed: int) -> None:
    a_deposed_leader_meets_the_voter_that_deposed_it(seed)


def test_without_the_guard_the_deposed_leader_commits(mutate: Callable[[str], None]) -> None:
    """The removed guard: fetches of a recovering voter count only after every other voter has answered."""
    mutate("fetches before every other voter has answered")
    with pytest.raises(Violation, match=r"was committed there|commits up to"):
        a_deposed_leader_meets_the_voter_that_deposed_it(0)


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_a_first_start_elects_a_leader_at_once(voters: int, seed: int) -> None:
    """All disks are empty, and every voter needs an answer of all others: that takes one round trip."""
    simulation = Simulation(seed, voters, fresh=True)
    simulation.start_all()
    simulation.run_until(lambda: simulation.leader() is not None, 0.5, "a first leader")
    simulation.recover()


@pytest.mark.parametrize("seed", range(5))
def test_a_majority_of_lost_disks_elects_no_leader(seed: int) -> None:
    """The remaining voters cannot know which records were committed. A quorum that continued would lose them silently."""
    simulation, (leader, second, third) = steady(seed)
    for sim in (second, third):
        simulation.wipe(sim.id)
    simulation.crash(leader.id)
    simulation.start_all()
    simulation.run(20.0)
    assert simulation.leader() is None


# -- a quorum: from seeds ---------------------------------------------------------------------------------------------------


def run_seed(seed: int, voters: int) -> Simulation:
    simulation = Simulation(seed, voters, WIPES, fresh=True)
    simulation.start_all()
    simulation.at(0.05, simulation.nemesis)
    simulation.run(8.0)
    simulation.recover()
    return simulation


@pytest.mark.parametrize(("voters", "first"), [(3, 0), (3, 800), (5, 0)])
def test_quorums_keep_every_promise_when_disks_are_lost(voters: int, first: int) -> None:
    """The disks are lost from the first start on: now and then a machine returns with a new one, while fewer than half of the
    voters are recovering."""
    wiped = committed = 0
    for seed in [int(ONLY)] if ONLY else range(first, first + 50):
        try:
            simulation = run_seed(seed, voters)
        except Exception as e:
            pytest.fail(f"seed {seed} with {voters} voters: {e!r}; replay with RAFT_SEED={seed}")
        wiped += sum("wipe" in line for line in simulation.trace)
        committed += simulation.committed_end
    assert ONLY or (wiped > 100 and committed > 500), "too calm, or too rough: nothing was tried"


@pytest.mark.parametrize("mutant", MUTANTS)
def test_without_each_rule_something_is_lost(mutant: str, mutate: Callable[[str], None]) -> None:
    mutate(mutant)
    for seed in (*range(230, 240), *range(380, 392), *range(810, 816), *range(60)):
        try:
            run_seed(seed, 3)
        except Violation:
            return
    pytest.fail(f"{mutant} survived")


def test_an_empty_disk_is_that_of_a_recovering_voter() -> None:
    """The simulation starts with the state that `QuorumStateStore` reads from a directory without quorum-state."""
    assert empty_platter().election == RECOVERING
