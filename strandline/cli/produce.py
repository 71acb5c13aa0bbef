"""`strandline produce`: sends each line of standard input as a record, as soon as it is read.

However the command ends, it reports how many lines were acknowledged, how many were not, and the first of the latter. A
record that was sent but not acknowledged can still be in the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from strandline.cli.common import (
    CONNECT_TIMEOUT_MS,
    DEFAULT_BOOTSTRAP,
    ERROR,
    USAGE,
    Bootstrap,
    Topic,
    TopicOption,
    fail,
    new_app,
    note,
    quiet_client,
    run,
    topic_of,
    while_waiting,
)
from strandline.cli.compression import Codec, CodecOption, LevelOption, check_level
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.cli.stdin import StandardInput
    from strandline.client import Producer
    from strandline.client.producer.receipts import Receipt

app = new_app()

MAX_REQUEST_SIZE = 1_048_576
JSON_FACTOR = 8
"""A line of JSON is at most this many times as long as its record, because a byte can be written as \\u0000."""
LAST_CHANCE_MS = 500
"""How long, in ms, an interrupted command waits for outstanding acknowledgements."""
RANGES_MAX = 10
"""The report lists at most this many ranges of invalid lines, and as many of valid ones."""
STALLED_S = 5.0
"""A line that is not acknowledged after this long is noted."""

EXAMPLES = """\b
Examples:
  echo hello | strandline produce orders
  strandline produce orders --key-separator : < pairs.txt
  strandline produce orders -k alice -H source=till-3 -p 0 < lines.txt
  strandline produce events --compression zstd < events.jsonl
  strandline consume orders -e --json | strandline produce copy --json
"""


class Acks(StrEnum):
    all = "all"
    one = "1"
    none = "0"


class Row(NamedTuple):
    """The record of one line."""

    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: list[tuple[str, bytes | None]] | None = None
    timestamp_ms: int | None = None


class Job(NamedTuple):
    """The parsed options."""

    bootstrap: str
    topic: str
    acks: Literal["all", 0, 1]
    max_request_size: int
    codec: Codec
    level: int | None
    to_row: Callable[[bytes], Row] | None
    """Parses a line into a row. None if the line is the value and the record has no other fields."""
    skips_empty: bool
    line_bytes_max: int


@app.command(epilog=EXAMPLES)
def produce(
    topic: Topic = None,
    topic_option: TopicOption = None,
    key: Annotated[str | None, typer.Option("--key", "-k", metavar="TEXT", help="The key of every record.")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option(
            "--key-separator",
            "-K",
            metavar="TEXT",
            help=r"Text between key and value in a line; a line without it has no key. \t is a tab.",
        ),
    ] = None,
    headers: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every record; may be given several times."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", metavar="N", help="Send every record to this partition.", min=0)
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", "-J", help="Each line is a JSON object, as `consume --json` writes it.")
    ] = False,
    ignore_partition: Annotated[
        bool, typer.Option("--ignore-partition", help="With --json: the key chooses the partition, not the line.")
    ] = False,
    acks: Annotated[
        Acks, typer.Option(metavar="all|1|0", help="Replicas that acknowledge a record: all in-sync, the leader, or none.")
    ] = Acks.all,
    max_request_size: Annotated[
        int, typer.Option(metavar="BYTES", help="The largest record; the topic's max.message.bytes limits it, too.", min=1024)
    ] = MAX_REQUEST_SIZE,
    compression: CodecOption = Codec.none,
    compression_level: LevelOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send each line of standard input as a record. The command ends when the last one is acknowledged; Ctrl-C ends it at
    once, and it reports what was acknowledged."""
    name = topic_of("produce", topic, topic_option)
    _check_together(key, key_separator, headers, partition, json, ignore_partition)
    check_level(compression, compression_level)
    to_row: Callable[[bytes], Row] | None
    if json:
        to_row = _json_rows(partition, ignore_partition)
    else:
        to_row = _text_rows(key, key_separator, _parse_headers(headers), partition)
    job = Job(
        bootstrap=bootstrap,
        topic=name,
        acks="all" if acks is Acks.all else 1 if acks is Acks.one else 0,
        max_request_size=max_request_size,
        codec=compression,
        level=compression_level,
        to_row=to_row,
        skips_empty=json,
        line_bytes_max=max_request_size * (JSON_FACTOR if json else 1),
    )
    count = run(_produce(job))
    note(f"{_records(count)} sent to {name}")


