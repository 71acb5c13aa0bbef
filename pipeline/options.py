"""The options of `format("strandline")`: parses and checks what a user passes to `.option(...)`.

The names are those of Spark's Kafka connector, so that moving a job means changing the format and the servers. Spark passes
strings, and names in any case. A name that begins with `strandline.` (or `kafka.`, for jobs that are moved) is an option of the
client. An unknown name is an error that suggests the nearest known one (option_names.py): a misspelt `failOnDataLos` must not
silently mean the default.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from strandline.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions, table_of
from strandline.pipeline.client_settings import ClientSettings, is_property, settings_of_file, settings_of_properties
from strandline.pipeline.option_names import CLIENT_PREFIXES, refusal, unknown, unknown_of_client
from strandline.pipeline.packing import Packing
from strandline.protocol.errors import UsageError

ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
EARLIEST, LATEST = -2, -1
"""Special offsets in the JSON of the offset options, as in Spark's Kafka connector."""

Position = Literal["earliest", "latest"] | Mapping[str, Mapping[int, int]]
"""One word for all partitions, or topic -> partition -> offset (`EARLIEST` and `LATEST` allowed)."""
Times = int | Mapping[str, Mapping[int, int]]
"""Milliseconds since the epoch: for all partitions, or topic -> partition -> timestamp."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The topics and partitions to read: exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    """Option `subscribe`: topic names."""
    pattern: str = ""
    """Option `subscribePattern`: a regular expression that must match the whole topic name."""
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Option `assign`: topic -> partitions."""

    def __str__(self) -> str:
        if self.pattern:
            return f"topics that match {self.pattern!r}"
        return "topic " + ", ".join(self.topics or sorted(self.partitions))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Checked options of the source, for batches and streams. docs/spark.md describes them."""

    client: Mapping[str, Any]
    """Options of `Consumer` and `Admin`: `bootstrap_servers`, and all that have the prefix `strandline.` or `kafka.`"""
    subscription: Subscription
    starting: Position
    ending: Position
    starting_times: Times | None = None
    ending_times: Times | None = None
    times_strategy: Literal["error", "latest"] = "error"
    """What to do if a partition has no record at or after the starting timestamp: fail, or start at its end."""
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60 * 1000
    """After this time a batch begins even if fewer than `min_offsets_per_trigger` offsets are available."""
    min_partitions: int = 0
    """Ranges are split until there are at least this many tasks. 0: no range is split."""
    max_partitions: int | None = None
    """Ranges are combined until there are at most this many tasks. None: the rule of packing.py decides."""
    max_records_per_partition: int | None = None
    """A task reads at most this many offsets."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    push_filters: bool = False
    """Accept filters on topic, partition, offset and timestamp. Spark rejects the reader if its filter pushdown is off."""
    read_timeout_ms: int = 120_000
    """How long a task waits for the next records of its range."""
    rows_per_batch: int = 10_000
    """Approximate number of rows in an Arrow batch."""

    @property
    def packing(self) -> Packing:
        return Packing(self.min_partitions, self.max_partitions, self.max_records_per_partition)

    @property
    def reads_committed(self) -> bool:
        """Whether records of open and aborted transactions are left out (option `isolation.level`)."""
        return reads_committed(self.client)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Checked options of the sink, for batches and streams. docs/spark.md describes them."""

    client: Mapping[str, Any]
    topic: str | None = None
    """Topic of every row. None: each row names its topic in the column `topic`."""
    include_headers: bool = True
    """Whether a column `headers` is written as the headers of the records."""
    delivery: Literal["exactly-once", "at-least-once"] = "exactly-once"
    row_order: Literal["unknown", "stable"] = "unknown"
    """Whether a retried task has the same rows in the same order. "stable": an attempt skips as many rows as the log holds.
    "unknown": an attempt that finds rows of an earlier one compares rows, and writes only those that are missing."""
    producer_name: str | None = None
    """Identity of the query or job, in place of Spark's query id: for a stream whose checkpoint is recreated and that must not
    write its rows again. It must be unique among queries."""
    write_name: str | None = None
    """Distinguishes two writes to one topic within one batch of `foreachBatch`."""
    batch_id: int | None = None
    """The batch number of `foreachBatch`, if Spark does not pass it to tasks: on threads of the function's own, with Spark
    Connect."""
    write_timeout_ms: int = 120_000
    """How long a task waits for leaders: for acknowledgements, end offsets, and the rows of earlier attempts."""


# -- parsing ----------------------------------------------------------------------------------------------------------

_READ = {
    "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxPartitions", "maxRecordsPerPartition", "failOnDataLoss",
    "includeHeaders", "pushFilters", "readTimeoutMs", "rowsPerBatch", "isolation.level", "bootstrap.servers", "clientConfig",
}  # fmt: skip
_READ_STREAM_ONLY = {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}
_READ_BATCH_ONLY = {"endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp", "pushFilters"}
_WRITE = {
    "topic", "includeHeaders", "delivery", "rowOrder", "producerName", "writeName", "batchId", "writeTimeoutMs",
    "bootstrap.servers", "clientConfig",
}  # fmt: skip
_KNOWN = {"source": _READ, "sink": _WRITE}
_CLIENTS: dict[str, type[ClientOptions]] = {"source": ConsumerOptions, "sink": ProducerOptions}
_OTHER = {"source": "sink", "sink": "source"}
_SPARKS = {"path", "checkpointlocation", "queryname"}
"""Options that Spark itself adds, in lower case. `queryName` comes from `.queryName()`; Spark does not require that it is unique,
so it does not identify a write."""


def read_options(written: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parses the options of the source. Raises UsageError, with the option's name and its legal values."""
    options = _Written(written, "source")
    for name in sorted(_READ_BATCH_ONLY if is_stream else _READ_STREAM_ONLY):
        if name in options:
            raise UsageError(
                f"option {name} is for {'batch reads, not for streams' if is_stream else 'streams, not for batch reads'}"
            )
    starting = options.position("startingOffsets", "latest" if is_stream else "earliest")
    ending = options.position("endingOffsets", "latest")
    if not is_stream and (starting == "latest" or _names(starting, LATEST)):
        raise UsageError(
            "option startingOffsets: a batch read cannot start at the latest offsets, because no records follow them"
        )
    if ending == "earliest" or _names(ending, EARLIEST):
        raise UsageError("option endingOffsets: a read cannot end at the earliest offsets, because no records precede them")
    least, most = options.count("minPartitions", least=1) or 0, options.count("maxPartitions", least=1)
    if most is not None and most < least:
        raise UsageError(f"option maxPartitions is {most}, which is less than minPartitions ({least})")
    return ReadOptions(
        client=options.client(),
        subscription=options.subscription(),
        starting=starting,
        ending=ending,
        starting_times=options.times("startingTimestamp", "startingOffsetsByTimestamp"),
        ending_times=options.times("endingTimestamp", "endingOffsetsByTimestamp"),
        times_strategy=options.choice("startingOffsetsByTimestampStrategy", "error", "latest"),  # type: ignore[arg-type]
        max_offsets_per_trigger=options.count("maxOffsetsPerTrigger", least=1),
        min_offsets_per_trigger=options.count("minOffsetsPerTrigger", least=1),
        max_trigger_delay_ms=options.duration_ms("maxTriggerDelay", 15 * 60 * 1000),
        min_partitions=least,
        max_partitions=most,
        max_records_per_partition=options.count("maxRecordsPerPartition", least=1),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        include_headers=options.flag("includeHeaders", False),
        push_filters=options.flag("pushFilters", False),
        read_timeout_ms=options.count("readTimeoutMs", least=1) or 120_000,
        rows_per_batch=options.count("rowsPerBatch", least=1) or 10_000,
    )


