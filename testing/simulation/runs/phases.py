"""The phases of a run, modelled on TigerBeetle's: first no promise may be broken, then the cluster must heal.

    warm-up      the cluster starts, the topics are created, records flow
    faults       the nemesis follows its plan; only safety is checked
    core         a quorum of controllers and enough brokers are healed, the rest stays broken: within a bounded time the core must
                 do everything that a core of this size promises
    full heal    all nodes are healed: within the same bound all replicas are in sync
    final check  all records are read once more, the history is judged, the replicas are compared byte by byte

The bound is three times the longest time-out of the run. If it is missed, the run violates I24, and the violation names the
causes: partitions without a leader, fenced brokers, logs that are behind, and the operation that each node waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Any

from strandline.client import NewTopic, TopicPartition
from strandline.client.consumer.run import headers
from strandline.controller.metadata.features import LEVEL_0_ONLY
from strandline.protocol.errors import BrokerError, StrandlineError
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.records.reader import iter_records
from strandline.protocol.security.mechanisms import SCRAM_256
from strandline.storage.directory.future_logs import FUTURE_SUFFIX
from strandline.testing.comparison import cleaned_logs_differ, logs_differ, whole_log
from strandline.testing.simulation.cluster.cluster import SimCluster
from strandline.testing.simulation.cluster.groups.handling import Origin
from strandline.testing.simulation.cluster.groups.work import DeadLetter
from strandline.testing.simulation.cluster.identities import Identities, grants
from strandline.testing.simulation.cluster.workload import Workload
from strandline.testing.simulation.group_plans import DEAD_LETTERS, narrower
from strandline.testing.simulation.invariants.observer import Invariants
from strandline.testing.simulation.invariants.violation import Violation
from strandline.testing.simulation.kernel.disk import Latency
from strandline.testing.simulation.kernel.world import OutOfTime, World
from strandline.testing.simulation.nemesis import Nemesis
from strandline.testing.simulation.nemesis.budget import Budget
from strandline.testing.simulation.options import Options

WARM_UP_S = 30.0
LOOK_S = 0.05
"""Seconds between two checks of the heal."""
TIMEOUTS = 3
"""The bound of liveness, in multiples of the longest time-out."""


class BeyondRepair(Exception):
    """More was destroyed than replication survives, and the run permitted it. The run ends here."""


class Phases:
    def __init__(self, world: World, options: Options, invariants: Invariants) -> None:
        self.world = world
        self.options = options
        self.invariants = invariants
        self.draw: Random = world.stream("phases")
        self.phase = "warm-up"
        world.network.delay_s = options.delay_ms / 1000
        world.network.jitter_s = options.jitter_ms / 1000
        self.cluster = SimCluster(
            world,
            controllers=options.controllers,
            brokers=options.brokers,
            settings=options.settings,
            controller_settings=options.controller_settings,
            racks=options.racks,
            broker_settings=dict.fromkeys(options.narrow_bounds, narrower(options.settings)) if options.narrow_bounds else {},
            identities=_identities(options),
        )
        self.budget = Budget(self.cluster, enforced=not options.loss_permitted)
        self.workload = Workload(self.cluster, options, self.budget, invariants)
        self.nemesis = Nemesis(self.cluster, options, self.budget)
        for machine in self.cluster.machines.values():
            machine.files.take_time(Latency() if options.disks_take_time else None)
            machine.clock_rate = 1 + self.draw.uniform(-1, 1) * options.clock_drift

    @property
    def bound_s(self) -> float:
        return TIMEOUTS * self.options.timeout_s_max

    async def play(self) -> None:
        """Play the whole run; raises the violation that it finds."""
        await self.warm_up()
        self._enter("faults")
        await self.nemesis.run()
        await self.heal_core()
        await self.heal_all()
        await self.final_check()

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.world.trace.emit("phase", 0, phase=phase)

    # -- warm-up ------------------------------------------------------------------------------------------------------

    async def warm_up(self) -> None:
        if self.options.upgrades:
            self.cluster.levels = dict.fromkeys(self.cluster.controller_ids, LEVEL_0_ONLY)
        await self.cluster.start_all(WARM_UP_S)
        if self.options.upgrades:
            await self.cluster.support_all_levels(WARM_UP_S)
        client = self.cluster.client("setup")
        await client.run(self._create_topics(client))
        if self.options.security is not None:
            await client.run(self._create_users(client))
        client.machine.end()
        self.workload.begin()
        await self.world.sleep(self.draw.uniform(0.2, 0.6))

    async def _create_topics(self, client: Any) -> None:
        async with client.admin() as admin:
            for topic in self.options.all_topics:
                configs = {name: str(value) for name, value in topic.configs.items()}
                await admin.create_topics([NewTopic(topic.name, topic.partitions, topic.replication_factor, configs)])

    async def _create_users(self, client: Any) -> None:
        """Create a user for each client, with the rights that it needs."""
        identities = self.cluster.identities
        assert identities is not None
        wanted = grants(self.options)
        async with client.admin() as admin:
            for user in wanted:
                await admin.upsert_scram_credentials(user, identities.password(user), mechanisms=[SCRAM_256])
            await admin.create_acls([rule for rules in wanted.values() for rule in rules])

    # -- heal ---------------------------------------------------------------------------------------------------------

    async def heal_core(self) -> None:
        self._enter("core")
        self.workload.end_disturbances()
        left_out: list[int] = []
        await self.nemesis.heal()
        self.nemesis.watch()
        if self.options.leave_out:
            await self._within(self._windows_are_open, "no broker that has lost records is in an ISR", [])
            left_out = self._choose_left_out()
            for node in left_out:
                self._break_for_good(node)
        if left_out:
            await self._within(lambda: self.complaints(left_out), "the core heals", left_out)

    def _windows_are_open(self) -> list[str]:
        self.budget.look()
        complaints = [f"broker {n} has lost records and may still be in an ISR" for n in self.budget.open_windows]
        complaints += [f"controller {n} has lost its disk and not caught up" for n in self.budget.wiped_controllers]
        if self.cluster.active_controller is None:
            complaints.append("there is no active controller")
        return complaints

    def _choose_left_out(self) -> list[int]:
        """Choose a minority of the controllers, and brokers without which every partition still has a live member of its ISR."""
        cluster, draw = self.cluster, self.draw
        chosen: list[int] = []
        candidates = [*cluster.broker_ids, *cluster.controller_ids]
        draw.shuffle(candidates)
        for node in candidates:
            if len(chosen) < self.options.leave_out and self._can_do_without([*chosen, node]):
                chosen.append(node)
        return chosen

    def _can_do_without(self, nodes: list[int]) -> bool:
        cluster = self.cluster
        controllers = [n for n in cluster.controller_ids if n not in nodes and n not in self.budget.rotten_controllers]
        if 2 * len(controllers) <= len(cluster.controller_ids):
            return False
        trusted = [n for n in cluster.brokers if n not in nodes and n not in self.budget.rotten]
        ready = [n for n in trusted if cluster.brokers[n].ready.is_set()]
        partitions = [p for topic in cluster.image().topics_by_id.values() for p in topic.partitions.values()]
        return bool(ready) and all(any(n in ready for n in p.isr) for p in partitions)

    def _break_for_good(self, node: int) -> None:
        """Leave a node down, silent, or paused until the full heal."""
        how = self.draw.choice(("crash", "cut", "pause"))
        self.world.trace.emit("fault.begin", node, fault=f"left out: {how}", victim=node)
        if how == "cut":
            self.cluster.isolate(node)
        elif how == "pause":
            self.cluster.machines[node].pause()
        else:
            self.nemesis.down[node] += 1
            self.cluster.crash(node)

    async def heal_all(self) -> None:
        self._enter("full heal")
        await self.nemesis.heal()
        self.nemesis.watch()
        await self._within(lambda: self.complaints([]), "everything heals", [])

    async def _within(
        self,
        complaints: Callable[[], list[str]],
        what: str,
        left_out: list[int],
        bound_s: float | None = None,
        invariant: str = "I24",
    ) -> None:
        """Wait until `complaints` returns none. At the bound, raises a violation of this invariant with those that are left."""
        bound_s = self.bound_s if bound_s is None else bound_s
        deadline = self.world.now + bound_s
        while found := complaints():
            if self.world.now >= deadline:
                text = "; ".join(found)
                raise self._unhealed(f"{what}: not within {bound_s:g} s: {text}", left_out, invariant)
            await asyncio.sleep(LOOK_S)

    # -- conditions after a heal --------------------------------------------------------------------------------------

    def complaints(self, left_out: list[int]) -> list[str]:
        """The differences from a healed cluster, one sentence each, apart from the nodes that were left out."""
        cluster = self.cluster
        active = cluster.active_controller
        if active is None:
            return ["there is no active controller"]
        image = active.controller.image
        complaints = []
        core = [n for n in cluster.broker_ids if n not in left_out]
        for n in core:
            complaints += self._complaints_of_broker(n, image)
        # A controller that found its disk damaged restarts without a vote, and needs all other voters for that.
        excused = self.budget.rotten_controllers if left_out else ()
        for n in cluster.controller_ids:
            if n not in left_out and n not in excused:
                complaints += self._complaints_of_controller(n, image)
        for topic_id, topic in image.topics_by_id.items():
            for index, p in topic.partitions.items():
                complaints += self._complaints_of_partition((bytes(topic_id), index), f"{topic.name}-{index}", p, core)
        return complaints

    def _complaints_of_controller(self, node: int, image: Any) -> list[str]:
        controller = self.cluster.controllers.get(node)
        if controller is None:
            return [f"controller {node} does not run"]
        offset = controller.controller.image.offset if controller.has_quorum else -1
        return [f"controller {node} is at {offset} of {image.offset}"] if offset < image.offset else []

    def _complaints_of_broker(self, node: int, image: Any) -> list[str]:
        broker = self.cluster.brokers.get(node)
        known = image.brokers.get(node)
        if broker is None:
            return [f"broker {node} does not run"]
        if known is None or known.fenced or known.in_controlled_shutdown:
            return [f"broker {node} is fenced"]
        if not broker.ready.is_set():
            return [f"broker {node} has not applied its unfencing"]
        if broker.metadata.image.offset < image.offset:
            return [f"broker {node} is at metadata offset {broker.metadata.image.offset} of {image.offset}"]
        return []

    def _complaints_of_partition(self, key: TopicIdPartition, name: str, p: Any, core: list[int]) -> list[str]:
        # A replica that a reassignment adds may be throttled, or wait for room. Its end is judged when no record is written.
        live = [n for n in p.replicas if n in core and (n not in p.adding_replicas or n in p.isr)]
        if not any(n in core for n in (*p.isr, *p.elr)):
            return []  # no eligible replica is up
        if p.leader not in core:
            return [f"{name} has no leader (ISR {list(p.isr)}, leader {p.leader})"]
        if not set(live) <= set(p.isr):
            return [f"{name}: ISR {list(p.isr)} lacks {sorted(set(live) - set(p.isr))}"]
        if set(p.isr) - set(live):
            return [f"{name}: {sorted(set(p.isr) - set(live))} are still in the ISR"]
        broker = self.cluster.brokers.get(p.leader)
        leader = broker.replicas.partitions.get(key) if broker is not None and broker.has_logs else None
        if leader is None or leader.leader_state is None or leader.leader_epoch != p.leader_epoch:
            return [f"{name}: broker {p.leader} has not become leader yet"]
        if leader.leader_state.isr.is_in_flight:
            return [f"{name}: an ISR change is under way"]
        return []

    # -- the end ------------------------------------------------------------------------------------------------------

    async def final_check(self) -> None:
        self._enter("final check")
        workload = self.workload
        before = workload.acked
        deadline = self.world.now + self.bound_s
        while self.options.producers and workload.acked == before:
            if self.world.now >= deadline:
                raise self._unhealed(f"nothing is acknowledged within {self.bound_s:g} s of the heal")
            await asyncio.sleep(LOOK_S)
        try:
            await workload.stop_producing(self.bound_s)
            await self._transactions_end()
            await self._moves_end()
            await self._within(self._behind, "all replicas are in step", [])
            await self._leaders_return()
            await self._within(lambda: workload.behind(self.high_watermarks()), "the consumers reach the end", [])
            await self._within(workload.groups.complaints, "the groups own and read everything", [], None, "I39")
            await self._within(workload.transactions.unread, "the readers of committed records reach the end", [], None, "I44")
            await workload.stop(self.bound_s)
            await self._transactions_end()
            await self._within(self.invariants.unsettled, "the cluster comes to rest", [])
            await self._read_all()
            await self._within(self.invariants.unsettled, "the cluster comes to rest", [])  # a leader that finds damage resigns
        except OutOfTime as e:
            raise self._unhealed(str(e)) from None
        self._declare_log_starts()
        self._check_deletions()
        self._compare_replicas()
        self._check_coverage()
        self._check_configured_groups()
        self.invariants.at_rest()
        if self.options.orderly_end:
            await self.stop_all()

    async def _transactions_end(self) -> None:
        """I44: every transaction ends, even if its producer no longer exists."""
        if self.options.writers:
            bound_s = self.bound_s + self.workload.transactions.longest_s
            await self._within(self.workload.transactions.open, "all transactions end", [], bound_s, "I44")

    # -- replicas that move -------------------------------------------------------------------------------------------

    async def _moves_end(self) -> None:
        """I34: every reassignment and every move between log directories ends, within a time that allows for throttles, although
        brokers are still drained. Afterwards they are not, because no topic that a group needs could be created on them."""
        options = self.options
        await self.workload.stop_moving(self.bound_s)
        if options.moves_logs:  # no replica can be added to a broker that is cordoned as a whole
            await self._reset("uncordon", "cordoned.log.dirs")
        if options.moves_logs or options.reassigns or options.drains:
            bound_s = self.bound_s + self._throttled_s()
            await self._within(self._unfinished, "reassignments and moves of logs end", [], bound_s, "I34")
        if options.drains:
            await self._reset("undrain", "broker.draining")

    async def _reset(self, name: str, key: str) -> None:
        """Remove this key from the configuration of every broker, by a client of this name."""
        client = self.cluster.client(name)
        await client.run(self._without(client, key))
        client.machine.end()

    async def _without(self, client: Any, key: str) -> None:
        async with client.admin() as admin:
            for broker in self.cluster.broker_ids:
                await admin.alter_configs("broker", broker, {key: None})

    def _throttled_s(self) -> float:
        """The longest time, in seconds, for which throttles may delay replicas."""
        partitions = [p for topic in self.cluster.image().topics_by_id.values() for p in topic.partitions.values()]
        rates = [p.throttle_rate for p in partitions if p.throttle_rate]
        rates.append(self.options.settings.get("replica.alter.log.dirs.io.max.bytes.per.second", 0))
        sizes = [machine.files.used_bytes for n, machine in self.cluster.machines.items() if n in self.cluster.broker_ids]
        return 2 * sum(sizes) / min((rate for rate in rates if rate), default=1 << 30)

    def _unfinished(self) -> list[str]:
        image, reassigner = self.cluster.image(), self.workload.reassigner
        complaints = []
        for topic in image.topics_by_id.values():
            for index, p in topic.partitions.items():
                if p.is_reassigning or p.adding_replicas or p.removing_replicas or p.throttle_rate:
                    how = f"adding {list(p.adding_replicas)}, removing {list(p.removing_replicas)}, ISR {list(p.isr)}"
                    complaints.append(f"{topic.name}-{index} is still being reassigned: replicas {list(p.replicas)}, {how}")
                elif reassigner.misses_target(TopicPartition(topic.name, index), p.replicas):
                    complaints.append(f"{topic.name}-{index} has the replicas {list(p.replicas)}, and not those of its target")
        for n in self.cluster.broker_ids if self.options.moves_logs else ():
            complaints += self._unfinished_moves(n, image)
        return complaints

    def _unfinished_moves(self, node: int, image: Any) -> list[str]:
        """Logs of a broker that are still being moved, or are in another directory than the metadata says."""
        broker = self.cluster.brokers.get(node)
        if broker is None or not broker.has_logs or broker.log_dirs is None:
            return [f"broker {node} does not run"]
        complaints = []
        for key, partition in broker.replicas.partitions.items():
            registration, actual = image.partition(key), broker.log_dirs.of(partition.log)
            is_known = not image.feature_level or registration is None or node not in registration.replicas
            if broker.replicas.moves.future_of(key) is not None:
                complaints.append(f"broker {node} is still moving {partition!r}")
            elif not is_known and registration.directory_of(node) != actual.directory_id:
                complaints.append(f"broker {node} has {partition!r} in {actual.path}, which differs from the metadata")
        leftovers = [f"{path}/{name}" for path in self.options.log_dirs for name in broker.log_dirs.files.list(path)]
        return complaints + [f"broker {node} still has {path}" for path in leftovers if path.endswith(FUTURE_SUFFIX)]

    async def _leaders_return(self) -> None:
        """When all replicas are in sync, and leaders return automatically, each is soon at its preferred replica."""
        settings = self.options.controller_settings
        if settings.get("auto.leader.rebalance.enable"):
            bound_s = max(self.bound_s, TIMEOUTS * settings["leader.imbalance.check.interval.seconds"])
            await self._within(self._out_of_balance, "leaders return to their preferred replicas", [], bound_s)

    def _out_of_balance(self) -> list[str]:
        """The brokers that do not lead more of the partitions that prefer them than the settings permit."""
        partitions = [p for topic in self.cluster.image().topics_by_id.values() for p in topic.partitions.values()]
        permitted = self.options.controller_settings["leader.imbalance.per.broker.percentage"]
        complaints = []
        for n in self.cluster.broker_ids:
            leaders = [p.leader for p in partitions if p.replicas[0] == n]
            missing = [leader for leader in leaders if leader != n]
            if missing and 100 * len(missing) / len(leaders) > permitted:
                complaints.append(f"broker {n} leads all but {len(missing)} of {len(leaders)} partitions that prefer it")
        return complaints

    async def _read_all(self) -> None:
        reading = asyncio.get_running_loop().create_task(self.workload.read_all(), name="final read")
        await self.world.until(reading.done, self.bound_s, "the final read")
        try:
            reading.result()
        except StrandlineError as e:
            raise self._unhealed(f"the final read failed: {e!r}") from e

    def _replicas(self) -> list[tuple[str, list[tuple[int, Any]]]]:
        """Each partition with the objects of its replicas."""
        image = self.cluster.image()
        found = []
        for topic_id, topic in image.topics_by_id.items():
            for index, p in topic.partitions.items():
                held = [(n, self.cluster.brokers[n].replicas.partitions.get((bytes(topic_id), index))) for n in p.replicas]
                found.append((f"{topic.name}-{index}", held))
        return found

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """The high watermarks of the run's topics, as their leaders have them."""
        image = self.cluster.image()
        found = {}
        for name, index in (place for topic in self.options.topics for place in topic.places):
            key = (bytes(image.topics_by_name[name]), index)
            leader = self.cluster.brokers.get(image.partition(key).leader)
            partition = None if leader is None else leader.replicas.partitions.get(key)
            found[name, index] = 0 if partition is None else partition.log.high_watermark
        return found

    def _behind(self) -> list[str]:
        """Replicas whose log end or high watermark differs from the log end of their leader."""
        complaints = self.complaints([])
        if complaints:
            return complaints
        for name, replicas in self._replicas():
            ends = {n: (p.log.log_end_offset, p.log.high_watermark) if p is not None else None for n, p in replicas}
            if len({end for pair in ends.values() for end in (pair or (-1,))}) > 1:
                complaints.append(f"{name}: (log end, high watermark) are {ends}")
        return complaints

    def _declare_log_starts(self) -> None:
        """Pass to the history which records retention or DeleteRecords has deleted on any replica: they need not be found."""
        starts: dict[str, int] = {}
        for event in self.world.trace.events(kinds="log.start_moved"):
            starts[event.partition] = max(starts.get(event.partition, 0), int(event.fields["to"]))
        for topic in self.options.topics:
            for place in topic.places if topic.has_retention or self.options.trims else ():
                self.workload.history.log_start(place, starts.get(f"{place[0]}-{place[1]}", 0))

    def _check_deletions(self) -> None:
        """Records whose deletion was acknowledged do not return: the log start never decreases, not even by a restart."""
        for name, replicas in self._replicas() if not self.options.loss_permitted else ():
            topic, _, index = name.rpartition("-")
            deleted_below = self.workload.deleted_below.get((topic, int(index)), 0)
            for node, partition in replicas:
                start = partition.log.log_start_offset
                if start < deleted_below:
                    text = f"the log of {name} on broker {node} begins at {start}, but records below {deleted_below} were deleted"
                    raise Violation("I5", text, partition=name, node=node)

    def _check_coverage(self) -> None:
        """I39: a group has finished every record below its committed offset, and its members have skipped none."""
        if self.options.members and not self.options.loss_permitted:
            complaint = self.workload.groups.skipped(self._offsets_of, self._dead_letters)
            if complaint:
                raise Violation("I39", complaint)

    def _check_configured_groups(self) -> None:
        """I50: the configuration of each group is one that a request has set."""
        complaint = "" if self.options.loss_permitted else self.workload.groups.configurer.misconfigured(self.cluster.image())
        if complaint:
            raise Violation("I50", complaint)

    def _offsets_of(self, key: TopicIdPartition) -> list[int]:
        """The offsets of the records that all replicas of a partition have: a member may have read from any of them, and each
        replica runs its own cleaner. If replicas may have been removed from a compacted partition, only the offsets of records
        that no cleaner removes. Empty if the partition no longer exists."""
        if self.cluster.image().partition(key) is None:
            return []
        replicas = [broker.replicas.partitions.get(key) for broker in self.cluster.brokers.values()]
        logs = [partition.log for partition in replicas if partition is not None]
        start = max((log_.log_start_offset for log_ in logs), default=0)
        try:
            found = [{r.offset for r in iter_records(whole_log(log_, start)) if r.offset >= start} for log_ in logs]
            if (self.options.reassigns or self.options.drains) and "compact" in self._cleanup_of(key):
                found += [_last_values(iter_records(whole_log(log_, start))) for log_ in logs]
        except BrokerError:
            return []  # a replica on a disk that rots, or one that violates I4
        return sorted(set[int].intersection(*found)) if found else []

    def _cleanup_of(self, key: TopicIdPartition) -> str:
        image = self.cluster.image()
        return str(image.topic_config(image.topics_by_id[key[0]].name)["cleanup.policy"])

    def _dead_letters(self) -> Iterator[DeadLetter]:
        """The records of the dead-letter topic. By now all replicas have them, but a disk that rots may not return them."""
        for name, replicas in self._replicas():
            if name.rpartition("-")[0] == DEAD_LETTERS:
                n, log = next((n, p.log) for n, p in replicas if n not in self.budget.rotten)
                for record in iter_records(_readable_log(name, n, log, log.log_start_offset)):
                    said = {key: value or b"" for key, value in record.headers}
                    numbers = int(said[headers.PARTITION]), int(said[headers.OFFSET])
                    yield DeadLetter(said[headers.GROUP].decode(), Origin(said[headers.TOPIC].decode(), *numbers))

    def _compare_replicas(self) -> None:
        for name, replicas in self._replicas():
            start = max(p.log.log_start_offset for _, p in replicas)
            logs = {n: _readable_log(name, n, p.log, start) for n, p in replicas if n not in self.budget.rotten}
            is_cleaned = self.invariants.ghosts.named(name).originals is not None
            difference = cleaned_logs_differ(logs, start) if is_cleaned else logs_differ(logs)
            if difference:
                raise Violation("I4", f"the replicas of {name} differ from offset {start} on: {difference}", partition=name)
            epochs = {n: tuple(p.log.epochs.entries) for n, p in replicas}
            if any(list(e) != sorted(set(e)) for e in epochs.values()):
                raise Violation("I11", f"the leader epochs of {name} are not in order: {epochs}", partition=name)

    async def stop_all(self) -> None:
        """Stop every process in order, and check that it leaves no task behind."""
        self._enter("stop")
        await self.nemesis.heal()
        self.nemesis.going = False
        for node in [*self.cluster.broker_ids, *self.cluster.controller_ids]:
            machine = self.cluster.machines[node]
            loop = machine.loop
            await self.cluster.stop(node)
            if loop is None:
                continue
            left = [t.get_name() for t in loop.unfinished if t.get_name() not in (f"node {node}", f"stop {node}")]
            if left:
                raise Violation("I23", f"{machine.name} stopped in order and left {len(left)} tasks: {left[:5]}", node=node)

    def _unhealed(self, text: str, left_out: Sequence[int] = (), invariant: str = "I24") -> Exception:
        if self.budget.exceeded and self._is_beyond_repair():
            return BeyondRepair(text)
        return Violation(invariant, f"{text}{self.diagnosis(list(left_out))}")

    def _is_beyond_repair(self) -> bool:
        """Whether a leader cannot read its own log, of which it has the last copy (for example after a power cut with a single
        replica), or a partition has no eligible replica, and so waits for the decision of an operator."""
        partitions = [p for topic in self.cluster.image().topics_by_id.values() for p in topic.partitions.values()]
        return any(not (*p.isr, *p.elr) for p in partitions) or any(
            p.leader_state is not None and p.log.corrupt_at is not None
            for broker in self.cluster.brokers.values()
            if broker.has_logs
            for p in broker.replicas.partitions.values()
        )

    # -- why it is not healed -----------------------------------------------------------------------------------------

    def diagnosis(self, left_out: list[int]) -> str:
        """A text about the state of each node, and the operation that it waits for."""
        lines = [f"\n  left out: {left_out}" if left_out else ""]
        for n, c in sorted(self.cluster.controllers.items()):
            if c.has_quorum:
                active = "active" if c.controller.active is not None else "not active"
                lines.append(f"  controller {n}: offset {c.controller.image.offset}, {active}")
            else:
                lines.append(f"  controller {n}: looks for its quorum")
        for n, b in sorted(self.cluster.brokers.items()):
            lines += self._diagnosis_of_broker(n, b)
        for n, machine in self.cluster.machines.items():
            if machine.loop is None:
                reasons = [str(e) for _, node, e in self.cluster.failures if node == n]
                lines.append(f"  {machine.name} does not run; {reasons[-1:] or 'nothing failed'}")
        lines += [f"  link {link} is {state}" for link, state in self.world.network._links.items() if state.cut]
        return "\n".join(lines)

    def _diagnosis_of_broker(self, node: int, broker: Any) -> list[str]:
        lines = [f"  broker {node}: metadata {broker.metadata.image.offset} ready {broker.ready.is_set()}"]
        if broker.has_logs:
            for p in broker.replicas.partitions.values():
                lead = p.leader_state
                followers = {} if lead is None else {n: r.log_end_offset for n, r in lead.replicas.items()}
                state = "" if lead is None else f" isr {lead.isr} followers {followers} waiting {len(p.waiters)}"
                lines.append(f"    {p!r} {p.log!r}{state}")
        loop = self.cluster.machines[node].loop
        if loop is not None:
            lines += [f"    task {task.get_name()}: {_where(task)}" for task in loop.unfinished[:40]]
        return lines


def _identities(options: Options) -> Identities | None:
    if options.security is None:
        return None
    nodes = [*(101 + n for n in range(options.controllers)), *(1 + n for n in range(options.brokers))]
    return Identities(nodes, max_reauth_ms=options.security.max_reauth_ms)


def _last_values(records: Iterable[Any]) -> set[int]:
    """The offsets of the records that are the last of their keys, and no tombstones."""
    last = {record.key: record for record in records}
    return {record.offset for record in last.values() if record.value is not None}


def _readable_log(name: str, node: int, log: Any, start: int) -> bytes:
    """`whole_log`, or a violation of I4 if the log cannot be read: only a disk that rots may damage a log for good."""
    try:
        return whole_log(log, start)
    except BrokerError as e:
        raise Violation("I4", f"broker {node} cannot read its replica of {name}: {e}", partition=name, node=node) from None


def _where(task: asyncio.Task[Any]) -> str:
    stack = task.get_stack(limit=1)
    return f"{stack[0].f_code.co_qualname} line {stack[0].f_lineno}" if stack else "?"
