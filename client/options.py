"""The options of producer, consumer and admin client: one table of names, types, ranges, defaults, units and meanings.

The names are aiokafka's, if it has the option. `config={"bootstrap.servers": ..., "enable.idempotence": "false"}` accepts Kafka's
dotted names, with values as in a properties file or as Python writes them. Keyword arguments are typed: a str that contains a
number is not accepted as a number. An unknown name is a TypeError that names the nearest known one. A wrong value, or values that
contradict each other, are a UsageError that says what is accepted. Documents are generated from `table_of`.
"""

from __future__ import annotations

import dataclasses
import difflib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar

from strandline.client.consumer.records import GroupStateChange
from strandline.client.option_types import (
    INT64_MAX,
    Acks,
    Addresses,
    Bytes,
    Choice,
    Duration,
    Flag,
    Function,
    Instance,
    Nothing,
    Number,
    OptionType,
    OrNone,
    Path,
    Text,
    TokenSource,
    Whole,
)
from strandline.protocol.errors import UsageError
from strandline.protocol.producer_names import NAME_LENGTH_MAX, NOTE_BYTES_MAX, WORK_EPOCH_MAX
from strandline.protocol.records.compression import LEVELS, Codec, Compression
from strandline.protocol.records.fence import FENCING_TOKEN_MAX
from strandline.protocol.security.client_properties import NAMES as PROPERTIES
from strandline.protocol.security.client_properties import settings_of
from strandline.protocol.security.client_security import PROTOCOLS, ClientSecurity
from strandline.protocol.security.mechanisms import MECHANISMS

Serializer = Callable[[Any], bytes | None]
Partitioner = Callable[[bytes | None, list[int], list[int]], int]
"""Key, all partitions, those with a leader -> partition."""
Deserializer = Callable[[bytes], Any]
StateCallback = Callable[[GroupStateChange], object]

REQUEST_SIZE_MAX = 99 * 1024 * 1024
"""The upper bound of `max_request_size`: brokers accept frames of 100 MiB (`socket.request.max.bytes`), and a produce request
needs room for more than its records."""
REQUEST_SIZE_MIN = 256
TRANSACTIONAL_ID_LENGTH_MAX = 32_767
SECURITY_NAMES = tuple(field.name for field in dataclasses.fields(ClientSecurity) if field.name != "random_bytes")
"""The options that are fields of a ClientSecurity."""

_NOT_NEGATIVE = Whole(0)
_POSITIVE = Whole(1)
_TIME = Duration()
_TIME_POSITIVE = Duration(1)
_FUNCTION = OrNone(Function())


class Option(NamedTuple):
    """One row of the table."""

    name: str
    """The name of the option, as a keyword argument."""
    type: OptionType
    default: Any
    unit: str
    """ "ms", "bytes", "records", "requests", or empty."""
    meaning: str

    is_secret: bool = False
    """Whether the value is kept out of reprs and errors."""

    @property
    def dotted(self) -> str:
        """The name in `config`, as Kafka's properties files write it."""
        return self.name.replace("_", ".")

    def check(self, value: Any) -> Any:
        """The value in its normal form. UsageError if it is not accepted."""
        try:
            return self.type.check(value)
        except ValueError:
            raise self._wrong(value, self.name) from None

    def parse(self, text: str, written: str | None = None) -> Any:
        """The value of a text in a properties file. `written`: the name of the option in the UsageError."""
        try:
            return self.type.parse(text.strip())
        except ValueError:
            raise self._wrong(text, written or self.name) from None

    def _wrong(self, value: object, written: str) -> UsageError:
        unit = f" ({self.unit})" if self.unit else ""
        why = f": {self.meaning}" if isinstance(self.type, OrNone) and isinstance(self.type.other, Nothing) else ""
        given = "" if self.is_secret else f", not {value!r}"
        return UsageError(f"{written} must be {self.type.text}{unit}{given}{why}")