def fails_on_data_loss(written: Mapping[str, str]) -> bool:
    """The option failOnDataLoss, for a reader that needs no cluster. Raises UsageError for it, and for an unknown option."""
    return _Written(written, "source").flag("failOnDataLoss", True)


def reads_committed(client: Mapping[str, Any]) -> bool:
    """Whether a consumer with these options leaves out the records of open and aborted transactions."""
    return client.get("isolation_level") == "read_committed"


def with_committed(written: Mapping[str, str]) -> dict[str, str]:
    """The options of a source, with `isolation.level=read_committed` unless they name an isolation level themselves. The default
    of the jobs: what they write is kept, so it must not contain records of aborted transactions."""
    return dict(written) if any(map(_is_isolation_level, written)) else with_isolation_level(written, "read_committed")


def with_isolation_level(written: Mapping[str, str], level: str) -> dict[str, str]:
    """The options of a source with this isolation level, whatever level they name."""
    return {**{name: value for name, value in written.items() if not _is_isolation_level(name)}, "isolation.level": level}


def isolation_level_of(written: Mapping[str, str]) -> str:
    """The isolation level that the options of a source name, under any of its names; the default if they name none."""
    named = [value.strip().lower() for name, value in written.items() if _is_isolation_level(name)]
    return named[0] if named else ISOLATION_LEVELS[0]


