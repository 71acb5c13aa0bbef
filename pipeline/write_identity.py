"""The identity of a write: the producer name and work epoch of its tasks, and how two writes are distinguished.

A named producer skips the rows that the log already holds. If two different writes shared a name, the second would look like a
retry of the first and its rows would be lost without an error. The name is made of local properties that Spark sets for each
task:

    kind of write                              producer name                                work epoch
    stream (`writeStream`)                     spark/<query id>/<task>                      batch id
    batch (`write`)                            spark/<job>/<task>                           0
    batch inside of `foreachBatch`             spark/<query id>/<topic>/<writeName>/<task>  batch id

The option `producerName` takes the place of the query id or the job. Spark's `queryName` is not an identity: Spark itself
does not require that it is unique.

If the function of `foreachBatch` writes on a thread of its own or runs with Spark Connect, the tasks do not have the properties
for query and batch, and the write looks like a batch job. With the options `producerName`, `writeName` and `batchId` it gets the
name and work epoch that it would have inside `foreachBatch`.

Inside `foreachBatch` all writes of a batch have the same query id and batch id, also when the batch is run again after a restart.
The option `writeName` distinguishes two writes to one topic. A write that may be either a retry or another write fails with
`WriteNotDistinct`. To detect that, each write has a random job id and each run of a batch has a run id, and the first attempt of
a task stores both in its note (`WriteNote`):

    the note has our job id                          a retry of our own task: skip its rows
    our run id, another job id                       another write of the same batch: WriteNotDistinct
    another run id                                   the batch is run again; see below

When a batch is run again, its first write takes over the rows of the earlier run. It stores its job id under a *claim*, the name
of a producer that writes nothing (`spark/<query id>/<topic>/<writeName>/run/<run id>`, work epoch: the batch id). A second write
of the same run finds the claim with another job id: WriteNotDistinct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from strandline.pipeline.errors import WriteNotDistinct
from strandline.protocol.errors import UsageError
from strandline.protocol.producer_names import NAME_LENGTH_MAX, NOTE_BYTES_MAX

QUERY_ID, BATCH_ID, APP_ID, EXECUTION_ID = (
    "sql.streaming.queryId",
    "streaming.sql.batchId",
    "spark.app.id",
    "spark.sql.execution.root.id",
)
"""Names of local properties of Spark's tasks. They are internals of Spark, so tests check that they still exist."""


class WriteNote(msgspec.Struct, frozen=True, array_like=True):
    """The note that the first attempt of a task stores for later attempts; at most `NOTE_BYTES_MAX` bytes as msgpack.

    Notes of earlier releases have the first two fields only.
    """

    topic: str | None
    """The option `topic`; None if the topic is a column."""
    starts: list[int] | None
    """The end offset of each partition before the first attempt wrote; None if the topic is a column, if the order of rows is
    stable, or if the offsets exceed the size of a note."""
    started_at_ms: int = -1
    """Wall clock of the executor when the first attempt began, in ms since the epoch; -1 in notes of earlier releases."""
    run_id: str = ""
    """Id of the run of the batch; empty outside `foreachBatch`."""
    job: str = ""
    """Job id of the write; empty outside `foreachBatch`."""
    partitions: int = -1
    """Number of partitions that the topic had. Later attempts use the same number even if partitions were added, so that a key
    goes to the same partition. -1 if the topic is a column, and in notes of earlier releases."""
    first_row: bytes = b""
    """Hash of the first row of the task, with `rowOrder=stable`. Empty: not known, or no rows."""

    def is_followed_by(self, first_row: bytes) -> bool:
        """Whether a later attempt with this first row may rely on the promised stable order and skip as many rows as the log
        holds. Else it must compare rows."""
        return self.partitions >= 0 and self.first_row != b"" and self.first_row == first_row

    def encode(self) -> bytes:
        """The note as msgpack, without `starts` if they exceed the size of a note."""
        note = msgspec.msgpack.encode(self)
        if len(note) <= NOTE_BYTES_MAX:
            return note
        return msgspec.msgpack.encode(msgspec.structs.replace(self, starts=None))


