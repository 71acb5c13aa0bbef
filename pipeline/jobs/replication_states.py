"""Merges the lines of all nodes into the states (leader and ISR) of one partition. Pure.

States are identified and ordered by the partition epoch, which the controller increments with every change of leader or ISR.
Clocks do not matter. If several nodes logged a state, the controller's line is preferred, because it has the cause; then the
leader's, then a follower's. If a controller was replaced before its decision was committed, the next controller may use the same
epoch for another decision; then the later decision counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strandline.pipeline.jobs.replication_facts import Fact

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class State:
    """A leader and an ISR of a partition, and what the line about them says."""

    epoch: int
    """The partition epoch."""
    at_us: int
    rank: int
    """The role of the node that logged it: 2 controller, 1 leader, 0 follower. A line of a higher rank is preferred."""
    node: str
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...] = ()
    min_isr: int = 0
    """`min.insync.replicas`; 0: unknown."""
    cause: str = ""
    metadata_offset: int | None = None
    before: tuple[int, tuple[int, ...]] | None = None
    """Leader and ISR before the change; None: the line does not have them."""


def first_known(states: Sequence[State]) -> tuple[tuple[int, ...], int]:
    """The replicas and the min ISR of the first state that has them; () and 0 if none has."""
    replicas = next((state.replicas for state in states if state.replicas), ())
    return replicas, next((state.min_isr for state in states if state.min_isr), 0)


def min_isr_of_topics(facts: Iterable[Fact]) -> dict[str, int]:
    """Topic -> `min.insync.replicas` in the newest line of any of its leaders. It is used for the partitions without such a line:
    a broker that becomes leader of many partitions at once logs none."""
    known: dict[str, tuple[int, int]] = {}
    for fact in facts:
        if fact.topic is not None and (count := fact.fields.get("min_insync_replicas")):
            known[fact.topic] = max(known.get(fact.topic, (0, 0)), (fact.at_us, int(count)))
    return {topic: count for topic, (_, count) in known.items()}


def merged_states(facts: Sequence[Fact]) -> Iterable[State]:
    """One state per partition epoch: the preferred line, completed by the others."""
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
        # Two controllers decided: the later decision was committed. Two brokers logged the state: the earlier line has its time.
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
