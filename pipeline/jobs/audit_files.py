"""Tasks that read every byte of a lake's files, and yield a row for each file that differs from its manifest."""

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
    """The files that one task checks."""

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
    """At most `pieces` tasks that check these files. Neighbours have similar sizes, so each task gets every n-th file."""
    return [CheckFiles(root, tuple(files[n::pieces])) for n in range(min(pieces, len(files)))]


def _problem(folder: Folder, file: DataFile) -> str | None:
    """The difference between the file and its manifest; None if there is none. A file with the right checksum may still have
    another number of rows, if its writer was wrong."""
    import pyarrow
    import pyarrow.parquet

    try:
        folder.check(file, checksums=True)
        rows = pyarrow.parquet.read_metadata(folder.root / file.path).num_rows
    except LakeDamaged as e:
        return str(e)
    except (OSError, pyarrow.ArrowException) as e:
        return f"{file.path} cannot be read: {e}"
    return None if rows == file.count else f"{file.path} has {rows} rows, but its manifest says {file.count}"


def offsets_json(offsets: Mapping[TopicPartition, int]) -> str:
    """Offsets as JSON, in the form of the options `startingOffsets` and `endingOffsets`."""
    document: dict[str, dict[str, int]] = {}
    for tp, offset in sorted(offsets.items()):
        document.setdefault(tp.topic, {})[str(tp.partition)] = offset
    return json.dumps(document)