# -- what was asked ---------------------------------------------------------------------------------------------------


def _check_together(
    key: str | None,
    key_separator: str | None,
    headers: list[str] | None,
    partition: int | None,
    json: bool,
    ignore_partition: bool,
) -> None:
    if key is not None and key_separator is not None:
        raise UsageError("--key gives every record the same key, and --key-separator reads it from the line: choose one")
    if key_separator == "":
        raise UsageError("--key-separator is at least one character")
    for option, value in (("--key", key), ("--key-separator", key_separator), ("--header", headers)):
        if json and value:
            raise UsageError(f"{option} and --json exclude each other: a line of JSON has its key and headers in it")
    if ignore_partition and not json:
        raise UsageError("--ignore-partition needs --json: a line of text names no partition")
    if ignore_partition and partition is not None:
        raise UsageError("--partition and --ignore-partition exclude each other: choose the partition, or let the key choose")


def _parse_headers(headers: list[str] | None) -> list[tuple[str, bytes | None]] | None:
    parsed: list[tuple[str, bytes | None]] = []
    for header in headers or ():
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise UsageError(f"--header takes NAME=VALUE, not {header!r}")
        parsed.append((name, value.encode()))
    return parsed or None


def _text_rows(
    key: str | None, key_separator: str | None, headers: list[tuple[str, bytes | None]] | None, partition: int | None
) -> Callable[[bytes], Row] | None:
    if key is None and key_separator is None and headers is None and partition is None:
        return None
    every_key = None if key is None else key.encode()
    if key_separator is None:
        return lambda line: Row(line, every_key, partition, headers)
    separator = key_separator.replace("\\t", "\t").encode()

    def divided(line: bytes) -> Row:
        before, found, after = line.partition(separator)
        return Row(after, before, partition, headers) if found else Row(line, None, partition, headers)

    return divided


def _json_rows(partition: int | None, ignore_partition: bool) -> Callable[[bytes], Row]:
    from strandline.cli.record_json import decode, to_bytes

    def decoded(text: bytes) -> Row:
        line = decode(text)
        place = partition if partition is not None or ignore_partition else line.partition
        headers = [(name, to_bytes(value)) for name, value in line.headers]
        timestamp_ms = None if line.timestamp_ms == -1 else line.timestamp_ms
        try:
            return Row(to_bytes(line.value), to_bytes(line.key), place, headers or None, timestamp_ms)
        except UnicodeEncodeError as e:
            raise UsageError(f"it has half a character, which is not text ({e.reason})") from None

    return decoded


# -- sending ----------------------------------------------------------------------------------------------------------


