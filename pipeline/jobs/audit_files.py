"""The files of a lake, read to their last byte by tasks: is each what its manifest says? Yields a row for one that is not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from strandline.client.consumer.records import TopicPartition
from strandline.pipeline.jobs.lake import DataFile, LakeDamaged
from strandline.pipeline.jobs.lake_folder import Folder

if TYPE_CHECKING:
    import pyarrow

SCHEMA = "path string, problem string"


@dataclass(frozen=True, slots=True)
class CheckFiles:
    """A task's share."""

    root: Path
    files: tuple[DataFile, ...]

    def run(self) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        folder = Folder(self.root)
        rows = [(file.path, problem) for file in self.files if (problem := _problem(folder, file))]
        if rows:
            columns = [pyarrow.array(column, pyarrow.string()) for column in zip(*rows, strict=True)]
            yield pyarrow.RecordBatch.from_arrays(columns, names=["path", "problem"])


def check_files(root: Path, files: Sequence[DataFile], pieces: int) -> list[CheckFiles]:
    """Dealt out in turn: neighbours are of one size, so the shares are about equal."""
    return [CheckFiles(root, tuple(files[n::pieces])) for n in range(min(pieces, len(files)))]


def _problem(folder: Folder, file: DataFile) -> str | None:
    """Behind an equal checksum nothing else needs a look, but the footer: a writer may have made it wrong."""
    import pyarrow
    import pyarrow.parquet

    try:
        folder.check(file, checksums=True)
        rows = pyarrow.parquet.read_metadata(folder.root / file.path).num_rows
    except LakeDamaged as e:
        return str(e)
    except (OSError, pyarrow.ArrowException) as e:
        return f"{file.path} cannot be read: {e}"
    return None if rows == file.count else f"{file.path} has {rows} rows, and its manifest says {file.count}"


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """As the options of the source want it."""
    document: dict[str, dict[str, int]] = {}
    for place, offset in sorted(offsets.items()):
        document.setdefault(place.topic, {})[str(place.partition)] = offset
    return json.dumps(document)
