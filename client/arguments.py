"""Checks the names of topics and partitions that callers pass.

A str is a sequence of strs, and a (topic, partition) pair is a sequence, too: `describe_topics("orders")` would ask for the
topics o, r, d, ... A call that takes several names or partitions therefore rejects a single one, with a message that shows the
right form.

Each function returns its argument in normal form, and raises UsageError if the argument is not what its docstring describes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

from strandline.client.consumer.records import OffsetAndMetadata, TopicPartition
from strandline.protocol.errors import UsageError

TIMESTAMP_MAX = 2**62
"""Half of the largest int64, so that the difference between two timestamps of a batch fits an int64 as well."""
OFFSET_MAX = 2**63 - 2


def checked_whole(what: str, value: Any, least: int = 0, most: int = 2**31 - 1) -> int:
    """A whole number from `least` to `most`, also one of numpy's types, as an int. UsageError for any other value, including a
    float or a bool, which requests cannot carry. `what` is the argument's name in the message."""
    if not isinstance(value, bool):
        try:
            number = operator.index(value)
        except TypeError:
            pass
        else:
            if least <= number <= most:
                return number
    raise UsageError(f"{what} is a whole number of at least {least}, not {value!r}")


def checked_time(what: str, value: Any) -> float:
    """A time in milliseconds. UsageError for anything that is no number, and for NaN, with which a wait would never end."""
    is_number = not isinstance(value, (bool, str, bytes)) and hasattr(value, "__float__")
    number = float(value) if is_number else None
    if number is None or number != number:
        raise UsageError(f"{what} is a number of milliseconds, not {value!r}")
    return number


def checked_name(name: object) -> str:
    """A topic's name. UsageError if it is not a str, is empty, or cannot be encoded in UTF-8."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"a topic is named by a non-empty str, not {name!r}")
    check_encodes("the name of a topic", name)
    return name


def check_encodes(what: str, text: str) -> None:
    """UsageError for a str with lone surrogates, which no request could carry."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{what} has to be encodable in UTF-8, and {text!r} is not") from None


def checked_list(what: str, items: Any) -> list[Any]:
    """The items of an iterable. UsageError for a str, bytes or a mapping."""
    if isinstance(items, (str, bytes)):
        raise UsageError(f"{what} must be a list, not a single {type(items).__name__}: write [{items!r}]")
    if isinstance(items, Mapping) or not isinstance(items, Iterable):
        raise UsageError(f"{what} must be a list, not {items!r}")
    return list(items)


def checked_names(names: Iterable[str]) -> list[str]:
    """The names of several topics. UsageError for a single str, and for a name that `checked_name` rejects."""
    return [checked_name(name) for name in checked_list("topics", names)]


def checked_partition(tp: Any) -> TopicPartition:
    """One (topic, partition) pair. UsageError if it is not a pair of a topic's name and a whole number of at least 0."""
    is_pair = isinstance(tp, (tuple, list)) and len(tp) == 2
    if not is_pair or not isinstance(tp[0], str) or not tp[0]:
        raise UsageError(f'a partition is written TopicPartition("orders", 0) or ("orders", 0), not {tp!r}')
    return TopicPartition(checked_name(tp[0]), checked_whole("the number of a partition", tp[1]))


def checked_partitions(tps: Iterable[Any]) -> list[TopicPartition]:
    """Several (topic, partition) pairs. UsageError for a single pair, and for a pair that `checked_partition` rejects."""
    if isinstance(tps, tuple) and len(tps) == 2 and isinstance(tps[0], str):
        raise UsageError(f"partitions must be a list, not a single pair: write [{tuple(tps)!r}]")
    return [checked_partition(tp) for tp in checked_list("partitions", tps)]


def checked_by_partition(wanted: Any) -> dict[TopicPartition, Any]:
    """A mapping of (topic, partition) pairs to timestamps: milliseconds since 1970, -1 (the latest offset) or -2 (the earliest).
    UsageError for another type, for a pair that `checked_partition` rejects, and for another timestamp."""
    if not isinstance(wanted, Mapping):
        raise UsageError(f'offsets by time are asked for by a mapping such as {{("orders", 0): time_ms}}, not {wanted!r}')
    return {
        checked_partition(tp): checked_whole("a timestamp (ms since 1970)", value, -2, TIMESTAMP_MAX)
        for tp, value in wanted.items()
    }


def checked_offsets(before: Any) -> dict[TopicPartition, int]:
    """A mapping of (topic, partition) pairs to offsets, or to -1 for the end."""
    if not isinstance(before, Mapping):
        raise UsageError(f'offsets are given by a mapping such as {{("orders", 0): 42}}, not {before!r}')
    return {checked_partition(tp): checked_whole("an offset", value, -1, OFFSET_MAX) for tp, value in before.items()}


METADATA_LENGTH_MAX = 65_536


def checked_commits(offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """A mapping of (topic, partition) pairs to offsets: an int, an `OffsetAndMetadata`, or a tuple of an offset and a text."""
    if not isinstance(offsets, Mapping):
        raise UsageError(f'offsets are committed by a mapping such as {{("orders", 0): 42}}, not {offsets!r}')
    return {checked_partition(tp): _checked_commit(value) for tp, value in offsets.items()}


def _checked_commit(value: Any) -> OffsetAndMetadata:
    given = OffsetAndMetadata(*value) if isinstance(value, tuple) and 1 <= len(value) <= 3 else OffsetAndMetadata(value)
    offset = checked_whole("a committed offset", given.offset, 0, OFFSET_MAX)
    if not isinstance(given.metadata, str) or len(given.metadata) > METADATA_LENGTH_MAX:
        raise UsageError(
            f"the metadata of a commit is a str of at most {METADATA_LENGTH_MAX} characters, not {given.metadata!r:.50}"
        )
    check_encodes("the metadata of a commit", given.metadata)
    return OffsetAndMetadata(offset, given.metadata, checked_whole("a leader epoch", given.leader_epoch, -1))
