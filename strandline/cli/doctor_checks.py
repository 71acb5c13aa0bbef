"""The judgement of `strandline doctor`: from facts to findings, each with what is wrong and what to do. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from strandline.cli.amounts import counted, show_bytes, time_text
from strandline.cli.doctor_facts import Facts, Port
from strandline.cli.unclean_elections import lost_text

if TYPE_CHECKING:
    from strandline.client import TopicDescription

SKEW_S_MAX = 2.0
"""Clocks that differ by more make timestamps, and retention by time, wrong by more than people expect."""
FREE_SHARE_MIN, FREE_BYTES_MIN = 0.1, 2**30
"""A disk with less room than this is nearly full."""
NEVER = str(2**63 - 1)
"""The default of settings that are off."""
NAMED_MAX = 5
"""At most this many topics or partitions of one kind are named; the others are counted."""
SAME_ON_ALL = ("min.insync.replicas", "default.replication.factor", "unclean.leader.election.enable", "message.max.bytes")
"""Keys that surprise if brokers have different values: which one counts depends on the leader or the controller."""


class Level(StrEnum):
    ok = "ok"
    note = "note"
    warning = "warning"
    problem = "problem"


class Finding(NamedTuple):
    check: str
    level: Level
    text: str
    advice: str = ""
    """What to do; empty if there is nothing to do."""


def judge(facts: Facts) -> list[Finding]:
    """The findings of all checks, in their order."""
    found: list[Finding] = []
    for check in CHECKS:
        found += check(facts)
    return found


# -- how it is reached ----------------------------------------------------------------------------------------------------


def _bootstrap(facts: Facts) -> Iterator[Finding]:
    good = [port for port in facts.bootstrap if port.is_good]
    for port in facts.bootstrap:
        if not port.is_good:
            level = Level.warning if good else Level.problem
            yield Finding("bootstrap", level, f"{port.address} {_what(port)}", _advice_for(port))
        elif port.role != "broker":
            advice = "name a broker; clients cannot talk to controllers"
            yield Finding("bootstrap", Level.problem, f"{port.address} is {port.role}-{port.node_id}, no broker", advice)
    brokers = [port for port in good if port.role == "broker"]
    if brokers:
        names = ", ".join(f"{port.address} is broker {port.node_id} ({port.elapsed_ms:.0f} ms)" for port in brokers)
        yield Finding("bootstrap", Level.ok, names)
    ids = dict.fromkeys(port.cluster_id for port in brokers if port.cluster_id)
    if len(ids) > 1:
        text = f"the addresses belong to {len(ids)} clusters: {', '.join(map(str, ids))}"
        yield Finding("bootstrap", Level.problem, text, "name the brokers of one cluster")
    if brokers and facts.cluster is None:
        yield Finding("bootstrap", Level.problem, f"the cluster cannot be described: {facts.cluster_error}", "look at the logs")


def _what(port: Port) -> str:
    return (
        port.error if not port.resolved or port.speaks or len(port.resolved) < 2 else f"{port.error} ({', '.join(port.resolved)})"
    )


def _advice_for(port: Port) -> str:
    if not port.resolved:
        return "check the name, or add it to this machine's DNS or /etc/hosts"
    if port.speaks == "HTTP":
        return "this is the port of a web server, perhaps a node's http.listener; give that of the client listener"
    if port.speaks == "TLS":
        return "this listener wants TLS: give the client properties that fit it with --client-config"
    if port.speaks == "Kafka's protocol":
        if "Strandline's is spoken at" in port.error:
            return "this listener is for Kafka's clients (docs/kafka-clients.md); give the other address"
        return "this is an Apache Kafka broker, or a listener for Kafka's clients; give the port of Strandline's own listener"
    if port.is_open:
        return "find out which program listens there; it may be a node that hangs"
    return "start the node, or correct the host and the port; check firewalls between here and there"


def _listeners(facts: Facts) -> Iterator[Finding]:
    """The addresses that brokers advertise are those that clients use after the first contact."""
    if facts.cluster is None:
        return
    remote = any(not _is_local(port.address) for port in facts.bootstrap if port.is_good)
    bad = 0
    for broker in facts.cluster.brokers:
        port = facts.advertised.get(broker.broker_id)
        if port is None or broker.is_fenced:
            continue
        name = f"broker {broker.broker_id} advertises {port.address}"
        if not port.is_good:
            bad += 1
            text = f"{name}, which clients on this machine cannot use: {_what(port)}"
            advice = f"set advertised.listeners of broker {broker.broker_id} to an address that its clients reach"
            yield Finding("listeners", Level.problem, text, advice)
        elif port.node_id != broker.broker_id or port.role != "broker":
            bad += 1
            text = f"{name}, and {port.role} {port.node_id} answers there"
            yield Finding("listeners", Level.problem, text, "two nodes advertise one address: correct advertised.listeners")
        elif remote and _is_local(port.address):
            bad += 1
            advice = f"set advertised.listeners of broker {broker.broker_id} to a name that other machines reach"
            yield Finding("listeners", Level.warning, f"{name}: other machines would connect to themselves", advice)
    checked = [b for b in facts.cluster.brokers if not b.is_fenced]
    if checked and not bad:
        text = f"{counted(len(checked), 'advertised address', 'advertised addresses')} can be reached from here"
        yield Finding("listeners", Level.ok, text)


def _kafka(facts: Facts) -> Iterator[Finding]:
    """The addresses that Kafka's clients use. Such clients may run on other machines, so an address that this machine cannot
    reach is only noted."""
    if facts.cluster is None:
        return
    remote = any(not _is_local(port.address) for port in facts.bootstrap if port.is_good)
    ports = [(i, port) for i, ports in facts.kafka.items() for port in ports]
    good = 0
    for broker_id, port in ports:
        address = f"broker {broker_id} advertises {port.address}"
        name = f"{address} to Kafka's clients"
        if not port.is_good:
            text = f"{address}, which Kafka's clients on this machine cannot use: {_what(port)}"
            advice = f"if they are to reach it, correct the address in advertised.listeners of broker {broker_id}"
            yield Finding("kafka", Level.note, text, advice)
        elif remote and _is_local(port.address):
            advice = f"set the address in advertised.listeners of broker {broker_id} to a name that other machines reach"
            yield Finding("kafka", Level.warning, f"{name}: other machines would connect to themselves", advice)
        else:
            good += 1
    if good and good == len(ports):
        text = f"{counted(good, 'address', 'addresses')} for Kafka's clients can be reached from here"
        yield Finding("kafka", Level.ok, text)


def _is_local(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _controllers(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None:
        return
    quorum = facts.quorum
    if quorum is None and "quorum" in facts.denied:
        return
    if quorum is None or quorum.leader_id < 0:
        advice = "start the controllers: a majority of them has to run"
        yield Finding("controllers", Level.problem, "the quorum of controllers has no reachable leader", advice)
        return
    silent = [v.replica_id for v in quorum.voters if v.last_fetch_age_ms < 0 or v.last_fetch_age_ms > 10_000]
    if silent:
        do, them = _one_or_many(silent, "does", "do"), _one_or_many(silent, "it", "them")
        text = f"{_named('controller', silent)} {do} not follow the leader, which is controller {quorum.leader_id}"
        advice = f"start {them}; of {len(quorum.voters)} controllers, {(len(quorum.voters) - 1) // 2} may be down"
        yield Finding("controllers", Level.warning, text, advice)
    if len(quorum.voters) % 2 == 0:
        text = f"the quorum has {len(quorum.voters)} voters: an even number tolerates no more losses than one less"
        yield Finding("controllers", Level.warning, text, "run 1, 3 or 5 controllers")
    hidden = [voter for voter, port in facts.voters.items() if not port.is_good and port.speaks != "TLS" and voter not in silent]
    if hidden:
        them = _one_or_many(hidden, "it", "them")
        text = f"{_named('controller', hidden)} cannot be reached from here; only brokers have to reach {them}"
        yield Finding("controllers", Level.note, text)
    if not silent:
        text = f"{counted(len(quorum.voters), 'controller')}, controller {quorum.leader_id} leads in epoch {quorum.leader_epoch}"
        yield Finding("controllers", Level.ok, text)


def _rights(facts: Facts) -> Iterator[Finding]:
    advice = "use the client properties of an administrator (--client-config)"
    for reason in dict.fromkeys(facts.denied.values()):
        yield Finding("rights", Level.warning, f"not everything could be checked: {reason}", advice)
        advice = ""


# -- the nodes --------------------------------------------------------------------------------------------------------------


def _clocks(facts: Facts) -> Iterator[Finding]:
    clocks = {i: page.clock for i, page in facts.pages.items() if page.clock is not None}
    skewed = {i: clock for i, clock in clocks.items() if abs(clock.skew_s) > SKEW_S_MAX}
    for broker_id, clock in skewed.items():
        direction = "ahead of" if clock.skew_s > 0 else "behind"
        text = f"the clock of broker {broker_id} is at least {abs(clock.skew_s):.0f} s {direction} this machine's"
        yield Finding("clocks", Level.warning, text, "synchronise the clocks (NTP): timestamps and retention by time use them")
    if clocks and not skewed:
        yield Finding("clocks", Level.ok, f"{counted(len(clocks), 'clock')} within {SKEW_S_MAX:g} s of this machine's")
    for broker_id in facts.broker_configs:
        if broker_id not in clocks:
            text = f"the clock and the disks of broker {broker_id} are not known: {_why_no_page(facts, broker_id)}"
            yield Finding("clocks", Level.note, text)


def _why_no_page(facts: Facts, broker_id: int) -> str:
    page = facts.pages.get(broker_id)
    if page is not None:
        return f"its HTTP at {page.address} does not answer ({page.error})"
    if facts.broker_configs.get(broker_id) is not None:
        return "it serves no HTTP (http.listener)"
    return "its configuration may not be read" if "configuration" in facts.denied else "it did not answer"


def _disks(facts: Facts) -> Iterator[Finding]:
    offline = [(i, one.path) for i, dirs in facts.log_dirs.items() for one in dirs or () if one.error]
    for broker_id, path in offline:
        text = f"log directory {path} of broker {broker_id} is offline"
        yield Finding("disks", Level.problem, text, "repair the disk and restart the broker; its replicas are copied again")
    known = 0
    for broker_id, page in facts.pages.items():
        for path, free in page.free_bytes.items():
            total = page.total_bytes.get(path, 0)
            known += 1
            if total and (free < FREE_BYTES_MIN or free / total < FREE_SHARE_MIN):
                text = f"{path} of broker {broker_id} has {show_bytes(free)} free of {show_bytes(total)}"
                advice = "add space, lower retention, or move replicas (`strandline log-dirs move`)"
                yield Finding("disks", Level.problem if free < FREE_BYTES_MIN else Level.warning, text, advice)
    silent = [i for i, dirs in facts.log_dirs.items() if dirs is None]
    if silent and "quorum" not in facts.denied:  # Both need DESCRIBE on the cluster.
        its, log = _one_or_many(silent, "its", "their"), _one_or_many(silent, "log", "logs")
        text = f"{_named('broker', silent)} did not answer about {its} log directories"
        advice = f"look at {its} {log}, or at `strandline node list` for a local cluster"
        yield Finding("disks", Level.warning, text, advice)
    lagging = _lagging(facts)
    if lagging:
        yield Finding("disks", Level.note, lagging)
    if known and not offline:
        free = min((free for page in facts.pages.values() for free in page.free_bytes.values()), default=0)
        yield Finding(
            "disks", Level.ok, f"{counted(known, 'log directory', 'log directories')}, at least {show_bytes(free)} free"
        )


def _lagging(facts: Facts) -> str:
    moves = sum(len(one.future_replicas) for dirs in facts.log_dirs.values() for one in dirs or ())
    return f"{counted(moves, 'replica')} moving between log directories" if moves else ""


def _nodes(facts: Facts) -> Iterator[Finding]:
    for broker_id, page in facts.pages.items():
        for failed in page.failed:
            yield Finding("brokers", Level.problem, f"broker {broker_id} is not ready: {failed}", "docs/logs.md names its events")
        for warning in page.warnings:
            yield Finding("brokers", Level.warning, f"broker {broker_id}: {warning}")


def _versions(facts: Facts) -> Iterator[Finding]:
    versions = {i: page.version for i, page in facts.pages.items() if page.version}
    different = sorted(set(versions.values()))
    if len(different) > 1:
        text = "the brokers run versions " + ", ".join(
            f"{v} ({_ids(i for i in versions if versions[i] == v)})" for v in different
        )
        yield Finding("versions", Level.warning, text, "finish the upgrade: restart the older ones with the new version")
    if versions and facts.client_version not in different:
        text = f"this command is of version {facts.client_version}, and the brokers of {', '.join(different)}"
        yield Finding("versions", Level.warning, text, "use the command line of the cluster's version")
    yield from _levels(facts)
    if versions and different == [facts.client_version]:
        yield Finding("versions", Level.ok, f"brokers and this command have version {facts.client_version}")


def _levels(facts: Facts) -> Iterator[Finding]:
    from strandline.protocol.feature_names import METADATA_VERSION

    if facts.features is None:
        return
    level = facts.features.levels[METADATA_VERSION]
    ranges = [b.supported[METADATA_VERSION] for b in facts.features.brokers if b.supported is not None]
    highest = min((one.max_level for one in ranges), default=level)
    if highest > level:
        text = f"the metadata has level {level}, and every broker that answers supports {highest}"
        yield Finding("versions", Level.note, text, "`strandline features upgrade`, when no older version will return")


# -- replication ------------------------------------------------------------------------------------------------------------


def _replication(facts: Facts) -> Iterator[Finding]:
    from strandline.cli.health import judge_cluster

    if facts.cluster is None or facts.topics is None:
        return
    min_isr = {name: _number(facts, name, "min.insync.replicas") for name in facts.topic_configs}
    verdict = judge_cluster("", facts.cluster, facts.topics, min_isr)
    advised: set[str] = set()
    for problem in verdict.problems:
        advice = _repair(problem)
        yield Finding("replication", Level.problem, problem, "" if advice in advised else advice)
        advised.add(advice)
    lossy = [report for report in facts.unclean_elections if report.is_loss_possible]
    for report in lossy[-NAMED_MAX:]:
        place = f"{report.partition.topic}-{report.partition.partition}"
        lost = lost_text(report.lost_from, report.lost_to)
        text = f"{place} had an unclean election at {time_text(report.elected_at_ms)}; may be lost: {lost}"
        yield Finding("replication", Level.warning, text, f"`strandline topic describe {report.partition.topic}` has the report")
    if facts.is_filtered and not verdict.facts["partitions"]:
        yield Finding("replication", Level.note, "there are no partitions that this user may describe")
    elif verdict.healthy:
        yield Finding(
            "replication", Level.ok, f"{counted(verdict.facts['partitions'], 'partition')}, each with every replica in sync"
        )


def _repair(problem: str) -> str:
    if "no leader" in problem:
        return "start the broker that it waits for; `strandline recover --plan` shows the choices without it"
    if problem.startswith("broker") or "replicated" in problem or "min.insync" in problem:
        return "start the broker, or look at its log; `strandline broker drain` moves its replicas away"
    return ""


def _number(facts: Facts, topic: str, key: str) -> int:
    return int(next((c.value for c in facts.topic_configs[topic] if c.name == key), None) or 1)


# -- traps in the configuration ---------------------------------------------------------------------------------------------


def _traps(facts: Facts) -> Iterator[Finding]:
    if facts.cluster is None or facts.topics is None:
        return
    topics = [topic for topic in facts.topics if topic.name in facts.topic_configs and topic.partitions]
    own = [topic for topic in topics if not topic.is_internal]
    findings = [*_replica_traps(facts, own), *_value_traps(facts, topics), *_broker_traps(facts)]
    yield from findings
    if not findings:
        yield Finding("configuration", Level.ok, f"no known trap in {counted(len(topics), 'topic')}")


def _replica_traps(facts: Facts, topics: list[TopicDescription]) -> Iterator[Finding]:
    assert facts.cluster is not None
    brokers = len(facts.cluster.brokers)
    single = [t.name for t in topics if t.replication_factor == 1 and brokers > 1]
    if single:
        text = f"{_topics(single)} one replica: a lost disk loses the records, and a stopped broker stops writes"
        yield Finding("configuration", Level.warning, text, "`strandline reassign --topics ... --replication-factor 3 --apply`")
    min_isr = {t.name: _number(facts, t.name, "min.insync.replicas") for t in topics}
    weak = [t.name for t in topics if t.replication_factor > 1 and min_isr[t.name] == 1]
    if weak:
        text = f"{_topics(weak)} min.insync.replicas=1: acks=all may be the promise of one disk"
        yield Finding("configuration", Level.warning, text, "`strandline config set topic NAME min.insync.replicas=2`")
    above = [t.name for t in topics if min_isr[t.name] > t.replication_factor > 1]
    if above:
        text = f"{_topics(above)} a min.insync.replicas above the number of replicas: all of them have to be in sync"
        advice = "set it to one less than the number of replicas, so that one broker may stop"
        yield Finding("configuration", Level.warning, text, advice)
    tight = [t.name for t in topics if min_isr[t.name] == t.replication_factor > 1]
    if tight:
        text = f"{_topics(tight)} min.insync.replicas equal to the number of replicas: acks=all fails when one broker stops"
        advice = "set it to one less than the number of replicas, so that one broker may stop"
        yield Finding("configuration", Level.warning, text, advice)


def _value_traps(facts: Facts, topics: list[TopicDescription]) -> Iterator[Finding]:
    intervals = {facts.value(i, "log.flush.scheduler.interval.ms") for i in facts.broker_configs} - {None}
    if intervals == {NEVER}:
        flushed = [t.name for t in topics if _value(facts, t.name, "flush.ms") not in (None, NEVER)]
        if flushed:
            text = f"{_topics(flushed)} flush.ms, which does nothing: log.flush.scheduler.interval.ms is off on every broker"
            yield Finding("configuration", Level.warning, text, "set log.flush.scheduler.interval.ms in the brokers' files")
    unclean = [t.name for t in topics if _value(facts, t.name, "unclean.leader.election.enable") == "true"]
    if unclean:
        text = f"{_topics(unclean)} unclean.leader.election.enable=true: an election may lose acknowledged records"
        advice = "keep it only where availability counts more than records (docs/unclean-elections.md)"
        yield Finding("configuration", Level.warning, text, advice)


def _value(facts: Facts, topic: str, key: str) -> str | None:
    return next((c.value for c in facts.topic_configs[topic] if c.name == key), None)


def _broker_traps(facts: Facts) -> Iterator[Finding]:
    known = [i for i, configs in facts.broker_configs.items() if configs is not None]
    for key in SAME_ON_ALL:
        values = {i: facts.value(i, key) for i in known}
        if len(set(values.values())) > 1:
            shown = ", ".join(
                f"{value} ({_ids(i for i in known if values[i] == value)})" for value in sorted(map(str, set(values.values())))
            )
            text = f"brokers have different values of {key}: {shown}"
            yield Finding(
                "configuration", Level.warning, text, "give all brokers the same value (`strandline config set cluster`)"
            )
    in_tmp = [i for i in known if any(path.strip().startswith("/tmp/") for path in (facts.value(i, "log.dirs") or "").split(","))]
    if in_tmp:
        is_ = _one_or_many(in_tmp, "is", "are")
        text = f"log.dirs of {_named('broker', in_tmp)} {is_} in /tmp, which a restart of the machine may empty"
        yield Finding("configuration", Level.warning, text, "choose a folder that lasts")
    factors = {facts.value(i, "default.replication.factor") for i in known}
    if len(known) >= 3 and factors == {"1"}:
        text = "default.replication.factor=1: topics that are created without a number have one replica"
        yield Finding("configuration", Level.warning, text, "set default.replication.factor=3 in the brokers' files")


CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    _bootstrap,
    _listeners,
    _kafka,
    _rights,
    _controllers,
    _nodes,
    _replication,
    _disks,
    _clocks,
    _versions,
    _traps,
)


# -- words ------------------------------------------------------------------------------------------------------------------


def _ids(ids: Iterable[int]) -> str:
    return ", ".join(map(str, ids))


def _named(noun: str, ids: Iterable[int]) -> str:
    ids = list(ids)
    return f"{noun} {ids[0]}" if len(ids) == 1 else f"{noun}s {_ids(ids)}"


def _one_or_many(ids: Sequence[int], singular: str, plural: str) -> str:
    """The word that fits the number of nodes that `_named` names."""
    return singular if len(ids) == 1 else plural


def _topics(names: list[str]) -> str:
    """The subject of a sentence about topics, with its verb."""
    shown = ", ".join(names[:NAMED_MAX]) + (f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else "")
    return f"{shown} {'has' if len(names) == 1 else 'have'}"
