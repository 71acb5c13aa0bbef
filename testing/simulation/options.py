"""The plan of a run, drawn from its seed: the cluster, its settings, the clients, and the faults (swarm testing).

A run with every kind of fault is too short for the rare kinds to coincide, and a fixed mix of faults would be the only mix ever
tested. So each seed draws which kinds of faults occur at all, and how often each. Everything that is drawn before the run is in
`Options`, and is printed with the run; the run itself draws only what depends on its state. A value is **drawn apart** if it has
a random source of its own, so that the other values of a seed do not change when it is added.

The faults are a plan: a time, a kind, a duration, and a number from which the details (which node, which link) are drawn at that
time. So one fault can be left out while the others stay as they were, which is how shrinking works (`without`,
`without_faults`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from strandline.testing.simulation.group_plans import (
    CONFIGURES,
    GROUPS_SHARE,
    HANDLERS_SHARE,
    GroupFault,
    MemberPlan,
    draw_configured,
    draw_groups,
    member_text,
    with_handlers,
)
from strandline.testing.simulation.security_plans import SecurityPlan, draw_security
from strandline.testing.simulation.transaction_plans import (
    SHIPPED,
    TRANSACTION_FAULTS,
    TRANSACTIONS_SHARE,
    TransactionFault,
    WriterPlan,
    draw_transactions,
    group_settings,
    writer_text,
)

FAULTS: dict[str, float] = {
    "crash": 2.0,
    "power": 1.0,
    "stop": 1.0,
    "stop_power": 1.0,
    "pause": 1.0,
    "controller_kill": 1.0,
    "cut_node": 1.0,
    "cut_pair": 1.0,
    "cut_one_way": 1.0,
    "partition": 0.6,
    "half_open": 0.6,
    "clog": 0.7,
    "swizzle": 0.5,
    "delay": 0.7,
    "loss": 0.7,
    "reset": 1.0,
    "reset_response": 1.0,
    "fragment": 0.5,
    "slow_reader": 0.4,
    "narrow": 0.4,
    "mute": 0.5,
    "hold": 0.7,
    "ambush": 3.0,
    "elect": 0.7,
    "lead_returns": 2.0,
    "rolling": 0.3,
    "blackout": 0.4,
    "crash_in_start": 0.7,
    "crash_in_disk": 1.0,
    "wipe": 0.4,
    "wipe_last": 0.2,
    "wiped_voter": 0.7,
    "disk_slow": 0.6,
    "disk_stall": 0.6,
    "disk_error": 0.5,
    "disk_fsync": 0.5,
    "disk_full": 0.5,
    "cold_reads": 0.5,
    "rot": 0.7,
    "misdirect": 0.3,
    "stale_read": 0.4,
    "clock_jump": 0.6,
    "client_pause": 0.4,
    "client_cut": 0.4,
}
"""The kinds of faults with their relative weights: how often each is drawn if it is in the swarm."""

BEYOND_BUDGET = ("wipe_last",)
"""Kinds that happen only in runs in which losses are permitted, and are drawn more often there."""
DOUBLE_FAULTS = {"power_many": 3.0}
"""Kinds with their weights that strike several replicas at once, so that an unclean election may follow. They happen only in runs
in which losses are permitted, and are drawn apart."""
DIRECTORY_FAULTS = {"dir_fails": 1.0}
"""Kinds with their weights that strike one of a broker's log directories. They happen only in runs in which brokers have several,
and are drawn apart."""
RECOVER = "recover"
"""An action of the administrator that only runs with double faults have: elect leaders for partitions without one."""
DOUBLES_SHARE = 0.5
"""Share of the runs in which losses are permitted that have double faults."""
FAULTLESS_S = 3.0
"""Seconds that the phase of faults lasts in a run without faults. A longer one shows nothing new, and the time is better spent
on runs with faults."""
ADMIN = ("churn", "min_isr", "elect", "describe", "grow")
"""The actions of an administrator during the run: delete and recreate a topic under one name, raise and lower
`min.insync.replicas`, elect leaders, describe, add partitions."""

LIARS_SHARE = 0.1
"""Share of runs with a lying client. Each lie costs as much as a dozen messages."""

TRIMS_SHARE = 0.15
"""Share of runs with a client that deletes the oldest records of topics."""

BALANCED_SHARE = 0.6
"""Share of runs in which leaders return to their preferred replicas by themselves."""

UPGRADES_SHARE = 0.15
"""Share of runs that begin at level 0 of the metadata, and in which an administrator raises it during the faults."""

RECONFIGURED_SHARE = 0.15
"""Share of runs with an administrator who changes the brokers' configuration while they run."""

REASSIGNED_SHARE = 0.1
"""Share of runs with a client that reassigns partitions."""

DRAINED_SHARE = 0.05
"""Share of runs with a client that drains brokers."""

SEVERAL_DIRS_SHARE = 0.1
"""Share of runs in which brokers have several log directories, with a client that moves replicas between them."""

RACED_SHARE = 0.1
"""Share of runs with clients that append conditionally."""

FENCED_SHARE = 0.1
"""Share of runs with clients that write with fencing tokens."""