class Delivery:
    """The outcomes of the lines. Receipts are settled in the order of the lines."""

    def __init__(self, producer: Producer, acks: Literal["all", 0, 1]) -> None:
        self._producer = producer
        self._acks = acks
        self._waiting: deque[tuple[int, Receipt]] = deque()
        """Line number and receipt of each unsettled record, oldest first."""
        self._is_complete = False
        self._changed = asyncio.Event()
        self._is_idle = False
        """True while `settle` waits for `_changed`."""
        self._settled = 0
        self.sent = 0

    def add(self, line_number: int, receipt: Receipt) -> None:
        self._waiting.append((line_number, receipt))
        self.sent += 1
        if self._is_idle:
            self._is_idle = False
            self._changed.set()

    def complete(self) -> None:
        """Note the end of the input."""
        self._is_complete = True
        self._changed.set()

    async def settle(self) -> None:
        """Wait until every record is acknowledged and `complete` was called. Raises the first error of a record."""
        while True:
            while self._waiting:
                await self._waiting[0][1]
                self._waiting.popleft()
                self._settled += 1
            if self._is_complete:
                return
            self._is_idle = True
            self._changed.clear()
            await self._changed.wait()

    async def note_stalls(self) -> None:
        """Print a note once per stall: the line that waits, and the reason."""
        noted = 0
        while True:
            oldest = self._waiting[0][0] if self._waiting else 0
            await asyncio.sleep(STALLED_S)
            if self._waiting and self._waiting[0][0] == oldest != noted:
                noted = oldest
                reason = self._producer.health().get("last_error") or "the leader has not answered"
                note(f"line {oldest} is not acknowledged yet: {reason}; the producer retries it (Ctrl-C ends)")

    def story(self) -> str:
        """A report: how many lines were acknowledged, and which were not."""
        left = [(number, receipt) for number, receipt in self._waiting if not _is_acknowledged(receipt)]
        if not self.sent:
            return "nothing was sent"
        if self._acks == 0:
            return f"{_records(self.sent)} sent, of which none is acknowledged (--acks 0)"
        if not left:
            return f"{_records(self.sent)} sent and acknowledged"
        text = f"{self.sent - len(left)} of {_records(self.sent)} acknowledged; not acknowledged: {_lines([n for n, _ in left])}"
        if any(_is_unknown(receipt) for _, receipt in left):
            text += ", which may be in the log all the same"
        return text + _faults(left)

    def cause(self, error: Exception) -> Exception:
        """The error of the first invalid record, if one is why its batch was rejected; else `error`."""
        for _, receipt in self._waiting:
            found = _error(receipt) if receipt.done else None
            if found is not None and _fault(found):
                return found
        return error


def _is_acknowledged(receipt: Receipt) -> bool:
    return receipt.done and _error(receipt) is None


def _faults(left: list[tuple[int, Receipt]]) -> str:
    """Which of these lines are invalid, and which were rejected only because they were in one batch with invalid ones."""
    faults = [(number, _fault(_error(receipt))) for number, receipt in left if receipt.done]
    invalid = [number for number, fault in faults if fault]
    if not invalid:
        return ""
    verb = "is" if len(invalid) == 1 else "are"
    text = f"; {_ranges(invalid)} {verb} invalid"
    valid = [number for number, fault in faults if fault is False]
    if valid:
        verb = "is" if len(valid) == 1 else "are"
        text += f"; {_ranges(valid)} {verb} valid, but in the same batch as an invalid line"
    return text


def _fault(error: StrandlineError | None) -> bool | None:
    """Whether the record itself is why it was rejected; None if that is not known."""
    from strandline.client.errors import DeliveryFailed

    return error.is_invalid_record if isinstance(error, DeliveryFailed) else None


def _is_unknown(receipt: Receipt) -> bool:
    """Whether no broker has reported if the record is in the log, although it may have been sent."""
    from strandline.client.errors import ClientClosed, DeliveryTimeout

    return not receipt.done or isinstance(_error(receipt), (ClientClosed, DeliveryTimeout))


