"""`strandline consume`: the records of a topic on standard output, as text of a chosen form or as JSON lines.

%t topic   %p partition   %o offset   %e leader epoch   %T timestamp in ms   %k key   %v value   %h headers   %% a percent
sign; \\n, \\t and \\\\ are what they are elsewhere. Keys and values are written as the bytes that they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import CONNECT_TIMEOUT_MS, DEFAULT_BOOTSTRAP, Bootstrap, new_app, run
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.client import Consumer, TopicPartition
    from strandline.client.records import ConsumerRecord

app = new_app()

POLL_MS = 500
RecordWriter = Callable[["ConsumerRecord"], bytes]


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    from_: Annotated[
        str, typer.Option("--from", metavar="beginning|end|OFFSET|-N", help="Where to start; -N: N records before the end.")
    ] = "end",
    count: Annotated[int | None, typer.Option("-n", metavar="N", help="Stop after so many records.", min=1)] = None,
    exit_at_end: Annotated[bool, typer.Option("--exit-at-end", help="Stop where the topic ended when we began.")] = False,
    partition: Annotated[int | None, typer.Option(help="Only this partition.", min=0)] = None,
    form: Annotated[str, typer.Option("--format", help=r"%t %p %o %e %T %k %v %h, \n and \t.")] = r"%v\n",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print the records of a topic."""
    start = _parse_start(from_)
    write = _json_line if json else formatter(form)
    run(_consume(bootstrap, topic, partition, start, count, exit_at_end, write))


def _parse_start(text: str) -> str | int:
    if text in ("beginning", "end"):
        return text
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--from takes beginning, end, an offset or -N, not {text!r}") from None


async def _consume(
    bootstrap: str,
    topic: str,
    partition: int | None,
    start: str | int,
    count: int | None,
    exit_at_end: bool,
    write: RecordWriter,
) -> None:
    from strandline.client import Consumer, TopicPartition

    async with Consumer(
        bootstrap_servers=bootstrap, connect_timeout_ms=CONNECT_TIMEOUT_MS, auto_offset_reset="earliest"
    ) as consumer:
        numbers = await consumer.partitions_for_topic(topic)
        if partition is not None and partition not in numbers:
            raise UsageError(f"topic {topic} has no partition {partition}; it has {len(numbers)}")
        places = [TopicPartition(topic, p) for p in (sorted(numbers) if partition is None else [partition])]
        await consumer.assign(places)
        consumer.pause(*places)  # or it would fetch from the beginning while we ask where to start
        ends = await consumer.end_offsets(places)
        left = await _seek(consumer, places, ends, start)
        consumer.resume(*places)
        await _print(consumer, left if exit_at_end else None, ends, count, write)


async def _seek(
    consumer: Consumer, places: list[TopicPartition], ends: dict[TopicPartition, int], start: str | int
) -> set[TopicPartition]:
    """Go to where reading starts; returns the partitions that have something to read before their present end."""
    first = await consumer.beginning_offsets(places)
    left = set()
    for place in places:
        if isinstance(start, int):
            # An offset is taken as it is; one outside the log is moved to its nearest end.
            wanted = ends[place] + start if start < 0 else start
            offset = min(max(wanted, first[place]), ends[place])
        else:
            offset = first[place] if start == "beginning" else ends[place]
        consumer.seek(place, offset)
        if offset < ends[place]:
            left.add(place)
    return left


async def _print(
    consumer: Consumer, left: set[TopicPartition] | None, ends: dict[TopicPartition, int], count: int | None, write: RecordWriter
) -> None:
    """Until `count` records are written, or until nothing is `left` (None: for ever)."""
    out = sys.stdout.buffer
    written = 0
    while (left is None or left) and (count is None or written < count):
        polled = await consumer.getmany(timeout_ms=POLL_MS, max_records=None if count is None else count - written)
        for place, records in polled.items():
            if left is not None:
                records = [r for r in records if r.offset < ends[place]]
            out.write(b"".join(map(write, records)))
            written += len(records)
        out.flush()
        if left is not None:
            left = {place for place in left if await consumer.position(place) < ends[place]}


# -- forms ------------------------------------------------------------------------------------------------------------

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_FIELDS: dict[str, RecordWriter] = {
    "t": lambda r: r.topic.encode(),
    "p": lambda r: b"%d" % r.partition,
    "o": lambda r: b"%d" % r.offset,
    "e": lambda r: b"%d" % r.leader_epoch,
    "T": lambda r: b"%d" % r.timestamp_ms,
    "k": lambda r: r.key or b"",
    "v": lambda r: r.value or b"",
    "h": lambda r: b",".join(name.encode() + b"=" + (value or b"") for name, value in r.headers),
    "%": lambda r: b"%",
}


def formatter(form: str) -> RecordWriter:
    """A function that writes a record in this form; `UsageError` for a field that does not exist."""
    parts: list[bytes | RecordWriter] = []
    characters = iter(form)
    for c in characters:
        if c == "%":
            field = next(characters, "")
            if field not in _FIELDS:
                raise UsageError(f"--format has no field %{field}; there are {' '.join('%' + f for f in _FIELDS)}")
            parts.append(_FIELDS[field])
        elif c == "\\":
            escaped = next(characters, "\\")
            parts.append(_ESCAPES.get(escaped, b"\\" + escaped.encode()))
        else:
            parts.append(c.encode())
    return lambda record: b"".join(_render(parts, record))


def _render(parts: list[bytes | RecordWriter], record: ConsumerRecord) -> Iterable[bytes]:
    return (part if isinstance(part, bytes) else part(record) for part in parts)


def _json_line(record: ConsumerRecord) -> bytes:
    import json

    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp_ms": record.timestamp_ms,
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": [[name, _text(value)] for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode() + b"\n"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "backslashreplace")
