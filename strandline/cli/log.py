"""`strandline log dump`: prints the batches of a segment file. It needs no cluster."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import ERROR, Json, new_app, note, print_json

if TYPE_CHECKING:
    from strandline.protocol.records.batch import BatchHeader

app = new_app("Print the batches in a log's files.")


@app.callback()
def _group() -> None:
    """Print the batches in a log's files."""


@app.command()
def dump(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A segment (.log) or a metadata snapshot (.checkpoint).")],
    records: Annotated[bool, typer.Option("--records", help="Print each record of each batch too.")] = False,
    json: Json = False,
) -> None:
    """Print the batches of a segment: offsets, epoch, producer, checksum. Exit code 1 if a batch is torn or damaged."""
    with open(file, "rb") as opened:
        empty = not opened.seek(0, 2)
        data = b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    printer = _print_as_json if json else _print_as_text
    damaged, end, reason = 0, 0, ""
    view = memoryview(data)
    for position, header, problem in _batches(view):
        if header is None:
            end, reason = position, problem
            break
        good = _is_good(view, position, header)
        damaged += not good
        printer(_describe(position, header, good), list(_records(view, position, header)) if records and good else [])
    if empty:
        note(f"{file} is empty: it holds no batches")
    if reason:
        note(f"{file} is readable up to position {end}: {reason}")
    if damaged:
        note(f"{damaged} batch{'es' if damaged > 1 else ''} with a wrong checksum")
    if reason or damaged:
        raise typer.Exit(ERROR)


def _batches(view: memoryview) -> Iterator[tuple[int, BatchHeader | None, str]]:
    """Position and header of each batch. If the end is torn, the last item is its position, None, and the reason."""
    from strandline.protocol.errors import BrokerError
    from strandline.protocol.records.batch import read_header

    position = 0
    while position < len(view):
        try:
            header = read_header(view, position)
        except BrokerError as e:
            yield position, None, e.message or str(e)
            return
        yield position, header, ""
        position += header.size


def _is_good(view: memoryview, position: int, header: BatchHeader) -> bool:
    from strandline.protocol.records.batch import check_crc

    return check_crc(view, position, header.size)


def _describe(position: int, header: BatchHeader, good: bool) -> dict[str, Any]:
    from strandline.protocol.records.batch import COMPRESSION_NAMES

    codec = header.compression
    return {
        "position": position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "size": header.size,
        "leader_epoch": header.leader_epoch,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "timestamp_ms": header.max_timestamp,
        "compression": COMPRESSION_NAMES[codec] if codec < len(COMPRESSION_NAMES) else str(codec),
        "is_control": header.is_control,
        "is_transactional": header.is_transactional,
        "crc": f"{header.crc:08x}",
        "crc_ok": good,
    }


def _records(view: memoryview, position: int, header: BatchHeader) -> Iterator[dict[str, Any]]:
    from strandline.protocol.records.control import decode_control
    from strandline.protocol.records.reader import decode_batch

    for record in decode_batch(view, position, header):
        described: dict[str, Any] = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
        if header.is_control:
            described["control"] = str(decode_control(record.key, record.value))
        else:
            described |= {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
            }
        yield described


def _text(value: bytes | None) -> str | None:
    """Bytes as text; bytes that are not UTF-8 become escapes."""
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _print_as_json(batch: dict[str, Any], records: list[dict[str, Any]]) -> None:
    print_json(batch | ({"records": records} if records else {}))


def _print_as_text(batch: dict[str, Any], records: list[dict[str, Any]]) -> None:
    marks = "".join(f" {name}" for name in ("control", "transactional") if batch[f"is_{name}"])
    print(
        f"@{batch['position']} offsets {batch['base_offset']}..{batch['last_offset']} count {batch['count']} "
        f"size {batch['size']} epoch {batch['leader_epoch']} producer {batch['producer_id']}/{batch['producer_epoch']} "
        f"sequence {batch['base_sequence']} timestamp {batch['timestamp_ms']} compression {batch['compression']}{marks} "
        f"crc {batch['crc']} {'ok' if batch['crc_ok'] else 'WRONG'}"
    )
    for record in records:
        shown = record.get("control") or f"key {record['key']!r} value {record['value']!r}" + (
            f" headers {record['headers']!r}" if record["headers"] else ""
        )
        print(f"    {record['offset']} {record['timestamp_ms']} {shown}")
