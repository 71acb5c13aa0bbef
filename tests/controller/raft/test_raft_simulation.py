"""The quorum under a bad network and bad disks, from seeds; and proof that the checkers would notice.

A failing seed prints itself. To replay it alone: `RAFT_SEED=17 pytest tests/controller/raft/test_raft_simulation.py`.
"""

from __future__ import annotations

import os

import pytest
from raft_simulation import ROUGH, Simulation, Violation, Weather

from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.node import RaftNode
from strandline.controller.raft.outbox import Reply, Send
from strandline.controller.raft.roles import Leader
from strandline.protocol.messages.cluster import VoteRequest
from strandline.protocol.messages.common import Message

ONLY = os.environ.get("RAFT_SEED")
CHUNK = 25


def run_seed(
    seed: int, voters: int, seconds: float, node_class: type[RaftNode] = RaftNode, weather: Weather = ROUGH
) -> Simulation:
    simulation = Simulation(seed, voters, weather, node_class=node_class)
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
    """Crashes with loss of what was not flushed, partitions, delays, snapshots; then all must agree again."""
    done = run_seeds(first, CHUNK, 3, 8.0)
    assert ONLY or sum(simulation.committed_end for simulation in done) > CHUNK * 5, "too rough: nothing was tried"


@pytest.mark.parametrize("first", range(1000, 1075, CHUNK))
def test_five_voters_keep_every_promise(first: int) -> None:
    run_seeds(first, CHUNK, 5, 8.0)


def test_a_seed_gives_the_same_run_twice() -> None:
    """A seed is a bug report only if it replays."""
    first, second = run_seed(4, 3, 5.0), run_seed(4, 3, 5.0)
    assert (first.events, first.now, first.committed, first.trace) == (second.events, second.now, second.committed, second.trace)


# -- Kafka's properties (RaftEventSimulationTest) -----------------------------------------------------------------------


@pytest.mark.parametrize("voters", [1, 3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_can_elect_initial_leader_at_once(voters: int, seed: int) -> None:
    """At the first start a leader must be there within a fraction of a second, or the cluster's start is slow."""
    simulation = Simulation(seed, voters)
    simulation.start_all()
    taken = simulation.run_until(lambda: simulation.leader() is not None, 0.3, "a first leader")
    assert voters > 1 or taken < 0.02


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("seed", range(10))
def test_can_elect_new_leader_after_old_leader_failure(voters: int, seed: int) -> None:
    """A killed leader's connections break at once: no need to wait for the fetch timeout."""
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
    simulation.run_until(lambda: any(sim.raft.is_leader for sim in others), 3.0, "a leader on the other side")
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
    """S50: it must know within 1.5 times the fetch timeout that it may have been replaced."""
    simulation = steady(seed, 3)
    old = simulation.leader()
    assert old is not None
    before = old.raft.high_watermark
    simulation.partition([old.id])
    simulation.append(old.id)
    limit = RaftConfig().check_quorum_timeout_ms / 1000 + 0.01  # a fetch may have been on its way
    simulation.run_until(lambda: not old.raft.is_leader, limit, "resignation")
    assert old.raft.high_watermark == before


@pytest.mark.parametrize("seed", range(10))
def test_a_rejoining_voter_does_not_depose_a_healthy_leader(seed: int) -> None:
    """S50, KIP-996: however long it was cut off, its epoch has not grown."""
    simulation = steady(seed, 3)
    leader = simulation.leader()
    assert leader is not None
    epoch = leader.raft.epoch
    lost = next(sim for sim in simulation.nodes.values() if sim is not leader)
    simulation.partition([lost.id])
    simulation.run(20.0)
    simulation.heal()
    simulation.run(5.0)
    assert leader.raft.is_leader
    assert {sim.raft.epoch for sim in simulation.nodes.values()} == {epoch}


@pytest.mark.parametrize("seed", range(10))
def test_a_leader_that_stops_in_order_is_replaced_at_once(seed: int) -> None:
    """EndQuorumEpoch: the best successor needs no timeout and no backoff."""
    simulation = steady(seed, 3)
    old = simulation.leader()
    assert old is not None
    old.raft.resign(simulation.now)
    simulation._settle(old)
    simulation.run_until(lambda: simulation.leader() is not None, 0.1, "the successor")
    assert simulation.leader() is not old


# -- the checkers notice ------------------------------------------------------------------------------------------------


class VotesBeforeTheDisk(RaftNode):
    """M12."""

    def send(self, to_id: int, api_key: int, body: Message, *, after_sync: bool) -> None:
        self.outbox.at_once.append(Send(to_id, api_key, body, self.role))

    def reply_after_sync(self, ticket: object, body: Message) -> None:
        self.outbox.at_once.append(Reply(ticket, body))


class CommitsByCountingOldEpochs(RaftNode):
    """M13, Raft's figure 8."""

    def maybe_advance_high_watermark(self, now: float) -> None:
        role = self.role
        assert isinstance(role, Leader)
        ends = sorted([role.flushed_offset, *(progress.end_offset for progress in role.voters.values())], reverse=True)
        self.advance_high_watermark(min(ends[len(ends) // 2], self.log.end_offset))


class CountsItselfBeforeTheDisk(RaftNode):
    def maybe_advance_high_watermark(self, now: float) -> None:
        assert isinstance(self.role, Leader)
        self.role.flushed_offset = self.log.end_offset
        super().maybe_advance_high_watermark(now)


class VotesForAnyLog(RaftNode):
    def _is_up_to_date(self, request: VoteRequest) -> bool:
        return True


class LeadsItsOldEpochAgain(RaftNode):
    """KAFKA-10527."""

    def start(self, now: float) -> None:
        super().start(now)
        if self.election.leader_id == self.node_id:
            self.role = Leader(self.log.end_offset, now, self.log.end_offset, {})


@pytest.mark.parametrize(
    "mutant", [VotesBeforeTheDisk, CommitsByCountingOldEpochs, CountsItselfBeforeTheDisk, VotesForAnyLog, LeadsItsOldEpochAgain]
)
def test_the_simulation_finds_a_removed_guard(mutant: type[RaftNode]) -> None:
    """A simulation that no mutant fails proves nothing."""
    for seed in range(150):
        try:
            run_seed(seed, 3, 8.0, mutant)
        except Violation:
            return
    pytest.fail(f"{mutant.__name__} survived")
