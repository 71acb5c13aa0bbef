"""The partitions and records that the members of all groups have received. Members write into it; no production code reads it.

- **I36 ownership**, as the members see it. A partition has one owner in each member epoch. A member gets a record only while
  it owns the partition: after `on_assigned`, and before `on_revoked` or `on_lost`. A member of the newer protocol gets none when
  its session may have ended without its knowledge, and none when another member already owns the partition.
- **I38 start of the next owner**: the committed offset in the coordinator's answer.
- **I39 coverage** (`unread`): every record below the committed offset of a group was finished by a member.

A group may be deleted, and begin again with the first epoch. So an epoch is identified together with the group's *incarnation*,
which the invariants have from the coordinator's records.

A member that was removed without its knowledge may return records until its next heartbeat is answered: an administrator has
removed it, it has not given up partitions in time, or its connection broke and the network delayed the next heartbeat. Such a
member is excused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from strandline.client import TopicPartition
from strandline.client.errors import UsageError
from strandline.protocol.partitions import TopicIdPartition
from strandline.testing.simulation.group_plans import MemberPlan
from strandline.testing.simulation.invariants.violation import Violation


class Coordinators(Protocol):
    """The state of the groups, which the invariants have from the coordinators' records and answers (`invariants/groups.py`)."""

    def incarnation(self, group: str) -> int:
        """How often the group was deleted."""

    def answered(self, group: str, member_id: str, key: TopicIdPartition) -> int:
        """The committed offset in the last answer to the member; -1: there was none."""

    def is_doubtful(self, group: str, member_id: str) -> bool:
        """Whether a coordinator may have removed the member without its knowledge, although its session has not ended."""

    def longest_session_ms(self, group: str, member_id: str, within_ms: float) -> int:
        """The longest session, in milliseconds, in the coordinator's answers to the member of the last `within_ms`, by the
        member's clock; 0: none."""

    def committed(self, group: str, key: TopicIdPartition) -> int:
        """The committed offset; -1: there is none."""

    def note(self, error: BaseException) -> None:
        """Report a violation, which ends the run."""


class Place(NamedTuple):
    """A partition, as a group reads it."""

    group: str
    key: TopicIdPartition


class Start(NamedTuple):
    """The start of a member's reading of a partition."""

    place: Place
    committed: int
    """The committed offset; -1: there is none."""
    first: int
    """The offset of the first record that it received."""


class GroupLedger:
    def __init__(self, coordinators: Coordinators, session_ms: int, *, loss_permitted: bool) -> None:
        """`session_ms`: the session of a member of the newer protocol whose group has no session timeout of its own.
        `loss_permitted`: a coordinator may forget which session timeouts it has sent to its members."""
        self.coordinators = coordinators
        self.loss_permitted = loss_permitted
        self.session_ms = session_ms
        self.finished: dict[Place, set[int]] = {}
        """The offsets of the records that a member has finished."""
        self.starts: list[Start] = []
        self.sought: dict[str, None] = {}
        """Groups whose offsets an administrator has set or deleted, or may have: they may have left records unread."""
        self.stays: dict[str, Stay] = {}
        """Name of a program -> its present stay in the group."""
        self.newest: dict[Place, Stay] = {}
        """Place -> the stay that last received the partition."""
        self._terms: dict[tuple[Place, int, int], str] = {}
        """(place, incarnation, member epoch) -> its owner."""

    def begin(self, name: str, plan: MemberPlan, consumer: Any) -> Stay:
        """The program is about to join its group with this consumer."""
        stay = self.stays[name] = Stay(self, name, plan, consumer)
        return stay

    def end(self, stay: Stay) -> None:
        """The program has left the group, or its process has died."""
        if self.stays.get(stay.name) is stay:
            del self.stays[stay.name]
        stay.owned.clear()

    def excuse(self, group: str, member_id: str | None = None) -> None:
        """An administrator may have removed this member of the group; None: any member. It is excused until its next
        assignment."""
        for stay in self.stays.values():
            if stay.plan.group == group and member_id in (None, stay.member_id):
                stay.is_excused = True

    def violated(self, invariant: str, text: str, stay: Stay) -> None:
        self.coordinators.note(Violation(invariant, f"group {stay.plan.group}: {text}"))

    def enter(self, stay: Stay, place: Place, epoch: int) -> None:
        """I36: the coordinator has assigned the partition to the member in this member epoch."""
        term = (place, self.coordinators.incarnation(place.group), epoch)
        owner = self._terms.setdefault(term, stay.identity)
        if owner != stay.identity and not self.loss_permitted:
            text = f"in the member epoch {epoch}, {stay.identity} and {owner} were both assigned {place_text(place)}"
            self.violated("I36", text, stay)
        self.newest[place] = stay

    def missing(self, place: Place, offsets: Iterable[int], committed: int) -> list[int]:
        """I39: those of these offsets below the committed one that no member has finished."""
        finished = self.finished.get(place, set())
        return [offset for offset in offsets if offset < committed and offset not in finished]


