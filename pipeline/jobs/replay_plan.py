"""The plan of a replay: the offsets to read, the target topic, and the names of the producers.

    CHECKPOINT/plan.json       the plan: the first run writes it, later runs read it
    CHECKPOINT/done.json       the result, when all records are written

    {"v": 1, "name": "march", "asked": {"topic": "orders", "to": "orders-again", "lake": null, ...},
     "place": "same", "count": 4,                                  how partitions are chosen, of how many
     "ranges": [{"partition": 0, "start": 1200, "end": 5000, "leader_epoch": 3,
                 "topic_id": "43da6650a3a54dec96b2421481e09a48"}],             of a log; a lake has no topic id
     "begun_ms": 1738000000000}

A run that continues a replay must write the same rows in the same order as the first run. So the plan fixes what would be
different later: the end of the log, the offsets of timestamps, and the target's number of partitions. The topic id shows the
tasks whether the source was recreated. Each partition of the source has a producer of its own, named replay/<name>/<partition>.
The target's brokers know how many rows each of these names has written.
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
"""How the target partition is chosen: that of the source, or by the record's key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    name: str
    asked: Mapping[str, Any]
    """The arguments of the first run. A later run with other arguments is refused."""
    place: Placement
    count: int
    """The target's number of partitions when the replay began. Partitions that are added later get no records, so that no key
    changes its partition."""
    ranges: tuple[Range, ...]
    begun_ms: int

    @property
    def to(self) -> str:
        return str(self.asked["to"])

    def producer_name(self, partition: int) -> str:
        return f"{self._prefix}{partition}"

    def partition_of(self, producer_name: str) -> int | None:
        """The partition of the source that this producer name is for; None for a name of another replay, which may begin with
        the name of this one."""
        partition = producer_name.removeprefix(self._prefix)
        is_ours = producer_name.startswith(self._prefix) and partition.isascii() and partition.isdecimal()
        return int(partition) if is_ours else None

    @property
    def _prefix(self) -> str:
        return f"replay/{self.name}/"

    def target_partition(self, partition: int, key: bytes | None) -> int:
        """The target partition of a record from this partition of the source. Records without a key stay together."""
        if self.place == "same":
            return partition
        return partition % self.count if key is None else partition_for_key(key, self.count)


def chosen_place(wanted: Literal["auto", "same", "key"], ranges: Sequence[Range], count: int) -> Placement:
    """How the replay chooses partitions of a target that has `count` partitions. "auto" is "same" if the target has every
    partition of the ranges, else "key". Raises UsageError for "same" if it has too few partitions."""
    highest = max((r.partition for r in ranges), default=0)
    if wanted == "auto":
        return "same" if highest < count else "key"
    if wanted == "same" and highest >= count:
        raise UsageError(f"the target has {count} partitions, but there are records of partition {highest}; choose by key")
    return wanted


# -- on the disk ------------------------------------------------------------------------------------------------------


class Checkpoint:
    """The folder with the plan and the result of one replay."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder: Path = local_path(folder)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Holds the lock of the folder. Raises UsageError if another run holds it."""
        make_folders(self.folder)
        with alone(self.folder / ".lock", f"another run of the replay in {self.folder} is active; wait until it is done"):
            yield

    def plan(self) -> Plan | None:
        """The stored plan; None if there is none. Raises UsageError if the file cannot be read as JSON, is not a plan, or has a
        version that this program does not know."""
        document = self._read(PLAN)
        if document is None:
            return None
        try:
            return _plan(document)
        except (KeyError, TypeError, ValueError) as e:
            raise UsageError(f"{self.folder / PLAN} is not a plan of a replay: {type(e).__name__}: {e}") from None

    def write_plan(self, plan: Plan) -> None:
        self._write(PLAN, {"v": VERSION, **asdict(plan), "ranges": [_stored(each) for each in plan.ranges]})

    def done(self) -> dict[str, Any] | None:
        """The stored result; None if the replay has not ended. Raises UsageError if the file cannot be read as JSON."""
        return self._read(DONE)

    def write_done(self, result: Mapping[str, Any]) -> None:
        self._write(DONE, result)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            document = json.loads((self.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as e:
            raise UsageError(f"{self.folder / name} cannot be read: {e}") from None
        if not isinstance(document, dict):
            raise UsageError(f"{self.folder / name} is not a JSON object")
        return document

    def _write(self, name: str, document: Mapping[str, Any]) -> None:
        with appearing(self.folder / name) as new:
            new.write_text(json.dumps(document, indent=1) + "\n")


def _stored(each: Range) -> dict[str, Any]:
    offsets = {"partition": each.partition, "start": each.start, "end": each.end, "leader_epoch": each.leader_epoch}
    return {**offsets, "topic_id": each.topic_id.hex()}


def _range(topic: str, stored: Mapping[str, Any]) -> Range:
    """A range of the plan. The plan of an earlier release has no topic id."""
    fields = {"topic_id": "", **stored}
    return Range(topic=topic, **{**fields, "topic_id": bytes.fromhex(fields["topic_id"])})


def _plan(document: Mapping[str, Any]) -> Plan:
    if document["v"] != VERSION:
        raise ValueError(f"it has version {document['v']}; this program knows version {VERSION}")
    topic = document["asked"]["topic"]
    return Plan(
        name=str(document["name"]),
        asked=document["asked"],
        place="key" if document["place"] == "key" else "same",
        count=int(document["count"]),
        ranges=tuple(_range(topic, each) for each in document["ranges"]),
        begun_ms=int(document["begun_ms"]),
    )