def option(default: Any, of_type: OptionType, meaning: str, unit: str = "", *, is_secret: bool = False) -> Any:
    """A field of an options class, with its row of the table."""
    row = {"type": of_type, "meaning": meaning, "unit": unit, "is_secret": is_secret}
    return dataclasses.field(default=default, repr=not is_secret, metadata=row)


def table_of(kind: type[ClientOptions]) -> list[Option]:
    """The options of one client, in the order in which they are declared."""
    return [Option(field.name, default=field.default, **field.metadata) for field in dataclasses.fields(kind)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The options that producer, consumer and admin have in common."""

    bootstrap_servers: str | Sequence[str] = option(
        "127.0.0.1:9092",
        Addresses(),
        "Addresses of some brokers. The client learns the rest of the cluster from the first one that answers.",
    )
    client_id: str = option("strandline", Text(), "The name of this client in the brokers' logs.")
    request_timeout_ms: int = option(30_000, _TIME_POSITIVE, "How long the client waits for the response to one request.", "ms")
    connect_timeout_ms: int = option(
        5_000, _TIME_POSITIVE, "How long one attempt to connect may take, and how long `start` looks for the cluster.", "ms"
    )
    metadata_max_age_ms: int = option(
        300_000, _TIME_POSITIVE, "The client asks for metadata at least this often, and so finds new partitions.", "ms"
    )
    max_block_ms: int = option(
        60_000, _TIME, "The longest that a call waits for metadata, for room in the buffer, or for a connection.", "ms"
    )
    retry_backoff_ms: int = option(
        100, _TIME, "The pause before a failed request is sent again, if the client does not know a better time.", "ms"
    )
    reconnect_backoff_ms: int = option(
        25, _TIME, "The pause after a failed connection to a broker. It doubles up to `reconnect_backoff_max_ms`.", "ms"
    )
    reconnect_backoff_max_ms: int = option(1_000, _TIME, "The longest pause between two attempts to connect to a broker.", "ms")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = option(
        "PLAINTEXT",
        Choice(*PROTOCOLS),
        "How the client connects: without TLS (PLAINTEXT), with TLS (SSL), and with a user's credentials in addition (SASL_...). "
        "It must be the protocol of the listener.",
    )
    ssl_context: ssl.SSLContext | None = option(  # noqa: RUF009
        None,
        OrNone(Instance(ssl.SSLContext, "an ssl.SSLContext")),
        "An SSLContext to use instead of the other `ssl_` options.",
    )
    ssl_cafile: str | None = option(
        None,
        OrNone(Path()),
        "A PEM file with the certificates of the authorities that the client trusts. None: those of the system. This file "
        "and those of `ssl_certfile` and `ssl_keyfile` are read again when they change.",
    )
    ssl_certfile: str | None = option(
        None, OrNone(Path()), "A PEM file with the client's own certificate and its chain, for brokers that ask for one."
    )
    ssl_keyfile: str | None = option(
        None, OrNone(Path()), "A PEM file with the private key of `ssl_certfile`. None: the key is in `ssl_certfile`."
    )
    ssl_password: str | None = option(
        None, OrNone(Text()), "The password of the private key, if the key is encrypted.", is_secret=True
    )
    ssl_check_hostname: bool = option(
        True, Flag(), "Whether the broker's certificate must name the host that the client connects to."
    )
    sasl_mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"] = option(
        "SCRAM-SHA-512", Choice(*MECHANISMS), "How the client proves who it is, if `security_protocol` begins with SASL."
    )
    sasl_plain_username: str | None = option(None, OrNone(Text(1)), "The user, for SCRAM and PLAIN.")
    sasl_plain_password: str | None = option(None, OrNone(Text(1)), "The user's password. SCRAM never sends it.", is_secret=True)
    sasl_oauth_token_provider: Any = option(  # noqa: RUF009
        None,
        OrNone(TokenSource()),
        "For OAUTHBEARER: returns a token (a JWT) for each authentication. A function, or an object with a method `token`, as of "
        "aiokafka; async or not. The thread of the heartbeats calls it, too.",
        is_secret=True,
    )
    security: ClientSecurity | None = option(  # noqa: RUF009
        None,
        OrNone(Instance(ClientSecurity, "a ClientSecurity")),
        "All settings of `security_protocol`, `ssl_` and `sasl_` as one object, such as "
        '`ClientSecurity.from_file("client.properties")` with Kafka\'s client properties. None of those options may be given '
        "then.",
    )

    def __post_init__(self) -> None:
        for row in table_of(type(self)):
            value = getattr(self, row.name)
            checked = row.check(value)
            if checked is not value:
                object.__setattr__(self, row.name, checked)  # Another spelling of the same value.
        self._check_together()

    def _check_together(self) -> None:
        """Raise a UsageError for values that contradict each other."""
        self._check_order("reconnect_backoff_ms", "reconnect_backoff_max_ms")
        rows = [row for row in table_of(ClientOptions) if row.name in SECURITY_NAMES]
        given = [row.name for row in rows if getattr(self, row.name) != row.default]
        if self.security is not None and given:
            raise UsageError(f"security has all settings of connections, so {given[0]} cannot be given in addition")
        _ = self.connection_security

    @property
    def connection_security(self) -> ClientSecurity:
        """The settings with which connections are opened. UsageError if they contradict each other."""
        if self.security is not None:
            return self.security
        return ClientSecurity(**{name: getattr(self, name) for name in SECURITY_NAMES})

    def _check_order(self, smaller: str, larger: str) -> None:
        low, high = getattr(self, smaller), getattr(self, larger)
        if low > high:
            raise UsageError(f"{smaller} ({low}) must not be larger than {larger} ({high})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """The options of `Producer`."""

    acks: int | Literal["all"] = option(
        "all",
        Acks(),
        'Which replicas have a record when it is acknowledged. "all": every in-sync replica. 1: the leader. '
        "0: none, and the leader sends no acknowledgement.",
    )
    enable_idempotence: bool | None = option(
        None,
        OrNone(Flag()),
        'Write each record once and in order, also when a request is sent again. None: True with acks="all", else False. '
        'True needs acks="all".',
    )
    linger_ms: float = option(0, Number(0), "How long a batch that is not full waits for more records.", "ms")
    batch_size: int = option(16_384, _POSITIVE, "A batch is closed when the next record would make it larger than this.", "bytes")
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None = option(
        None,
        OrNone(Choice("none", "gzip", "snappy", "lz4", "zstd")),
        "The codec of the batches. Brokers store and send them as they are, and consumers decompress them. A batch is compressed "
        "when it is sent, so `batch_size` counts its records before that; use larger batches than without a codec.",
    )
    compression_level: int | None = option(
        None,
        OrNone(Whole(-131_072, 22)),
        "How hard the codec tries: gzip from 1 to 9, lz4 from 1 to 17, zstd from -131072 to 22. None: the codec's default. "
        "Snappy has no levels.",
    )
    buffer_memory: int = option(
        33_554_432,
        Whole(1, INT64_MAX),
        "How many bytes of records may wait to be acknowledged. `send_nowait` raises BufferFull when they are used up; "
        "`send` waits up to `max_block_ms`.",
        "bytes",
    )
    max_request_size: int = option(
        1_048_576,
        Whole(REQUEST_SIZE_MIN, REQUEST_SIZE_MAX),
        "The largest produce request, and so the largest record. The topic's `max.message.bytes` must allow it as well, and "
        "the brokers' `socket.request.max.bytes`, which is the reason for the upper bound.",
        "bytes",
    )
    max_in_flight_requests_per_connection: int = option(
        5,
        Whole(1),
        "How many requests to one broker may wait for their responses. A partition never has more than five batches in flight.",
        "requests",
    )
    delivery_timeout_ms: int = option(
        120_000,
        _TIME_POSITIVE,
        "How long a record may take from the call that hands it over until it is acknowledged; then it fails.",
        "ms",
    )
    key_serializer: Serializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns each key that is not None into bytes. Without it, keys are bytes."
    )
    value_serializer: Serializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns each value that is not None into bytes. Without it, values are bytes."
    )
    partitioner: Partitioner | None = option(  # noqa: RUF009
        None,
        _FUNCTION,
        "Chooses the partition of each record that names none: `partitioner(key, all_partitions, available_partitions)`, as in "
        "aiokafka. The key is bytes or None; the lists are sorted, and the second one has the partitions with a leader. It "
        "may be called again for a record that waits for room. None: a key is hashed as in Kafka's Java client, and records "
        "without a key fill one batch after another.",
    )
    producer_name: str | None = option(
        None,
        OrNone(Text(1, NAME_LENGTH_MAX)),
        "Makes this a named producer: it fences an earlier producer of the same name, and a later one of that name can find "
        "out what it wrote (`Producer.written`). Needs idempotence.",
    )
    producer_work_epoch: int = option(
        0,
        Whole(0, WORK_EPOCH_MAX),
        "The number of the unit of work that this producer writes, such as a batch id. Each work epoch numbers its rows from 0; "
        "a higher one fences the lower ones.",
    )
    producer_note: bytes | None = option(
        None,
        OrNone(Bytes(NOTE_BYTES_MAX)),
        "Bytes that the first attempt of a work epoch stores for the later attempts, which read them as `Producer.note`.",
    )
    fencing_token: int | None = option(
        None,
        OrNone(Whole(0, FENCING_TOKEN_MAX)),
        "Sent with every record that names no other token: the partition rejects it with TokenFenced if an earlier record has "
        "carried a higher one. So once a producer with a higher token has written its first record, this producer can "
        "write nothing more. Records without a token are not affected. Needs idempotence, and no `producer_name`.",
    )
    transactional_id: str | None = option(
        None,
        OrNone(Text(1, TRANSACTIONAL_ID_LENGTH_MAX)),
        "The name under which this producer writes transactions (`Producer.transaction`): all records of one are visible to "
        "`read_committed` consumers, or none. It fences an earlier producer with the same id, and ends its transaction. All "
        'records are part of a transaction then. Needs `acks="all"` and idempotence, and no `producer_name` or `fencing_token`.',
    )
    transaction_timeout_ms: int = option(
        60_000,
        _TIME_POSITIVE,
        "The coordinator aborts a transaction that takes longer, so that `read_committed` consumers do not wait for a producer "
        "that is gone. The brokers' `transaction.max.timeout.ms` is the longest that they allow.",
        "ms",
    )

    def _check_together(self) -> None:
        # No zero-argument super() here: a slotted dataclass is a new class, and the cell would name the old one.
        ClientOptions._check_together(self)
        if self.enable_idempotence and self.required_acks != -1:
            raise UsageError(f'enable_idempotence needs acks="all", not {self.acks!r}')
        self._check_order("linger_ms", "delivery_timeout_ms")
        self._check_order("batch_size", "buffer_memory")
        self._check_order("batch_size", "max_request_size")
        self._check_level()
        if self.producer_name is None and (self.producer_work_epoch or self.producer_note is not None):
            raise UsageError("producer_work_epoch and producer_note need a producer_name")
        if self.producer_name is not None and not self.idempotent:
            raise UsageError('producer_name needs idempotence, and with it acks="all"')
        if self.transactional_id is not None:
            self._check_transactional()
        if self.fencing_token is not None:
            self.check_conditional("fencing_token")

    def check_conditional(self, what: str) -> None:
        """UsageError unless records of this producer may have conditions, such as `what`."""
        if self.producer_name is not None:
            why = "its epochs fence earlier attempts, and row numbers say where each record goes"
            raise UsageError(f"{what} needs a producer without a name: {why}")
        if self.transactional_id is not None:
            why = "the coordinator fences earlier producers, and other producers may not write between its records"
            raise UsageError(f"{what} needs a producer without a transactional_id: {why}")
        if not self.idempotent:
            why = "else a retry of a record that was written would be rejected"
            raise UsageError(f'{what} needs an idempotent producer, and with it acks="all": {why}')

    def _check_transactional(self) -> None:
        if not self.idempotent:
            raise UsageError('transactional_id needs idempotence, and with it acks="all"')
        if self.producer_name is not None:
            raise UsageError("transactional_id and producer_name are two ways to fence an earlier producer: give one of them")

    def _check_level(self) -> None:
        level, name = self.compression_level, self.compression_type or "none"
        if level is None:
            return
        lowest, highest, _ = LEVELS.get(Codec[name.upper()], (0, 0, 0))
        if not lowest < highest:
            raise UsageError(f"compression_level needs a codec with levels (gzip, lz4 or zstd), not {name}")
        if not lowest <= level <= highest:
            raise UsageError(f"compression_level of {name} must be from {lowest} to {highest}, not {level}")

    @property
    def compression(self) -> Compression | None:
        """The codec of the batches, and its level; None: batches are not compressed."""
        codec = Codec[(self.compression_type or "none").upper()]
        return Compression(codec, self.compression_level) if codec else None

    @property
    def required_acks(self) -> int:
        """`acks` in the form of produce requests: -1 for "all"."""
        return -1 if self.acks == "all" else int(self.acks)

    @property
    def idempotent(self) -> bool:
        """Whether the producer is idempotent (KIP-98). By default it is with `acks="all"` (KIP-679)."""
        return self.required_acks == -1 if self.enable_idempotence is None else self.enable_idempotence


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """The options of `Consumer`."""

    group_id: str | None = option(
        None,
        OrNone(Text(1, 32_767)),
        "The consumer group. Its members share the partitions of the topics that they subscribe to, and their positions are "
        "stored (`commit`). None: no group; each consumer reads all partitions, and no positions are stored.",
    )
    group_instance_id: str | None = option(
        None,
        OrNone(Text(1, 1024)),
        "Makes this a static member (KIP-345): a consumer with the same id that starts within the session time-out gets the same "
        "partitions, without a rebalance. No two running members of a group may have the same id.",
    )
    group_remote_assignor: str | None = option(
        None,
        OrNone(Text(1, 249)),
        'The assignor that the coordinator uses for the group: "uniform" or "range". None: the first of those that the brokers '
        "support.",
    )
    enable_auto_commit: bool = option(
        True,
        Flag(),
        "Commit the offsets of the records that the program has finished: every `auto_commit_interval_ms`, before partitions are "
        "revoked, and when the consumer stops. The records that a call has returned count as finished when the program asks for "
        "more. Needs a `group_id`.",
    )
    auto_commit_interval_ms: int = option(5_000, _TIME_POSITIVE, "The time between two automatic commits.", "ms")
    max_poll_interval_ms: int = option(
        300_000,
        _TIME_POSITIVE,
        "How long a member of a group may take until it asks for more records. After that it leaves the group, so that other "
        "members get its partitions; it joins again when it asks.",
        "ms",
    )
    rebalance_timeout_ms: int | None = option(
        None,
        OrNone(Duration(1)),
        "How long the coordinator waits for a member that has to give up partitions. The program has four fifths of it to finish "
        "its records and for its callbacks. None: `max_poll_interval_ms`.",
        "ms",
    )
    heartbeat_thread: bool = option(
        True,
        Flag(),
        "Send the heartbeats of a group member on a thread of their own, so that a program that blocks its event loop stays a "
        "member. Without it, they share the event loop.",
    )
    on_state_change: StateCallback | None = option(  # noqa: RUF009
        None,
        _FUNCTION,
        "Called on the event loop with a `GroupStateChange` when the state of the membership changes.",
    )
    session_timeout_ms: None = option(
        None, OrNone(Nothing()), "The brokers decide (`group.consumer.session.timeout.ms`); a member does not choose."
    )
    heartbeat_interval_ms: None = option(
        None, OrNone(Nothing()), "The brokers decide (`group.consumer.heartbeat.interval.ms`); a member does not choose."
    )
    partition_assignment_strategy: None = option(
        None, OrNone(Nothing()), "The coordinator assigns the partitions; see `group_remote_assignor`."
    )
    auto_offset_reset: Literal["latest", "earliest", "error", "none"] = option(
        "latest",
        Choice("latest", "earliest", "error", synonyms={"none": "error"}),
        "Where to read if there is no position, or if the position is not in the log: at the end, at the beginning, or nowhere "
        '("error", or "none" as in Kafka: OffsetOutOfRange is raised).',
    )
    fetch_max_wait_ms: int = option(
        500,
        _TIME,
        "How long a broker holds a fetch while it has no records for it; always less than `request_timeout_ms`.",
        "ms",
    )
    fetch_min_bytes: int = option(
        1,
        _NOT_NEGATIVE,
        "A broker holds a fetch until it has this many bytes, or `fetch_max_wait_ms` has passed.",
        "bytes",
    )
    fetch_max_bytes: int = option(52_428_800, _POSITIVE, "The most that a broker returns in one response.", "bytes")
    client_rack: str | None = option(
        None,
        OrNone(Text(1, 1024)),
        "The rack (availability zone, data centre) where the consumer runs. If the brokers have a `broker.rack`, and "
        "`replica.selector.class=rack-aware`, it reads each partition from an in-sync replica in its rack. If there is none, it "
        "reads from the leader.",
    )
    max_partition_fetch_bytes: int = option(
        1_048_576,
        _POSITIVE,
        "The most that a broker returns per partition in one response. A single batch that is larger is returned all the same.",
        "bytes",
    )
    max_poll_records: int | None = option(
        None,
        OrNone(Whole(1)),
        "The most records that `getmany` and `fetch_batches` return if the call has no limit of its own. None: all that were "
        "fetched, within bounds that keep a call short.",
        "records",
    )
    check_crcs: bool = option(True, Flag(), "Compare each batch with its checksum.")
    isolation_level: Literal["read_uncommitted", "read_committed"] = option(
        "read_uncommitted",
        Choice("read_uncommitted", "read_committed"),
        "Whether records of open and aborted transactions are returned. With read_committed, the consumer reads up to the first "
        "open transaction (the last stable offset), and leaves out the records of aborted ones.",
    )
    on_missing_topic: Literal["raise", "wait"] = option(
        "raise",
        Choice("raise", "wait"),
        "What to do about a topic that does not exist, or was deleted: raise UnknownTopic, or wait until it is created.",
    )
    on_corrupt_batch: Literal["raise", "skip"] = option(
        "raise",
        Choice("raise", "skip"),
        "What to do about a batch that cannot be read: its checksum is wrong, its records are malformed, or its compression is "
        'not supported. "raise": CorruptRecords, and the position stays before it. "skip": continue after it; this reader does '
        "not get its records, a warning in the log names topic, partition and offsets, and `metrics` counts them. A batch whose "
        "end is not known, because its header is damaged, is raised all the same.",
    )
    key_deserializer: Deserializer | None = option(  # noqa: RUF009
        None, _FUNCTION, "Turns the bytes of each key that is not None into the `key` of the record. Without it, keys are bytes."
    )
    value_deserializer: Deserializer | None = option(  # noqa: RUF009
        None,
        _FUNCTION,
        "Turns the bytes of each value that is not None into the `value` of the record. Without it, values are bytes.",
    )

    def _check_together(self) -> None:
        ClientOptions._check_together(self)
        if self.group_id is None and (self.group_instance_id is not None or self.group_remote_assignor is not None):
            raise UsageError("group_instance_id and group_remote_assignor need a group_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions(ClientOptions):
    """The options of `Admin`."""


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
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    ssl_password: str | None
    ssl_check_hostname: bool
    sasl_mechanism: Literal["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"]
    sasl_plain_username: str | None
    sasl_plain_password: str | None
    sasl_oauth_token_provider: Any
    security: ClientSecurity | None


class PlainProducerKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Producer` without the serializers, which determine the types of a producer."""

    acks: int | Literal["all"]
    enable_idempotence: bool | None
    linger_ms: float
    batch_size: int
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_level: int | None
    buffer_memory: int
    max_request_size: int
    max_in_flight_requests_per_connection: int
    delivery_timeout_ms: int
    partitioner: Partitioner | None
    producer_name: str | None
    producer_work_epoch: int
    producer_note: bytes | None
    fencing_token: int | None
    transactional_id: str | None
    transaction_timeout_ms: int


class ProducerKeywords(PlainProducerKeywords, total=False):
    """The keyword arguments of `Producer`, for type checkers."""

    key_serializer: Serializer | None
    value_serializer: Serializer | None


class PlainConsumerKeywords(ClientKeywords, total=False):
    """The keyword arguments of `Consumer` without the deserializers, which determine the types of a consumer."""

    group_id: str | None
    group_instance_id: str | None
    group_remote_assignor: str | None
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    max_poll_interval_ms: int
    rebalance_timeout_ms: int | None
    heartbeat_thread: bool
    on_state_change: StateCallback | None
    session_timeout_ms: None
    heartbeat_interval_ms: None
    partition_assignment_strategy: None
    auto_offset_reset: Literal["latest", "earliest", "error", "none"]
    fetch_max_wait_ms: int
    fetch_min_bytes: int
    fetch_max_bytes: int
    client_rack: str | None
    max_partition_fetch_bytes: int
    max_poll_records: int | None
    check_crcs: bool
    isolation_level: Literal["read_uncommitted", "read_committed"]
    on_missing_topic: Literal["raise", "wait"]
    on_corrupt_batch: Literal["raise", "skip"]


class ConsumerKeywords(PlainConsumerKeywords, total=False):
    """The keyword arguments of `Consumer`, for type checkers."""

    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None


ALIASES = {
    "max_batch_size": "batch_size",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "socket_connection_setup_timeout_ms": "connect_timeout_ms",
    "socket_timeout_ms": "request_timeout_ms",
    "metadata_broker_list": "bootstrap_servers",
    "message_timeout_ms": "delivery_timeout_ms",
    "message_max_bytes": "max_request_size",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "compression_codec": "compression_type",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
}
"""The names that other clients have for an option (aiokafka, Java's client, librdkafka) -> the option."""

AnyOptions = TypeVar("AnyOptions", bound=ClientOptions)


def parse_options(kind: type[AnyOptions], keywords: Mapping[str, Any]) -> AnyOptions:
    """The checked options from keyword arguments, and from the mapping `config` among them, with names in Kafka's dotted form. If
    an option is in both, the keyword argument applies. TypeError for the name of an unknown option; UsageError for a value that
    the option does not accept, and if `config` is no mapping."""
    rows = {row.name: row for row in table_of(kind)}
    config = keywords.get("config")
    if config is not None and not isinstance(config, Mapping):
        raise UsageError(f"config must be a mapping of names to values, not {config!r}")
    merged: dict[str, Any] = {}
    dotted = {written: value for written, value in (config or {}).items() if written in PROPERTIES and isinstance(value, str)}
    merged |= settings_of(dotted)
    for written, value in (config or {}).items():
        if written in dotted:
            continue
        row = _row(kind, rows, written)
        merged[row.name] = row.parse(value, written) if isinstance(value, str) else value
    for written, value in keywords.items():
        if written != "config":
            merged[_row(kind, rows, written).name] = value
    return kind(**merged)


def _row(kind: type[ClientOptions], rows: Mapping[str, Option], written: object) -> Option:
    """The option of that name. TypeError if there is none."""
    name = written.replace(".", "_") if isinstance(written, str) else ""
    row = rows.get(ALIASES.get(name, name))
    if row is None:
        raise TypeError(_unknown(kind, str(written), set(rows)))
    return row


def _unknown(kind: type[ClientOptions], written: str, known: set[str]) -> str:
    client = kind.__name__.removesuffix("Options")
    near = difflib.get_close_matches(written.replace(".", "_"), sorted(known | set(ALIASES)), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{client}() got an unexpected option {written!r}{hint}"