class Stay:
    """One program in its group, from its subscription to its end: the partitions that it owns, and the records it received."""

    def __init__(self, ledger: GroupLedger, name: str, plan: MemberPlan, consumer: Any) -> None:
        self.ledger = ledger
        self.name = name
        self.plan = plan
        self.consumer = consumer
        self.member_id = ""
        self.topics: tuple[str, ...] = plan.topics
        """The topics to which it is subscribed, unless by a pattern."""
        self.pattern = plan.pattern
        self.owned: dict[TopicPartition, TopicIdPartition] = {}
        self.is_excused = False
        self._begins: dict[TopicIdPartition, int] = {}
        """Partitions of which it has received no record yet -> the committed offset, or -1."""

    @property
    def identity(self) -> str:
        """A static member is the same one under each of its member ids."""
        return self.plan.instance_id or self.member_id

    # -- partitions ---------------------------------------------------------------------------------------------------

    def on_assigned(self, partitions: Iterable[TopicPartition], member_id: str, epoch: int) -> None:
        self.member_id, self.is_excused = member_id, False
        for tp in partitions:
            key = self.owned[tp] = (self.consumer.topic_id(tp), tp.partition)
            place = Place(self.plan.group, key)
            self._begins[key] = self.ledger.coordinators.answered(place.group, member_id, key)
            self.ledger.enter(self, place, epoch)

    def on_gone(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions were revoked or lost, or the member gives them up."""
        for tp in partitions:
            key = self.owned.pop(tp, None)
            if key is not None:
                self._begins.pop(key, None)

    def begins_at(self, tp: TopicPartition, position: int) -> None:
        """I38: the first position of a partition, in `on_assigned`."""
        committed = self._begins.get(self.owned[tp], -1)
        if 0 <= committed != position:
            text = f"{self.identity} begins {tp} at {position}, but the coordinator has answered the committed offset {committed}"
            self.ledger.violated("I38", text, self)

    # -- records ------------------------------------------------------------------------------------------------------

    def given(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> None:
        """I36: a call has returned these records."""
        for tp, records in polled.items():
            key = self.owned.get(tp)
            if key is None:
                self._strange(tp, records)
                continue
            place = Place(self.plan.group, key)
            self._check_overlap(place)
            committed = self._begins.pop(key, None)
            if committed is not None:
                self.ledger.starts.append(Start(place, committed, records[0].offset))
        if polled:
            self._check_session(polled)

    def _strange(self, tp: TopicPartition, records: Sequence[Any]) -> None:
        text = f"{self.identity} was given {tp} from {records[0].offset}, but owns {sorted(self.owned)}"
        self.ledger.violated("I36", text, self)

    def _check_session(self, polled: Iterable[TopicPartition]) -> None:
        age_ms = self.silent_ms()
        if age_ms is not None and age_ms > self._session_ms(age_ms):
            text = f"{self.identity} was given records of {sorted(polled)} {age_ms:.0f} ms after its last heartbeat"
            self.ledger.violated("I36", f"{text}; its session has {self._session_ms(age_ms)} ms", self)

    def _session_ms(self, age_ms: float) -> int:
        """The length of the session that the heartbeat sent `age_ms` ago began."""
        sent_ms = self.ledger.coordinators.longest_session_ms(self.plan.group, self.member_id, age_ms)
        return sent_ms or self.ledger.session_ms

    def silent_ms(self) -> float | None:
        """The time since the last heartbeat that succeeded; None for a member of the classic protocol."""
        found: float | None = self.consumer.health().get("group", {}).get("last_heartbeat_age_ms")
        return found

    def _check_overlap(self, place: Place) -> None:
        other = self.ledger.newest.get(place)
        if other is None or other is self or self.ledger.loss_permitted or self.silent_ms() is None:
            return
        if self.is_excused or self.ledger.coordinators.is_doubtful(place.group, self.member_id):
            return
        if place.key in other.owned.values():
            text = f"{self.identity} was given records of {place_text(place)}, which {other.identity} owns"
            self.ledger.violated("I36", text, self)

    def handed(self, tp: TopicPartition, offset: int) -> None:
        """I36: a handler is called for a record of this partition."""
        key = self.owned.get(tp)
        if key is None:
            text = f"{self.identity} handles {tp} at {offset}, but owns {sorted(self.owned)}"
            self.ledger.violated("I36", text, self)
            return
        self._begins.pop(key, None)
        self._check_overlap(Place(self.plan.group, key))
        self._check_session([tp])

    def handled(self, tp: TopicPartition, offset: int) -> None:
        """I36: the call for this record has ended, and was not cancelled. A process that was paused may not know yet that its
        session has ended."""
        silent_ms, key = self.silent_ms(), self.owned.get(tp)
        if silent_ms is not None and silent_ms > self._session_ms(silent_ms):
            return
        if key is None:
            text = f"{self.identity} has handled {tp} at {offset}, but owns {sorted(self.owned)}"
            self.ledger.violated("I36", text, self)
        else:
            self._check_overlap(Place(self.plan.group, key))

    def finish(self, records: Mapping[TopicIdPartition, Sequence[int]]) -> None:
        """The program has finished the records at these offsets."""
        for key, offsets in records.items():
            self.ledger.finished.setdefault(Place(self.plan.group, key), set()).update(offsets)

    def keys_of(self, polled: Mapping[TopicPartition, Sequence[Any]]) -> dict[TopicIdPartition, list[int]]:
        """The offsets of the records by partition. Called before the program waits for anything."""
        found = {}
        for tp, records in polled.items():
            try:
                topic_id = self.consumer.topic_id(tp)
            except UsageError:
                continue  # I36 has found that it does not own the partition
            found[topic_id, tp.partition] = [record.offset for record in records]
        return found


def place_text(place: Place) -> str:
    return f"partition {place.key[1]} of topic {place.key[0].hex()}"
