"""An event as a sentence, in Kafka's words: "broker 2 truncates orders-0 from 12 to 10: on the leader, epoch 1 ends at 10".

A sentence may depend on the state before its event: the leader, the ISR. So it is built from the picture (picture.py) of the
moment before the event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from strandline.testing.simulation.kernel.trace import Event
from strandline.testing.simulation.story.fault_words import (
    BY_NODE_EVENTS,
    fault_name,
    fault_text,
    fields_text,
    is_clause,
    over_text,
)
from strandline.testing.simulation.story.picture import (
    DEAD,
    PAUSED,
    UNKNOWN,
    Picture,
    ended_by,
    ids,
    is_restart,
    name_of,
    names_of,
    offsets,
    phase_of,
)

MAXIMUM = 240
"""Most characters of a sentence; logged texts may be long."""


DISK_FAULTS = {
    "death": "the process of {} dies",
    "error": "the disk of {} fails",
    "full": "the disk of {} is full",
    "misdirected": "the disk of {} writes to the wrong place",
    "stale": "the disk of {} returns old content",
    "stalled": "the disk of {} hangs",
}
PHASES = {
    "faults": "The faults begin.",
    "core": "The faults end. Some nodes may stay broken: the others must recover without them.",
    "heal": "All faults end, and all nodes run: from now on the cluster must come to rest by itself.",
    "full heal": "The nodes that stayed broken are repaired, too.",
    "final check": "All records are read once more.",
    "stop": "All nodes shut down cleanly.",
}


@dataclass(frozen=True, slots=True)
class Sentences:
    picture: Picture
    several: bool = True
    """Whether the page is about more than one partition, so that sentences name theirs."""
    brief: bool = False
    """Leave out partition epochs and broker epochs."""

    def of(self, event: Event) -> str:
        tell = _TELLERS.get(event.kind, Sentences._anything)
        try:
            text = tell(self, event)
        except (KeyError, TypeError, ValueError):  # a field is missing, or has an unknown form
            text = self._anything(event)
        return text if len(text) <= MAXIMUM else text[: MAXIMUM - 3] + "..."

    # -- nodes and faults

    def _started(self, event: Event) -> str:
        node = self.picture.nodes.get(event.node)
        return f"{name_of(event.node)} {'restarts' if node is not None and node.starts else 'starts'}"

    def _crashed(self, event: Event) -> str:
        if name_of(event.node).startswith("client"):  # clients have no disk
            return f"{name_of(event.node)} crashes"
        how = "and loses what it had not flushed" if event.fields.get("lossy") else "(its page cache survives)"
        return f"{name_of(event.node)} crashes {how}"

    def _stopped(self, event: Event) -> str:
        return f"{name_of(event.node)} shuts down cleanly"

    def _paused(self, event: Event) -> str:
        return f"{name_of(event.node)} is paused"

    def _resumed(self, event: Event) -> str:
        node = self.picture.nodes.get(event.node)
        slept = f" after {event.time - node.since:.3f} s" if node is not None and node.state == PAUSED else ""
        return f"{name_of(event.node)} is resumed{slept}"

    def _fault_begin(self, event: Event) -> str:
        return fault_text(event) if is_clause(event) else f"fault begins: {fault_text(event)}"

    def _fault_end(self, event: Event) -> str:
        fault = ended_by(event, self.picture.faults)
        return over_text(fault.event if fault else event)

    def _disk_fault(self, event: Event) -> str:
        said = event.fields
        what = DISK_FAULTS.get(said["fault"], f"the disk of {{}} fails ({said['fault']})").format(name_of(event.node))
        return f"{what} at a {said['operation']} of {said['path']}"

    # -- the controllers

    def _elected(self, event: Event) -> str:
        return f"{name_of(event.node)} becomes the active controller in epoch {event.fields['epoch']}"

    def _resigned(self, event: Event) -> str:
        return f"{name_of(event.node)} is no longer the active controller"

    def _voted(self, event: Event) -> str:
        said = event.fields
        return f"{name_of(event.node)} votes for {name_of(said['candidate'])} in epoch {said['epoch']}"

    def _raft_hw(self, event: Event) -> str:
        return f"{name_of(event.node)}: the metadata log is committed up to {event.fields['offset']}"

    def _metadata_broker(self, event: Event) -> str:
        broker = int(event.fields["broker"])
        was = self.picture.fenced.get(broker)
        if event.fields.get("fenced"):
            what = "is fenced: it leads no partition and is in no ISR" if was is False else "is registered, but still fenced"
        else:
            what = "is unfenced: it may lead and join ISRs"
        return f"{name_of(broker)} {what}{self._exactly(event, 'epoch', 'broker epoch')}"

    def _metadata_topic(self, event: Event) -> str:
        return f"topic {event.fields['name']} is created"

    def _metadata_partition(self, event: Event) -> str:
        said, was = event.fields, self.picture.partitions.get(event.partition)
        leader, epoch = said.get("leader", UNKNOWN), said.get("leader_epoch", UNKNOWN)
        isr, elr = said.get("isr") or (), said.get("elr") or ()
        parts = []
        if was is None or (was.leader, was.leader_epoch) != (leader, epoch):
            parts.append(f"{name_of(leader)} leads in epoch {epoch}" if leader > 0 else f"no leader, in epoch {epoch}")
        if was is None or set(was.isr) != set(isr):
            parts.append(f"ISR {ids(isr)}" if was is None else f"ISR {ids(was.isr)} -> {ids(isr)}")
        if set(was.elr if was else ()) != set(elr):
            parts.append(f"ELR {ids(elr)}")
        what = ", ".join(parts) or "no change"
        return f"the controller decides{self._for(event)}: {what}{self._exactly(event, 'partition_epoch', 'partition epoch')}"

    def _exactly(self, event: Event, field: str, name: str) -> str:
        return "" if self.brief or field not in event.fields else f" ({name} {event.fields[field]})"

    # -- replicas

    def _leader(self, event: Event) -> str:
        start = event.fields.get("start_offset")
        begins = "" if start is None else f", which begins at {start}"
        return f"{name_of(event.node)} becomes leader{self._of(event)} in epoch {event.fields['epoch']}{begins}"

    def _follower(self, event: Event) -> str:
        leader = event.fields.get("leader", UNKNOWN)
        does = f"follows {name_of(leader)}" if leader > 0 else "has no leader to follow"
        return f"{name_of(event.node)} {does}{self._in(event)} (epoch {event.fields['epoch']})"

    def _appended(self, event: Event) -> str:
        said = event.fields
        what = offsets(said["base"], said["last"])
        if said.get("role") == "follower":
            return f"{name_of(event.node)} copies {what}{self._of(event)} (epoch {said['epoch']})"
        return f"{name_of(event.node)} appends {what}{self._to(event)} in epoch {said['epoch']}"

    def _truncated(self, event: Event) -> str:
        said = event.fields
        what = event.partition if self.several else "its log"
        if is_restart(event):
            return f"{name_of(event.node)} restarts {what} at {said['to']}, the log start of its leader"
        if said["to"] == said.get("was"):
            return f"{name_of(event.node)} has nothing to truncate{self._in(event)}: it ends at {said['to']}{self._why(event)}"
        was = f" from {said['was']}" if "was" in said else ""
        return f"{name_of(event.node)} truncates {what}{was} to {said['to']}{self._why(event)}"

    def _why(self, event: Event) -> str:
        diverging = self.picture.diverging.get(event.partition)
        if diverging is None:
            return ""
        epoch, end = diverging.fields["epoch"], diverging.fields["end_offset"]
        replica = self.picture.replicas.get(event.partition, {}).get(event.node)
        ends = [run.end for run in replica.runs if run.epoch <= epoch] if replica is not None else []
        here = f", here at {ends[-1]}" if ends and ends[-1] < end else ""
        return f": on the leader, epoch {epoch} ends at {end}{here}"

    def _start_moved(self, event: Event) -> str:
        return f"{name_of(event.node)}: the log{self._of(event)} now begins at {event.fields['to']}"

    def _rolled(self, event: Event) -> str:
        return f"{name_of(event.node)} rolls a new segment{self._of(event)} at {event.fields['base']}"

    def _recovered(self, event: Event) -> str:
        replica = self.picture.replicas.get(event.partition, {}).get(event.node)
        end = event.fields["end"]
        lost = replica.end - end if replica is not None else 0
        gone = f": {offsets(end, end + lost - 1)} are lost" if lost > 0 else ""
        return f"{name_of(event.node)} opens its log{self._of(event)}, which ends at {end}{gone}"

    def _hw(self, event: Event) -> str:
        return f"HW{self._of(event)} on {name_of(event.node)} is {event.fields['hw']}"

    # -- the ISR

    def _isr_proposed(self, event: Event) -> str:
        return f"{name_of(event.node)} proposes ISR {ids(event.fields['isr'])}{self._for(event)}"

    def _isr_committed(self, event: Event) -> str:
        exactly = self._exactly(event, "partition_epoch", "partition epoch")
        return f"{name_of(event.node)} installs the committed ISR {ids(event.fields['isr'])}{self._for(event)}{exactly}"

    def _isr_refused(self, event: Event) -> str:
        return f"the controller rejects the ISR that {name_of(event.node)} proposed{self._for(event)}: {event.fields['error']}"

    # -- fetches and clients

    def _diverging(self, event: Event) -> str:
        said = event.fields
        replica = self.picture.replicas.get(event.partition, {}).get(event.node)
        end = f"epoch {said['epoch']} ends at {said['end_offset']}"
        if replica is not None and replica.leads is None:
            return f"{name_of(event.node)} gets the leader's response{self._for(event)}: their histories diverge, {end} there"
        whose = f"{name_of(said['follower'])}'s fetch" if "follower" in said else "a fetch"
        return f"{name_of(event.node)} answers {whose}{self._of(event)}: their histories diverge, {end} here"

    def _fenced(self, event: Event) -> str:
        said = dict(event.fields)
        error = said.pop("error", "the epochs differ")
        return f"{name_of(event.node)} rejects a fetch{self._of(event)}: {error}{fields_text(said, ' (', ')')}"

    def _parked(self, event: Event) -> str:
        return f"{name_of(event.node)} parks a produce request{self._to(event)} until HW {event.fields['last'] + 1}"

    def _produce_acked(self, event: Event) -> str:
        said = event.fields
        acks = {-1: "all", "-1": "all"}.get(said.get("acks", "?"), said.get("acks", "?"))
        return f"{name_of(event.node)} acknowledges {offsets(said['base'], said['last'])}{self._of(event)} (acks={acks})"

    def _produce_failed(self, event: Event) -> str:
        said = dict(event.fields)
        error = said.pop("error", "no reason given")
        return f"{name_of(event.node)} rejects a produce request{self._to(event)}: {error}{fields_text(said, ' (', ')')}"

    def _client_sent(self, event: Event) -> str:
        return f"{name_of(event.node)} sends {_value(event)}{self._to(event)}"

    def _client_acked(self, event: Event) -> str:
        said = event.fields
        value = _value(event) if "value" in said else "its record"
        return f"{name_of(event.node)} gets the acknowledgement of {value} at offset {said['offset']}{self._of(event)}"

    def _client_read(self, event: Event) -> str:
        said = event.fields
        return f"{name_of(event.node)} reads {offsets(said['from'], said['to'])}{self._of(event)}"

    def _says(self, event: Event) -> str:
        return f"-- {event.fields['text']} --"

    def _begins(self, event: Event) -> str:
        return f"-- {event.fields['number']}: {event.fields['title']} --"

    def _must(self, event: Event) -> str:
        return f"{'check passed' if event.fields.get('holds') else 'CHECK FAILED'}: {event.fields['text']}"

    def _phase(self, event: Event) -> str:
        name = phase_of(event)
        return PHASES.get(name, f"phase: {name}")

    def _failed(self, event: Event) -> str:
        return f"{name_of(event.node)} cannot continue: {event.fields['reason']}"

    def _anything(self, event: Event) -> str:
        said = dict(event.fields)
        where = f" of {event.partition}" if event.partition and self.several else ""
        if "level" in said:
            level = said.pop("level")
            return f"{name_of(event.node)} logs {level}: {event.kind[4:]}{where}{fields_text(said, ': ')}"
        return f"{name_of(event.node)}: {event.kind}{where}{fields_text(said, ': ')}"

    # -- the name of a partition, if it is needed

    def _of(self, event: Event) -> str:
        return f" of {event.partition}" if self.several else ""

    def _to(self, event: Event) -> str:
        return f" to {event.partition}" if self.several else ""

    def _in(self, event: Event) -> str:
        return f" in {event.partition}" if self.several else ""

    def _for(self, event: Event) -> str:
        return f" for {event.partition}" if self.several else ""


def _value(event: Event) -> str:
    value = event.fields.get("value", "a record")
    return f'"{value}"' if isinstance(value, str) else str(value)


def state_text(picture: Picture, node: int) -> str:
    """The state of a node, such as `dead since 3.000 s`; empty if the node runs without a fault."""
    known = picture.nodes.get(node)
    parts = []
    if known is not None and known.state != "up":
        word = {DEAD: "dead", PAUSED: "paused"}.get(known.state, known.state)
        lossy = ", with the loss of what it had not flushed" if known.lossy else ""
        parts.append(f"{word} since {known.since:.3f} s{lossy}")
    for fault in [fault for fault in picture.faults_of(node) if fault.name not in BY_NODE_EVENTS]:
        others = [other for other in fault.nodes if other != node]
        whom = f" ({names_of(others)})" if others else ""
        parts.append(f"{fault_name(fault.event)}{whom} since {fault.since:.3f} s")
    return "; ".join(parts)


_TELLERS: dict[str, Callable[[Sentences, Event], str]] = {
    "node.started": Sentences._started,
    "node.crashed": Sentences._crashed,
    "node.stopped": Sentences._stopped,
    "node.paused": Sentences._paused,
    "node.resumed": Sentences._resumed,
    "fault.begin": Sentences._fault_begin,
    "fault.end": Sentences._fault_end,
    "disk.fault": Sentences._disk_fault,
    "controller.elected": Sentences._elected,
    "controller.resigned": Sentences._resigned,
    "raft.voted": Sentences._voted,
    "raft.high_watermark": Sentences._raft_hw,
    "metadata.broker": Sentences._metadata_broker,
    "metadata.topic": Sentences._metadata_topic,
    "metadata.partition": Sentences._metadata_partition,
    "leader.became": Sentences._leader,
    "follower.became": Sentences._follower,
    "log.appended": Sentences._appended,
    "log.truncated": Sentences._truncated,
    "log.start_moved": Sentences._start_moved,
    "log.rolled": Sentences._rolled,
    "log.recovered": Sentences._recovered,
    "hw.advanced": Sentences._hw,
    "isr.proposed": Sentences._isr_proposed,
    "isr.committed": Sentences._isr_committed,
    "isr.refused": Sentences._isr_refused,
    "fetch.diverging": Sentences._diverging,
    "fetch.fenced": Sentences._fenced,
    "produce.parked": Sentences._parked,
    "produce.acked": Sentences._produce_acked,
    "produce.failed": Sentences._produce_failed,
    "client.sent": Sentences._client_sent,
    "client.acked": Sentences._client_acked,
    "client.read": Sentences._client_read,
    "node.failed": Sentences._failed,
    "scenario.begins": Sentences._begins,
    "scenario.says": Sentences._says,
    "scenario.must": Sentences._must,
    "phase": Sentences._phase,
}
