"""Begins the clients of a run's groups, pauses processes, and reports at the end what the groups have not read (I39)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from strandline.client import TopicPartition
from strandline.controller.metadata.internal_topics import INTERNAL_TOPICS
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.cluster.cluster import Client, SimCluster
from strandline.testing.simulation.cluster.groups.classic_member import ClassicMember
from strandline.testing.simulation.cluster.groups.clerk import Clerk
from strandline.testing.simulation.cluster.groups.configurer import Configurer
from strandline.testing.simulation.cluster.groups.handling import Handling, Origin, failures_of
from strandline.testing.simulation.cluster.groups.jobs import Jobs
from strandline.testing.simulation.cluster.groups.ledger import GroupLedger, Place, Stay, place_text
from strandline.testing.simulation.cluster.groups.program import Surroundings
from strandline.testing.simulation.cluster.groups.reader import Reader
from strandline.testing.simulation.group_plans import CLASSIC, CONFIGURES, CRASH, PAUSE, RETRIES, MemberPlan
from strandline.testing.simulation.invariants import group_sessions, groups
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.kernel.scheduler import cancel
from strandline.testing.simulation.options import Options

Begin = Callable[[str, Callable[[Client, str], Any], float], None]
"""Begins a client: its name, its work, and when its process dies (0: never), after which another process has the same work."""
ADMIN = {"request_timeout_ms": 1000, "max_block_ms": 1000, "connect_timeout_ms": 500}


class DeadLetter(NamedTuple):
    group: str
    origin: Origin


class Observed:
    """The ledger's view of the invariants: implements `ledger.Coordinators`."""

    def __init__(self, invariants: Invariants, clock: Callable[[], float]) -> None:
        self._ghosts = invariants.ghosts
        self._clock = clock
        self.note = invariants.note

    def incarnation(self, group: str) -> int:
        return self._ghosts.groups.incarnations[group]

    def answered(self, group: str, member_id: str, key: TopicIdPartition) -> int:
        return self._ghosts.groups.answered.get((group, member_id, key), -1)

    def is_doubtful(self, group: str, member_id: str) -> bool:
        return (group, member_id) in self._ghosts.groups.doubtful

    def longest_session_ms(self, group: str, member_id: str, within_ms: float) -> int:
        since = self._clock() - within_ms / 1000 / group_sessions.RATE_MIN
        return group_sessions.longest_sent_ms(self._ghosts, group, member_id, since)

    def committed(self, group: str, key: TopicIdPartition) -> int:
        return groups.committed(self._ghosts, group, key)


