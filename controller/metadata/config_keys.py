"""The table of configuration keys: name, type, default, unit and meaning of each; everything else is derived from it.

Values are text (in files, the environment, ConfigRecords) or plain Python values. `parse` turns a mapping into typed values, or
raises UsageError with one sentence, which names the nearest known key for an unknown one. Names, types, defaults and units are
Kafka's.

A topic key has two names: `segment.bytes` on a topic is `log.segment.bytes` on a broker, as the default of all its topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strandline.protocol.errors import UsageError

Value = int | float | bool | str | list[str] | None
LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

REQUIRED: Final[Any] = type("Required", (), {"__repr__": lambda self: "(required)"})()
"""The default of a key that must be given."""


@dataclass(frozen=True)
class ConfigKey:
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
    """For a topic key, the broker key that holds its default."""

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
        """The value as text, as in a file or a ConfigRecord; None if there is no value."""
        if value is None or value is REQUIRED:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, list) else str(value)

    def _wrong(self, value: object, rule: str) -> UsageError:
        return UsageError(f"config {self.name}: {value!r} is not allowed: {rule}")


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
        raise key._wrong(value, f"does not fit a {key.type}")
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
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(item, str) for item in items):
        raise key._wrong(value, "must be a list, separated by commas")
    return [item.strip() for item in items if item.strip()]


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
    return "must not contain blanks" if value and value.split() != [value] else None


def unknown_key(name: str, names: Iterable[str], what: str = "config key") -> UsageError:
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


def _no_unclean_election(value: bool) -> str | None:
    return "unclean leader election may lose acknowledged records and is not supported yet" if value else None


def _delete_only(value: list[str]) -> str | None:
    return None if value == ["delete"] else "only 'delete' is supported yet"


_TOPIC_KEYS: tuple[ConfigKey, ...] = (
    ConfigKey(
        "cleanup.policy",
        "list",
        ["delete"],
        "",
        "how old segments are removed; only 'delete' is supported yet",
        check=_delete_only,
        synonym="log.cleanup.policy",
    ),
    ConfigKey(
        "compression.type",
        "string",
        "producer",
        "",
        "'producer': the broker stores batches as the producer compressed them",
        choices=("producer",),
        synonym="compression.type",
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
        "max.message.bytes",
        "int",
        1_048_588,
        "bytes",
        "the largest record batch that is accepted",
        min=0,
        synonym="message.max.bytes",
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
        "old segments are deleted while the partition is larger than this; -1: no limit",
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
        "segment.ms",
        "long",
        604_800_000,
        "ms",
        "a new segment is started after this time at the latest",
        min=1,
        synonym="log.roll.ms",
    ),
    ConfigKey(
        "unclean.leader.election.enable",
        "boolean",
        False,
        "",
        "whether a replica outside the ISR may become leader; not supported yet",
        check=_no_unclean_election,
        synonym="unclean.leader.election.enable",
    ),
)

TOPIC_CONFIGS: dict[str, ConfigKey] = by_name(_TOPIC_KEYS)

_TOPIC_KEY_OF_BROKER_KEY: dict[str, str] = {key.synonym: key.name for key in _TOPIC_KEYS if key.synonym}

DYNAMIC_BROKER_CONFIGS: dict[str, ConfigKey] = {
    synonym: ConfigKey(
        synonym,
        topic.type,
        topic.default,
        topic.unit,
        f"default of {name}: {topic.meaning}",
        topic.min,
        topic.max,
        topic.choices,
        topic.check,
    )
    for synonym, name in _TOPIC_KEY_OF_BROKER_KEY.items()
    for topic in (TOPIC_CONFIGS[name],)
}
"""Keys of a broker resource that can be changed while it runs: the defaults of its topics."""


def as_topic_values(broker_values: Mapping[str, Any]) -> dict[str, Any]:
    """The broker's defaults of topics, by topic key; other keys are left out."""
    known = _TOPIC_KEY_OF_BROKER_KEY
    return {known[name]: value for name, value in broker_values.items() if name in known}
