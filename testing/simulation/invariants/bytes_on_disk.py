"""The bytes that a disk really has, read directly: no fault strikes here, and no time passes.

Works on the disks of `storage/memory/memory_files.py` and on everything built on them. On a real disk, files are read from the
cache as by any process, and it is unknown which bytes are durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from strandline.protocol.errors import BrokerError
from strandline.protocol.records.batch import HEADER_SIZE, BatchHeader, check_crc, read_header
from strandline.testing.simulation.invariants.paths import Batch

if TYPE_CHECKING:
    from strandline.storage.log.segment import Segment


def batch_of(header: BatchHeader, crc: int | None = None) -> Batch:
    base = header.base_offset
    return Batch(
        base,
        base + header.last_offset_delta + 1,
        header.crc if crc is None else crc,
        header.size,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_control,
        header.is_transactional,
    )


def segment_bytes(segment: Segment) -> bytes:
    file: Any = segment.file
    inode = getattr(file, "inode", None)
    return bytes(file.pread(file.size, 0)) if inode is None else bytes(inode.cache[: file.size])


def valid_batches(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch, up to the first one that is torn or fails its checksum."""
    position = 0
    while position + HEADER_SIZE <= len(data):
        try:
            header = read_header(data, position)
        except BrokerError:
            return
        if not check_crc(data, position, header.size):
            return
        yield position, header
        position += header.size


def is_durable(file: Any) -> bool:
    """Whether everything written to an open file would survive a power cut, including its name."""
    inode = getattr(file, "inode", None)
    if inode is None:
        return True
    return not inode.dirty and _durable_node(file.files, file.path) is inode


def durable_content(files: Any, path: str) -> bytes | None:
    """The bytes of a file that survive a power cut; None if the file does not survive, or if that is unknown."""
    node = _durable_node(files, path)
    return None if node is None or not hasattr(node, "durable_size") else bytes(node.durable)


def knows_durability(files: Any) -> bool:
    return hasattr(files, "root")


def _durable_node(files: Any, path: str) -> Any:
    node = files.root
    for name in path.split("/"):
        if name in ("", "."):
            continue
        names = getattr(node, "durable", None)
        if not isinstance(names, dict) or name not in names:
            return None
        node = names[name]
    return node


def is_damaged(files: Any, path: str) -> bool:
    """Whether a fault changed or lost bytes below this path."""
    disk = getattr(files, "disk", files)
    below = path.strip("/")
    places = [damage.path.strip("/") for damage in getattr(disk, "damage", ())]
    return any(place == below or place.startswith(below + "/") for place in places)