class GroupWork:
    """The groups of one run."""

    def __init__(
        self,
        cluster: SimCluster,
        options: Options,
        problems: list[str],
        going: Callable[[], bool],
        invariants: Invariants,
    ) -> None:
        session_ms = int(options.settings.get("group.consumer.session.timeout.ms", 45_000))
        self.cluster = cluster
        self.options = options
        self.ledger = GroupLedger(
            Observed(invariants, cluster.world.scheduler.clock), session_ms, loss_permitted=options.loss_permitted
        )
        self._around = Surroundings(cluster, options, self.ledger, problems, going)
        self.clerk = Clerk(self._around, cluster.world.stream("clerk"))
        self.jobs = Jobs(self._around, cluster.world.stream("jobs"))
        self.configurer = Configurer(self._around, invariants.ghosts.metadata, cluster.world.stream("configurer"))
        self._pauses: list[Any] = []

    def begin(self, begin: Begin) -> None:
        for number, plan in enumerate(self.options.members, 1):
            begin(f"m{number}", partial(self._live, plan=plan), plan.event_at_s if plan.event == CRASH else 0.0)
        for name in self.options.group_work:
            begin(name, self._change, 0.0)

    async def _live(self, client: Client, name: str, plan: MemberPlan) -> None:
        self.ledger.stays.pop(name.removesuffix("'"), None)  # the process that this one replaces is dead
        kind = ClassicMember if plan.protocol == CLASSIC else Handling if plan.run else Reader
        if plan.event == PAUSE:
            after, machine = self.cluster.world.scheduler.after, client.machine
            self._pauses.append(after(plan.event_at_s, machine.pause))
            self._pauses.append(after(plan.event_at_s + plan.event_for_s, machine.resume))
        await kind(self._around, client, name, plan).live()

    async def _change(self, client: Client, name: str) -> None:
        work: Any = {"clerk": self.clerk, "jobs": self.jobs, CONFIGURES: self.configurer}[name]
        admin = await self._around.started(lambda: client.admin(**ADMIN))
        if admin is None:
            return
        try:
            await work.work(client, admin)
        finally:
            await admin.stop()

    def end_disturbances(self) -> None:
        """Stop changing topics, offsets and configurations (except for one last change of the configuration of each group), and
        pause no more processes."""
        self.clerk.going = self.jobs.going = self.configurer.going = False
        for entry in self._pauses:
            cancel(entry)

    # -- at the end of a run ------------------------------------------------------------------------------------------

    def complaints(self) -> list[str]:
        """I39: partitions of subscribed topics that are not owned by exactly one member, or not read and committed to their
        end."""
        own = self.configurer.complaints() if CONFIGURES in self.options.group_work else ()
        return [*own, *(complaint for group in self._groups() for complaint in self._complaints_of(group))]

    def _groups(self) -> list[str]:
        return sorted({plan.group for plan in self.options.members})

    def _complaints_of(self, group: str) -> Iterator[str]:
        stays = [stay for _, stay in sorted(self.ledger.stays.items()) if stay.plan.group == group]
        if not stays:
            yield f"group {group} has no member"
        for tp, key in self.subscribed(stays):
            owners = [stay for stay in stays if stay.owned.get(tp) == key]
            if len(owners) != 1:
                yield f"{tp} has the owners {[owner.identity for owner in owners]} in group {group}"
            else:
                yield from self._unread(owners[0], tp, key)

    def subscribed(self, stays: list[Stay]) -> list[tuple[TopicPartition, tuple[bytes, int]]]:
        """The partitions of all topics to which one of these members subscribes, with their keys."""
        image = self.cluster.image()
        names = [name for name in sorted(image.topics_by_name) if name not in INTERNAL_TOPICS]
        found = []
        for name in names:
            if any(name in stay.topics if not stay.pattern else re.fullmatch(stay.pattern, name) for stay in stays):
                topic_id = bytes(image.topics_by_name[name])
                found += [(TopicPartition(name, n), (topic_id, n)) for n in sorted(image.topics_by_id[topic_id].partitions)]
        return found

    def _unread(self, owner: Stay, tp: TopicPartition, key: tuple[bytes, int]) -> Iterator[str]:
        end = self._high_watermark(key)
        position = owner.consumer.metrics()["partitions"].get(str(tp), {}).get("position", -1)
        if position < end:
            yield f"{owner.identity} has read {tp} up to {position} of {end} in group {owner.plan.group}"
        if self.options.loss_permitted:
            return  # the log may be shorter than it was, and the offsets may be lost
        committed = self.ledger.coordinators.committed(owner.plan.group, key)
        if tp.topic == RETRIES and committed < end:  # a record may be taken, and wait for its time
            yield f"group {owner.plan.group} has committed {committed} of {end} of {tp}"
        last = max(self.ledger.finished.get(Place(owner.plan.group, key), ()), default=-1)
        if last >= self._log_start(key) and committed <= last:
            yield f"group {owner.plan.group} has finished {tp} up to {last + 1}, and committed {committed}"

    def skipped(self, offsets_of: Callable[[TopicIdPartition], list[int]], dead: Callable[[], Iterator[DeadLetter]]) -> str:
        """I39: a record below the committed offset of a group that no member has finished, or one between the committed offset
        and the first record that a member received; empty if there is none. `offsets_of`: the records of a partition. `dead`:
        those of the dead-letter topic, which count as finished."""
        for letter in dead() if any(plan.run for plan in self.options.members) else ():
            if not failures_of(letter.group, letter.origin):
                return f"group {letter.group} has dead-lettered {letter.origin}, although no handler fails for it"
            topic = self.cluster.image().topic(letter.origin.topic)
            if topic is not None:
                place = Place(letter.group, (bytes(topic.topic_id), letter.origin.partition))
                self.ledger.finished.setdefault(place, set()).add(letter.origin.offset)
        for place in [place for place in self.ledger.finished if place.group not in self.ledger.sought]:
            committed = self.ledger.coordinators.committed(place.group, place.key)
            missing = self.ledger.missing(place, offsets_of(place.key), committed)
            if missing:
                return f"group {place.group} has committed {committed} of {place_text(place)}, and never finished {missing[:10]}"
        for start in self.ledger.starts:
            between = [offset for offset in offsets_of(start.place.key) if start.committed <= offset < start.first]
            if start.committed >= 0 and (start.first < start.committed or between):
                text = f"a member of group {start.place.group} began {place_text(start.place)} at {start.first}"
                return f"{text}, but the committed offset was {start.committed}"
        return ""

    def _high_watermark(self, key: TopicIdPartition) -> int:
        leader = self._leader(key)
        return 1 << 62 if leader is None else int(leader.log.high_watermark)

    def _log_start(self, key: TopicIdPartition) -> int:
        """The leader's log start. Records below it are deleted, so no member has to finish and commit them."""
        leader = self._leader(key)
        return 0 if leader is None else int(leader.log.log_start_offset)

    def _leader(self, key: TopicIdPartition) -> Any:
        """The leader's replica of a partition; None if there is none at present."""
        registration = self.cluster.image().partition(key)
        broker = None if registration is None else self.cluster.brokers.get(registration.leader)
        return None if broker is None or not broker.has_logs else broker.replicas.partitions.get(key)
