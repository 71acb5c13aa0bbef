"""What a replay is: which offsets go into which topic, and under which names. Written down once, before the first record.

    CHECKPOINT/plan.json       made by the first run, read by every other
    CHECKPOINT/done.json       the figures, when all is written

    {"v": 1, "name": "march", "asked": {"topic": "orders", "to": "orders-again", "lake": null, ...},
     "place": "same", "count": 4,                                  how partitions are chosen, of how many
     "ranges": [{"partition": 0, "start": 1200, "end": 5000, "leader_epoch": 3}], "begun_ms": 1738000000000}

A run that goes on must write the very rows that the first would have written, in the same order: "up to the end", "since
yesterday" and the number of partitions are therefore settled here, not asked again. Each partition of the source is
written by a producer of its own, named replay/<name>/<partition>, which knows how many of its rows are there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from strandline.client.producer.partitioner import partition_for_key
from strandline.pipeline.jobs.lake_folder import alone, appearing, local_path, make_folders
from strandline.pipeline.planning import Range
from strandline.protocol.errors import UsageError

VERSION = 1
PLAN, DONE = "plan.json", "done.json"
Placement = Literal["same", "key"]
"""The partition that a record had, or the one that its key says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    name: str
    asked: Mapping[str, Any]
    """In the words of whoever asked, to notice when a run that goes on is asked for something else."""
    place: Placement
    count: int
    """Partitions of the target, when the replay began: one that grows meanwhile must not move keys."""
    ranges: tuple[Range, ...]
    begun_ms: int

    @property
    def to(self) -> str:
        return str(self.asked["to"])

    def producer_name(self, partition: int) -> str:
        return f"{self.prefix}{partition}"

    @property
    def prefix(self) -> str:
        return f"replay/{self.name}/"

    def place_of(self, partition: int, key: bytes | None) -> int:
        """Where a record of this partition goes. One without a key stays with its neighbours."""
        if self.place == "same":
            return partition
        return partition % self.count if key is None else partition_for_key(key, self.count)


def chosen_place(wanted: Literal["auto", "same", "key"], ranges: Sequence[Range], count: int) -> Placement:
    """With "auto" the same partition where the target has them all. Raises UsageError for "same" where it has not."""
    highest = max((r.partition for r in ranges), default=0)
    if wanted == "auto":
        return "same" if highest < count else "key"
    if wanted == "same" and highest >= count:
        raise UsageError(f"the target has {count} partitions, and there are records of partition {highest}; let the key choose")
    return wanted


# -- on the disk ------------------------------------------------------------------------------------------------------


class Checkpoint:
    """The folder of one replay."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = local_path(folder)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """One run at a time. Raises UsageError while there is another."""
        make_folders(self.folder)
        with alone(self.folder / ".lock", f"another run of the replay in {self.folder} is at work; wait until it is done"):
            yield

    def plan(self) -> Plan | None:
        document = self._read(PLAN)
        if document is None:
            return None
        try:
            return _plan(document)
        except (KeyError, TypeError, ValueError) as e:
            raise UsageError(f"{self.folder / PLAN} is no plan of a replay: {type(e).__name__}: {e}") from None

    def write_plan(self, plan: Plan) -> None:
        ranges = [{name: getattr(r, name) for name in ("partition", "start", "end", "leader_epoch")} for r in plan.ranges]
        self._write(PLAN, {"v": VERSION, **asdict(plan), "ranges": ranges})

    def done(self) -> dict[str, Any] | None:
        return self._read(DONE)

    def write_done(self, figures: Mapping[str, Any]) -> None:
        self._write(DONE, figures)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as e:
            raise UsageError(f"{self.folder / name} cannot be read: {e}") from None
        if not isinstance(document, dict):
            raise UsageError(f"{self.folder / name} is no plan of a replay")
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        with appearing(self.folder / name) as new:
            new.write_text(json.dumps(document, indent=1) + "\n")


def _plan(document: Mapping[str, Any]) -> Plan:
    if document["v"] != VERSION:
        raise ValueError(f"it is of version {document['v']}; this program knows {VERSION}")
    topic = document["asked"]["topic"]
    return Plan(
        name=str(document["name"]),
        asked=document["asked"],
        place="key" if document["place"] == "key" else "same",
        count=int(document["count"]),
        ranges=tuple(Range(topic=topic, **each) for each in document["ranges"]),
        begun_ms=int(document["begun_ms"]),
    )