def _error(receipt: Receipt) -> StrandlineError | None:
    try:
        receipt.result()
    except StrandlineError as e:
        return e
    return None


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _lines(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"lines {numbers[0]} to {numbers[-1]}"
    return f"{len(numbers)} lines from line {numbers[0]} on"


def _ranges(numbers: list[int]) -> str:
    """These increasing line numbers, as ranges; at most `RANGES_MAX` of them are listed."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    listed = [" to ".join(map(str, each)) for each in ranges[:RANGES_MAX]]
    if len(ranges) > RANGES_MAX:
        return f"lines {', '.join(listed)} and others ({len(numbers)} lines)"
    if len(listed) > 1:
        listed = [f"{', '.join(listed[:-1])} and {listed[-1]}"]
    return f"line {listed[0]}" if len(numbers) == 1 else f"lines {listed[0]}"


class BadLine(Exception):
    """A line that cannot be sent. The lines before it were sent."""


async def _produce(job: Job) -> int:
    """Send all lines; returns the number of records when they are acknowledged."""
    quiet_client()
    from strandline.cli.stdin import StandardInput
    from strandline.client import Producer

    producer = Producer(
        **reach(job.bootstrap),
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        acks=job.acks,
        linger_ms=2,
        batch_size=65_536,
        max_request_size=job.max_request_size,
        compression_type=job.codec.value,
        compression_level=job.level,
        buffer_memory=max(33_554_432, 2 * job.max_request_size),
    )
    delivery = Delivery(producer, job.acks)
    try:
        async with while_waiting(f"an answer from {job.bootstrap}"):
            await producer.start()
            await producer.partitions_for(job.topic)
        source = StandardInput()
        if source.is_terminal:
            note(f"each line is a record for {job.topic}; Ctrl-D at the start of a line ends")
        await _send_all(job, source, producer, delivery)
        await producer.stop()
    except asyncio.CancelledError:
        await producer.stop(timeout_ms=LAST_CHANCE_MS)
        note(f"interrupted: {delivery.story()}")
        raise
    except BadLine as e:
        await producer.stop(timeout_ms=LAST_CHANCE_MS)
        fail(f"{e}; before it: {delivery.story()}", USAGE)
    except (StrandlineError, OSError) as e:
        await producer.stop(timeout_ms=LAST_CHANCE_MS)
        if not delivery.sent:
            raise
        fail(f"{delivery.cause(e)}; {delivery.story()}", ERROR)
    return delivery.sent


async def _send_all(job: Job, source: StandardInput, producer: Producer, delivery: Delivery) -> None:
    """Send until the last line is acknowledged, or the first record fails."""
    settler = asyncio.ensure_future(delivery.settle())
    sender = asyncio.ensure_future(_send_lines(job, source, producer, delivery))
    watcher = asyncio.ensure_future(delivery.note_stalls())
    try:
        await asyncio.wait({settler, sender}, return_when=asyncio.FIRST_COMPLETED)
        if settler.done():
            settler.result()
        try:
            sender.result()
        finally:  # also after a bad line: the lines before it are settled first
            delivery.complete()
            await settler
    finally:
        for task in (settler, sender, watcher):
            task.cancel()
        await asyncio.gather(settler, sender, watcher, return_exceptions=True)


async def _send_lines(job: Job, source: StandardInput, producer: Producer, delivery: Delivery) -> None:
    from strandline.cli.stdin import Lines

    lines, number = Lines(), 0
    chunk = b" "
    while chunk:
        chunk = await source.read()
        left = lines.feed(chunk) if chunk else lines.end()
        while left:
            taken = _hand_over(job, left, number, producer, delivery)
            number += taken
            left = left[taken:]
            if left:
                await producer.wait_for_room(len(left[0]))
        if lines.rest_bytes > job.line_bytes_max:
            raise BadLine(_too_large(job, number + 1, f"more than {job.line_bytes_max}"))
        await asyncio.sleep(0)  # if the next chunk is ready, `read` does not suspend, and the sender would starve


def _hand_over(job: Job, lines: list[bytes], before: int, producer: Producer, delivery: Delivery) -> int:
    """Give the producer as many lines as it has room for; returns their number. `before`: the number of the line before
    them.

    There is no await between `send_nowait` and the note of its receipt, so an interrupt cannot lose a receipt.
    """
    from strandline.client.errors import BufferFull, RecordTooLarge, UnknownTopic

    topic, send, to_row, add = job.topic, producer.send_nowait, job.to_row, delivery.add
    number, line = before, b""
    try:
        for number, line in enumerate(lines, before + 1):
            if to_row is None:
                add(number, send(topic, line))
            elif line or not job.skips_empty:
                add(number, send(topic, *to_row(line)))
    except BufferFull:
        return number - before - 1
    except RecordTooLarge:
        raise BadLine(_too_large(job, number, str(len(line)))) from None
    except UnknownTopic as e:
        way_out = "; --ignore-partition lets the key choose" if job.skips_empty else ""
        raise BadLine(f"line {number} is not sent: {e}{way_out}") from None
    except UsageError as e:
        raise BadLine(f"line {number} is not sent: {e}") from None
    return len(lines)


def _too_large(job: Job, number: int, size: str) -> str:
    return (
        f"line {number} has {size} bytes, and a record has {job.max_request_size} at most with what is stored beside it; "
        f"--max-request-size BYTES raises that limit (the topic's max.message.bytes is another)"
    )
