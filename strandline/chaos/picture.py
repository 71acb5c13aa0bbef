"""The known state of a cluster, and the nodes that a scenario's target means. No clock, no network.

Several brokers describe the same partition, and a broker that is cut off describes an old state. The partition epoch
grows with every change, so the description with the highest one is the newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from strandline.protocol.errors import StrandlineError
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

BROKER, CONTROLLER = "broker", "controller"


class NoTarget(StrandlineError):
    """A target means no node at present."""


class Member(NamedTuple):
    """A node of the cluster. Clients reach a broker at `host` and `port`; a controller has none."""

    name: str
    role: str
    id: int
    host: str = ""
    port: int = 0
    security: ClientSecurity = NO_SECURITY
    """How clients connect to it."""


class PartitionState(NamedTuple):
    leader: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.leader >= 0 and set(self.isr) == set(self.replicas)


class VoterState(NamedTuple):
    """A controller's progress, as the active controller reports it."""

    is_caught_up: bool
    """True if the voter's log holds every committed metadata record."""
    fetched_at: float
    """Time of the voter's last fetch, on the clock of `perf_counter`; minus infinity if it never fetched."""


class Change(NamedTuple):
    """An observed change, as a sentence and as fields."""

    text: str
    fields: Mapping[str, object]


@dataclass(slots=True)
class Picture:
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    topic_id: bytes = b""
    controller: int = -1
    controller_epoch: int = -1
    voters: dict[int, VoterState] = field(default_factory=dict)
    broker_epochs: dict[int, int] = field(default_factory=dict)
    """Broker id -> the highest broker epoch seen; a broker that registers again gets a higher one."""

    def on_partition(self, index: int, state: PartitionState) -> Change | None:
        """Take a description of a partition; returns the change if it is newer than the known one."""
        known = self.partitions.get(index)
        if known is not None and state.partition_epoch <= known.partition_epoch:
            return None
        self.partitions[index] = state
        return None if known is None else _change(index, known, state)

    def on_quorum(self, leader: int, epoch: int, voters: Mapping[int, VoterState]) -> Change | None:
        if epoch < self.controller_epoch or leader < 0:
            return None
        self.voters = dict(voters)
        if (leader, epoch) == (self.controller, self.controller_epoch):
            return None
        before, epoch_before = self.controller, self.controller_epoch
        self.controller, self.controller_epoch = leader, epoch
        if before < 0:
            return None
        text = f"active controller {before} -> {leader}, epoch {epoch_before} -> {epoch}"
        return Change(text, {"controller": leader, "controller_before": before, "controller_epoch": epoch})

    def on_broker(self, broker_id: int, epoch: int) -> Change | None:
        known = self.broker_epochs.get(broker_id)
        if known is not None and epoch <= known:
            return None
        self.broker_epochs[broker_id] = epoch
        if known is None:
            return None
        text = f"broker {broker_id} registered, broker epoch {known} -> {epoch}"
        return Change(text, {"broker": broker_id, "broker_epoch": epoch})

    def led_by(self, broker_ids: Iterable[int]) -> list[int]:
        """The partitions that these brokers lead, ascending."""
        ids = set(broker_ids)
        return [index for index, state in sorted(self.partitions.items()) if state.leader in ids]

    @property
    def is_whole(self) -> bool:
        return bool(self.partitions) and all(state.is_whole for state in self.partitions.values())


def _change(index: int, before: PartitionState, after: PartitionState) -> Change:
    parts = []
    if before.leader != after.leader:
        parts.append(f"leader {_id(before.leader)} -> {_id(after.leader)}")
    if before.leader_epoch != after.leader_epoch:
        parts.append(f"leader epoch {before.leader_epoch} -> {after.leader_epoch}")
    if set(before.isr) != set(after.isr):
        parts.append(f"ISR {_ids(before.isr)} -> {_ids(after.isr)}")
    text = f"partition {index}: {', '.join(parts) or f'partition epoch {after.partition_epoch}'}"
    fields = {
        "partition": index,
        "leader": after.leader,
        "leader_before": before.leader,
        "leader_epoch": after.leader_epoch,
        "partition_epoch": after.partition_epoch,
        "isr": list(after.isr),
        "isr_before": list(before.isr),
    }
    return Change(text, fields)


def _id(broker_id: int) -> str:
    return "none" if broker_id < 0 else str(broker_id)


def _ids(ids: Iterable[int]) -> str:
    return "[" + ",".join(map(str, sorted(ids))) + "]"


def resolve(
    target: str | Sequence[str],
    picture: Picture,
    members: Sequence[Member],
    aliases: Mapping[str, Sequence[str]],
    small_disk: str,
) -> list[str]:
    """The names of the nodes that a target means now, without duplicates, in order. Raises NoTarget if there is none.

    `aliases`: the names that earlier steps gave with `as`. `small_disk`: the name of the broker with the small disk.
    """
    words = [target] if isinstance(target, str) else target
    names: list[str] = []
    for word in words:
        names += aliases[word] if word in aliases else _resolve(word, picture, members, small_disk)
    return list(dict.fromkeys(names))


def _resolve(word: str, picture: Picture, members: Sequence[Member], small_disk: str) -> list[str]:
    brokers = [m for m in members if m.role == BROKER]
    controllers = [m for m in members if m.role == CONTROLLER]
    if word.startswith("every-"):
        return [m.name for m in {"broker": brokers, "controller": controllers, "node": list(members)}[word[6:]]]
    if word in ("leader", "follower", "followers"):
        return _of_partition(word, picture.partitions.get(0), brokers)
    if word in ("active-controller", "standby-controller"):
        return _of_quorum(word, picture.controller, controllers)
    found = [m.name for m in members if m.name == (small_disk if word == "small-disk" else word)]
    if not found:
        raise NoTarget(f"there is no node {word!r}; there are {', '.join(m.name for m in members)}")
    return found


def _of_partition(word: str, state: PartitionState | None, brokers: Sequence[Member]) -> list[str]:
    if state is None or state.leader < 0:
        raise NoTarget(f'"{word}" means no node: partition 0 has no leader at present')
    if word == "leader":
        return [m.name for m in brokers if m.id == state.leader]
    followers = [m.name for i in state.replicas if i != state.leader and i in state.isr for m in brokers if m.id == i]
    if not followers:
        raise NoTarget(f'"{word}" means no node: the ISR of partition 0 holds only its leader')
    return followers[:1] if word == "follower" else followers


def _of_quorum(word: str, active: int, controllers: Sequence[Member]) -> list[str]:
    if active < 0:
        raise NoTarget(f'"{word}" means no node: no active controller is known')
    is_meant = [m.name for m in controllers if (m.id == active) == (word == "active-controller")]
    if not is_meant:
        raise NoTarget(f'"{word}" means no node: it is none of {", ".join(m.name for m in controllers)}')
    return is_meant[:1]
