"""The headers of records in a retry topic and in a dead-letter topic: the origin of a record, and why it is there. Pure.

A failed record keeps its key, its value, and the headers that its producer gave it. The headers below follow them. Their values
are UTF-8, and numbers are decimal, so that any tool shows them:

    strandline.group                 the consumer group whose handler failed; other groups skip the record
    strandline.origin.topic          the first topic, partition and offset of the record, and its timestamp there. They stay the
    strandline.origin.partition      same through all attempts, so that a handler can recognise a record that it has
    strandline.origin.offset         handled before
    strandline.origin.timestamp_ms
    strandline.error.type            the exception: its class, its text, and where it was raised, innermost call last
    strandline.error.message
    strandline.error.traceback       (left out if the record would be too large with it)

    strandline.attempt               in a retry topic: the number of the attempt that is to come; the first one was 1
    strandline.not_before_ms         ... and when, in milliseconds since 1970 (UTC)

    strandline.attempts              in a dead-letter topic: how often the record was handled

The record itself gets a new timestamp. With its original one, the topic's retention would delete an old record at once.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple

import msgspec

from strandline.client.consumer.records import AnyRecord

PREFIX = "strandline."
GROUP = PREFIX + "group"
ATTEMPT, ATTEMPTS, NOT_BEFORE = PREFIX + "attempt", PREFIX + "attempts", PREFIX + "not_before_ms"
TOPIC, PARTITION = PREFIX + "origin.topic", PREFIX + "origin.partition"
OFFSET, TIMESTAMP = PREFIX + "origin.offset", PREFIX + "origin.timestamp_ms"
ERROR_TYPE, ERROR_MESSAGE, TRACEBACK = PREFIX + "error.type", PREFIX + "error.message", PREFIX + "error.traceback"

MESSAGE_MAX, TRACEBACK_MAX = 1_000, 4_000
"""Characters of an error's text, and of its traceback, that a header holds."""
FRAMES_MAX = 20
_OUR_FOLDER = __file__.rpartition("/")[0] + "/"
"""Frames of files in this folder are left out at the beginning of a traceback: they lead to the handler, and do not explain its
error."""
_INT64_MAX = 2**63 - 1
_ATTEMPT_MAX = 2**31 - 1

HeaderList = list[tuple[str, bytes | None]]


class Retried(NamedTuple):
    """A record of a retry topic, with the parsed headers."""

    record: AnyRecord
    """The record as it was at its origin, with all headers."""
    attempt: int
    """The number of the attempt that is to come; at least 1."""
    not_before_ms: int
    """When the attempt is due, in milliseconds since 1970 (UTC); 0: at once."""
    group_id: str | None
    """The consumer group whose handler failed; None: not known."""


def attempt_of(record: AnyRecord) -> int:
    """The number of this attempt to handle the record, in a handler of `Consumer.run`; 1 is the first."""
    return _number(dict(record.headers).get(ATTEMPT), 1, _ATTEMPT_MAX) or 1


def with_attempt(record: AnyRecord, attempt: int) -> AnyRecord:
    """The record with the number of the attempt among its headers."""
    kept = tuple((name, value) for name, value in record.headers if name != ATTEMPT)
    return msgspec.structs.replace(record, headers=(*kept, (ATTEMPT, b"%d" % attempt)))


def parse(record: AnyRecord) -> Retried:
    """Read the headers of a record of a retry topic. A record without these headers counts as one that was never handled."""
    headers = dict(record.headers)
    group = headers.get(GROUP)
    return Retried(
        _at_origin(record, headers),
        _number(headers.get(ATTEMPT), 1, _ATTEMPT_MAX) or 1,
        _number(headers.get(NOT_BEFORE), 0, _INT64_MAX) or 0,
        None if group is None else group.decode(errors="replace"),
    )


def _at_origin(record: AnyRecord, headers: dict[str, bytes | None]) -> AnyRecord:
    topic, timestamp = headers.get(TOPIC), _number(headers.get(TIMESTAMP), -1, _INT64_MAX)
    partition, offset = _number(headers.get(PARTITION), 0, _INT64_MAX), _number(headers.get(OFFSET), 0, _INT64_MAX)
    if topic is None or partition is None or offset is None:
        return record
    return msgspec.structs.replace(
        record,
        topic=topic.decode(errors="replace"),
        partition=partition,
        offset=offset,
        timestamp_ms=record.timestamp_ms if timestamp is None else timestamp,
    )


def _number(text: bytes | None, least: int, most: int) -> int | None:
    """The number, or None if the header is missing or has no number within these bounds."""
    if text is None or len(text) > 20 or not text.removeprefix(b"-").isdigit():
        return None
    number = int(text)
    return number if least <= number <= most else None


def retry_headers(record: AnyRecord, group_id: str | None, error: BaseException, attempt: int, not_before_ms: int) -> HeaderList:
    """The headers of a record that is to be handled for the `attempt`-th time. `record` is the record at its origin."""
    own = [(ATTEMPT, b"%d" % attempt), (NOT_BEFORE, b"%d" % not_before_ms)]
    return _headers(record, group_id, error) + own


def dead_letter_headers(record: AnyRecord, group_id: str | None, error: BaseException, attempts: int) -> HeaderList:
    """The headers of a record that is given up after this number of attempts. `record` is the record at its origin."""
    return [*_headers(record, group_id, error), (ATTEMPTS, b"%d" % attempts)]


def without_traceback(headers: HeaderList) -> HeaderList:
    """The headers except the traceback, for a record that is too large with it."""
    return [(name, value) for name, value in headers if name != TRACEBACK]


def _headers(record: AnyRecord, group_id: str | None, error: BaseException) -> HeaderList:
    return [
        *((name, value) for name, value in record.headers if not name.startswith(PREFIX)),
        *([] if group_id is None else [(GROUP, group_id.encode())]),
        (TOPIC, record.topic.encode()),
        (PARTITION, b"%d" % record.partition),
        (OFFSET, b"%d" % record.offset),
        (TIMESTAMP, b"%d" % record.timestamp_ms),
        (ERROR_TYPE, name_of(error).encode(errors="replace")),
        (ERROR_MESSAGE, text_of(error)[:MESSAGE_MAX].encode(errors="replace")),
        (TRACEBACK, _traceback(error.__traceback__).encode(errors="replace")),
    ]


def name_of(error: BaseException) -> str:
    """The class of an exception, with its module unless that is `builtins`."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """The text of an exception; empty if its `__str__` fails."""
    try:
        return str(error)
    except Exception:
        return ""


def _traceback(traceback: TracebackType | None) -> str:
    """A line per call of the program, innermost last: file, line and function. The source is not read, because that may block."""
    lines: list[str] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if lines or not code.co_filename.startswith(_OUR_FOLDER):
            lines.append(f"{code.co_filename}:{traceback.tb_lineno} in {code.co_name}")
        traceback = traceback.tb_next
    return "\n".join(lines[-FRAMES_MAX:])[-TRACEBACK_MAX:]