def decode_note(note: bytes | None) -> WriteNote | None:
    return None if note is None else msgspec.msgpack.decode(note, type=WriteNote)


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """The write to which a task belongs."""

    name: str
    """The producer name of the write, without the task's number."""
    work_epoch: int
    run_id: str = ""
    """Id of the run of the batch; empty outside `foreachBatch`."""
    job: str = ""
    """Job id of the write, drawn at random when Spark planned it; empty outside `foreachBatch`."""

    def producer_name(self, task: int) -> str:
        return f"{self.name}/{task}"

    @property
    def claim_name(self) -> str:
        """The name of the claim: the first write of a run that takes over an earlier run's rows stores its job id there."""
        return f"{self.name}/run/{self.run_id}"

    def must_claim(self, note: WriteNote | None) -> bool:
        """Whether the earlier attempt with this note belongs to an earlier run of the batch. Raises WriteNotDistinct if it
        belongs to another write of this run."""
        if not self.job or (note is not None and note.job == self.job):
            return False
        if note is not None and note.run_id == self.run_id:
            raise self._not_distinct()
        return True

    def check_claim(self, claimed_by: str) -> None:
        """Raises WriteNotDistinct if another write of this run has taken over the rows of the earlier run."""
        if claimed_by != self.job:
            raise self._not_distinct()

    def _not_distinct(self) -> WriteNotDistinct:
        return WriteNotDistinct(
            f"batch {self.work_epoch} has already been written as {self.name}, and this may be a retry of that write or another "
            "write: inside foreachBatch give each write a name of its own with the option writeName; if this is a second try "
            "of the same write, let the query fail and restart it instead"
        )


def write_identity(
    properties: Callable[[str], str | None],
    *,
    is_stream: bool,
    job: str,
    topic: str | None,
    producer_name: str | None,
    write_name: str | None,
    batch_id: int | None = None,
) -> WriteIdentity:
    """The identity of the write to which the calling task belongs.

    `properties` returns the task's local property of a name. `job` is drawn at random for each batch write. `batch_id` is the
    option `batchId`, which requires the other two names. Raises UsageError if Spark runs another batch than `batch_id`."""
    query, batch = properties(QUERY_ID), int(properties(BATCH_ID) or 0)
    if is_stream:
        return WriteIdentity(_name(producer_name or query or job), batch)
    if batch_id is not None and query is not None and batch_id != batch:
        text = f"option batchId is {batch_id}, and Spark runs batch {batch}: pass on the number that the function is given"
        raise UsageError(text)
    if query is None and batch_id is not None:
        return WriteIdentity(_name(producer_name or "", topic or "", write_name or ""), batch_id)
    if query is None:
        return WriteIdentity(_name(producer_name or job, *([write_name] if write_name else [])), 0)
    run_id = _run_id(properties(APP_ID), properties(EXECUTION_ID))
    return WriteIdentity(_name(producer_name or query, topic or "", write_name or ""), batch, run_id, job)


def _run_id(application: str | None, execution: str | None) -> str:
    """An id that all writes of a batch share in one run, and that changes when the batch is run again. It is empty if the
    properties are missing: then runs cannot be distinguished, and a write that finds rows of another write fails."""
    if not application or not execution:
        return ""
    return blake2b(f"{application}/{execution}".encode(), digest_size=16).hexdigest()


_TAIL_LENGTH_MAX = 64
"""Length of the part after a write's name: `/run/<run id>`, or `/<task>`."""


def _name(*parts: str) -> str:
    """The name with these parts. A long name is replaced by its hash: a topic name alone may have 249 characters."""
    name = "/".join(("spark", *parts))
    if len(name) <= NAME_LENGTH_MAX - _TAIL_LENGTH_MAX:
        return name
    return f"spark/{blake2b(name.encode(), digest_size=16).hexdigest()}"


def options_of(identity: WriteIdentity, task: int, note: WriteNote | None) -> dict[str, Any]:
    """The options of the task's producer."""
    named: dict[str, Any] = {"producer_name": identity.producer_name(task), "producer_work_epoch": identity.work_epoch}
    return named if note is None else {**named, "producer_note": note.encode()}
