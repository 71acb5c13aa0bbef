"""The table of the keys of topics: name, type, default, unit and meaning of each; everything else is derived from it. The keys of
brokers and controllers are in `node_keys.py`.

Values are text (in files, the environment, ConfigRecords) or plain Python values. `parse` turns a mapping into typed values, or
raises UsageError with one sentence, which names the nearest known key for an unknown one. Names, types, defaults and units are
Kafka's.

A topic key has two names: `segment.bytes` on a topic is `log.segment.bytes` on a broker, as the default of all its topics. Some
times have coarser names on a broker too: `log.retention.hours` counts if neither `log.retention.minutes` nor `log.retention.ms`
is set. Only a broker's file may have these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from strandline.protocol.errors import UsageError
from strandline.protocol.records.compression import LEVELS, Codec

Value = int | float | bool | str | list[str] | None
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

REQUIRED: Final[Any] = type("Required", (), {"__repr__": lambda self: "(required)"})()
"""The default of a key that must be given."""


class Update(StrEnum):
    """Where a key can be changed while the nodes run. The values are for people."""

    RESTART = "restart"
    """Only in the node's file; the node has to be restarted."""
    CLUSTER = "cluster"
    """For the whole cluster: a value per broker would make no sense, because nodes must agree on it."""
    BROKER = "broker"
    """For one broker."""
    CLUSTER_OR_BROKER = "cluster, broker"
    """For all brokers, or for a single one."""
    TOPIC = "topic"
    GROUP = "group"


class CoarseKey(NamedTuple):
    """A broker key that holds a topic's default in a coarser unit than milliseconds. It counts if no finer one is set."""

    name: str
    unit_ms: int
    default: int | None


@dataclass(frozen=True)
class ConfigKey:
    """One configuration key: its type, default and meaning, and which values it accepts."""

    name: str
    type: str
    """"int", "long", "double", "boolean", "string" or "list" (text: separated by commas)."""
    default: Any
    unit: str
    """"ms", "bytes", ... or empty."""
    meaning: str
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()
    """If given, the value (each item of a list) is one of these."""
    check: Callable[[Any], str | None] | None = None
    """Returns what is wrong with a parsed value, or None."""
    synonym: str | None = None
    """For a key of topics or groups, the broker key that holds its default."""
    coarser: tuple[CoarseKey, ...] = ()
    """For a topic key, the broker keys that hold its default in coarser units, the finest first."""
    update: Update = Update.RESTART
    """For a key of a node, where it can be changed; a key of topics or groups can always be changed."""
    sensitive: bool = False
    """The value is a secret: no description, log line or error shows it, and it may not be given on a command line."""

    @property
    def is_required(self) -> bool:
        return self.default is REQUIRED

    def parse(self, value: Any) -> Any:
        """The typed value. Raises UsageError that names the key, the value and the rule."""
        if value is None and self.default is None:
            return None
        parsed = _PARSERS[self.type](self, value)
        if self.min is not None and parsed < self.min:
            raise self._wrong(value, f"must be at least {self.min}")
        if self.max is not None and parsed > self.max:
            raise self._wrong(value, f"must be at most {self.max}")
        if self.choices:
            for item in parsed if isinstance(parsed, list) else [parsed]:
                if item not in self.choices:
                    raise self._wrong(value, f"must be one of {', '.join(self.choices)}")
        problem = self.check(parsed) if self.check else None
        if problem:
            raise self._wrong(value, problem)
        return parsed

    def text(self, value: Any) -> str | None:
        """The value as text, as in a file or a ConfigRecord; None if there is no value, or if it is a secret."""
        if value is None or value is REQUIRED or self.sensitive:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, list) else str(value)

    def _wrong(self, value: object, rule: str) -> UsageError:
        shown = "the value" if self.sensitive else repr(value)
        return UsageError(f"config {self.name}: {shown} is not allowed: {rule}")


def _parse_int(key: ConfigKey, value: Any) -> int:
    limit = INT_MAX if key.type == "int" else LONG_MAX
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise key._wrong(value, "must be a whole number")
    try:
        # Only plain ASCII numbers: `int` would also accept "1_000" and digits of other alphabets.
        number = int(value) if isinstance(value, int) or (value.isascii() and "_" not in value) else None
    except ValueError:
        number = None
    if number is None:
        raise key._wrong(value, "must be a whole number")
    if not -limit - 1 <= number <= limit:
        article = "an" if key.type == "int" else "a"
        raise key._wrong(value, f"does not fit {article} {key.type}")
    return number


