"""The events of a run, typed and in order, and a hash over all of them.

There are two entrances. `emit` adds an event in Kafka's terms ("broker 2 truncated orders-0 to 10"); the pages for people
(story.py, timeline.py) are built from these events. `step` adds a step of the scheduler, which is only hashed. The
hash compares two runs of one seed. So nothing that differs between two processes may reach it: no addresses, no order of sets,
no wall clock, no process ids. `plain` removes these from the fields of events; the caller of `step` passes names, never a repr.

Both are called very often. Hashing is therefore deferred and done for thousands of entries at once, and the trace is bounded: it
keeps the newest events of all, of each partition, and of each kind. So all events of a rare kind (a crash, an election) are
kept, and of a frequent kind the newest ones. If a seed fails, it can be run again with `full=True`, which keeps every event and
so makes the pages complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import sys
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import structlog
from structlog.typing import EventDict, WrappedLogger

from strandline.protocol.errors import UsageError
from strandline.testing.simulation.kernel.process import OWNER

OF_ALL, OF_A_PARTITION, OF_A_KIND = 2_000, 500, 1_000
"""How many of the newest events are kept: of all, of each partition, of each kind."""
BATCH = 16_384
"""Number of events, and of words of steps, that are hashed together."""
FORMAT = "strandline-trace-1"

WORLD = 0
"""The node of events that no node caused: those of the nemesis and the scenario."""


class Event(NamedTuple):
    time: float
    """Virtual seconds since the start."""
    number: int
    """Its place in the order of events: from 1, without gaps."""
    kind: str
    node: int
    partition: str
    """The name of a partition, such as `orders-0`; empty if the event is about none."""
    fields: Mapping[str, Any]
    """The fields of the event. Their values are those that JSON can represent."""


Listener = Callable[[str, int, str, Mapping[str, Any]], object]
"""Called with kind, node, partition, and the fields as they were emitted."""


class Trace:
    __slots__ = (
        "_all",
        "_counts",
        "_encode",
        "_hash",
        "_now",
        "_number",
        "_of_kind",
        "_of_partition",
        "_pending",
        "_recent",
        "about",
        "listeners",
    )

    def __init__(self, now: Callable[[], float], *, full: bool = False) -> None:
        self._now = now
        self._number = 0
        self._pending: list[Any] = []
        """Entries that are not hashed yet, in order: events, and three words per step."""
        self._hash = hashlib.sha256()
        self._encode = msgspec.msgpack.Encoder(enc_hook=_repr).encode
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._all: list[Event] | None = [] if full else None
        self._recent: deque[Event] = deque(maxlen=OF_ALL)
        self._of_partition: defaultdict[str, deque[Event]] = defaultdict(lambda: deque(maxlen=OF_A_PARTITION))
        self._of_kind: defaultdict[str, deque[Event]] = defaultdict(lambda: deque(maxlen=OF_A_KIND))
        self.about: dict[str, Any] = {}
        """The description of the run that `write_jsonl` wrote: seed, scenario, hash. Only `read` fills it."""
        self.listeners: defaultdict[str, list[Listener]] = defaultdict(list)
        """Kind of event -> the functions that are called with each event when it happens."""

    # -- writing

    def emit(self, kind: str, node: int, partition: str = "", /, **fields: Any) -> None:
        """Add an event. The first parameters are positional, so that a field may have any name."""
        given = fields
        for value in fields.values():
            if type(value) not in _PLAIN:
                fields = {name: plain(each) for name, each in fields.items()}
                break
        number = self._number = self._number + 1
        event = _new_event(Event, (self._now(), number, kind, node, partition, fields))
        self._counts[kind] += 1
        if self._all is not None:
            self._all.append(event)
        else:
            self._recent.append(event)
            self._of_kind[kind].append(event)
            if partition:
                self._of_partition[partition].append(event)
        self._pending.append(event)
        if len(self._pending) >= BATCH:
            self._hash_pending()
        if kind in self.listeners:
            for listener in self.listeners[kind]:
                listener(kind, node, partition, given)

    def step(self, time: float, node: int, label: str | int) -> None:
        """Add a step of the scheduler to the hash."""
        pending = self._pending
        pending += (time, node, label)
        if len(pending) >= BATCH:
            self._hash_pending()

    def _hash_pending(self) -> None:
        pending, self._pending = self._pending, []
        try:
            encoded = self._encode(pending)
        except (OverflowError, UnicodeEncodeError):
            self._hash.update(b"".join([self._encoded(entry) for entry in pending]))
        else:  # The array header, which counts the hashed entries, is left out: it depends on when the hash was computed.
            self._hash.update(memoryview(encoded)[_array_head(len(pending)) :])

    def _encoded(self, entry: Any) -> bytes:
        try:
            return self._encode(entry)
        except (OverflowError, UnicodeEncodeError):  # an integer beyond 64 bits, half of a surrogate pair
            return repr(entry).encode()

    def close(self) -> None:
        """The run is over: time no longer advances, and the trace drops its references to the world."""
        now = self._now()
        self._now = lambda: now

    # -- reading

    def sha256(self) -> str:
        """The hash of all steps and events so far, in hexadecimal."""
        self._hash_pending()
        return str(self.about.get("sha256") or self._hash.hexdigest())

    @property
    def emitted(self) -> int:
        """Number of events emitted, whether they are still kept or not."""
        return self._number

    @property
    def is_complete(self) -> bool:
        """Whether every event is still kept."""
        return self._all is not None or len(self._recent) == self._number

    def counts(self) -> dict[str, int]:
        """Kind of event -> how often it happened."""
        return dict(sorted(self._counts.items()))

    def now(self) -> float:
        return self._now()

    def partitions(self) -> list[str]:
        """All partitions that events were about, in the order of topic and index."""
        names = self._of_partition if self._all is None else dict.fromkeys(event.partition for event in self._all)
        return sorted((name for name in names if name), key=partition_order)

    def events(
        self,
        partition: str | Collection[str] | None = None,
        kinds: str | Collection[str] | None = None,
        last: int | None = None,
    ) -> list[Event]:
        """The events that are kept, in order. `partition=""` selects those about none; a kind that ends in a dot selects all
        kinds with this prefix; `last` limits the number after both filters."""
        found = self._kept()
        if partition is not None:
            wanted = {partition} if isinstance(partition, str) else set(partition)
            found = [event for event in found if event.partition in wanted]
        if kinds is not None:
            names = (kinds,) if isinstance(kinds, str) else tuple(kinds)
            exact, prefixes = set(names), tuple(name for name in names if name.endswith("."))
            found = [event for event in found if event.kind in exact or event.kind.startswith(prefixes)]
        return found if last is None else found[max(len(found) - last, 0) :]

    def _kept(self) -> list[Event]:
        if self._all is not None:
            return list(self._all)
        rings = (self._recent, *self._of_partition.values(), *self._of_kind.values())
        kept = {event.number: event for ring in rings for event in ring}
        return [kept[number] for number in sorted(kept)]

    # -- files

    def write_jsonl(self, path: str | Path, **about: Any) -> None:
        """Write one line that describes the file, then one per event. `about` may name seed and scenario."""
        head = {"format": FORMAT, "sha256": self.sha256(), "now": self._now(), "emitted": self._number, **about}
        with Path(path).open("w", encoding="utf-8", errors="surrogatepass") as file:
            for line in (head, *(event._asdict() for event in self._kept())):
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read what `write_jsonl` wrote. The result has the events and the hash of that run, and takes no new ones."""
        with Path(path).open(encoding="utf-8", errors="surrogatepass") as file:
            about = json.loads(file.readline() or "null")
            if not isinstance(about, dict) or about.get("format") != FORMAT:
                raise UsageError(f"{path} is no trace of a simulated run")
            events = [Event(**json.loads(line)) for line in file]
        trace = cls(lambda: float(about["now"]), full=True)
        trace.about, trace._all, trace._number = about, events, about["emitted"]
        for event in events:
            trace._counts[event.kind] += 1
        return trace