RACKS_SHARE = 0.35
"""Share of runs in which the brokers have racks, and consumers read from the nearest replica."""

COMPACTED_SHARE = 0.25
"""Share of topics that are compacted."""

AGED_SHARE = 0.08
"""Share of topics that delete records by age."""

CLIENT_TIMEOUTS = (
    "request_timeout_ms",
    "delivery_timeout_ms",
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "transaction_timeout_ms",
)
"""Options of clients that bound how long the cluster may take to heal."""

ALL, LEADER = "all", "leader"
"""The promise for the records of a topic: with `acks=all` and idempotence none is lost, with `acks=1` and 0 some may be."""


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions: int
    replication_factor: int
    min_insync_replicas: int
    promise: str
    """`ALL` or `LEADER`."""
    configs: dict[str, Any]
    keys: int = 0
    """The records of each partition have this many different keys; 0: none has a key."""
    tombstones: float = 0.0
    """Share of records that delete their key."""

    @property
    def has_retention(self) -> bool:
        return "retention.bytes" in self.configs or "retention.ms" in self.configs

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.configs.get("cleanup.policy", "")

    @property
    def places(self) -> list[tuple[str, int]]:
        return [(self.name, index) for index in range(self.partitions)]


@dataclass(frozen=True, slots=True)
class ProducerPlan:
    topic: str
    options: dict[str, Any]
    """Arguments of `Producer`."""
    pause_s: float
    """Mean seconds between two bursts."""
    burst_max: int
    """Most records of one burst."""
    size_max: int
    """Largest size of a record in bytes."""
    crash_at_s: float
    """When its process dies, in seconds after the beginning of the faults; another one replaces it. 0: never."""


@dataclass(frozen=True, slots=True)
class ConsumerPlan:
    topic: str
    options: dict[str, Any]
    """Arguments of `Consumer`."""
    poll_ms: int
    crash_at_s: float
    subscribes: bool = False
    """It subscribes to the topic; otherwise its partitions are assigned."""


@dataclass(frozen=True, slots=True)
class FaultPlan:
    number: int
    at_s: float
    """Seconds after the beginning of the faults."""
    kind: str
    duration_s: float
    draw: int
    """The number from which the details are drawn."""