def _is_isolation_level(name: str) -> bool:
    return name.lower().replace("_", ".") in ("isolation.level", *(f"{prefix}isolation.level" for prefix in CLIENT_PREFIXES))


def admin_options(client: Mapping[str, Any]) -> ClientSettings:
    """The options of `client` that the class `Admin` accepts."""
    return ClientSettings({name: value for name, value in client.items() if name in AdminOptions.__dataclass_fields__})


def consumer_options(client: Mapping[str, Any]) -> ClientSettings:
    """The options of `client` that the class `Consumer` accepts."""
    return ClientSettings({name: value for name, value in client.items() if name in ConsumerOptions.__dataclass_fields__})


def write_options(written: Mapping[str, str]) -> WriteOptions:
    """Parses the options of the sink. Raises UsageError, with the option's name and its legal values."""
    options = _Written(written, "sink")
    delivery = options.choice("delivery", "exactly-once", "at-least-once")
    client = options.client()
    if delivery == "exactly-once" and client.get("acks", "all") not in ("all", -1):
        raise UsageError('option strandline.acks: delivery "exactly-once" needs acks=all')
    batch_id = options.count("batchId", least=0)
    if batch_id is not None and not (options.text("producerName") and options.text("writeName")):
        raise UsageError("option batchId needs the options producerName and writeName: the three are the identity of the write")
    return WriteOptions(
        client=client,
        topic=options.text("topic"),
        include_headers=options.flag("includeHeaders", True),
        delivery=delivery,  # type: ignore[arg-type]
        row_order=options.choice("rowOrder", "unknown", "stable"),  # type: ignore[arg-type]
        producer_name=options.text("producerName"),
        write_name=options.text("writeName"),
        batch_id=batch_id,
        write_timeout_ms=options.count("writeTimeoutMs", least=1) or 120_000,
    )


