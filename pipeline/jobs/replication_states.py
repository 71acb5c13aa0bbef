"""The states of one partition, leader and ISR, from the lines of all nodes. Pure.

Order comes from the partition epoch, which the controller raises with every change of leader or ISR, not from clocks. So lines
of several machines fall into place, and a state that two nodes logged is one state. The controller's line counts most: it has
the cause; then the leader's, then a follower's, for logs in which the controllers' are missing. When a controller lost its
office before a decision was committed, the next one gives the same epoch to another decision: the later one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.pipeline.jobs.replication_facts import Fact

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class State:
    epoch: int
    at_us: int
    rank: int
    """Who logged it: 2 the controller, 1 the leader, 0 a follower."""
    node: str
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...] = ()
    min_isr: int = 0
    """0: unknown."""
    cause: str = ""
    metadata_offset: int | None = None
    before: tuple[int, tuple[int, ...]] | None = None
    """Leader and ISR before the change, where the line has them."""


def first_known(states: Sequence[State]) -> tuple[tuple[int, ...], int]:
    replicas = next((state.replicas for state in states if state.replicas), ())
    return replicas, next((state.min_isr for state in states if state.min_isr), 0)


def min_isr_of_topics(facts: Iterable[Fact]) -> dict[str, int]:
    """What the last line of any of a topic's leaders said. It stands in for partitions whose leaders logged nothing, because they
    got their roles with many others."""
    known: dict[str, tuple[int, int]] = {}
    for fact in facts:
        if fact.topic is not None and (count := fact.fields.get("min_insync_replicas")):
            known[fact.topic] = max(known.get(fact.topic, (0, 0)), (fact.at_us, int(count)))
    return {topic: count for topic, (_, count) in known.items()}


def merged_states(facts: Sequence[Fact]) -> Iterable[State]:
    """One state per partition epoch: the best line, with what the others add."""
    best: dict[int, State] = {}
    for fact in facts:
        state = _state_of(fact)
        if state is None:
            continue
        known = best.get(state.epoch)
        best[state.epoch] = state if known is None else _better(known, state)
    return best.values()


def _better(known: State, other: State) -> State:
    first, second = sorted((known, other), key=lambda state: state.rank)
    if known.rank == other.rank:
        # Two decisions of controllers: the later one was committed. Two lines of brokers: the earlier one is when it happened.
        first, second = (known, other) if known.rank == _CONTROLLER else (other, known)
    same = (first.leader, first.isr) == (second.leader, second.isr)
    return replace(second, min_isr=second.min_isr or (first.min_isr if same else 0), replicas=second.replicas or first.replicas)


_CONTROLLER, _LEADER, _FOLLOWER = 2, 1, 0


def _state_of(fact: Fact) -> State | None:
    fields, epoch = fact.fields, fact.fields.get("partition_epoch")
    if epoch is None or "isr" not in fields or fact.event not in _RANKS:
        return None
    leader = fields.get("leader_id", fact.broker)
    before = (fields["previous_leader_id"], tuple(fields["previous_isr"])) if "previous_isr" in fields else None
    return State(
        int(epoch), fact.at_us, _RANKS[fact.event], fact.node, NO_LEADER if leader is None else int(leader),
        int(fields.get("leader_epoch", -1)), tuple(fields["isr"]), tuple(fields.get("replicas") or ()),
        int(fields.get("min_insync_replicas", 0)), str(fields.get("cause") or ""), fields.get("metadata_offset"), before,
    )  # fmt: skip


_RANKS = {
    "partition.changed": _CONTROLLER,
    "partition.became_leader": _LEADER,
    "isr.committed": _LEADER,
    "partition.became_follower": _FOLLOWER,
}
