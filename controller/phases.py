"""The phases of a controller's start. Each phase holds the one before it, so that no step can be taken too early."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.controller.controller import Controller
from strandline.controller.leader_balancer import LeaderBalancer
from strandline.controller.liveness import BrokerLiveness
from strandline.controller.name_expiry import NameExpiry
from strandline.controller.raft.quorum import Quorum
from strandline.controller.unclean_recoverer import UncleanRecoverer
from strandline.protocol.rpc.server import Server
from strandline.storage.directory.log_dir import LogDir


@dataclass(frozen=True, slots=True)
class Opened:
    """The ports are bound, the cluster is known and on the disk, and the metadata log is open."""

    servers: tuple[Server, ...]
    """One for each listener; the first is that of the quorum."""
    cluster_id: str
    log_dir: LogDir
    """Holds the lock and meta.properties. The quorum owns the metadata log in it."""
    controller: Controller
    quorum: Quorum
    liveness: BrokerLiveness
    name_expiry: NameExpiry
    leader_balancer: LeaderBalancer
    unclean_recoverer: UncleanRecoverer


@dataclass(frozen=True, slots=True)
class Running:
    """The quorum's node has taken up a role."""

    opened: Opened