def _parse_double(key: ConfigKey, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if number != number or number in (float("inf"), float("-inf")):
        raise key._wrong(value, "must be a number")
    return number


def _parse_boolean(key: ConfigKey, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = value.strip().lower() if isinstance(value, str) else ""
    if text not in ("true", "false"):
        raise key._wrong(value, "must be true or false")
    return text == "true"


def _parse_string(key: ConfigKey, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise key._wrong(value, "must be text")
    return str(value).strip()


def _parse_list(key: ConfigKey, value: Any) -> list[str]:
    items = list_items(value) if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise key._wrong(value, "must be a list, separated by commas")
    return [item.strip() for item in items if item.strip()]


def list_items(text: str) -> list[str]:
    """The items of a list in its text form."""
    return [item.strip() for item in text.split(",") if item.strip()]


_PARSERS: dict[str, Callable[[ConfigKey, Any], Any]] = {
    "int": _parse_int,
    "long": _parse_int,
    "double": _parse_double,
    "boolean": _parse_boolean,
    "string": _parse_string,
    "list": _parse_list,
}


def by_name(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    return {key.name: key for key in keys}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The known name that is most similar to a mistyped one; None if none is similar."""
    import difflib  # imported only here, to keep the start fast

    matches = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.5)
    return matches[0] if matches else None


def without_blanks(value: str) -> str | None:
    """A `check` that refuses a text with blanks."""
    return "must not contain blanks" if value and value.split() != [value] else None


def unknown_key(name: str, names: Iterable[str], what: str = "config key") -> UsageError:
    """The error for a name that is not a key. It suggests the most similar key."""
    guess = nearest(name, names)
    return UsageError(f"unknown {what} {name!r}" + (f"; did you mean {guess!r}?" if guess else ""))


def parse(keys: Iterable[ConfigKey] | Mapping[str, ConfigKey], mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Every key with its typed value, or its default if `mapping` does not have it. Raises UsageError for the first error."""
    known = keys if isinstance(keys, Mapping) else by_name(keys)
    for name in mapping:
        if name not in known:
            raise unknown_key(name, known)
    result: dict[str, Any] = {}
    for name, key in known.items():
        if name in mapping:
            result[name] = key.parse(mapping[name])
        elif key.is_required:
            raise UsageError(f"config {name} is required: {key.meaning}")
        else:
            result[name] = key.default
    return result


def _without_repetition(value: list[str]) -> str | None:
    return "has an item twice" if len(set(value)) < len(value) else None


_GZIP, _LZ4, _ZSTD = LEVELS[Codec.GZIP], LEVELS[Codec.LZ4], LEVELS[Codec.ZSTD]
"""The lowest, the highest and the default level of each codec."""


def _gzip_level(value: int) -> str | None:
    return None if value == -1 or _GZIP[0] <= value <= _GZIP[1] else f"must be -1 or from {_GZIP[0]} to {_GZIP[1]}"


def _no_limit_or_positive(value: int) -> str | None:
    return "must be -1 (no limit) or at least 1" if value == 0 else None


_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000

_TOPIC_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "cleanup.policy",
        "list",
        ["delete"],
        "",
        "delete: remove old segments; compact: keep the newest record of each key; both; or empty: keep everything",
        choices=("delete", "compact"),
        check=_without_repetition,
        synonym="log.cleanup.policy",
    ),
    ConfigKey(
        "compression.gzip.level",
        "int",
        -1,
        "",
        "how hard a leader compresses with gzip, from 1 (fast) to 9 (small); -1: gzip's default, 6",
        check=_gzip_level,
        synonym="compression.gzip.level",
    ),
    ConfigKey(
        "compression.lz4.level",
        "int",
        _LZ4[2],
        "",
        "how hard a leader compresses with lz4, from 1 to 17; 9 is the fast compressor, all others the slow one",
        min=_LZ4[0],
        max=_LZ4[1],
        synonym="compression.lz4.level",
    ),
    ConfigKey(
        "compression.type",
        "string",
        "producer",
        "",
        "the codec that a leader stores batches with; 'producer': as the producer compressed them",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        synonym="compression.type",
    ),
    ConfigKey(
        "compression.zstd.level",
        "int",
        _ZSTD[2],
        "",
        "how hard a leader compresses with zstd, from -131072 (fast) to 22 (small)",
        min=_ZSTD[0],
        max=_ZSTD[1],
        synonym="compression.zstd.level",
    ),
    ConfigKey(
        "delete.retention.ms",
        "long",
        86_400_000,
        "ms",
        "how long a compacted topic keeps tombstones: a consumer that needs longer from the start to the end may miss one",
        min=0,
        synonym="log.cleaner.delete.retention.ms",
    ),
    ConfigKey(
        "file.delete.delay.ms",
        "long",
        60_000,
        "ms",
        "how long the file of a deleted segment is kept before it is removed",
        min=0,
        synonym="log.segment.delete.delay.ms",
    ),
    ConfigKey(
        "flush.messages",
        "long",
        LONG_MAX,
        "records",
        "the log is fsynced after this many records; durability normally comes from replication",
        min=1,
        synonym="log.flush.interval.messages",
    ),
    ConfigKey(
        "flush.ms",
        "long",
        LONG_MAX,
        "ms",
        "the log is fsynced after this time at the latest",
        min=0,
        synonym="log.flush.interval.ms",
    ),
    ConfigKey(
        "index.interval.bytes",
        "int",
        4096,
        "bytes",
        "the index gets an entry after this many bytes of batches",
        min=0,
        synonym="log.index.interval.bytes",
    ),
    ConfigKey(
        "max.compaction.lag.ms",
        "long",
        LONG_MAX,
        "ms",
        "a record is compacted at the latest after about this time, if it is in a closed segment",
        min=1,
        synonym="log.cleaner.max.compaction.lag.ms",
    ),
    ConfigKey(
        "max.message.bytes",
        "int",
        1_048_588,
        "bytes",
        "the largest record batch that is accepted",
        min=0,
        synonym="message.max.bytes",
    ),
    ConfigKey(
        "message.timestamp.after.max.ms",
        "long",
        _HOUR_MS,
        "ms",
        "how far a producer's timestamp may lie ahead of the broker's clock; only for CreateTime",
        min=0,
        synonym="log.message.timestamp.after.max.ms",
    ),
    ConfigKey(
        "message.timestamp.before.max.ms",
        "long",
        LONG_MAX,
        "ms",
        "how far a producer's timestamp may lie behind the broker's clock; only for CreateTime",
        min=0,
        synonym="log.message.timestamp.before.max.ms",
    ),
    ConfigKey(
        "message.timestamp.type",
        "string",
        "CreateTime",
        "",
        "the time in a record's timestamp: when the producer created it, or when the leader appended it",
        choices=("CreateTime", "LogAppendTime"),
        synonym="log.message.timestamp.type",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio",
        "double",
        0.5,
        "",
        "a log is compacted when more than this part of its bytes is dirty: not compacted yet",
        min=0,
        max=1,
        synonym="log.cleaner.min.cleanable.ratio",
    ),
    ConfigKey(
        "min.compaction.lag.ms",
        "long",
        0,
        "ms",
        "a record is not compacted before it is this old",
        min=0,
        synonym="log.cleaner.min.compaction.lag.ms",
    ),
    ConfigKey(
        "min.insync.replicas",
        "int",
        1,
        "replicas",
        "with fewer replicas in sync, acks=all is rejected and the high watermark does not advance",
        min=1,
        synonym="min.insync.replicas",
    ),
    ConfigKey(
        "retention.bytes",
        "long",
        -1,
        "bytes",
        "the oldest segment is deleted if the segments after it have at least this many bytes; -1: no limit",
        min=-1,
        synonym="log.retention.bytes",
    ),
    ConfigKey(
        "retention.ms",
        "long",
        604_800_000,
        "ms",
        "segments older than this are deleted; -1: no limit",
        min=-1,
        synonym="log.retention.ms",
        coarser=(CoarseKey("log.retention.minutes", _MINUTE_MS, None), CoarseKey("log.retention.hours", _HOUR_MS, 168)),
    ),
    ConfigKey(
        "segment.bytes", "int", 1_073_741_824, "bytes", "the largest size of a segment file", min=14, synonym="log.segment.bytes"
    ),
    ConfigKey(
        "segment.index.bytes",
        "int",
        10_485_760,
        "bytes",
        "the largest size of an index file",
        min=4,
        synonym="log.index.size.max.bytes",
    ),
    ConfigKey(
        "segment.jitter.ms",
        "long",
        0,
        "ms",
        "up to this much of segment.ms is left out, at random, so that segments of many partitions do not end together",
        min=0,
        synonym="log.roll.jitter.ms",
        coarser=(CoarseKey("log.roll.jitter.hours", _HOUR_MS, 0),),
    ),
    ConfigKey(
        "segment.ms",
        "long",
        604_800_000,
        "ms",
        "a new segment is started after this time at the latest",
        min=1,
        synonym="log.roll.ms",
        coarser=(CoarseKey("log.roll.hours", _HOUR_MS, 168),),
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        "boolean",
        False,
        "",
        "whether a replica that may lack acknowledged records may become leader; true means the strategy aggressive",
        synonym="unclean.leader.election.enable",
    ),
    ConfigKey(
        "unclean.recovery.strategy",
        "string",
        "balanced",
        "",
        "if no replica with all records is left: none, an operator decides; balanced, the longest log leads when all replicas "
        "are back; aggressive, after unclean.recovery.timeout.ms the longest log of the live replicas leads",
        choices=("none", "balanced", "aggressive"),
        synonym="unclean.recovery.strategy",
    ),
)

TOPIC_CONFIGS: dict[str, ConfigKey] = by_name(_TOPIC_KEYS)


def _broker_check(topic: ConfigKey) -> Callable[[Any], str | None] | None:
    """The check of the broker's default of a topic key. A topic may keep its records for 0 ms; as in Kafka, a broker's default of
    0, in any unit, is refused."""
    return _no_limit_or_positive if topic.coarser and topic.min == -1 else topic.check


def check_topic_values(values: Mapping[str, Any]) -> None:
    """Raise UsageError if values of topic keys contradict each other."""
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise UsageError(f"config min.compaction.lag.ms ({least}) must not be larger than max.compaction.lag.ms ({most})")


_TOPIC_KEY_OF_BROKER_KEY: dict[str, str] = {key.synonym: key.name for key in _TOPIC_KEYS if key.synonym}

SAME_ON_ALL_BROKERS = frozenset({"min.insync.replicas", "unclean.leader.election.enable", "unclean.recovery.strategy"})
"""Topic defaults that leaders, followers and controllers must agree on. They can be set for all brokers, but not for one."""

TOPIC_DEFAULT_CONFIGS: dict[str, ConfigKey] = {
    synonym: ConfigKey(
        synonym,
        topic.type,
        None if topic.coarser else topic.default,
        topic.unit,
        f"default of {name}: {topic.meaning}" + (f"; default: {topic.coarser[0].name}" if topic.coarser else ""),
        topic.min,
        topic.max,
        topic.choices,
        _broker_check(topic),
        update=Update.CLUSTER if synonym in SAME_ON_ALL_BROKERS else Update.CLUSTER_OR_BROKER,
    )
    for synonym, name in _TOPIC_KEY_OF_BROKER_KEY.items()
    for topic in (TOPIC_CONFIGS[name],)
}
"""The keys of a broker that hold the defaults of its topics."""


def _coarse_configs(topic: ConfigKey) -> Iterator[ConfigKey]:
    finer = [topic.synonym, *(coarse.name for coarse in topic.coarser)]
    for coarse, other in zip(topic.coarser, finer, strict=False):
        unit = coarse.name.rpartition(".")[2]
        meaning = f"default of {topic.name}, in {unit}; counts if {other} is not set"
        yield ConfigKey(coarse.name, "int", coarse.default, unit, meaning, topic.min, check=_broker_check(topic))


COARSE_BROKER_CONFIGS: dict[str, ConfigKey] = by_name(key for topic in _TOPIC_KEYS for key in _coarse_configs(topic))
"""Keys of a broker's file that hold a topic's default in minutes or hours. As in Kafka, they cannot be changed while it runs."""
_TOPIC_KEY_OF_COARSE_KEY = {coarse.name: key for key in _TOPIC_KEYS for coarse in key.coarser}


def as_topic_values(broker_values: Mapping[str, Any]) -> dict[str, Any]:
    """The broker's defaults of topics, by topic key; other keys are left out. Of several names of one key, the finest counts."""
    known = _TOPIC_KEY_OF_BROKER_KEY
    found = {known[name]: value for name, value in broker_values.items() if name in known and value is not None}
    for name in broker_values:
        topic = _TOPIC_KEY_OF_COARSE_KEY.get(name)
        if topic is not None and topic.name not in found:
            of_broker = broker_key_of(topic, broker_values)
            if of_broker is not None:
                found[topic.name] = of_broker[1]
    return found


def broker_key_of(topic: ConfigKey, broker_values: Mapping[str, Any]) -> tuple[str, Any] | None:
    """The finest broker key that has a value of a topic key, and the value in the unit of the topic key."""
    if topic.synonym is not None and broker_values.get(topic.synonym) is not None:
        return topic.synonym, broker_values[topic.synonym]
    for coarse in topic.coarser:
        if broker_values.get(coarse.name) is not None:
            return coarse.name, max(-1, int(broker_values[coarse.name]) * coarse.unit_ms)
    return None
