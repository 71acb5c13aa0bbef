"""The ISR as its leader sees it: committed, or committed with one proposed change in flight.

Only the controller commits an ISR. While a proposal is in flight, the leader cannot know whether it was committed, so it allows
for both: the *maximal* ISR holds every replica that the controller may consider in sync at this moment (KIP-497).

    state             isr                  maximal ISR              why
    CommittedIsr      committed            = isr
    PendingExpandIsr  last committed       isr + the new replica    stricter: if refused, no offset was committed too early
      withdrawn       last committed       isr + the new replica    refused, but a copy may still arrive and be accepted
    PendingShrinkIsr  last committed       = isr, not shrunk        a refused shrink must not have let the HW pass a member

States are compared by identity: an answer counts only if the state is still the one for which the proposal was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class CommittedIsr:
    """No proposal is in flight."""

    isr: tuple[int, ...]
    """Broker ids of the ISR that the controller committed. It contains the leader and is a subset of the assigned replicas."""
    maximal: frozenset[int] = field(init=False)
    is_in_flight = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "maximal", frozenset(self.isr))

    @property
    def committed(self) -> CommittedIsr:
        return self

    def expand(self, broker_id: int, broker_epoch: int) -> PendingExpandIsr:
        return PendingExpandIsr(self, broker_id, broker_epoch)

    def shrink(self, removed: tuple[int, ...], lost: tuple[int, ...] = ()) -> PendingShrinkIsr:
        return PendingShrinkIsr(self, removed, lost)


@dataclass(frozen=True, slots=True, eq=False)
class PendingExpandIsr:
    """The leader proposed to add one replica."""

    committed: CommittedIsr
    added: int
    """Not a member of `committed.isr`."""
    added_epoch: int
    """The broker epoch of the process that was found to be in sync. A later process of the same broker may have lost records, so
    no proposal names its epoch before its own log end was checked."""
    is_withdrawn: bool = False
    """The controller refused it, while an earlier copy of the proposal may still arrive. The leader then proposes the committed
    ISR without a change: accepting it raises the partition epoch, which makes every copy stale."""
    maximal: frozenset[int] = field(init=False)
    is_in_flight = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "maximal", self.committed.maximal | {self.added})

    @property
    def isr(self) -> tuple[int, ...]:
        return self.committed.isr

    @property
    def proposed(self) -> tuple[int, ...]:
        return self.committed.isr if self.is_withdrawn else (*self.committed.isr, self.added)

    def withdraw(self) -> PendingExpandIsr:
        return PendingExpandIsr(self.committed, self.added, self.added_epoch, is_withdrawn=True)


@dataclass(frozen=True, slots=True, eq=False)
class PendingShrinkIsr:
    """The leader proposed to remove the replicas that fell behind or have lost records."""

    committed: CommittedIsr
    removed: tuple[int, ...]
    """Members of `committed.isr`, never the leader."""
    lost: tuple[int, ...] = ()
    """Replicas that have lost committed records: they must not become or stay eligible leader replicas (KIP-966)."""
    is_in_flight = True

    @property
    def maximal(self) -> frozenset[int]:
        return self.committed.maximal

    @property
    def isr(self) -> tuple[int, ...]:
        return self.committed.isr

    @property
    def proposed(self) -> tuple[int, ...]:
        return tuple(member for member in self.committed.isr if member not in self.removed)


IsrState = CommittedIsr | PendingExpandIsr | PendingShrinkIsr
