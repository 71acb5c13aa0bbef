"""The quorum on a bad network and bad disks, from seeds; and a proof that the checkers find removed guards.

A failing seed is in the failure's text. To replay it alone: `RAFT_SEED=17 pytest
tests/controller/raft/test_raft_simulation.py`."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from raft_simulation import ROUGH, Simulation, Violation

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.election_handler import ElectionHandler
from strandline.controller.raft.leader_handler import LeaderHandler
from strandline.controller.raft.outbox import Reply, Send
from strandline.controller.raft.raft_state import RaftState
from strandline.controller.raft.roles import Leader
from strandline.controller.raft.transitions import RoleTransitions
from strandline.protocol.messages.cluster import VoteRequest
from strandline.protocol.messages.common import Message

ONLY = os.environ.get("RAFT_SEED")
CHUNK = 25


def run_seed(seed: int, voters: int, seconds: float) -> Simulation:
    simulation = Simulation(seed, voters, ROUGH)
    simulation.start_all()
    simulation.at(0.05, simulation.nemesis)
    simulation.run(seconds)
    simulation.recover()
    return simulation


def run_seeds(first: int, count: int, voters: int, seconds: float) -> list[Simulation]:
    done = []
    for seed in [int(ONLY)] if ONLY else range(first, first + count):
        try:
            done.append(run_seed(seed, voters, seconds))
        except Exception as e:
            pytest.fail(f"seed {seed} with {voters} voters: {e!r}; replay with RAFT_SEED={seed}")
    return done


@pytest.mark.parametrize("first", range(0, 200, CHUNK))
def test_three_voters_keep_every_promise(first: int) -> None:
    """Lossy crashes, partitions, delays, snapshots; afterwards all voters must agree again."""
    done = run_seeds(first, CHUNK, 3, 8.0)
    assert ONLY or sum(simulation.committed_end for simulation in done) > CHUNK * 5, "too rough: nothing was tried"


@pytest.mark.parametrize("first", range(1000, 1075, CHUNK))
def test_five_voters_keep_every_promise(first: int) -> None:
    run_seeds(first, CHUNK, 5, 8.0)


def test_a_seed_gives_the_same_run_twice() -> None:
    """A seed is useful in a bug report only if it replays the run."""
    first, second = run_seed(4, 3, 5.0), run_seed(4, 3, 5.0)
    assert (first.events, first.now, first.committed, first.trace) == (second.events, second.now, second.committed, second.trace)


# -- Kafka's properties (RaftEventSimulationTest) -----------------------------------------------------------------------


@pytest.mark.parametrize("voters", [1, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_can_elect_initial_leader_at_once(voters: int, seed: int) -> None:
    """At the first start there must be a leader within a fraction of a second, or the cluster starts slowly."""
    simulation = Simulation(seed, voters)
    simulation.start_all()
    taken = simulation.run_until(lambda: simulation.leader() is not None, 0.3, "a first leader")
    assert voters > 1 or taken < 0.02


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_can_elect_new_leader_after_old_leader_failure(voters: int, seed: int) -> None:
    """The connections of a killed leader break at once, so the voters need not wait for the fetch timeout."""
    simulation = steady(seed, voters)
    leader = simulation.leader()
    assert leader is not None
    simulation.crash(leader.id)
    simulation.run_until(lambda: simulation.leader() is not None, 0.5, "a successor")
    simulation.recover()


@pytest.mark.parametrize("seed", range(5))
def test_can_recover_after_all_nodes_killed(seed: int) -> None:
    simulation = steady(seed, 3)
    committed = simulation.committed_end
    for node_id in simulation.nodes:
        simulation.crash(node_id)
    simulation.run(1.0)
    simulation.recover()
    assert simulation.committed_end > committed


@pytest.mark.parametrize("seed", range(20))
def test_can_elect_new_leader_after_old_leader_partitioned_away(seed: int) -> None:
    simulation = steady(seed, 3)
    old = simulation.leader()
    assert old is not None
    simulation.partition([old.id])
    others = [sim for sim in simulation.nodes.values() if sim is not old]
    simulation.run_until(lambda: any(sim.state.is_leader for sim in others), 3.0, "a leader on the other side")
    simulation.recover()


@pytest.mark.parametrize("seed", range(5))
def test_can_make_progress_if_majority_is_reachable(seed: int) -> None:
    simulation = steady(seed, 5)
    leader = simulation.leader()
    assert leader is not None
    others = [node_id for node_id in simulation.nodes if node_id != leader.id]
    simulation.partition(others[:2])
    before = simulation.committed_end
    simulation.append(leader.id, 3)
    simulation.run_until(lambda: simulation.committed_end >= before + 3, 0.1, "a commit by the majority")


@pytest.mark.parametrize("seed", range(5))
def test_can_make_progress_after_back_to_back_leader_failures(seed: int) -> None:
    simulation = steady(seed, 5)
    for _ in range(5):
        leader = simulation.leader()
        assert leader is not None
        simulation.crash(leader.id)
        simulation.run_until(lambda: simulation.leader() is not None, 2.0, "the next leader")
        simulation.start(leader.id)
        simulation.run(0.5)
    simulation.recover()


def steady(seed: int, voters: int) -> Simulation:
    """A quorum with a leader, followers and some committed records."""
    simulation = Simulation(seed, voters)
    simulation.start_all()
    simulation.recover()
    for _ in range(5):
        leader = simulation.leader()
        assert leader is not None
        simulation.append(leader.id, 2)
        simulation.run(0.05)
    return simulation


# -- S50 ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_an_isolated_leader_resigns_and_commits_nothing(seed: int) -> None:
    """S50: within 1.5 times the fetch timeout it must assume that it was replaced."""
    simulation = steady(seed, 3)
    old = simulation.leader()
    assert old is not None
    before = old.state.high_watermark
    simulation.partition([old.id])
    simulation.append(old.id)
    limit = RaftConfig().check_quorum_timeout_ms / 1000 + 0.01  # a fetch may have been in flight
    simulation.run_until(lambda: not old.state.is_leader, limit, "resignation")
    assert old.state.high_watermark == before


@pytest.mark.parametrize("seed", range(10))
def test_a_rejoining_voter_does_not_depose_a_healthy_leader(seed: int) -> None:
    """S50, KIP-996: however long the voter was cut off, its epoch has not grown."""
    simulation = steady(seed, 3)
    leader = simulation.leader()
    assert leader is not None
    epoch = leader.state.epoch
    lost = next(sim for sim in simulation.nodes.values() if sim is not leader)
    simulation.partition([lost.id])
    simulation.run(20.0)
    simulation.heal()
    simulation.run(5.0)
    assert leader.state.is_leader
    assert {sim.state.epoch for sim in simulation.nodes.values()} == {epoch}


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_stops_in_order_is_replaced_at_once(seed: int) -> None:
    """EndQuorumEpoch: the best successor waits for no timeout and no backoff."""
    simulation = steady(seed, 3)
    old = simulation.leader()
    assert old is not None
    old.raft.resign(simulation.now)
    simulation._settle(old)
    simulation.run_until(lambda: simulation.leader() is not None, 0.1, "the successor")
    assert simulation.leader() is not old


# -- the checkers notice ------------------------------------------------------------------------------------------------


def send_at_once(self: RaftState, to_id: int, api_key: int, body: Message, *, after_sync: bool) -> None:
    self.outbox.at_once.append(Send(to_id, api_key, body, self.role))


def reply_at_once(self: RaftState, ticket: object, body: Message) -> None:
    self.outbox.at_once.append(Reply(ticket, body))


def count_old_epochs(self: LeaderHandler, now: float) -> None:
    state, role = self.state, self.state.role
    assert isinstance(role, Leader)
    ends = sorted([role.flushed_offset, *(progress.end_offset for progress in role.voters.values())], reverse=True)
    state.advance_high_watermark(min(ends[len(ends) // 2], state.log.end_offset))


ADVANCE = LeaderHandler.maybe_advance_high_watermark


def count_itself_before_the_disk(self: LeaderHandler, now: float) -> None:
    assert isinstance(self.state.role, Leader)
    self.state.role.flushed_offset = self.state.log.end_offset
    ADVANCE(self, now)


def accept_any_log(self: ElectionHandler, request: VoteRequest) -> bool:
    return True


START = RoleTransitions.start


def lead_the_old_epoch_again(self: RoleTransitions, now: float) -> None:
    START(self, now)
    state = self.state
    if state.election.leader_id == state.node_id:
        state.role = Leader(state.log.end_offset, now, state.log.end_offset, {})


MUTANTS: dict[str, list[tuple[type, str, Callable[..., object]]]] = {
    "M12, votes before the disk": [(RaftState, "send", send_at_once), (RaftState, "reply_after_sync", reply_at_once)],
    "M13, Raft's figure 8": [(LeaderHandler, "maybe_advance_high_watermark", count_old_epochs)],
    "counts itself before the disk": [(LeaderHandler, "maybe_advance_high_watermark", count_itself_before_the_disk)],
    "votes for any log": [(ElectionHandler, "is_up_to_date", accept_any_log)],
    "KAFKA-10527, leads its old epoch again": [(RoleTransitions, "start", lead_the_old_epoch_again)],
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_finds_a_removed_guard(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation in which no mutant fails proves nothing."""
    for owner, name, replacement in MUTANTS[mutant]:
        monkeypatch.setattr(owner, name, replacement)
    for seed in range(150):
        try:
            run_seed(seed, 3, 8.0)
        except Violation:
            return
    pytest.fail(f"{mutant} survived")
