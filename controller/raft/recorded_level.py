"""The highest level that the files of a metadata log name, read before anything is changed.

A controller that does not support the level of its own metadata must not open the log: recovery, votes and snapshots would change
files whose content it does not understand. So the level is looked up first, in the snapshots and in the log, committed or not.
Damage ends the search in a file: whether it matters is decided when the log is opened.
"""

from __future__ import annotations

from collections.abc import Iterator

from strandline.controller.metadata.records import FeatureLevelRecord, decode_record
from strandline.controller.raft.metadata_log import DIRECTORY
from strandline.controller.raft.snapshots import SUFFIX
from strandline.protocol.errors import BrokerError, PeerError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.records.batch import iter_headers
from strandline.protocol.records.reader import decode_values
from strandline.storage.files import Files, join

_NAME = METADATA_VERSION.encode()


def recorded_level(files: Files, data_dir: str) -> int:
    """The highest level in the metadata log of this data directory; 0 if it names none, or does not exist."""
    directory = join(data_dir, DIRECTORY)
    if not files.exists(directory):
        return 0
    names = sorted(name for name in files.list(directory) if name.endswith((".log", SUFFIX)))
    return max((level for name in names for level in _levels(files.read(join(directory, name)))), default=0)


def _levels(data: bytes) -> Iterator[int]:
    if _NAME not in data:
        return
    try:
        for position, header in iter_headers(data):
            if not header.is_control and data.find(_NAME, position, position + header.size) >= 0:
                yield from _levels_of(value or b"" for value in decode_values(data, position, header))
    except BrokerError:
        return


def _levels_of(values: Iterator[bytes]) -> Iterator[int]:
    """The levels in these records, up to the first record that this version cannot decode."""
    for value in values:
        try:
            record = decode_record(value)
        except PeerError:
            return
        if isinstance(record, FeatureLevelRecord) and record.name == METADATA_VERSION:
            yield record.feature_level
