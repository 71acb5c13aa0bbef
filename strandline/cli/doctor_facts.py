"""The facts that `strandline doctor` collects about a cluster, before it judges them. Plain data: an unknown fact is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strandline.client import (
        ClusterDescription,
        ConfigEntry,
        FeaturesDescription,
        LogDirDescription,
        QuorumDescription,
        TopicDescription,
        UncleanElection,
    )


@dataclass(frozen=True, slots=True)
class Port:
    """An address, and what happened when it was tried from this machine."""

    address: str
    """host:port"""
    resolved: tuple[str, ...] = ()
    """The addresses of the host's name; empty if it cannot be resolved."""
    is_open: bool = False
    """Whether something accepts connections there."""
    error: str = ""
    """Why the address is of no use; empty if a node of Strandline answers."""
    speaks: str = ""
    """The protocol of another server that was recognised: HTTP, TLS, Kafka, or what it said first."""
    role: str = ""
    """"broker" or "controller" of the node that answers."""
    node_id: int = -1
    cluster_id: str | None = None
    elapsed_ms: float = 0

    @property
    def is_good(self) -> bool:
        return not self.error


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a node compared with that of this machine: ahead by at least `least_s` and at most `most_s`; negative: behind.
    HTTP's Date has whole seconds, so the bounds are more than a second apart."""

    least_s: float
    most_s: float

    @property
    def skew_s(self) -> float:
        """The smallest difference that explains the answer; 0 if the clocks may be equal."""
        return 0.0 if self.least_s <= 0 <= self.most_s else min(self.least_s, self.most_s, key=abs)


@dataclass(frozen=True, slots=True)
class NodePage:
    """The responses of a broker's HTTP port. `error`: why there are none."""

    address: str
    error: str = ""
    clock: Clock | None = None
    version: str = ""
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    """Log directory -> free bytes on its disk."""
    total_bytes: Mapping[str, int] = field(default_factory=dict)
    failed: tuple[str, ...] = ()
    """The readiness checks that the broker does not pass."""
    warnings: tuple[str, ...] = ()


@dataclass(slots=True)
class Facts:
    client_version: str
    bootstrap: list[Port]
    advertised: dict[int, Port] = field(default_factory=dict)
    """Broker -> the address that it advertises to Strandline's clients."""
    kafka: dict[int, list[Port]] = field(default_factory=dict)
    """Broker -> the addresses that it advertises to Kafka's clients. Only known: whether something accepts connections there."""
    voters: dict[int, Port] = field(default_factory=dict)
    """Controller -> its address."""
    cluster: ClusterDescription | None = None
    cluster_error: str = ""
    quorum: QuorumDescription | None = None
    features: FeaturesDescription | None = None
    topics: Sequence[TopicDescription] | None = None
    topic_configs: dict[str, list[ConfigEntry]] = field(default_factory=dict)
    broker_configs: dict[int, list[ConfigEntry] | None] = field(default_factory=dict)
    """Broker -> its configuration; None if it did not answer."""
    log_dirs: dict[int, Sequence[LogDirDescription] | None] = field(default_factory=dict)
    """Broker -> its log directories; None if it did not answer."""
    unclean_elections: Sequence[UncleanElection] = ()
    pages: dict[int, NodePage] = field(default_factory=dict)
    """Broker -> the responses of its HTTP port, for brokers whose HTTP address is known."""
    denied: dict[str, str] = field(default_factory=dict)
    """Question that the cluster refuses to answer ("quorum", "configuration", ...) -> the right that the user lacks, as a
    sentence."""
    is_filtered: bool = False
    """Whether the cluster shows the user only what they may describe."""

    def value(self, broker_id: int, key: str) -> str | None:
        """A value of a broker's configuration; None if it is not known."""
        return next((c.value for c in self.broker_configs.get(broker_id) or () if c.name == key), None)

    def kafka_addresses(self, broker_id: int) -> list[str]:
        """The addresses that a broker advertises to Kafka's clients, as host:port."""
        names = {name.strip().upper() for name in (self.value(broker_id, "kafka.listener.names") or "").split(",")}
        listeners = self.value(broker_id, "advertised.listeners") or self.value(broker_id, "listeners") or ""
        parts = (item.strip().partition("://") for item in listeners.split(","))
        return [address for name, _, address in parts if name.upper() in names]
