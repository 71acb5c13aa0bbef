"""The fault budget: the faults that the nemesis may cause so that every loss is a bug.

These are the faults that acks=all promises to survive. Any process may die at any time (its page cache survives). Of the replicas
of a partition, `min.insync.replicas - 1` (one, if that is zero and others are in sync) may lose what they had not synced (a power
cut, an empty disk) before the ISR is full again, and never the last member of the ISR. The disk of one broker may rot: then that
broker is never the only one left. A replica that has lost something must also leave the ISR before the rest of the ISR does,
because without eligible leader replicas (KIP-966) the last member of an ISR leads again, whatever happened to its disk. So from
the loss until the controller has removed the replica (its **window**), no fault may strike all other members of one of its ISRs.

Controllers fsync before they answer, so power cuts of all of them are within the budget. An empty disk is a loss: a minority of
the quorum may have one between two moments at which every controller runs and is caught up. A disk that rots is a loss until the
end: from then on the budget does not rely on that controller's records, nor on that it runs.

The budget reads the committed metadata of the active controller. Without an active controller it permits no loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.cluster.cluster import SimCluster

HANGS_S = 0.1
"""A node that is blocked by its disk for longer is not healthy; an operation of a good disk takes less."""


@dataclass(slots=True)
class Budget:
    cluster: SimCluster
    enforced: bool = True
    """False: losses are permitted in this run."""
    exceeded: bool = False
    """Something happened that the budget does not cover. Only if it is not enforced."""
    losses: int = 0
    touched: Counter[int] = field(default_factory=Counter)
    """Node -> the number of faults that affect it at present (down, paused, cut off, slow)."""
    _lossy: dict[TopicIdPartition, set[int]] = field(default_factory=dict)
    """Partition -> the brokers that have lost something since the ISR was last full."""
    _windows: dict[int, int] = field(default_factory=dict)
    """Brokers that have lost something and may still be in an ISR: broker -> its broker epoch before the loss."""
    _armed: Counter[int] = field(default_factory=Counter)
    """Broker -> the number of armed faults that may still cause a loss on it."""
    rotten: set[int] = field(default_factory=set)
    """The broker whose disk holds bytes that were not written there."""
    rotten_controllers: set[int] = field(default_factory=set)
    """Controllers whose disks hold bytes that were not written there."""
    _reassigning: int = 0
    """Number of requests under way that may take replicas away from partitions."""
    _wiped: set[int] = field(default_factory=set)
    """Controllers that restarted with an empty disk since all were last caught up."""

    # -- asking -------------------------------------------------------------------------------------------------------

    def may_touch(self, nodes: Collection[int]) -> bool:
        """Whether a fault may begin at these nodes now: a crash, a pause, a cut link, a slow disk. Not if only they hold all
        records of a partition, because another replica has lost some."""
        if not self.enforced or not self.windows:
            return True
        self.look()
        windows = set(self.windows)
        if all(n in nodes for n in self.cluster.controller_ids):
            nodes = (*nodes, *self.cluster.broker_ids)  # No heartbeat of a broker arrives.
        return all(self._survivors(p, nodes) for p in self._partitions() if windows & set(p.replicas))

    def may_lose(self, broker: int) -> bool:
        """Whether this broker's disk may lose what was not synced. If losses are permitted it may, unless that could leave the
        only copy of a record with a broker that cannot read it."""
        return (not self.enforced and self.rotten <= {broker}) or self._may_lose(broker)

    def _may_lose(self, broker: int) -> bool:
        self.look()
        if self._reassigning:
            return False
        if self.cluster.active_controller is None or all(self.touched[n] for n in self.cluster.controller_ids):
            return False
        image = self.cluster.image()
        for key, p in self._keyed(image):
            if broker in p.replicas:
                lost = self._lossy.get(key, set()) | {broker}
                if len(lost) > max(1, self._min_isr(image, key, p) - 1) or not self._survivors(p, (broker,)):
                    return False
        return True

    def may_rot(self, broker: int) -> bool:
        """Whether this broker's disk may return bytes that were not written there. This holds even if losses are permitted: a
        cluster cannot recover if the only copy is unreadable. (A leader that was paused may remove its followers from the ISR,
        because none has fetched meanwhile, and continue alone.)"""
        return self.rotten <= {broker} and self._is_well(broker) and self._may_lose(broker)

    def may_wipe_controller(self, node: int) -> bool:
        """Whether this controller may restart with an empty disk. This holds even if losses are permitted: a quorum that has lost
        its majority for good rightly stops."""
        self.look()
        ids = self.cluster.controller_ids
        others_well = all(n in self.cluster.controllers and not self.touched[n] for n in ids if n != node)
        return others_well and len(self._wiped | self.rotten_controllers | {node}) <= (len(ids) - 1) // 2

    def may_rot_controller(self, node: int) -> bool:
        """Whether this controller's disk may return bytes that were not written there, even if losses are permitted."""
        return self.rotten_controllers <= {node} and self.may_wipe_controller(node)

    def _survivors(self, partition: Any, nodes: Collection[int]) -> bool:
        """Whether a member of the ISR is healthy and not among these nodes. A member that a reassignment removes does not count
        if the reassignment may complete now."""
        isr = partition.isr
        if partition.removing_replicas and set(partition.adding_replicas) <= set(isr):
            isr = [n for n in isr if n not in partition.removing_replicas]
        return any(n not in nodes and n not in self.windows and self._is_well(n) for n in isr)

    def _is_well(self, broker: int) -> bool:
        server = self.cluster.brokers.get(broker)
        is_ready = server is not None and server.ready.is_set() and not self.touched[broker] and not self._hangs(broker)
        return is_ready and self._is_heard(broker)

    def _is_heard(self, broker: int) -> bool:
        """Whether at least half of the broker's session is left. (A fault that has ended may have delayed its heartbeats.)"""
        server = self.cluster.active_controller
        active = None if server is None else server.controller.active
        if server is None or active is None:
            return False
        sessions = [session for session in active.sessions.all() if session.broker_id == broker]
        return any(session.deadline - server.controller.now() > active.sessions.timeout_s / 2 for session in sessions)

    def _hangs(self, broker: int) -> bool:
        """Whether its process waits for its disk. (A stalled disk can block a process for longer than the fault lasts.)"""
        loop = self.cluster.machines[broker].loop
        return loop is not None and loop.busy_until > self.cluster.world.now + HANGS_S

    @contextmanager
    def reassigning(self) -> Iterator[None]:
        """Within the block, replicas may leave their partitions at any moment, so no disk may lose anything."""
        self._reassigning += 1
        try:
            yield
        finally:
            self._reassigning -= 1

    # -- notifications ------------------------------------------------------------------------------------------------

    @contextmanager
    def touching(self, *nodes: int) -> Iterator[None]:
        """Within the block, a fault affects these nodes."""
        self.touched.update(nodes)
        try:
            yield
        finally:
            self.touched.subtract(nodes)

    def lost(self, broker: int) -> None:
        """This broker's disk may have lost something now."""
        self.exceeded = self.exceeded or (not self.enforced)
        self.losses += 1
        image = self.cluster.image()
        known = image.brokers.get(broker)
        self._windows[broker] = known.broker_epoch if known is not None else -1
        for key, p in self._keyed(image):
            if broker in p.replicas:
                self._lossy.setdefault(key, set()).add(broker)

    def arm(self, broker: int) -> None:
        """A fault is armed that may cause a loss on this broker; when it strikes, `lost` is called as well."""
        self._armed[broker] += 1
        for key, p in self._keyed(self.cluster.image()):
            if broker in p.replicas:
                self._lossy.setdefault(key, set()).add(broker)

    def disarm(self, broker: int) -> None:
        """One fault of `arm` is over and can no longer cause a loss on this broker."""
        self._armed[broker] -= 1

    def rots(self, broker: int) -> None:
        """From now on the budget does not rely on any record of this broker."""
        self.exceeded = self.exceeded or (not self.enforced)
        self.losses += 1
        self.rotten.add(broker)
        self.arm(broker)

    def rots_controller(self, node: int) -> None:
        self.losses += 1
        self.rotten_controllers.add(node)

    def wiped_controller(self, node: int) -> None:
        self.losses += 1
        self._wiped.add(node)

    def look(self) -> None:
        """Update which windows are over and which ISRs are full. Called regularly."""
        if self.cluster.active_controller is None or not self.cluster.brokers:
            return
        # The controller's own image is ahead of the committed one, and may be reverted. Brokers have the committed one.
        image = max((b.metadata.image for b in self.cluster.brokers.values()), key=lambda image: image.offset)
        partitions = [p for _, p in self._keyed(image)]
        for broker, epoch in list(self._windows.items()):
            known = image.brokers.get(broker)
            is_out = known is not None and known.fenced and all(broker not in p.isr for p in partitions)
            if is_out or (known is not None and known.broker_epoch > epoch and self._is_of_present(broker, known)):
                del self._windows[broker]
        for key, p in self._keyed(image):
            if key in self._lossy and set(p.isr) == set(p.replicas) and not set(self.windows) & set(p.replicas):
                del self._lossy[key]
        if self._wiped and self._controllers_caught_up():
            self._wiped.clear()

    def _is_of_present(self, broker: int, known: Any) -> bool:
        """Whether the registration is that of the present process. (That of the process that lost something may be committed
        late.)"""
        server = self.cluster.brokers.get(broker)
        return server is not None and server.incarnation_id == known.incarnation_id

    def _controllers_caught_up(self) -> bool:
        controllers = self.cluster.controllers
        offsets = [c.controller.image.offset for c in controllers.values() if c.has_quorum and c.quorum.has_vote]
        return len(offsets) == len(self.cluster.controller_ids) and max(offsets) - min(offsets) <= 1

    @property
    def windows(self) -> list[int]:
        """Brokers that have lost something and may still be in an ISR."""
        return sorted({*self._windows, *(n for n, count in self._armed.items() if count > 0)})

    @property
    def open_windows(self) -> list[int]:
        """The windows that will end soon: all but that of a broker with a rotten disk, which may stay in its ISRs."""
        return [n for n in self.windows if n not in self.rotten]

    @property
    def wiped_controllers(self) -> list[int]:
        """Controllers that have lost their disk and not caught up since. To do so, they need *all* others, not a majority."""
        return sorted(self._wiped)

    # -- reading the metadata -----------------------------------------------------------------------------------------

    def _keyed(self, image: Any) -> Iterator[tuple[TopicIdPartition, Any]]:
        for topic_id, topic in image.topics_by_id.items():
            for index, partition in topic.partitions.items():
                yield (bytes(topic_id), index), partition

    def _partitions(self) -> Iterable[Any]:
        return [partition for _, partition in self._keyed(self.cluster.image())]

    def _min_isr(self, image: Any, key: TopicIdPartition, partition: Any) -> int:
        name = image.topics_by_id[key[0]].name
        return min(int(image.topic_config(name)["min.insync.replicas"]), len(partition.replicas))
