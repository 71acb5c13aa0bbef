"""`strandline log`: prints the content of a log's files, and verifies a stopped broker's data directory. It needs no cluster."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline.cli.common import ERROR, fail, new_app, note
from strandline.cli.log_files import Reader, reader_of
from strandline.cli.log_verify import verify
from strandline.cli.output import Form, Output, Table, View, rendered
from strandline.protocol.errors import UsageError

if TYPE_CHECKING:
    from strandline.protocol.records.batch import BatchHeader
    from strandline.protocol.records.reader import Record

app = new_app("Print the content of a log's files, or verify a data directory.")
app.command("verify")(verify)


@app.command()
def dump(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A segment (.log), a metadata snapshot (.checkpoint), an index (.index, .timeindex), a producer snapshot "
            "(.snapshot), or a checkpoint file.",
        ),
    ],
    records: Annotated[
        bool, typer.Option("--records", help="Print each record of each batch too; of the metadata log, decoded.")
    ] = False,
    output: Output = Form.table,
) -> None:
    """Print the batches of a segment (offsets, epoch, producer, compression, checksum), or the entries of another file of a log.
    Exit code 1 if something is torn or damaged."""
    if Path(file).is_dir():
        raise UsageError(f"{file} is a folder: name one of its files; `strandline log verify DIR` reads a whole data directory")
    reader = reader_of(Path(file))
    if reader is None:
        _dump_batches(file, records, output)
    else:
        _dump_entries(file, reader, output)


def _dump_entries(file: str, reader: Reader, output: Form) -> None:
    content = reader(Path(file), Path(file).read_bytes())
    for row in content.rows:
        line = " ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items())
        _print(View(row, [line], plain=Table(tuple(row), [tuple(row.values())])), output)
    if content.remark:
        note(f"{file}: {content.remark}")
    if content.problem:
        fail(f"{file} is damaged: {content.problem}")
    if not content.rows:
        note(f"{file} is empty: it holds no entries")


def _dump_batches(file: str, records: bool, output: Form) -> None:
    with open(file, "rb") as opened:
        empty = not opened.seek(0, 2)
        data = b"" if empty else mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    describe = _metadata_record if _is_metadata(Path(file)) else _plain_record
    damaged, unreadable, end, reason = 0, 0, 0, ""
    view = memoryview(data)
    for position, header, problem in _batches(view):
        if header is None:
            end, reason = position, problem
            break
        good = _is_good(view, position, header)
        damaged += not good
        found, problem = _records(view, position, header, describe) if records and good else ([], "")
        _print(_batch_view(_describe(position, header, good), found), output)
        if problem:
            unreadable += 1
            note(f"the records of the batch at position {position} cannot be read: {problem}")
    if empty:
        note(f"{file} is empty: it holds no batches")
    if reason:
        note(f"{file} is readable up to position {end}: {reason}" if end else f"{file} does not begin with a batch: {reason}")
    if damaged:
        note(f"{damaged} batch{'es' if damaged > 1 else ''} with a wrong checksum")
    if reason or damaged or unreadable:
        raise typer.Exit(ERROR)


def _is_metadata(path: Path) -> bool:
    """Whether the file is of the metadata log: a snapshot, or a segment in its folder."""
    return path.suffix == ".checkpoint" or path.resolve().parent.name == "__cluster_metadata-0"


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
    from strandline.protocol.records.batch import DELETE_HORIZON_MASK
    from strandline.protocol.records.compression import codec_name
    from strandline.protocol.records.fence import is_fence, token_of

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
        "compression": codec_name(header.compression),
        "is_control": header.is_control,
        "is_transactional": header.is_transactional,
        "delete_horizon_ms": header.base_timestamp if header.attributes & DELETE_HORIZON_MASK else None,
        "fencing_token": token_of(header.producer_id, header.base_sequence) if is_fence(header) else None,
        "crc": f"{header.crc:08x}",
        "crc_ok": good,
    }


def _records(
    view: memoryview, position: int, header: BatchHeader, describe: Callable[[Record], dict[str, Any]]
) -> tuple[list[dict[str, Any]], str]:
    """The records of a batch, and why they cannot be read; empty if they can."""
    from strandline.protocol.errors import BrokerError
    from strandline.protocol.records.reader import decode_batch

    if header.is_control:
        describe = _control_record
    try:
        return [
            {"offset": record.offset, "timestamp_ms": record.timestamp_ms, **describe(record)}
            for record in decode_batch(view, position, header)
        ], ""
    except BrokerError as e:
        return [], e.message or str(e)


def _control_record(record: Record) -> dict[str, Any]:
    from strandline.protocol.records.control import decode_control

    return {"control": str(decode_control(record.key, record.value))}


def _plain_record(record: Record) -> dict[str, Any]:
    headers = [[name, _text(value)] for name, value in record.headers]
    return {"key": _text(record.key), "value": _text(record.value), "headers": headers}


def _metadata_record(record: Record) -> dict[str, Any]:
    """The decoded record, without secrets. If this version cannot read it, its bytes and the reason: the log may be that of an
    Apache Kafka."""
    from strandline.controller.metadata.records import decode_record
    from strandline.protocol.errors import PeerError

    try:
        decoded = decode_record(record.value or b"")
    except PeerError as e:
        plain = _plain_record(record)
        if (record.value or b"")[1:2] == _CREDENTIAL_TYPE:
            plain["value"] = _HIDDEN
        return plain | {"unreadable": str(e)}
    return {"record": type(decoded).__name__, "fields": _plain(decoded) | dict.fromkeys(decoded.SECRET, _HIDDEN)}


_CREDENTIAL_TYPE = b"\x0b"
"""The second byte of a UserScramCredentialRecord (type 11), in the form of Strandline and in that of Apache Kafka."""
_HIDDEN = "[hidden]"


def _plain(value: Any) -> Any:
    """A value of a metadata record as JSON has it. An id of 16 bytes is shown as Kafka shows ids."""
    from strandline.storage.checkpoints import uuid_to_text

    if isinstance(value, bytes):
        return uuid_to_text(value) if len(value) == 16 else _text(value)
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    return value


def _text(value: bytes | None) -> str | None:
    """Decode bytes as text; bytes that are not UTF-8 become escapes."""
    return None if value is None else value.decode("utf-8", "backslashreplace")


def _print(view: View, output: Form) -> None:
    """Print one of many views; a file has so many that each is not flushed."""
    print(rendered(view, output, None))


def _batch_view(batch: dict[str, Any], records: list[dict[str, Any]]) -> View:
    marks = "".join(f" {name}" for name in ("control", "transactional") if batch[f"is_{name}"])
    if batch["delete_horizon_ms"] is not None:
        marks += f" delete-horizon {batch['delete_horizon_ms']}"
    if batch["fencing_token"] is not None:
        marks += f" fencing-token {batch['fencing_token']}"
    line = (
        f"@{batch['position']} offsets {batch['base_offset']}..{batch['last_offset']} count {batch['count']} "
        f"size {batch['size']} epoch {batch['leader_epoch']} producer {batch['producer_id']}/{batch['producer_epoch']} "
        f"sequence {batch['base_sequence']} timestamp {batch['timestamp_ms']} compression {batch['compression']}{marks} "
        f"crc {batch['crc']} {'ok' if batch['crc_ok'] else 'WRONG'}"
    )
    lines = [f"    {record['offset']} {record['timestamp_ms']} {_shown(record)}" for record in records]
    document = batch | ({"records": records} if records else {})
    return View(document, [line, *lines], plain=Table(tuple(batch), [tuple(batch.values())]))


def _shown(record: dict[str, Any]) -> str:
    if "control" in record:
        return str(record["control"])
    if "record" in record:
        return " ".join([record["record"], *(f"{name}={value!r}" for name, value in record["fields"].items())])
    text = f"key {record['key']!r} value {record['value']!r}"
    text += f" headers {record['headers']!r}" if record["headers"] else ""
    return text + (f" ({record['unreadable']})" if "unreadable" in record else "")