class _Written:
    """The strings that the user wrote, and a method to parse each kind of value. Raises UsageError for unknown names."""

    def __init__(self, written: Mapping[str, str], side: Literal["source", "sink"]) -> None:
        self._values: dict[str, str] = {}
        self._client = ClientSettings()
        self._properties: dict[str, str] = {}
        """Kafka's security properties, without their prefix."""
        self._side = side
        self._client_kind, self._other_client_kind = _CLIENTS[side], _CLIENTS[_OTHER[side]]
        known = _KNOWN[side]
        names = {name.lower(): name for name in known}
        for name, value in written.items():
            if (error := refusal(name)) is not None:
                raise UsageError(error)
            prefix = next((p for p in CLIENT_PREFIXES if name.lower().startswith(p)), None)
            if prefix is not None:
                self._add_client(name, name[len(prefix) :], value)
            elif name.lower() in names:
                self._values[names[name.lower()]] = value
            elif name.lower() not in _SPARKS:
                raise UsageError(unknown(name, known, _KNOWN[_OTHER[side]], side))

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def _add_client(self, written: str, name: str, value: str) -> None:
        if is_property(name.lower()):
            self._properties[name.lower()] = value
            return
        rows = {row.name: row for row in table_of(self._client_kind)}
        option = name.replace(".", "_").lower()
        if option not in rows:
            others = [row.name for row in table_of(self._other_client_kind)]
            raise UsageError(unknown_of_client(written, option, rows, others, self._side))
        self._client[option] = rows[option].parse(value, f"option {written}")

    def client(self) -> ClientSettings:
        client = ClientSettings(self._client)
        given = {**client, **settings_of_properties(self._properties)}
        path = self._values.get("clientConfig")
        client.update({**(settings_of_file(path) if path else {}), **given})
        if servers := self._values.get("bootstrap.servers"):
            client["bootstrap_servers"] = servers
        if "isolation.level" in self:
            self._set_isolation_level(client)
        if not client.get("bootstrap_servers"):
            raise UsageError('option bootstrap.servers is missing: .option("bootstrap.servers", "host:port,host:port")')
        self._client_kind(**client)  # checks the values
        return client

    def _set_isolation_level(self, client: ClientSettings) -> None:
        level = self.choice("isolation.level", *ISOLATION_LEVELS)
        other = client.setdefault("isolation_level", level)
        if other != level:
            raise UsageError(f"options isolation.level={level} and strandline.isolation_level={other} contradict each other")

    def subscription(self) -> Subscription:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if name in self]
        if len(given) != 1:
            what = f"{' and '.join(given)} are given" if given else "none is given"
            raise UsageError(f"exactly one of the options subscribe, subscribePattern and assign is needed; {what}")
        value = self._values[given[0]]
        if given[0] == "assign":
            return Subscription(partitions=_assignment(value))
        if given[0] == "subscribePattern":
            return Subscription(pattern=_pattern(value))
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise UsageError("option subscribe names no topic")
        return Subscription(topics)

    def text(self, name: str) -> str | None:
        return self._values.get(name) or None

    def flag(self, name: str, default: bool) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise UsageError(f"option {name} must be true or false, not {value!r}")
        return value.strip().lower() == "true"

    def count(self, name: str, *, least: int) -> int | None:
        value = self._values.get(name)
        if value is None:
            return None
        number = _whole(name, value)
        if number < least:
            raise UsageError(f"option {name} must be at least {least}, not {number}")
        return number

    def choice(self, name: str, *choices: str) -> str:
        """The value, which must be one of `choices`; by default the first."""
        value = self._values.get(name, choices[0]).strip().lower()
        if value not in choices:
            raise UsageError(f"option {name} must be one of {', '.join(choices)}, not {value!r}")
        return value

    def duration_ms(self, name: str, default: int) -> int:
        value = self._values.get(name)
        if value is None:
            return default
        match = re.fullmatch(r"\s*(\d+)\s*(ms|s|m|min|h)?\s*", value)
        if match is None:
            raise UsageError(f"option {name} must be a duration such as 500ms, 30s or 15m, not {value!r}")
        return int(match[1]) * {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, None: 1}[match[2]]

    def position(self, name: str, default: Literal["earliest", "latest"]) -> Position:
        value = self._values.get(name)
        if value is None:
            return default
        word = value.strip().lower()
        if word in ("earliest", "latest"):
            return "earliest" if word == "earliest" else "latest"
        return _by_partition(name, value, least=EARLIEST)

    def times(self, one: str, by_partition: str) -> Times | None:
        if one in self:
            return self.count(one, least=0)
        value = self._values.get(by_partition)
        return None if value is None else _by_partition(by_partition, value, least=0)


def _names(position: Position, special: int) -> bool:
    return not isinstance(position, str) and any(special in of_topic.values() for of_topic in position.values())


def _whole(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise UsageError(f"option {name} must be a whole number, not {value!r}") from None


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as e:
        raise UsageError(f"option subscribePattern is not a regular expression: {e}") from None
    return value


def _json(name: str, value: str, example: str) -> dict[str, Any]:
    words = "earliest, latest, or " if name in ("startingOffsets", "endingOffsets") else ""
    try:
        found = json.loads(value)
    except ValueError as e:
        at = f": {e}" if value.lstrip().startswith(("{", "[")) else f", not {value!r}"
        raise UsageError(f"option {name} must be {words}JSON such as {example}{at}") from None
    if not isinstance(found, dict):
        raise UsageError(f"option {name} must be {words}JSON such as {example}, not {value!r}")
    return found


def _assignment(value: str) -> dict[str, tuple[int, ...]]:
    example = '{"orders": [0, 1]}'
    found = _json("assign", value, example)
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions) or not partitions:
            raise UsageError(f"option assign must be JSON such as {example}; topic {topic} has {partitions!r}")
    if not found:
        raise UsageError("option assign names no partition")
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in found.items()}


def _by_partition(name: str, value: str, *, least: int) -> dict[str, dict[int, int]]:
    example = '{"orders": {"0": 23, "1": 42}}'
    result: dict[str, dict[int, int]] = {}
    for topic, of_topic in _json(name, value, example).items():
        is_good = isinstance(of_topic, dict) and all(p.isdecimal() for p in of_topic)
        if not is_good or not all(type(n) is int and n >= least for n in of_topic.values()):
            raise UsageError(f"option {name} must be JSON such as {example}; topic {topic} has {of_topic!r}")
        result[topic] = {int(partition): number for partition, number in of_topic.items()}
    return result