def _array_head(count: int) -> int:
    """The size of the msgpack header of an array."""
    return 1 if count < 16 else 3 if count < 65_536 else 5


_new_event = cast(Callable[[type[Event], tuple[Any, ...]], Event], tuple.__new__)
_PLAIN = frozenset({int, str, float, bool, type(None)})


def plain(value: Any) -> Any:
    """The value as JSON has it, the same in every process. It is a copy: a later change of the original does not reach the
    event."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode(errors="backslashreplace")
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=lambda each: (type(each).__name__, each))
    if isinstance(value, list | tuple | range | deque):
        return [plain(each) for each in value]
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, BaseException):
        return f"{kind.__name__}: {without_addresses(str(value))}"
    if isinstance(value, int | float | str):
        return next(base for base in (bool, int, float, str) if isinstance(value, base))(value)
    return _repr(value)


def _repr(value: object) -> str:
    return without_addresses(repr(value))


def without_addresses(text: str) -> str:
    return re.sub(r"0x[0-9a-fA-F]{6,}", "0x", text) if "0x" in text else text


def partition_order(name: str) -> tuple[str, int]:
    """Sort key that puts `orders-2` before `orders-10`."""
    topic, _, index = name.rpartition("-")
    return (topic, int(index)) if index.isdecimal() else (name, -1)


# -- what the production code logs

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_OF_A_PROCESS = ("pid", "timestamp", "exc_info", "stack_info", "exception")
"""Fields of a log line that differ between two processes, or that the event has in another form."""


def capture(trace: Trace) -> Callable[[WrappedLogger, str, EventDict], EventDict]:
    """A structlog processor: turns a line into an event `log.<event>` of the node whose loop runs, and prints nothing."""

    def processor(_logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
        if getattr(running_loop(), "is_dead", False):
            raise structlog.DropEvent  # a dead process finishes its current call, which must have no effect
        name = str(line.pop("event", ""))
        error = _error(method, line)
        for field in _OF_A_PROCESS:
            line.pop(field, None)
        index = line.pop("partition", None)
        partition = "" if index is None else f"{line.pop('topic', '')}-{index}"
        fields = {key: each for key, each in line.items() if key not in ("level", "node")}
        if error is not None:
            fields["exception"], fields["raised_in"] = error, _frames(error)
        level = "error" if method == "exception" else method
        trace.emit(f"log.{name}", running_node(), partition, level=level, **fields)
        raise structlog.DropEvent

    return processor


def _error(method: str, line: Mapping[str, Any]) -> BaseException | None:
    """The exception that the line reports, if any."""
    info = line.get("exc_info", method == "exception")
    if isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        return info
    return sys.exc_info()[1] if info else None


def _frames(error: BaseException, most: int = 6) -> str:
    """The call stack of the exception, innermost last, without the paths of this machine."""
    frames = traceback.extract_tb(error.__traceback__)[-most:]
    return " > ".join(f"{'/'.join(Path(frame.filename).parts[-2:])}:{frame.lineno} {frame.name}" for frame in frames)


def running_node() -> int:
    """The number of the simulated machine whose code runs at this moment; WORLD if none is known."""
    machine = getattr(running_loop(), "machine", None)
    return int(getattr(machine, "id", WORLD))


def running_loop() -> object:
    """The loop of the process whose code runs, on its loop or on one of its threads; None if no process runs."""
    return asyncio._get_running_loop() or OWNER.get()


@contextlib.contextmanager
def captured_logs(trace: Trace, *, level: str = "info") -> Iterator[None]:
    """Within the block, log lines go to the trace and nowhere else. Afterwards structlog is configured as before."""
    before = structlog.get_config() if structlog.is_configured() else None
    structlog.configure(
        processors=[capture(trace)],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        context_class=dict,
        logger_factory=structlog.ReturnLoggerFactory(),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        if before is None:
            structlog.reset_defaults()
        else:
            structlog.configure(**before)
