"""The settings of producer, consumer and admin: names, defaults, meanings, and the check of what a user wrote.

Names are aiokafka's where it has one. Kafka's dotted names are accepted through `config={"bootstrap.servers": ...}`.
An unknown name is a TypeError that names the nearest known one; a wrong value is a UsageError.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, TypeVar

from strandline.protocol.errors import UsageError
from strandline.protocol.producer_names import GENERATION_MAX, NAME_LENGTH_MAX, NOTE_BYTES_MAX

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What every client has."""

    bootstrap_servers: str | Sequence[str] = "127.0.0.1:9092"
    """Where to start: "host:port,host:port" or a list of such; the rest of the cluster is learned from there."""
    client_id: str = "strandline"
    """Named in the brokers' logs."""
    request_timeout_ms: int = 30_000
    """How long one request may wait for its answer."""
    connect_timeout_ms: int = 5_000
    """How long one attempt to connect may take."""
    metadata_max_age_ms: int = 300_000
    """Metadata is refreshed at least this often, so that new partitions are found."""
    max_block_ms: int = 60_000
    """The longest that a call waits for metadata, for room in the buffer, or for a broker to connect to."""
    retry_backoff_ms: int = 100
    """The pause before a failed request is sent again, where nothing better is known."""
    reconnect_backoff_ms: int = 25
    """The pause after a failed connection to a broker; doubles up to `reconnect_backoff_max_ms`."""
    reconnect_backoff_max_ms: int = 1_000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name.endswith(("_ms", "_bytes", "_size", "_memory", "_records")):
                _check_count(field.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    acks: int | Literal["all"] = "all"
    """ "all" (or -1): acknowledged when every in-sync replica has it. 1: by the leader alone. 0: not at all."""
    enable_idempotence: bool | None = None
    """Each record once and in order, across retries. On by default with acks="all"."""
    linger_ms: float = 0
    """How long a batch that is not full may wait for more records."""
    batch_size: int = 16_384
    """A batch is closed when the next record would make it larger than this."""
    buffer_memory: int = 33_554_432
    """Bytes of records that may wait; more is BufferFull, or waiting in `await send`."""
    max_request_size: int = 1_048_576
    """The largest request, and the largest record."""
    max_in_flight_requests_per_connection: int = 5
    """Requests to one broker that wait for an answer. A partition never has more than five batches in flight."""
    delivery_timeout_ms: int = 120_000
    """From the moment a record is handed over: acknowledged by then, or failed."""
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None
    producer_name: str | None = None
    """Whoever has the name after this producer can find out what it wrote (`Producer.written`), and fences it."""
    producer_generation: int = 0
    """What is written under the name, counted by its owner: rows of a higher generation are others, and begin at 0."""
    producer_note: bytes | None = None
    """What the first attempt of a generation leaves for the later ones (`Producer.note`), 1,024 bytes at most."""

    def __post_init__(self) -> None:
        # No zero-argument super() here: a slotted dataclass is a new class, and the cell would name the old one.
        ClientOptions.__post_init__(self)
        if self.acks not in ("all", -1, 0, 1):
            raise UsageError(f'acks must be 0, 1 or "all", not {self.acks!r}')
        if self.enable_idempotence and self.required_acks != -1:
            raise UsageError(f'enable_idempotence needs acks="all", not {self.acks!r}')
        if self.max_in_flight_requests_per_connection < 1:
            raise UsageError("max_in_flight_requests_per_connection must be at least 1")
        if self.linger_ms > self.delivery_timeout_ms:
            raise UsageError(
                f"linger_ms ({self.linger_ms}) must not be longer than delivery_timeout_ms ({self.delivery_timeout_ms})"
            )
        if self.batch_size > self.buffer_memory:
            raise UsageError(f"batch_size ({self.batch_size}) must not be larger than buffer_memory ({self.buffer_memory})")
        _check_name(self)

    @property
    def required_acks(self) -> int:
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence


def _check_name(options: ProducerOptions) -> None:
    name, generation = options.producer_name, options.producer_generation
    if not isinstance(generation, int) or not 0 <= generation <= GENERATION_MAX:
        raise UsageError(f"producer_generation must be a whole number from 0 to {GENERATION_MAX}, not {generation!r}")
    if name is None:
        if generation or options.producer_note is not None:
            raise UsageError("producer_generation and producer_note need a producer_name")
        return
    if options.producer_note is not None and len(options.producer_note) > NOTE_BYTES_MAX:
        raise UsageError(f"producer_note has {len(options.producer_note)} bytes, more than {NOTE_BYTES_MAX}")
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_LENGTH_MAX:
        raise UsageError(f"producer_name must be a text of 1 to {NAME_LENGTH_MAX} characters, not {name!r}")
    if not options.idempotent:
        raise UsageError('producer_name needs idempotence, and with it acks="all"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    group_id: str | None = None
    """Groups come later; anything but None is refused."""
    auto_offset_reset: Literal["latest", "earliest", "error"] = "latest"
    """Where to start when there is no position, or it is outside the log."""
    fetch_max_wait_ms: int = 500
    """How long a broker may hold a fetch that has nothing to answer."""
    fetch_min_bytes: int = 1
    fetch_max_bytes: int = 52_428_800
    """The most that one broker may answer at once."""
    max_partition_fetch_bytes: int = 1_048_576
    """The most per partition and answer; a single larger batch is still handed out."""
    max_poll_records: int | None = None
    """The most that `getmany` returns when it is not told otherwise."""
    check_crcs: bool = True
    isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted"
    on_missing_topic: Literal["raise", "wait"] = "raise"
    """A topic that does not exist (any more): an error, or wait until somebody creates it."""
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        if self.group_id is not None:
            raise UsageError("consumer groups come later: leave out group_id and use subscribe() (all partitions) or assign()")
        _check_choice("auto_offset_reset", self.auto_offset_reset, ("latest", "earliest", "error"))
        _check_choice("isolation_level", self.isolation_level, ("read_uncommitted", "read_committed"))
        _check_choice("on_missing_topic", self.on_missing_topic, ("raise", "wait"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ClientOptions):
    pass


class ClientKeywords(TypedDict, total=False):
    """The keyword arguments of every client, for type checkers; a test keeps them equal to the options."""

    config: Mapping[str, Any] | None
    bootstrap_servers: str | Sequence[str]
    client_id: str
    request_timeout_ms: int
    connect_timeout_ms: int
    metadata_max_age_ms: int
    max_block_ms: int
    retry_backoff_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int


class ProducerKeywords(ClientKeywords, total=False):
    acks: int | Literal["all"]
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    producer_name: str | None
    producer_generation: int
    producer_note: bytes | None


class ConsumerKeywords(ClientKeywords, total=False):
    group_id: str | None
    auto_offset_reset: Literal["latest", "earliest", "error"]
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int | None
    check_crcs: bool
    isolation_level: Literal["read_uncommitted", "read_committed"]
    on_missing_topic: Literal["raise", "wait"]
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


ALIASES = {"max_batch_size": "batch_size", "max_in_flight": "max_in_flight_requests_per_connection"}
"""Other clients' names for the same thing."""

AnyOptions = TypeVar("AnyOptions", bound=ClientOptions)


def parse_options(kind: type[AnyOptions], keywords: Mapping[str, Any]) -> AnyOptions:
    """Keyword arguments, and under `config` names in Kafka's dotted form, as one checked set of options."""
    known = {field.name for field in dataclasses.fields(kind)}
    merged: dict[str, Any] = {}
    config = keywords.get("config") or {}
    given = [(name, value) for name, value in keywords.items() if name != "config"]
    for written, value in [*config.items(), *given]:
        name = written.replace(".", "_")
        name = ALIASES.get(name, name)
        if name not in known:
            raise TypeError(_unknown(kind, written, known))
        merged[name] = value
    return kind(**merged)


def _unknown(kind: type[ClientOptions], written: str, known: set[str]) -> str:
    who = kind.__name__.removesuffix("Options")
    near = difflib.get_close_matches(written.replace(".", "_"), sorted(known | set(ALIASES)), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{who}() got an unexpected option {written!r}{hint}"


def _check_count(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0 or value != value:
        raise UsageError(f"{name} must be a number of at least 0, not {value!r}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