@dataclass(frozen=True, slots=True)
class Options:
    seed: int | str
    controllers: int
    brokers: int
    settings: dict[str, Any]
    """Settings of the brokers, under Kafka's names."""
    controller_settings: dict[str, Any]
    topics: tuple[TopicPlan, ...]
    producers: tuple[ProducerPlan, ...]
    consumers: tuple[ConsumerPlan, ...]
    readers: int
    """Number of processes that ask for the latest offsets again and again."""
    admin: tuple[str, ...]
    """The administrator's actions, from `ADMIN`."""
    kinds: dict[str, float]
    """The kinds of faults of this run, with their weights."""
    faults: tuple[FaultPlan, ...]
    faults_s: float
    """Seconds that the phase of faults lasts."""
    delay_ms: float
    """The shortest time that a segment takes from one machine to another, in milliseconds."""
    jitter_ms: float
    disks_take_time: bool
    """Operations of a disk take the time of a good disk; otherwise none."""
    clock_drift: float
    """The largest error of a clock's rate: 0.05 is 5 %."""
    leave_out: int
    """The most nodes that stay broken when the core is healed."""
    orderly_end: bool
    """Every process is stopped in order at the end, and must leave nothing behind."""
    loss_permitted: bool
    """The faults may exceed what replication survives. Then losses are allowed, but each must be reported."""
    session_eviction_s: float = 120.0
    """Seconds for which a fetch session is safe from eviction. In production this is a constant, longer than any run."""
    proposal_timeout_ms: int = 30_000
    """How long a leader waits for the controller's response to an AlterPartition request before it sends the request again.
    Production has no setting for it either."""
    lies: int = 0
    """The most malformed or forged requests that a lying client sends (`fuzzing_client.py`)."""
    trims: bool = False
    """A client deletes the oldest records of partitions (DeleteRecords)."""
    racks: tuple[str, ...] = ()
    """The rack of each broker; empty: they have none."""
    upgrades: bool = False
    """The metadata begins at level 0, as that of an older version, and a client raises the level (UpdateFeatures)."""
    reconfigures: bool = False
    """A client changes dynamic keys of the brokers (IncrementalAlterConfigs)."""
    reassigns: bool = False
    """A client begins, replaces and cancels reassignments (AlterPartitionReassignments)."""
    drains: bool = False
    """A client drains brokers, and undoes it."""
    moves_logs: bool = False
    """A client moves replicas between log directories, and cordons directories (AlterReplicaLogDirs)."""
    members: tuple[MemberPlan, ...] = ()
    """The members of consumer groups."""
    group_work: tuple[str, ...] = ()
    """Work of other clients with groups: names from `GROUP_WORK`, and `CONFIGURES`."""
    narrow_bounds: tuple[int, ...] = ()
    """Brokers whose configuration files limit the sessions and intervals of groups to the usual ones (`narrower`)."""
    racers: int = 0
    """Number of clients that append to one partition, each record only at the offset that it expects (`expect_offset`)."""
    holders: int = 0
    """Number of clients that write to one partition in turn, each with the fencing token of its turn."""
    transactional_topics: tuple[TopicPlan, ...] = ()
    """Topics to which only transactional producers write, and which only readers of committed records read."""
    writers: tuple[WriterPlan, ...] = ()
    """The transactional producers."""
    shippers: tuple[WriterPlan, ...] = ()
    """Programs that consume, transform and produce in transactions."""
    committed_readers: int = 0
    """Number of readers of committed records."""
    security: SecurityPlan | None = None
    """Users log in, and need rights; None: everyone may do everything."""

    def without(self, *kinds: str) -> Options:
        """The same run without these kinds of faults."""
        return dataclasses.replace(
            self,
            kinds={kind: weight for kind, weight in self.kinds.items() if kind not in kinds},
            faults=tuple(fault for fault in self.faults if fault.kind not in kinds),
        )

    def without_faults(self, numbers: Iterable[int]) -> Options:
        """The same run without these single faults."""
        gone = set(numbers)
        return dataclasses.replace(self, faults=tuple(fault for fault in self.faults if fault.number not in gone))

    @property
    def all_topics(self) -> tuple[TopicPlan, ...]:
        return (*self.topics, *self.transactional_topics)

    @property
    def written_topics(self) -> tuple[TopicPlan, ...]:
        """The topics of the writers, without that of the shippers."""
        return tuple(topic for topic in self.transactional_topics if topic.name != SHIPPED)

    @property
    def log_dirs(self) -> tuple[str, ...]:
        """The log directories of each broker; empty if the run does not name any."""
        return tuple(str(self.settings.get("log.dirs", "")).split(",")) if "log.dirs" in self.settings else ()

    def replaced(self, **changes: Any) -> Options:
        return dataclasses.replace(self, **changes)

    def without_transactions(self) -> Options:
        return self.without(*TRANSACTION_FAULTS).replaced(transactional_topics=(), writers=(), shippers=(), committed_readers=0)

    @property
    def timeout_s_max(self) -> float:
        """The longest time-out of anything in this cluster, in seconds."""
        names = ("session.timeout.ms", "lag.time.max.ms", "fetch.timeout.ms", "request.timeout.ms", "election.timeout.ms")
        values = [v for k, v in {**self.settings, **self.controller_settings}.items() if k.endswith(names)]
        clients = [
            plan.options
            for plans in (self.producers, self.consumers, self.members, self.writers, self.shippers)
            for plan in plans
        ]
        for options in clients:
            values += [v for k, v in options.items() if k in CLIENT_TIMEOUTS]
        return max(map(float, values), default=10_000.0) / 1000

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Options:
        """The inverse of `as_dict`, also after a round trip through JSON."""
        lists = {"topics": TopicPlan, "producers": ProducerPlan, "consumers": ConsumerPlan, "faults": FaultPlan}
        made: dict[str, Any] = {name: tuple(kind(**item) for item in values[name]) for name, kind in lists.items()}
        made["members"] = tuple(MemberPlan(**_with_tuples(item)) for item in values.get("members", ()))
        made |= {name: tuple(WriterPlan(**item) for item in values.get(name, ())) for name in ("writers", "shippers")}
        made["transactional_topics"] = tuple(TopicPlan(**item) for item in values.get("transactional_topics", ()))
        made |= {name: tuple(values.get(name, ())) for name in ("admin", "racks", "group_work", "narrow_bounds")}
        security = values.get("security")
        made["security"] = None if security is None else SecurityPlan(**_with_tuples(security))
        return cls(**{**values, **made})

    def table(self) -> str:
        """One line per drawn value, for people."""
        rows = [
            ("seed", self.seed),
            ("nodes", f"{self.controllers} controllers, {self.brokers} brokers"),
            *((f"topic {t.name}", _topic_text(t)) for t in self.topics),
            *((f"producer of {p.topic}", _producer_text(p)) for p in self.producers),
            *((f"consumer of {c.topic}", _consumer_text(c)) for c in self.consumers),
            *((f"member of group {m.group}", member_text(m)) for m in self.members),
            ("work on groups", " ".join(self.group_work) or "none"),
            ("narrow bounds of groups", " ".join(map(str, self.narrow_bounds)) or "none"),
            ("conditional appends", f"of {self.racers} clients" if self.racers else "none"),
            ("fencing tokens", f"of {self.holders} clients" if self.holders else "none"),
            *((f"transactional topic {t.name}", _topic_text(t)) for t in self.transactional_topics),
            *((f"transactions of {w.transactional_id}", writer_text(w)) for w in self.writers),
            *((f"transactions of {w.transactional_id}", f"ships, {writer_text(w)}") for w in self.shippers),
            ("readers of committed records", self.committed_readers or "none"),
            ("readers of offsets", self.readers),
            ("lies of a client", self.lies),
            ("deletes records", "yes" if self.trims else "no"),
            ("racks of the brokers", " ".join(self.racks) or "none"),
            ("security", self.security or "none: every client may do everything"),
            ("level of the metadata", "raised during the run" if self.upgrades else "the newest"),
            ("reassignments", " ".join(("begun",) * self.reassigns + ("drains",) * self.drains) or "none"),
            ("log directories", "replicas move between them" if self.moves_logs else "replicas stay"),
            ("configuration of brokers", "changed during the run" if self.reconfigures else "as they started"),
            ("administrator", " ".join(self.admin) or "none"),
            ("brokers", _pairs(self.settings)),
            ("time-outs", f"fetch sessions {self.session_eviction_s:g} s, ISR proposals {self.proposal_timeout_ms} ms"),
            ("controllers", _pairs(self.controller_settings)),
            ("network", f"delay {self.delay_ms:g} ms and more ({self.jitter_ms:g} ms on average)"),
            ("disks", "take time" if self.disks_take_time else "take no time"),
            ("clocks", f"within {self.clock_drift:.1%}"),
            ("faults", f"{len(self.faults)} in {self.faults_s:g} s: {', '.join(self.kinds) or 'none'}"),
            ("the end", f"{'in order' if self.orderly_end else 'at once'}, up to {self.leave_out} nodes left out of the heal"),
            ("budget", "losses are permitted" if self.loss_permitted else "nothing acknowledged may be lost"),
        ]  # fmt: skip
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _with_tuples(item: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a plan, with tuples in the place of JSON's lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in item.items()}


def _topic_text(topic: TopicPlan) -> str:
    kind = "acks=all, idempotent" if topic.promise == ALL else "acks of the leader at most"
    sizes = f"{topic.partitions} partitions x {topic.replication_factor}, min.insync.replicas {topic.min_insync_replicas}"
    keys = f", {topic.keys} keys, {topic.tombstones:.0%} tombstones" if topic.keys else ""
    return f"{sizes}, {kind}{keys}; {_pairs(topic.configs)}"


def _producer_text(plan: ProducerPlan) -> str:
    load = f"up to {plan.burst_max} records of up to {plan.size_max} bytes every {plan.pause_s * 1000:.0f} ms"
    return f"{load}; {_pairs(plan.options)}{_crash(plan.crash_at_s)}"


def _consumer_text(plan: ConsumerPlan) -> str:
    how = ", subscribed" if plan.subscribes else ""
    return f"polls every {plan.poll_ms} ms{how}; {_pairs(plan.options)}{_crash(plan.crash_at_s)}"


def _crash(at_s: float) -> str:
    return f", crashes at {at_s:.1f} s" if at_s else ""


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


# -- drawing ----------------------------------------------------------------------------------------------------------


def draw_options(seed: int | str) -> Options:
    """Draw everything that the seed decides before its run begins."""
    options, doubles = _with_directories(_draw_options(seed), Random(f"{seed}/directories")), Random(f"{seed}/doubles")
    options = _with_handlers(_with_groups(options, Random(f"{seed}/groups")), Random(f"{seed}/handlers"))
    options = _with_configured_groups(options, Random(f"{seed}/configured groups"))
    options = _with_transactions(options, Random(f"{seed}/transactions"))
    options = _with_security(options, Random(f"{seed}/security"))
    if options.loss_permitted and options.faults and doubles.random() < DOUBLES_SHARE:
        return with_double_faults(options, doubles)
    return options


def _with_security(options: Options, draw: Random) -> Options:
    """The same run, in some cases with users and rights."""
    return options if options.upgrades else options.replaced(security=draw_security(draw))


def with_double_faults(options: Options, draw: Random) -> Options:
    """The same run with one to three double faults in addition, and with unclean elections: by the strategy of the topic, which
    is drawn, or by hand. Losses are permitted in it."""
    at_s = [round(options.faults_s * draw.uniform(0.1, 0.9), 3) for _ in range(draw.choice((1, 2, 3)))]
    number = max((fault.number for fault in options.faults), default=-1) + 1
    doubles = [
        FaultPlan(number + n, at, draw.choice(list(DOUBLE_FAULTS)), draw.choice((0.3, 1.0, 2.0)), draw.getrandbits(32))
        for n, at in enumerate(at_s)
    ]
    strategies = [(("unclean.recovery.strategy", name),) for name in ("none", "balanced", "aggressive")]
    strategies.append((("unclean.leader.election.enable", "true"),))
    return options.replaced(
        topics=tuple(replace(topic, configs={**topic.configs, **dict(draw.choice(strategies))}) for topic in options.topics),
        controller_settings=options.controller_settings | {"unclean.recovery.timeout.ms": draw.choice((100, 500, 2000))},
        kinds=options.kinds | DOUBLE_FAULTS,
        faults=tuple(sorted((*options.faults, *doubles), key=lambda fault: fault.at_s)),
        admin=(*options.admin, RECOVER),
        loss_permitted=True,
    )


def _with_groups(options: Options, draw: Random) -> Options:
    """The same run, in some cases with consumer groups."""
    return with_groups(options, draw) if draw.random() < GROUPS_SHARE else options


def with_groups(options: Options, draw: Random) -> Options:
    """The same run with consumer groups."""
    names = [topic.name for topic in options.topics]
    drawn = draw_groups(draw, names, options.brokers, options.faults_s, has_faults=bool(options.faults))
    return options.replaced(
        settings=options.settings | drawn.settings,
        members=drawn.members,
        group_work=drawn.work,
        **_with_faults_of(options, drawn.faults),
    )


def _with_configured_groups(options: Options, draw: Random) -> Options:
    """The same run, in some cases with groups whose configuration changes."""
    drawn = draw_configured(draw, options.settings, options.brokers) if options.members else None
    if drawn is None:
        return options
    keys, narrow = drawn
    return options.replaced(
        settings=options.settings | keys,
        controller_settings=options.controller_settings | keys,
        group_work=(*options.group_work, CONFIGURES),
        narrow_bounds=narrow,
    )


def _with_handlers(options: Options, draw: Random) -> Options:
    """The same run, in some cases with members that use `Consumer.run`. It is drawn apart, so that a seed without them is the
    same as before there were any."""
    if not options.members or draw.random() >= HANDLERS_SHARE:
        return options
    return options.replaced(members=with_handlers(draw, options.members))


def _with_transactions(options: Options, draw: Random) -> Options:
    """The same run, in some cases with transactions. A run that permits losses has none, because a loss excuses any outcome of a
    transaction."""
    has_them = draw.random() < TRANSACTIONS_SHARE and not options.loss_permitted
    return with_transactions(options, draw) if has_them else options


def with_transactions(options: Options, draw: Random) -> Options:
    """The same run with transactions."""
    drawn = draw_transactions(draw, options.brokers, options.faults_s, has_faults=bool(options.faults))
    groups = group_settings(draw, options.brokers) if drawn.shippers and not options.members else {}
    return options.replaced(
        settings=options.settings | drawn.settings | groups,
        shippers=drawn.shippers,
        transactional_topics=tuple(TopicPlan(**topic) for topic in drawn.topics),
        writers=drawn.writers,
        committed_readers=drawn.readers,
        **_with_faults_of(options, drawn.faults),
    )


def _with_faults_of(options: Options, drawn: Sequence[GroupFault | TransactionFault]) -> dict[str, Any]:
    number = max((fault.number for fault in options.faults), default=-1) + 1
    faults = [FaultPlan(number + n, f.at_s, f.kind, f.duration_s, f.draw) for n, f in enumerate(drawn)]
    kinds = {fault.kind: 1.0 for fault in faults}
    return {
        "kinds": options.kinds | kinds,
        "faults": tuple(sorted((*options.faults, *faults), key=lambda fault: fault.at_s)),
    }


def _with_directories(options: Options, draw: Random) -> Options:
    """The same run, in some cases with two or three log directories per broker, between which replicas move, and which fail one
    at a time."""
    if draw.random() >= SEVERAL_DIRS_SHARE:
        return options
    dirs = ("/d1", "/d2", "/d3")[: draw.choice((2, 2, 3))]
    settings: dict[str, Any] = {"log.dirs": ",".join(dirs)}
    if draw.random() < 0.3:
        settings["replica.alter.log.dirs.io.max.bytes.per.second"] = draw.choice((10_000, 100_000))
    several = options.replaced(settings=options.settings | settings, moves_logs=draw.random() < 0.8)
    return with_failing_directories(several, draw) if options.faults else several


def with_failing_directories(options: Options, draw: Random) -> Options:
    """The same run with up to three log directories that fail."""
    at_s = [round(options.faults_s * draw.uniform(0.0, 0.9), 3) for _ in range(draw.choice((0, 1, 2, 3)))]
    number = max((fault.number for fault in options.faults), default=-1) + 1
    failing = [
        FaultPlan(number + n, at, draw.choice(list(DIRECTORY_FAULTS)), draw.choice((0.1, 0.5, 2.0)), draw.getrandbits(32))
        for n, at in enumerate(at_s)
    ]
    return options.replaced(
        kinds=options.kinds | (DIRECTORY_FAULTS if failing else {}),
        faults=tuple(sorted((*options.faults, *failing), key=lambda fault: fault.at_s)),
    )


def _draw_options(seed: int | str) -> Options:
    draw = Random(f"{seed}/options")
    controllers = draw.choice((1, 3, 3, 3, 5))
    brokers = draw.choice((1, 2, 3, 3, 3, 3, 3, 4, 4, 5))
    session_ms = draw.choice((800, 1500, 3000))
    topics = _draw_codecs_of_topics(Random(f"{seed}/codecs"), _draw_topics(draw, brokers))
    trims = Random(f"{seed}/trims").random() < TRIMS_SHARE
    cleaned = _draw_cleanup(Random(f"{seed}/cleanup"), topics)
    faults_s = draw.choice((3.0, 5.0, 7.0))
    loss_permitted = draw.random() < 0.1
    kinds = _draw_kinds(draw, loss_permitted)
    racks = _draw_racks(Random(f"{seed}/racks"), brokers)
    if not kinds:
        faults_s = FAULTLESS_S
    return Options(
        seed=seed,
        controllers=controllers,
        brokers=brokers,
        settings=_draw_settings(draw, session_ms) | _draw_cleaner(Random(f"{seed}/cleaner"), cleaned) | _selector(racks),
        controller_settings=_draw_controller_settings(draw, session_ms) | _draw_balance(Random(f"{seed}/balance")),
        topics=cleaned,
        producers=_draw_codecs_of_producers(Random(f"{seed}/producers"), _draw_producers(draw, topics, faults_s)),
        consumers=_near(Random(f"{seed}/near"), racks, _from_the_start(_draw_consumers(draw, topics, faults_s), cleaned, trims)),
        racks=racks,
        trims=trims,
        upgrades=Random(f"{seed}/levels").random() < UPGRADES_SHARE,
        reconfigures=Random(f"{seed}/reconfigures").random() < RECONFIGURED_SHARE,
        reassigns=brokers > 1 and Random(f"{seed}/reassigns").random() < REASSIGNED_SHARE,
        drains=brokers > 1 and Random(f"{seed}/drains").random() < DRAINED_SHARE,
        racers=_draw_racers(Random(f"{seed}/racers")),
        holders=2 if Random(f"{seed}/holders").random() < FENCED_SHARE else 0,
        readers=draw.choice((0, 0, 1)),
        admin=tuple(name for name in ADMIN if draw.random() < 0.4) if draw.random() < 0.5 else (),
        kinds=kinds,
        faults=_draw_faults(draw, kinds, faults_s),
        faults_s=faults_s,
        delay_ms=draw.choice((0.05, 0.1, 0.5, 2.0)),
        jitter_ms=draw.choice((0.05, 0.2, 1.0, 5.0)),
        disks_take_time=draw.random() < 0.5,
        clock_drift=draw.choice((0.0, 0.0, 0.01, 0.05)),
        leave_out=draw.choice((0, 0, 1, 1, 2)),
        orderly_end=draw.random() < 0.3,
        loss_permitted=loss_permitted,
        session_eviction_s=draw.choice((120.0, 120.0, 1.0, 0.1)),
        proposal_timeout_ms=draw.choice((30_000, 30_000, 1000, 300)),
        lies=_draw_lies(draw, topics),
    )


def _draw_racers(draw: Random) -> int:
    return draw.choice((1, 2, 2, 3)) if draw.random() < RACED_SHARE else 0


def _draw_lies(draw: Random, topics: tuple[TopicPlan, ...]) -> int:
    """Draw no lies if a broker sets the timestamps, because some lies are about timestamps."""
    lies = draw.choice((10, 20, 30)) if draw.random() < LIARS_SHARE else 0
    return 0 if any("message.timestamp.type" in topic.configs for topic in topics) else lies


def _draw_settings(draw: Random, session_ms: int) -> dict[str, Any]:
    lag_ms = draw.choice((1000, 2000, 4000))
    return {
        "broker.session.timeout.ms": session_ms,
        "broker.heartbeat.interval.ms": draw.choice((session_ms // 8, session_ms // 4)),
        "replica.lag.time.max.ms": lag_ms,
        "replica.fetch.wait.max.ms": draw.choice((50, 200, 500)),
        # Small, yet enough for a follower to catch up with busy producers over slow links and disks.
        "replica.fetch.max.bytes": draw.choice((2000, 5000, 1 << 20)),
        "replica.fetch.response.max.bytes": draw.choice((8000, 10 << 20, 10 << 20)),
        "replica.fetch.backoff.ms": draw.choice((200, 1000)),
        "num.replica.fetchers": draw.choice((1, 1, 2)),
        "replica.high.watermark.checkpoint.interval.ms": draw.choice((100, 1000, 5000)),
        "log.flush.offset.checkpoint.interval.ms": draw.choice((300, 3000, 60_000)),
        "max.incremental.fetch.session.cache.slots": draw.choice((0, 2, 4, 1000, 1000)),
        "controlled.shutdown.timeout.ms": draw.choice((500, 2000)),
        "fetch.max.bytes": draw.choice((2000, 55 << 20)),
        # Longer than a fetch waits. Otherwise a follower without a session, whose next fetch already waits when it receives the
        # leader's log start, would be too late for that offset again and again.
        "log.retention.check.interval.ms": 1000,
    }


def _draw_controller_settings(draw: Random, session_ms: int) -> dict[str, Any]:
    return {
        "broker.session.timeout.ms": session_ms,
        "controller.quorum.election.timeout.ms": draw.choice((300, 500)),
        "controller.quorum.fetch.timeout.ms": draw.choice((500, 1000, 2000)),
        "controller.quorum.request.timeout.ms": draw.choice((500, 1000)),
        "metadata.log.segment.bytes": draw.choice((2048, 16 << 20)),
        "metadata.log.max.record.bytes.between.snapshots": draw.choice((1000, 5000, 20 << 20)),
    }


def _draw_balance(draw: Random) -> dict[str, Any]:
    """Whether leaders return by themselves, and how soon. It is drawn apart, so that a seed decides everything else as before."""
    if draw.random() >= BALANCED_SHARE:
        return {"auto.leader.rebalance.enable": False}
    return {
        "auto.leader.rebalance.enable": True,
        "leader.imbalance.check.interval.seconds": draw.choice((1, 1, 2, 10)),
        "leader.imbalance.per.broker.percentage": draw.choice((0, 0, 0, 40)),
    }


def _draw_topics(draw: Random, brokers: int) -> tuple[TopicPlan, ...]:
    topics = [_draw_topic(draw, "orders", brokers, ALL)]
    if draw.random() < 0.3:
        topics.append(_draw_topic(draw, "payments", brokers, ALL))
    if draw.random() < 0.4:
        topics.append(_draw_topic(draw, "clicks", brokers, LEADER))
    return tuple(topics)


def _draw_topic(draw: Random, name: str, brokers: int, promise: str) -> TopicPlan:
    replication_factor = min(brokers, draw.choice((2, 3, 3, 3, 3, 5)))
    least = min(replication_factor, draw.choice((1, 2, 2, 2, 3)))
    configs: dict[str, Any] = {
        "min.insync.replicas": least,
        "segment.bytes": draw.choice((2000, 20_000, 1 << 20)),
        "index.interval.bytes": draw.choice((0, 200, 4096)),
        "flush.messages": draw.choice((1, 20, 2**63 - 1, 2**63 - 1)),
        "file.delete.delay.ms": draw.choice((0, 1000)),
    }
    if draw.random() < 0.1:
        configs["message.timestamp.type"] = "LogAppendTime"
    if draw.random() < 0.15:
        configs |= {"retention.bytes": draw.choice((3000, 20_000)), "segment.bytes": draw.choice((1000, 5000))}
    partitions = 12 if draw.random() < 0.03 else draw.choice((1, 2, 2, 3, 4))
    return TopicPlan(name, partitions, replication_factor, least, promise, configs)


def _draw_codecs_of_topics(draw: Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Some topics have a codec of their own. It is drawn apart, so that a seed decides everything else as before."""
    codecs = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
    return tuple(
        replace(topic, configs={**topic.configs, "compression.type": draw.choice(codecs)}) if draw.random() < 0.15 else topic
        for topic in topics
    )


def _draw_codecs_of_producers(draw: Random, producers: tuple[ProducerPlan, ...]) -> tuple[ProducerPlan, ...]:
    codecs = ("gzip", "snappy", "lz4", "zstd")
    return tuple(
        replace(plan, options={**plan.options, "compression_type": draw.choice(codecs)}) if draw.random() < 0.3 else plan
        for plan in producers
    )


def _draw_cleanup(draw: Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Some topics are compacted, and some delete by age. It is drawn apart, so that a seed decides everything else as before."""
    return tuple(_draw_cleanup_of(draw, topic) for topic in topics)


def _draw_cleanup_of(draw: Random, topic: TopicPlan) -> TopicPlan:
    is_compacted, is_aged = draw.random() < COMPACTED_SHARE, draw.random() < AGED_SHARE
    configs = dict(topic.configs)
    if is_aged:
        configs |= {"retention.ms": draw.choice((500, 2000, 5000)), "segment.bytes": draw.choice((1000, 5000))}
    if not is_compacted:
        return replace(topic, configs=configs)
    configs |= {
        "cleanup.policy": draw.choice(("compact", "compact", "compact,delete")),
        "segment.bytes": draw.choice((1000, 2000, 5000)),
        "min.cleanable.dirty.ratio": draw.choice((0.0, 0.1, 0.5)),
        "delete.retention.ms": draw.choice((0, 100, 1000, 86_400_000)),
        "min.compaction.lag.ms": draw.choice((0, 0, 0, 500)),
    }
    if draw.random() < 0.3:
        configs["segment.ms"] = draw.choice((100, 500))
    if draw.random() < 0.3:
        configs["max.compaction.lag.ms"] = draw.choice((500, 2000))
    return replace(topic, configs=configs, keys=draw.choice((1, 3, 10, 50)), tombstones=draw.choice((0.0, 0.1, 0.3, 0.6)))


def _draw_cleaner(draw: Random, topics: tuple[TopicPlan, ...]) -> dict[str, Any]:
    """The cleaner's settings, if a topic is compacted. The smallest map has room for 38 keys."""
    if not any(topic.is_compacted for topic in topics):
        return {}
    settings = {
        "log.cleaner.backoff.ms": draw.choice((20, 100, 500)),
        "log.cleaner.dedupe.buffer.size": draw.choice((1 << 10, 2 << 10, 128 << 20)),
        "log.cleaner.io.buffer.size": draw.choice((1 << 10, 512 << 10)),
        "log.cleaner.threads": draw.choice((1, 1, 2)),
    }
    if draw.random() < 0.2:
        settings["log.cleaner.io.max.bytes.per.second"] = draw.choice((10_000, 100_000))
    return settings


def _draw_patience(draw: Random) -> dict[str, Any]:
    return {
        "request_timeout_ms": draw.choice((300, 1000, 3000)),
        "connect_timeout_ms": draw.choice((300, 1000)),
        "max_block_ms": draw.choice((1000, 3000)),
        "retry_backoff_ms": draw.choice((30, 100, 100)),
        "metadata_max_age_ms": draw.choice((500, 5000, 300_000)),
    }


def _draw_producers(draw: Random, topics: tuple[TopicPlan, ...], faults_s: float) -> tuple[ProducerPlan, ...]:
    count = draw.choice((1, 1, 2)) + len(topics) - 1
    rate = draw.choice((8.0, 15.0, 25.0)) * min(1.0, 6.0 / faults_s)
    return tuple(_draw_producer(draw, topics[n % len(topics)], count / rate, faults_s) for n in range(count))


def _draw_producer(draw: Random, topic: TopicPlan, pause_s: float, faults_s: float) -> ProducerPlan:
    request_ms = draw.choice((300, 1000, 3000))
    options = {
        **_draw_patience(draw),
        "request_timeout_ms": request_ms,
        "delivery_timeout_ms": draw.choice((700, 3000, 6000)),
        "linger_ms": draw.choice((0, 0, 0, 5)),
        "batch_size": draw.choice((200, 2000, 16_384)),
        "max_in_flight_requests_per_connection": draw.choice((1, 5, 5)),
        "buffer_memory": draw.choice((20_000, 33_554_432, 33_554_432)),
        "acks": "all",
    }
    if topic.promise == LEADER:
        options["acks"] = draw.choice((1, 1, 0, "all"))
        options["enable_idempotence"] = False
    crash_at_s = faults_s * draw.uniform(0.1, 0.9) if draw.random() < 0.25 else 0.0
    return ProducerPlan(topic.name, options, pause_s, draw.choice((1, 5, 20)), draw.choice((0, 30, 300)), crash_at_s)


def _draw_consumers(draw: Random, topics: tuple[TopicPlan, ...], faults_s: float) -> tuple[ConsumerPlan, ...]:
    plans = []
    for topic in topics:
        for _ in range(draw.choice((0, 1, 1, 2))):
            options = {
                **_draw_patience(draw),
                # A consumer that retention resets to the end skips records, and does not report which.
                "auto_offset_reset": "earliest" if topic.has_retention else draw.choice(("earliest", "earliest", "latest")),
                "fetch_max_wait_ms": draw.choice((20, 100, 500)),
                "fetch_max_bytes": draw.choice((1000, 52_428_800)),
                "max_partition_fetch_bytes": draw.choice((500, 1_048_576)),
                "max_poll_records": draw.choice((None, 1, 10)),
            }
            crash_at_s = faults_s * draw.uniform(0.1, 0.9) if draw.random() < 0.2 else 0.0
            plans.append(ConsumerPlan(topic.name, options, draw.choice((50, 200, 1000)), crash_at_s, draw.random() < 0.3))
    return tuple(plans)


def _from_the_start(consumers: tuple[ConsumerPlan, ...], topics: tuple[TopicPlan, ...], trims: bool) -> tuple[ConsumerPlan, ...]:
    """A consumer whose records are deleted is not reset to the end, because it would not report which records it skips."""
    deleted = {topic.name for topic in topics if trims or topic.has_retention}
    return tuple(
        replace(plan, options={**plan.options, "auto_offset_reset": "earliest"}) if plan.topic in deleted else plan
        for plan in consumers
    )


def _draw_racks(draw: Random, brokers: int) -> tuple[str, ...]:
    """The rack of each broker. It is drawn apart, so that a seed decides everything else as before."""
    return tuple(draw.choice("abc") for _ in range(brokers)) if draw.random() < RACKS_SHARE else ()


def _selector(racks: tuple[str, ...]) -> dict[str, Any]:
    return {"replica.selector.class": "rack-aware"} if racks else {}


def _near(draw: Random, racks: tuple[str, ...], consumers: tuple[ConsumerPlan, ...]) -> tuple[ConsumerPlan, ...]:
    """Consumers in the racks of brokers, or in one without a broker, or without a rack. Some ask for a nearer replica often."""
    if not racks:
        return consumers
    places = (None, "far", *racks, *racks)
    return tuple(
        replace(
            plan,
            options={**plan.options, "client_rack": draw.choice(places), "metadata_max_age_ms": draw.choice((500, 300_000))},
        )
        for plan in consumers
    )


def _draw_kinds(draw: Random, loss_permitted: bool) -> dict[str, float]:
    share = draw.choice((0.0, 0.15, 0.3, 0.5, 0.8))
    kinds = {kind: round(weight * draw.uniform(0.3, 2.0), 2) for kind, weight in FAULTS.items() if draw.random() < share}
    for kind in BEYOND_BUDGET:
        if not loss_permitted:
            kinds.pop(kind, None)
        elif share:
            kinds[kind] = 4 * FAULTS[kind]
    return kinds


def _draw_faults(draw: Random, kinds: dict[str, float], faults_s: float) -> tuple[FaultPlan, ...]:
    if not kinds:
        return ()
    gap_s = draw.choice((0.3, 0.7, 1.5))
    faults: list[FaultPlan] = []
    at_s = draw.expovariate(1 / gap_s)
    while at_s < faults_s and len(faults) < 30:
        kind = draw.choices(list(kinds), list(kinds.values()))[0]
        duration_s = draw.choice((0.05, 0.3, 1.0, 3.0, 6.0)) * draw.uniform(0.5, 1.5)
        faults.append(FaultPlan(len(faults), round(at_s, 3), kind, round(duration_s, 3), draw.getrandbits(32)))
        at_s += draw.expovariate(1 / gap_s)
    return tuple(faults)
